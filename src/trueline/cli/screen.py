"""What the commands print: pretty in a terminal, plain when piped; all writing goes through it.

All text goes through `trueline.text`: no question, id or file name steers a terminal. Two
things are exact in a pipe: JSON, which escapes such characters itself, and a model's answer.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from textwrap import wrap
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from trueline.errors import OutputError
from trueline.files import reason
from trueline.text import counted, visible, visible_json, visible_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table

_STYLES = {"dim": "2", "prompt": "36"}  # SGR numbers of a terminal
_PLAIN_WIDTH = 100  # columns of text outside a terminal
_SIDE_DIGITS = 4  # of the width or height of a terminal
OnLabel = Callable[[str, int, int], None]  # a label, how much of it is done, and of how much


class ReaderLeftError(Exception):
    """The reader of our output has left, as `head` does; nothing is wrong."""


def show(text: str) -> None:
    """Text and a newline to standard output."""
    write(visible(text) + "\n")


def show_line(text: str) -> None:
    """Text that must stay on one line, such as one with a path in it."""
    write(visible_line(text) + "\n")


def note(text: str) -> None:
    """Text and a newline to standard error; a failure to write it is ignored."""
    text = visible(text)
    try:
        sys.stderr.write(("\n".join(_wrapped(text)) if sys.stderr.isatty() else text) + "\n")
        sys.stderr.flush()
    except OSError:  # nobody reads it, or its disk is full
        discard(sys.stderr)


def _wrapped(text: str) -> Iterator[str]:
    """The lines of a text, broken between words; a line of flags stays whole, to be copied."""
    for line in text.split("\n"):
        indent, width = line[: len(line) - len(line.lstrip())], terminal_width()
        lines = wrap(line, width, break_on_hyphens=False, subsequent_indent=indent)
        yield from [line] if line.startswith("  --") else lines or [""]


def tell(text: str, style: str = "") -> None:
    """Text that is not the answer itself: to a terminal, or else to standard error."""
    if not sys.stdout.isatty():
        note(text)
        return
    for line in _wrapped(visible(text)):
        write((styled(line, style) if style else line) + "\n")


def is_terminal() -> bool:
    return sys.stdout.isatty()


def styled(text: str, style: str) -> str:
    """Text in a style of `_STYLES` if the terminal has colours."""
    if not is_screen(sys.stdout) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def print_json(value: Any) -> None:
    """Anything as JSON that every reader takes: a number that is not finite is null."""
    is_ascii = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    write(visible_json(json.dumps(_finite(value), indent=1, ensure_ascii=is_ascii)) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in a terminal, tab-separated lines elsewhere."""
    lines = [[visible_line(cell) for cell in row] for row in [head, *rows]]
    if not sys.stdout.isatty():
        write("".join("\t".join(line) + "\n" for line in lines))
        return
    from rich.text import Text

    table = _table()
    for index, name in enumerate(lines[0]):
        table.add_column(Text(name), overflow="fold", no_wrap=index == 0)
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    _console().print(table)


def print_stacked(head: Sequence[str], rows: Sequence[Sequence[Sequence[str]]]) -> None:
    """A table in a terminal whose numbers have smaller lines below them."""
    from rich.text import Text

    table = _table()
    for index, name in enumerate(head):
        justify: Any = "right" if index else "left"
        table.add_column(Text(visible_line(name)), justify=justify, no_wrap=True)
    for row in rows:
        cells = [
            Text(visible_line(first)).append(
                "".join(f"\n{visible_line(line)}" for line in below), style="dim"
            )
            for first, *below in row
        ]
        table.add_row(*cells)
    _console().print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """One fact a line."""
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key.replace('_', ' ')} {one}" for key, one in value.items())
        shown = f"{value:,}" if type(value) is int else visible_line(str(value))
        write(f"{visible_line(name).replace('_', ' '):<{width}}{shown}\n")


def read_line(prompt: str) -> str:
    """The next line of standard input; a terminal sees the prompt."""
    if not sys.stdin.isatty():
        return input("")
    text = styled(visible_line(prompt), "prompt")
    return input(re.sub("(\x1b\\[[0-9]*m)", "\x01\\1\x02", text))  # no width, to readline


def read_lines() -> dict[int, str]:
    """The lines of standard input that are not blank, by their number."""
    return {number: line.strip() for number, line in enumerate(sys.stdin, 1) if line.strip()}


def is_screen(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can rewrite a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    return shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns


def text_width() -> int:
    """The columns of the terminal, up to what reads well."""
    return min(terminal_width(), _PLAIN_WIDTH)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False)


def _table(**options: Any) -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="bold", **options)


def write(text: str) -> None:
    """Text to standard output as it is; a failure is one error."""
    with _output():
        sys.stdout.write(text)


def flush() -> None:
    """Send what was printed; a failure is one error."""
    with _output():
        sys.stdout.flush()


@contextmanager
def _output() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderLeftError from error
    except OSError as error:
        discard(sys.stdout)
        message = f"standard output cannot be written: {reason(error)}"
        raise OutputError(message) from error


