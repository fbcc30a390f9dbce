"""Options that several commands share; flags made from the fields of a dataclass."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import click
from msgspec import Meta

from trueline.cli.screen import note, progress_bars
from trueline.engines import DEFAULT_MODEL, ENGINES
from trueline.errors import ColumnError, ExampleError, SettingError
from trueline.methods import DEFAULT, names_in_words
from trueline.settings import read_settings
from trueline.text import has_half_character, shown
from trueline.types import Sampling

if TYPE_CHECKING:
    from trueline.cluster import Cluster
    from trueline.session import Session
    from trueline.types import Example

ENTRIES = "building entries, once for this space and model"
_LONGEST_HELP = 500  # characters of a command's first sentence


class FlagEnvvarOption(click.Option):
    """An option whose variable is spelled like its flag, whatever its parameter is called."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """TRUELINE_<COMMAND>_<FLAG>, if it is set."""
        flag = self.opts[0].lstrip("-").replace("-", "_").upper()
        return os.environ.get(f"{ctx.auto_envvar_prefix}_{flag}") or None


class WrappingGroup(click.Group):
    """A group whose list of commands wraps long lines instead of truncating them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, self.commands[name].get_short_help_str(_LONGEST_HELP))
                    for name in sorted(self.commands)
                ]
            )


class _PathType(click.Path):
    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not os.fspath(value):  # which pathlib takes for the current folder
            self.fail("it is empty; name a file or a folder.", param, ctx)
        return super().convert(value, param, ctx)


PATH = _PathType(path_type=Path)


def check_texts(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse an empty text, and one that is not Unicode; set for every option and argument."""
    for text in value if isinstance(value, tuple) else (value,):
        if text == "":
            raise click.BadParameter("it is empty; give a value or leave it out.", ctx, param)
        if isinstance(text, str) and has_half_character(text):
            raise click.BadParameter(f"it is not valid UTF-8: {shown(text)}.", ctx, param)
    return value


def check_questions(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse what the library refuses as a question, before anything is opened."""
    from trueline.prompts import check_question

    if isinstance(value, tuple):
        for number, question in enumerate(value, 1):
            check_question(question, f"question {number}")
    elif value is not None:
        check_question(value)
    return value


Decorator = Callable[[Any], Any]


def _all(*options: Decorator) -> Decorator:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def described(cls: type) -> dict[str, tuple[list[Any], str]]:
    """The fields of a dataclass with a description: the parts of the type, and the text."""
    parts = {name: _parts(x) for name, x in get_type_hints(cls, include_extras=True).items()}
    return {
        name: (own, mark.description)
        for name, own in parts.items()
        for mark in own
        if isinstance(mark, Meta) and mark.description
    }


def _parts(hint: Any) -> list[Any]:
    return [hint, get_origin(hint), *(part for one in get_args(hint) for part in _parts(one))]


def flags_of(cls: type) -> Decorator:
    """A flag for each field of a dataclass that has a description."""
    defaults = {field.name: field.default for field in fields(cls)}
    return _all(
        *(
            click.option(
                f"--{name.replace('_', '-')}",
                type=next(kind for kind in (int, float, str) if kind in parts),
                multiple=tuple in parts,
                default=None if defaults[name] == () else defaults[name],
                show_default=defaults[name] not in (None, ()),
                help=help,
            )
            for name, (parts, help) in described(cls).items()
        )
    )


json_option = click.option(
    "--json", "as_json", cls=FlagEnvvarOption, is_flag=True, help="Print JSON instead of text."
)
engine_option = click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="transformers",
    show_default=True,
    envvar="TRUELINE_ENGINE",
    help="What runs the model; llama.cpp reads .gguf files, and aliases for one.",
)
space_model_option = click.option("--model", help="The model, if not the one the space names.")
embedder_option = click.option(
    "--embedder", help="The embedder, if not the one the space names."
)
device_options = _all(
    click.option("--device", help="cpu, cuda, mps; the best there is if left out."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model."),
)
_WEIGHTS = (
    engine_option,
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        show_default=True,
        help="auto: float32 on a CPU.",
    ),
    device_options,
)
model_options = _all(
    click.option(
        "--model",
        help="What --context reads the answers with: alias, hub id, folder or .gguf file; "
        f"{DEFAULT_MODEL} if left out.",
    ),
    *_WEIGHTS,
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace another space in that folder."
)
cluster_options = _all(
    click.option(
        "--on",
        metavar="CLUSTER",
        help="Spread the passes over workers: `ray` for some on this machine, or HOST:PORT of "
        "a Ray cluster.",
    ),
    click.option("--workers", type=int, help="How many workers; as many as fit if left out."),
)


def read_cluster(on: str | None, workers: int | None, device: str | None) -> Cluster | None:
    """The cluster that a command names, if any; nothing is connected yet."""
    from trueline.cluster import Cluster

    if on is None and workers is not None:
        raise SettingError("--workers needs a cluster; add --on ray")
    gpus = 1 if device is not None and device.startswith("cuda") else 0
    return None if on is None else Cluster(address=on, workers=workers, gpus=gpus)


