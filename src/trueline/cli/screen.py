"""What the commands print: pretty in a terminal, plain when piped."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table


def console() -> Console:
    """Standard output; as wide as it needs to be when it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)


def print_json(value: Any) -> None:
    """Anything as JSON that every reader takes: a number that is not finite is null."""
    plain = _plain(value)
    text = json.dumps(plain, indent=1, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # JSON has ways of its own to spell a sign out
        text = json.dumps(plain, indent=1)
    sys.stdout.write(text + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in a terminal, tab-separated lines elsewhere."""
    if not sys.stdout.isatty():
        for row in [head, *rows]:
            sys.stdout.write("\t".join(row) + "\n")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(head):
        table.add_column(name, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    console().print(table, markup=False)


def print_answers(question: str, answers: dict[str, str], notes: Sequence[str]) -> None:
    """A question, what each method answers, and notes below; wrapped and hung in a terminal."""
    answers = {name: printable(" ".join(text.split())) for name, text in answers.items()}
    if not sys.stdout.isatty():
        lines = [
            question,
            *(f"  {name}\t{text}" for name, text in answers.items()),
        ]
        sys.stdout.write("\n".join([*lines, *(f"    {note}" for note in notes)]) + "\n\n")
        return
    from rich.padding import Padding
    from rich.text import Text

    screen = console()
    screen.print(Text(question, style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in answers.items():
        table.add_row(name, Text(text))
    screen.print(Padding(table, (0, 0, 0, 2)))
    for note in notes:
        screen.print(Padding(Text(note, style="dim"), (0, 0, 0, 4)))
    screen.print()


def printable(text: str) -> str:
    """Text without what would steer a terminal, if it goes to one; newlines and tabs stay."""
    if not sys.stdout.isatty():
        return text
    return "".join(sign for sign in text if sign in "\n\t" or sign.isprintable())


def print_facts(facts: dict[str, Any]) -> None:
    """One fact a line."""
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        shown = f"{value:,}" if type(value) is int else str(value).replace("\n", "\\n")
        sys.stdout.write(f"{name.replace('_', ' '):<{width}}{shown}\n")


@contextmanager
def progress_bars(unit: str) -> Iterator[Callable[[str, int, int], None]]:
    """Bars on stderr, one a label, that a terminal sees; elsewhere a line now and then."""
    if not sys.stderr.isatty():
        yield _lines(unit)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bars: dict[str, TaskID] = {}
    with Progress(
        *columns,
        TextColumn(unit),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:

        def tell(label: str, done: int, total: int) -> None:
            if label not in bars:
                bars[label] = bar.add_task(label)
            bar.update(bars[label], completed=done, total=total)

        yield tell


@contextmanager
def progress_bar(label: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """One bar."""
    with progress_bars(unit) as tell:
        yield lambda done, total: tell(label, done, total)


def _lines(unit: str) -> Callable[[str, int, int], None]:
    told: dict[str, int] = {}

    def tell(label: str, done: int, total: int) -> None:
        tenth = 10 * done // max(1, total)
        if tenth > told.get(label, -1):
            told[label] = tenth
            sys.stderr.write(f"{label}: {done:,} of {total:,} {unit}\n")

    return tell


def size(count: int) -> str:
    """Bytes as people read them."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