def discard(stream: TextIO) -> None:
    """Discard the rest of a stream, so that nothing fails when Python closes it."""
    with suppress(OSError, ValueError):  # a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def settle_streams() -> None:
    """Make the standard streams safe to use: none is missing, and any character goes through.

    A closed standard output is refused at once: nobody would see the result.
    """
    is_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the file takes the lowest number, which is the closed
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        with suppress(AttributeError, io.UnsupportedOperation):  # no file; it was read from
            errors = "surrogateescape" if mode == "r" else "backslashreplace"
            getattr(sys, name).reconfigure(errors=errors)
    for name in ("COLUMNS", "LINES"):
        if len(os.environ.get(name, "")) > _SIDE_DIGITS:  # not the size of a terminal
            del os.environ[name]
    if is_closed:
        raise OutputError(
            "standard output is closed; let it go to a terminal, a file or /dev/null"
        )


def one_line(error: OSError) -> str:
    """What the system refused, and where."""
    where = [visible_line(str(error.filename))] if error.filename is not None else []
    return ": ".join([*where, reason(error)])


def holdings(counts: Mapping[str, int]) -> str:
    """How many examples a space has, and RAD's entries if there are some."""
    examples = counted(counts["examples"], "example")
    entries = counts["entries"]
    return f"{examples}, {counted(entries, 'entry')}" if entries else examples


def size(count: int) -> str:
    """Bytes as people read them."""
    from rich.filesize import decimal

    return decimal(count)


@contextmanager
def progress_bars(unit: str, first: str = "") -> Iterator[OnLabel]:
    """Bars on stderr, one a label; `first` is shown until the first of them begins."""
    if not is_screen(sys.stderr):
        yield _progress_lines(unit)
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(unit, markup=False),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    bars: dict[str, TaskID] = {}
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        if first:
            bars[""] = bar.add_task(visible_line(first), total=None)

        def report(label: str, done: int, total: int) -> None:
            if "" in bars:
                bar.remove_task(bars.pop(""))
            if label not in bars:
                bars[label] = bar.add_task(visible_line(label))
            bar.update(bars[label], completed=done, total=total)

        yield report


@contextmanager
def progress_bar(
    label: str, unit: str, first: str = ""
) -> Iterator[Callable[[int, int], None]]:
    with progress_bars(unit, first) as report:
        yield lambda done, total: report(label, done, total)


def _progress_lines(unit: str) -> OnLabel:
    """A line on stderr for each tenth of the work, with the time left."""
    started: dict[str, tuple[float, int]] = {}
    tenths: dict[str, int] = {}

    def report(label: str, done: int, total: int) -> None:
        start, first = started.setdefault(label, (monotonic(), done))
        tenth = 10 * done // max(1, total)
        if tenth > tenths.get(label, -1):
            tenths[label] = tenth
            line = f"{visible_line(label)}: {done:,} of {total:,} {unit}".rstrip()
            left = (total - done) * (monotonic() - start) / max(1, done - first)
            note(f"{line}, about {left:.0f} s left" if done > first and left >= 1 else line)

    return report


_WORDS = re.compile(r"\s*[^\s]+|\s+")  # a word with the spaces before it


class AnswerWriter:
    """Writes an answer as it comes: exactly as it is in a pipe, safe in a terminal.

    A terminal breaks a line at its margin, inside a word; here a word that does not fit goes
    to the next line whole, so a word is shown when it is complete.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._width = terminal_width()
        self._column = 0  # where the next character goes
        self._word = ""  # not shown yet: spaces, then the beginning of a word

    def write(self, text: str) -> None:
        if not self._is_terminal:
            write(text)
        else:
            *done, self._word = _WORDS.findall(self._word + visible(text)) or [""]
            for word in done:
                self._place(word)
        flush()

    def end(self) -> None:
        """Write the rest, and end the line."""
        self._place(self._word)
        self._word, self._column = "", 0
        write("\n")
        flush()

    def _place(self, word: str) -> None:
        from rich.cells import cell_len

        if "\n" in word:
            self._column = 0
        elif self._column and self._column + cell_len(word) > self._width:
            write("\n")
            self._column, word = 0, word.lstrip()
        write(word)
        self._column += cell_len(word.rpartition("\n")[2])


_MARKS = {"right": "green", "wrong": "bold red", "not judged": "dim"}


class ShownAnswer(NamedTuple):
    """The answer of a method."""

    name: str
    mark: str  # `right`, `wrong`, `not judged` or empty
    text: str
    notes: Sequence[str]  # its sources, and what moved its tokens


def print_answers(question: str, answers: Sequence[ShownAnswer]) -> None:
    """A question, the answer of each method, and notes below; wrapped in a terminal."""
    is_marked = any(one.mark for one in answers)
    cells = [(one.name, *[one.mark] * is_marked, " ".join(one.text.split())) for one in answers]
    rows = [[visible_line(cell) for cell in row] for row in cells]
    notes = [[visible_line(note) for note in one.notes] for one in answers]
    if not sys.stdout.isatty():
        lines = [visible_line(question)]
        for row, below in zip(rows, notes, strict=True):
            lines += ["  " + "\t".join(row), *(f"    {note}" for note in below)]
        write("\n".join(lines) + "\n\n")
        return
    from rich.padding import Padding
    from rich.text import Text

    table = _table(show_header=False, padding=(0, 2, 0, 0))
    for style in ["cyan", *[""] * is_marked]:
        table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for (name, *marks, text), below in zip(rows, notes, strict=True):
        styles = [Text(mark, style=_MARKS.get(mark, "")) for mark in marks]
        table.add_row(Text(name), *styles, Text(text))
        for note in below:
            table.add_row(*[""] * (1 + is_marked), Text(note.strip(), style="dim"))
    screen = _console()
    screen.print(Text(visible_line(question), style="bold"))
    screen.print(Padding(table, (0, 0, 0, 2)))
    screen.print()
