"""What the commands print: pretty in a terminal, plain when piped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table


def console() -> Console:
    """Standard output; as wide as it needs to be when it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)


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


def print_facts(facts: dict[str, Any]) -> None:
    """One fact a line."""
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        shown = (
            f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        )
        sys.stdout.write(f"{name.replace('_', ' '):<{width}}{shown!s}\n")


@contextmanager
def progress_bar(label: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr that a terminal sees; elsewhere a line now and then."""
    if not sys.stderr.isatty():
        yield _lines(label, unit)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
    )
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(label: str, unit: str) -> Callable[[int, int], None]:
    told = -1

    def tell(done: int, total: int) -> None:
        nonlocal told
        tenth = 10 * done // max(1, total)
        if tenth > told:
            told = tenth
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
