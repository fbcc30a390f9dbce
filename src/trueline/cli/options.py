"""Options that several commands share; flags made from the fields of a dataclass."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import click
from msgspec import Meta

from trueline.cli.screen import note, progress_bars
from trueline.engines import ENGINES
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
Decorator = Callable[[Any], Any]


class FlagEnvvarOption(click.Option):
    """An option whose environment variable is spelled like its flag."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        flag = self.opts[0].lstrip("-").replace("-", "_").upper()
        return os.environ.get(f"{ctx.auto_envvar_prefix}_{flag}") or None


PATH = click.Path()


def check_texts(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse an empty text, and one that is not Unicode; paths become a Path.

    It is the callback of every option and argument that has no other.
    """
    is_path = isinstance(param.type, click.Path)
    is_words = not is_path and isinstance(param, click.Argument)  # such as a question
    for text in value if isinstance(value, tuple) else (value,):
        # pathlib takes an empty text for the current folder.
        if text == "" or (is_words and isinstance(text, str) and not text.strip()):
            raise click.BadParameter("it is empty; give a value or leave it out.", ctx, param)
        if isinstance(text, str) and not is_path and has_half_character(text):
            raise click.BadParameter(f"it is not valid UTF-8: {shown(text)}.", ctx, param)
    return Path(value) if is_path and value is not None else value


def several(*options: Decorator, into: str = "") -> Decorator:
    """Several options as one; `into` names the dict in which a command gets their values."""

    def decorate(command: Any) -> Any:
        @functools.wraps(command)
        def gathered(**given: Any) -> None:
            if into:
                given[into] = {name: given.pop(name) for name in names}
            command(**given)

        decorated: Any = gathered
        known = len(getattr(command, "__click_params__", ()))
        for option in reversed(options):
            decorated = option(decorated)
        names = [param.name for param in decorated.__click_params__[known:]]
        return decorated

    return decorate


def choice_option(flag: str, words: str, help: str) -> Decorator:
    """One of some words; the first is the default."""
    choices = words.split()
    return click.option(flag, type=click.Choice(choices), default=choices[0], help=help)


def parts_of(hint: Any) -> list[Any]:
    """A type and all that it consists of."""
    inner = [part for one in get_args(hint) for part in parts_of(one)]
    return [hint, get_origin(hint), *inner]


def flags_of(cls: type, into: str) -> Decorator:
    """A flag for each field of a dataclass whose type has a description."""
    hints, options = get_type_hints(cls, include_extras=True), []
    for field in fields(cls):
        parts = parts_of(hints[field.name])
        texts = [part.description for part in parts if isinstance(part, Meta)]
        option = click.option(
            f"--{field.name.replace('_', '-')}",
            type=next((kind for kind in (int, float, str) if kind in parts), None),
            multiple=tuple in parts,
            default=field.default,
            help=next(filter(None, texts), None),
        )
        options += [option] if any(texts) else []
    return several(*options, into=into)


json_option = click.option(
    "--json", "as_json", cls=FlagEnvvarOption, is_flag=True, help="Print JSON instead of text."
)
engine_option = click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="transformers",
    envvar="TRUELINE_ENGINE",
    help="What runs the model; llama.cpp reads .gguf files, and aliases for one.",
)
dtype_option = choice_option(
    "--dtype", "auto float32 bfloat16 float16", "auto: float32 on a CPU."
)
device_option = click.option("--device", help="cpu, cuda, mps; the best there is if left out.")
trust_option = click.option(
    "--trust-remote-code", is_flag=True, help="Run code that comes with a model."
)
weights_options = several(
    engine_option, dtype_option, device_option, trust_option, into="weights"
)
space_model_option = click.option("--model", help="The model, if not the one the space names.")
embedder_option = click.option(
    "--embedder", help="The embedder, if not the one the space names."
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace another space in that folder."
)
cluster_options = several(
    click.option(
        "--on",
        metavar="CLUSTER",
        help="Spread the passes over workers: `ray` for some on this machine, or HOST:PORT of "
        "a Ray cluster.",
    ),
    click.option("--workers", type=int, help="How many workers; as many as fit if left out."),
)

dry_run_options = several(
    click.option(
        "--dry-run",
        cls=FlagEnvvarOption,
        is_flag=True,
        help="Print what the run would cost, and stop.",
    ),
    click.option(
        "--price",
        metavar="READ,WRITTEN",
        help="For --dry-run: what a judge costs, in dollars for a million tokens.",
    ),
)


def read_price(text: str | None) -> tuple[float, float] | None:
    """Two prices from `2.50,10`; None without any."""
    if text is None:
        return None
    try:
        read, written = map(float, text.split(","))
        if min(read, written) < 0:
            raise ValueError
    except ValueError as error:
        raise SettingError(
            f"--price takes two numbers, for tokens read and written, as in 2.50,10; got {text}"
        ) from error
    return read, written


def read_cluster(on: str | None, workers: int | None, device: str | None) -> Cluster | None:
    """The cluster that a command names, if any; nothing is connected yet."""
    from trueline.cluster import Cluster

    if on is None and workers is not None:
        raise SettingError("--workers needs a cluster; add --on ray")
    gpus = 1 if device is not None and device.startswith("cuda") else 0
    return None if on is None else Cluster(address=on, workers=workers, gpus=gpus)


def method_option(help: str = "") -> Decorator:
    """--method, with the names of the methods in its help."""
    return click.option("--method", default=DEFAULT, help=help or f"{names_in_words()}.")


class AnswerOptions:
    """The values of `answer_options`, which are those of every command that answers."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.sampling: dict[str, Any] = given.pop("sampling")
        self.settings = read_settings(given.pop("set"))  # of the method
        for name in ("strength", "threshold", "only_covered"):
            if (value := given.pop(name)) is not None and value is not False:
                self.settings[name] = value
        self.weights: dict[str, Any] = given.pop("weights")
        self.parts = given  # by name: the space, the model and the embedder
        self.space: Path | None = given["space"]

    def open(self, names: Sequence[str]) -> Session:
        """The model, the space and the methods of these names."""
        from trueline.session import check_parts, needs_entries, open_session

        Sampling(**self.sampling)  # refused before anything is opened
        if not names:
            raise SettingError(f"name a method: {names_in_words()}")
        model = check_parts(names, **self.parts)
        what = model if self.space is None else f"{model} and {self.space}"
        is_for_entries = any(map(needs_entries, names))
        label = ENTRIES if is_for_entries else "building the space of the facts"
        with progress_bars("", f"opening {what}") as progress:
            session = open_session(
                names,
                settings=self.settings,
                builds_entries=True,
                progress=functools.partial(progress, label),
                **self.parts,
                **self.weights,
            )
        if self.space is None:
            count = 0 if session.space is None else len(session.space)
            facts = f"the {count} facts that come with trueline are" if count else "none is"
            note(f"no --space is given; {facts} used")
        return session


answer_options = several(
    click.option(
        "--space", type=PATH, help="The grounding space; the shipped facts if left out."
    ),
    space_model_option,
    embedder_option,
    weights_options,
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
        help="If no example covers the question, answer 'I do not know'.",
    ),
    click.option(
        "--set",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting of a method, such as margin=3, or METHOD.k=5 for one of several.",
    ),
    flags_of(Sampling, into="sampling"),
)
column_option = click.option(
    "--column",
    "columns",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Which column holds a field: question, answers, wrong_answers, id, source.",
)
example_options = several(
    column_option,
    click.option("--separator", help="Split an answers cell at this text."),
    click.option("--split", default="train", help="Of a hub dataset."),
    click.option("--config", help="Of a hub dataset."),
    click.option("--limit", type=int, help="Take the first N examples only."),
    into="reading",
)


def read_with(reading: Mapping[str, Any], source: str) -> list[Example]:
    """The examples of a source, read with the options of `example_options`."""
    from trueline.examples import read_examples

    with columns_as_flags():
        columns = read_columns(reading["columns"])
        return read_examples(source, **{**reading, "columns": columns})


def read_columns(texts: Sequence[str]) -> dict[str, str] | None:
    """The columns of --column by the field they hold; None if there are none."""
    for text in texts:
        if "=" not in text:
            raise SettingError(
                f"--column takes FIELD=COLUMN, such as question=Question; got {shown(text)}"
            )
    return dict(text.split("=", 1) for text in texts) or None


@contextmanager
def columns_as_flags() -> Iterator[None]:
    """Make an error about columns name the flags to write."""
    try:
        yield
    except ColumnError as error:
        flags = " ".join(f"--column {f}={quote(name)}" for f, name in error.guesses.items())
        raise ExampleError(f"{error.problem}; say which hold them:\n  {flags}") from error
