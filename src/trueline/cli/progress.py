"""How far long work is, on standard error: a clock while something opens, then bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from time import monotonic

from trueline.cli.screen import is_screen, note, terminal_width, to_stderr
from trueline.visible import visible_line


@contextmanager
def waiting(text: str) -> Iterator[Callable[[], None]]:
    """Tell a terminal at once what takes a while, and for how long, until the wait is over."""
    if not is_screen(sys.stderr):  # a script waits for an answer or one error, and for no more
        yield lambda: None
        return
    text, begun, is_over = visible_line(text), monotonic(), Event()

    def tick() -> None:
        while not is_over.is_set():
            line = f"{text} ... {monotonic() - begun:.0f} s"[: terminal_width() - 1]
            to_stderr(f"\x1b[K{line}\r")  # what comes next begins where it began
            is_over.wait(1)

    clock = Thread(target=tick, daemon=True)
    clock.start()

    def end() -> None:
        if not is_over.is_set():
            is_over.set()
            clock.join()
            to_stderr("\x1b[K")

    try:
        yield end
    finally:
        end()


@contextmanager
def progress_bars(unit: str, first: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Bars on stderr, one a label; `first` says what takes a while before there is any."""
    with ExitStack() as stack:
        end_wait = stack.enter_context(waiting(first)) if first else lambda: None
        bars: list[Callable[[str, int, int], None]] = []

        def tell(label: str, done: int, total: int) -> None:
            if not bars:
                end_wait()
                bars.append(stack.enter_context(_bars(unit)))
            bars[0](label, done, total)

        yield tell


@contextmanager
def _bars(unit: str) -> Iterator[Callable[[str, int, int], None]]:
    """Bars that a terminal sees; elsewhere a line now and then."""
    if not is_screen(sys.stderr):
        yield _lines(unit)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    label_column = TextColumn("{task.description}", markup=False)
    bars: dict[str, TaskID] = {}
    with Progress(
        label_column,
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:

        def tell(label: str, done: int, total: int) -> None:
            if label not in bars:
                bars[label] = bar.add_task(visible_line(label))
            bar.update(bars[label], completed=done, total=total)

        yield tell


@contextmanager
def progress_bar(
    label: str, unit: str, first: str = ""
) -> Iterator[Callable[[int, int], None]]:
    """One bar."""
    with progress_bars(unit, first) as tell:
        yield lambda done, total: tell(label, done, total)


def _lines(unit: str) -> Callable[[str, int, int], None]:
    told: dict[str, int] = {}

    def tell(label: str, done: int, total: int) -> None:
        tenth = 10 * done // max(1, total)
        if tenth > told.get(label, -1):
            told[label] = tenth
            note(f"{visible_line(label)}: {done:,} of {total:,} {unit}")

    return tell
