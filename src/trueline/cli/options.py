"""Options that several commands share, and how the texts of settings are read."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.screen import note, progress_bar
from trueline.engines import DEFAULT_MODEL, ENGINES
from trueline.errors import ColumnError, ExampleError, SettingError
from trueline.methods import DEFAULT, names_in_words
from trueline.settings import read_settings
from trueline.text import has_half_character, shown

if TYPE_CHECKING:
    from trueline.cluster import Cluster
    from trueline.session import Session
    from trueline.types import Example


_LONGEST_HELP = 500  # characters of a command's first sentence


class FlagEnvvarOption(click.Option):
    """An option whose variable is spelled like its flag, whatever its parameter is called."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """TRUELINE_<COMMAND>_<FLAG>, if it is set."""
        flag = self.opts[0].lstrip("-").replace("-", "_").upper()
        return os.environ.get(f"{ctx.auto_envvar_prefix}_{flag}") or None


class WrappingGroup(click.Group):
    """A group whose help cuts no line off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; what is too long for a line is wrapped, and not cut."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, self.commands[name].get_short_help_str(_LONGEST_HELP))
                    for name in sorted(self.commands)
                ]
            )


class _PathType(click.Path):
    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not os.fspath(value):  # for pathlib it is the folder we are in
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
    """Refuse what is no question, as the library does, before anything is opened."""
    from trueline.prompts import check_question

    many = isinstance(value, tuple)
    if value is None:
        return value
    for number, question in enumerate(
        value if many else (value,) if value is not None else (), 1
    ):
        check_question(question, f"question {number}" if many else "the question")
    return value


def _all(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


json_option = click.option(
    "--json", "as_json", cls=FlagEnvvarOption, is_flag=True, help="Print JSON instead of text."
)
engine_option = click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="transformers",
    show_default=True,
    envvar="TRUELINE_ENGINE",
    help="What runs the model; llama.cpp reads .gguf files, and aliases that are one.",
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
    click.option("--device", help="cpu, cuda, mps; the best there is if left out."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model."),
)
model_options = _all(
    click.option(
        "--model",
        help="What --context reads the answers with: alias, hub id, folder or .gguf file; "
        f"{DEFAULT_MODEL} if left out.",
    ),
    *_WEIGHTS,
)
cluster_options = _all(
    click.option(
        "--on",
        metavar="CLUSTER",
        help="Spread the passes over workers: `ray` for some on this machine, or HOST:PORT of "
        "a Ray cluster.",
    ),
    click.option("--workers", type=int, help="How many of them; all there is room for."),
)


def read_cluster(on: str | None, workers: int | None, device: str | None) -> Cluster | None:
    """The cluster that a command names, if it names one; nothing is connected to yet."""
    from trueline.cluster import Cluster

    if on is None and workers is not None:
        raise SettingError("--workers is about a cluster, and none is named; add --on ray")
    gpus = 1 if device is not None and device.startswith("cuda") else 0
    return None if on is None else Cluster(address=on, workers=workers, gpus=gpus)


def method_option(help: str = "") -> Callable[[Any], Any]:
    """--method, with the methods there are in its help."""
    return click.option(
        "--method",
        default=DEFAULT,
        show_default=True,
        help=help or f"{names_in_words()}.",
    )


@dataclass(frozen=True, slots=True)
class Asking:
    """What every command that answers is told: the space, the model, the settings."""

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
    max_new_tokens: int

    @property
    def settings(self) -> dict[str, object]:
        """The settings that --set and the options of a setting's name give, by name."""
        given = {
            "strength": self.strength,
            "threshold": self.threshold,
            "only_covered": self.only_covered or None,
        }
        named = {name: value for name, value in given.items() if value is not None}
        return {**read_settings(self.sets), **named}

    def open(self, names: Sequence[str]) -> Session:
        """The model, the space and the methods of these names."""
        from trueline.session import check_parts
        from trueline.types import Sampling

        Sampling(max_new_tokens=self.max_new_tokens)  # refused before anything is opened
        if not names:
            raise SettingError(f"name a method: {names_in_words()}")
        model = check_parts(names, space=self.space, model=self.model, embedder=self.embedder)
        settings, what = (
            self.settings,
            model if self.space is None else f"{model} and {self.space}",
        )
        with progress_bar("building the space of the facts", "", f"opening {what}") as progress:
            from trueline.session import open_session  # takes a while: behind the line above

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
                progress=progress,
            )
        if self.space is None:
            count = 0 if session.space is None else len(session.space)
            facts = f"the {count} facts that come with trueline are" if count else "none is"
            note(f"no --space is given; {facts} used")
        return session


_ASKING = _all(
    click.option(
        "--space",
        type=PATH,
        help="The grounding space; the shipped facts if left out.",
    ),
    click.option("--model", help="The model, if not the one the space names."),
    click.option("--embedder", help="The embedder, if not the one the space names."),
    *_WEIGHTS,
    click.option(
        "--strength", type=float, help="From 0, the plain model, to 1, the verified words."
    ),
    click.option(
        "--threshold",
        type=float,
        help="An example speaks above this probability of answering the question.",
    ),
    click.option(
        "--only-covered", is_flag=True, help="Say so where no example answers, and no more."
    ),
    click.option(
        "--set",
        "sets",
        cls=FlagEnvvarOption,
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting of a method, such as margin=3, or METHOD.k=5 for one of several.",
    ),
    click.option("--max-new-tokens", type=int, default=64, show_default=True),
)


def asking_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `Asking`, handed to the command as one `asking`."""
    names = [field.name for field in fields(Asking)]

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        command(asking=Asking(**{name: given.pop(name) for name in names}), **given)

    decorated: Callable[..., None] = _ASKING(gathered)
    return decorated


column_option = click.option(
    "--column",
    "columns",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Which column holds a field: question, answers, wrong_answers, id, source.",
)
_OPTIONS = (
    column_option,
    click.option("--separator", help="Split an answers cell at this text."),
    click.option("--split", default="train", show_default=True, help="Of a hub dataset."),
    click.option("--config", help="Of a hub dataset."),
    click.option("--limit", type=int, help="Take the first N examples only."),
)
_NAMES = ("columns", "separator", "split", "config", "limit")


def example_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of reading; the command gets `read`, a function from EXAMPLES to examples."""

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        options = {name: given.pop(name) for name in _NAMES}
        command(read=functools.partial(_read, options), **given)

    decorated: Callable[..., None] = gathered
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _read(options: dict[str, Any], source: str) -> list[Example]:
    from trueline.examples import read_examples

    with columns_as_flags():
        return read_examples(source, **{**options, "columns": read_columns(options["columns"])})


def read_columns(texts: Sequence[str]) -> dict[str, str] | None:
    """The columns of --column by the field they hold; None where none is given."""
    return dict(map(_pair, texts)) or None


@contextmanager
def columns_as_flags() -> Iterator[None]:
    """Let an error about columns say what to write on the command line."""
    try:
        yield
    except ColumnError as error:
        flags = " ".join(f"--column {f}={quote(name)}" for f, name in error.say.items())
        raise ExampleError(f"{error.problem}; say which hold them:\n  {flags}") from error


def _pair(text: str) -> tuple[str, str]:
    field, sign, column = text.partition("=")
    if not sign:
        raise SettingError(
            f"--column takes FIELD=COLUMN, such as question=Question; got {text!r}"
        )
    return field, column
