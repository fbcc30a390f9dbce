"""The options that say how examples are read from a file or dataset, and the reading itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import FlagEnvvarOption
from trueline.errors import SettingError

if TYPE_CHECKING:
    from trueline.records import Example

_OPTIONS = (
    click.option(
        "--column",
        "columns",
        cls=FlagEnvvarOption,
        multiple=True,
        metavar="FIELD=COLUMN",
        help="Which column holds a field: question, answers, wrong_answers, id, source.",
    ),
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

    columns = dict(_pair(column) for column in options["columns"]) or None
    return read_examples(source, **{**options, "columns": columns})


def _pair(text: str) -> tuple[str, str]:
    field, sign, column = text.partition("=")
    if not sign:
        raise SettingError(
            f"--column takes FIELD=COLUMN, such as question=Question; got {text!r}"
        )
    return field, column