def method_option(help: str = "") -> Decorator:
    """--method, with the names of the methods in its help."""
    return click.option(
        "--method", default=DEFAULT, show_default=True, help=help or f"{names_in_words()}."
    )


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The options of every command that answers: space, model, settings and sampling."""

    space: Path | None
    model: str | None
    embedder: str | None
    engine: str
    dtype: str
    device: str | None
    trust_remote_code: bool
    strength: float | None
    threshold: float | None
    only_covered: bool
    sets: tuple[str, ...]
    sampling: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, object]:
        """Settings by name, from --set and from the flags named like a setting."""
        given = {
            "strength": self.strength,
            "threshold": self.threshold,
            "only_covered": self.only_covered or None,
        }
        named = {name: value for name, value in given.items() if value is not None}
        return {**read_settings(self.sets), **named}

    def open(self, names: Sequence[str]) -> Session:
        """The model, the space and the methods of these names."""
        from trueline.session import check_parts, needs_entries, open_session

        Sampling(**self.sampling)  # refused before anything is opened
        if not names:
            raise SettingError(f"name a method: {names_in_words()}")
        model = check_parts(names, space=self.space, model=self.model, embedder=self.embedder)
        what = model if self.space is None else f"{model} and {self.space}"
        settings = self.settings
        with progress_bars("", f"opening {what}") as progress:
            has_entries = any(map(needs_entries, names))
            label = ENTRIES if has_entries else "building the space of the facts"
            session = open_session(
                names,
                model=self.model,
                space=self.space,
                embedder=self.embedder,
                settings=settings,
                engine=self.engine,
                dtype=self.dtype,
                device=self.device,
                trust_remote_code=self.trust_remote_code,
                builds_entries=True,
                progress=functools.partial(progress, label),
            )
        if self.space is None:
            count = 0 if session.space is None else len(session.space)
            facts = f"the {count} facts that come with trueline are" if count else "none is"
            note(f"no --space is given; {facts} used")
        return session


_ANSWER_OPTIONS = _all(
    click.option(
        "--space", type=PATH, help="The grounding space; the shipped facts if left out."
    ),
    space_model_option,
    embedder_option,
    *_WEIGHTS,
    click.option(
        "--strength", type=float, help="From 0, the plain model, to 1, the verified words."
    ),
    click.option(
        "--threshold",
        type=float,
        help="An example is in scope above this probability of answering the question.",
    ),
    click.option(
        "--only-covered",
        is_flag=True,
        help="If no example covers the question, only say so.",
    ),
    click.option(
        "--set",
        "sets",
        cls=FlagEnvvarOption,
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting of a method, such as margin=3, or METHOD.k=5 for one of several.",
    ),
    flags_of(Sampling),
)


def answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of AnswerOptions, passed to the command as `options`."""
    own = [field.name for field in fields(AnswerOptions) if field.name != "sampling"]
    sampled = list(described(Sampling))

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        sampling = {name: given.pop(name) for name in sampled}
        options = {name: given.pop(name) for name in own}
        command(options=AnswerOptions(**options, sampling=sampling), **given)

    decorated: Callable[..., None] = _ANSWER_OPTIONS(gathered)
    return decorated


column_option = click.option(
    "--column",
    "columns",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Which column holds a field: question, answers, wrong_answers, id, source.",
)
_EXAMPLE_OPTIONS = _all(
    column_option,
    click.option("--separator", help="Split an answers cell at this text."),
    click.option("--split", default="train", show_default=True, help="Of a hub dataset."),
    click.option("--config", help="Of a hub dataset."),
    click.option("--limit", type=int, help="Take the first N examples only."),
)


def example_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of reading; the command gets `read`, a function from EXAMPLES to examples."""

    def read(source: str, *, columns: Sequence[str], **options: Any) -> list[Example]:
        from trueline.examples import read_examples

        with columns_as_flags():
            return read_examples(source, columns=read_columns(columns), **options)

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        names = ("columns", "separator", "split", "config", "limit")
        options = {name: given.pop(name) for name in names}
        command(read=functools.partial(read, **options), **given)

    decorated: Callable[..., None] = _EXAMPLE_OPTIONS(gathered)
    return decorated


def read_columns(texts: Sequence[str]) -> dict[str, str] | None:
    """The columns of --column by the field they hold; None if there are none."""
    pairs = [text.partition("=") for text in texts]
    for text, (_, sign, _) in zip(texts, pairs, strict=True):
        if not sign:
            raise SettingError(
                f"--column takes FIELD=COLUMN, such as question=Question; got {text!r}"
            )
    return {field: column for field, _, column in pairs} or None


@contextmanager
def columns_as_flags() -> Iterator[None]:
    """Make an error about columns name the flags to write."""
    try:
        yield
    except ColumnError as error:
        flags = " ".join(f"--column {f}={quote(name)}" for f, name in error.say.items())
        raise ExampleError(f"{error.problem}; say which hold them:\n  {flags}") from error
