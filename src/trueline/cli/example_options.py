"""The options that say how examples are read from a file or dataset, and the reading itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import FlagEnvvarOption
from trueline.errors import ColumnError, ExampleError, SettingError

if TYPE_CHECKING:
    from trueline.records import Example

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
