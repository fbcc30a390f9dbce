"""What the commands print: pretty in a terminal, plain when piped; all writing goes through it.

All text goes through `trueline.text`: no question, id or file name steers a terminal. Two
things are exact in a pipe: JSON, which escapes such characters itself, and a model's answer.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from textwrap import wrap
from time import monotonic
from typing import Any, TextIO

from trueline.errors import OutputError
from trueline.files import reason
from trueline.text import counted, visible, visible_json, visible_line

_STYLES = {"dim": "2", "prompt": "36", "bold": "1"}  # SGR numbers of a terminal
_MARKS = {"right": "green", "wrong": "bold red", "not judged": "dim"}
_WORDS = re.compile(r"\s*[^\s]+|\s+")  # a word with the spaces before it
_PLAIN_WIDTH = 100  # columns of text outside a terminal
Row = Sequence[Sequence[str]]  # of a table: the lines of each cell
OnLabel = Callable[[str, int, int], None]  # a label, how much of it is done, and of how much


class ReaderLeftError(Exception):
    """The reader of our output has left, as `head` does; nothing is wrong."""


def settle_streams() -> None:
    """Make the standard streams safe: none is missing, and any character goes through.

    A closed standard output is refused at once: nobody would see the result.
    """
    is_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        with suppress(AttributeError, io.UnsupportedOperation):  # no file; it was read from
            errors = "surrogateescape" if mode == "r" else "backslashreplace"
            getattr(sys, name).reconfigure(errors=errors)
    if is_closed:
        raise OutputError(
            "standard output is closed; let it go to a terminal, a file or /dev/null"
        )


def write(text: str, *, flush: bool = False) -> None:
    """Text to standard output as it is; a failure is one error."""
    try:
        if text:
            sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
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


def read_line(prompt: str) -> str:
    """The next line of standard input; a terminal sees the prompt."""
    if not sys.stdin.isatty():
        return input("")
    text = styled(visible_line(prompt), "prompt")
    return input(re.sub("(\x1b\\[[0-9]*m)", "\x01\\1\x02", text))  # no width, to readline


def is_terminal() -> bool:
    return sys.stdout.isatty()


def is_screen(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can rewrite a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    return shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns


def text_width() -> int:
    """The columns of the terminal, up to what reads well."""
    return min(terminal_width(), _PLAIN_WIDTH)


def show(text: str) -> None:
    """Text and a newline to standard output."""
    write(visible(text) + "\n")


def show_line(text: str) -> None:
    """Text that must stay on one line, such as one with a path in it."""
    write(visible_line(text) + "\n")


def note(text: str) -> None:
    """Text and a newline to standard error; a failure to write it is ignored."""
    lines = _wrapped(text) if sys.stderr.isatty() else [visible(text)]
    try:
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
    except OSError:  # nobody reads it, or its disk is full
        discard(sys.stderr)


def tell(text: str, style: str = "") -> None:
    """Text that is not the answer itself: to a terminal, or else to standard error."""
    if not sys.stdout.isatty():
        note(text)
        return
    for line in _wrapped(text):
        write(styled(line, style) + "\n")


def _wrapped(text: str) -> Iterator[str]:
    """The lines of a text, broken between words; a line of flags stays whole, to be copied."""
    for line in visible(text).split("\n"):
        indent, width = line[: len(line) - len(line.lstrip())], terminal_width()
        lines = wrap(line, width, break_on_hyphens=False, subsequent_indent=indent)
        yield from [line] if line.startswith("  --") else lines or [""]


def styled(text: str, style: str) -> str:
    """Text in a style of `_STYLES`, if there is one and the terminal has colours."""
    if not (text and style) or not is_screen(sys.stdout) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def one_line(error: OSError) -> str:
    """What the system refused, and where."""
    where = [visible_line(str(error.filename))] if error.filename is not None else []
    return ": ".join([*where, reason(error)])


def holdings(counts: Mapping[str, int]) -> str:
    """How many examples a space has, and RAD's entries if there are some."""
    kinds = {"example": counts["examples"], "entry": counts["entries"] or None}
    return ", ".join(counted(count, noun) for noun, count in kinds.items() if count is not None)


def size(count: int) -> str:
    """Bytes as people read them."""
    from rich.filesize import decimal

    return decimal(count)


def print_json(value: Any) -> None:
    is_ascii = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    write(json_text(value, ensure_ascii=is_ascii))


def json_text(value: Any, *, ensure_ascii: bool = False) -> str:
    """Anything as JSON that every reader takes: a number that is not finite is null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    return visible_json(json.dumps(finite, indent=1, ensure_ascii=ensure_ascii)) + "\n"


def print_facts(facts: Mapping[str, Any]) -> None:
    """One fact a line."""
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key.replace('_', ' ')} {one}" for key, one in value.items())
        text = f"{value:,}" if type(value) is int else str(value)
        show_line(f"{name.replace('_', ' '):<{width}}{text}")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in a terminal, tab-separated lines elsewhere."""
    if is_terminal():
        _print_grid(head, [[(cell,) for cell in row] for row in rows])
    else:
        lines = ["\t".join(map(visible_line, row)) for row in [head, *rows]]
        write("".join(f"{line}\n" for line in lines))


def print_stacked(head: Sequence[str], rows: Sequence[Row]) -> None:
    """A table in a terminal whose numbers have smaller lines below them."""
    _print_grid(head, rows, justify="right", no_wrap=True)


def print_answers(
    question: str, answers: Sequence[tuple[str, str, str, Sequence[str]]]
) -> None:
    """A question and, of each method, its name, a mark or "", its answer, and notes below."""
    rows = [
        [(name,), *([(mark,)] if mark else []), (" ".join(text.split()), *notes)]
        for name, mark, text, notes in answers
    ]
    write(styled(visible_line(question), "bold") + "\n")
    if is_terminal():
        _print_grid((), rows)
    else:
        for cells in rows:
            write("  " + "\t".join(visible_line(first) for first, *_ in cells) + "\n")
            write("".join(f"    {visible_line(note)}\n" for note in cells[-1][1:]))
    write("\n")


def _print_grid(head: Sequence[str], rows: Sequence[Row], **options: Any) -> None:
    """A table for a terminal; the first line of a cell is plain, those below it are dim."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(head))
    first_column = {"style": "cyan", "no_wrap": True}
    for index, name in enumerate(head or [""] * len(rows[0])):
        own = options if index else first_column
        table.add_column(Text(visible_line(name)), overflow="fold", **own)
    for row in rows:
        cells = []
        for first, *below in row:
            small = "".join(f"\n{visible_line(line)}" for line in below)
            cells.append(Text(visible_line(first), _MARKS.get(first, "")).append(small, "dim"))
        table.add_row(*cells)
    Console(highlight=False, emoji=False, markup=False).print(table)


class AnswerWriter:
    """Writes an answer as it comes: exactly as it is in a pipe, safe in a terminal.

    A terminal breaks a line at its margin, inside a word; here a word that does not fit goes
    to the next line whole, so a word is shown when it is complete.
    """

    def __init__(self) -> None:
        self._is_terminal, self._width = sys.stdout.isatty(), terminal_width()
        self._column = 0  # where the next character goes
        self._word = ""  # not shown yet: spaces, then the beginning of a word

    def write(self, text: str) -> None:
        if not self._is_terminal:
            write(text, flush=True)
            return
        *done, self._word = _WORDS.findall(self._word + visible(text)) or [""]
        for word in done:
            self._place(word)

    def end(self) -> None:
        """Write the rest, and end the line."""
        self._place(self._word)
        write("\n", flush=True)

    def _place(self, word: str) -> None:
        from rich.cells import cell_len

        if "\n" in word:
            self._column = 0
        elif self._column and self._column + cell_len(word) > self._width:
            write("\n")
            self._column, word = 0, word.lstrip()
        write(word, flush=True)
        self._column += cell_len(word.rpartition("\n")[2])


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
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bars = {"": bar.add_task(visible_line(first), total=None)} if first else {}

        def report(label: str, done: int, total: int) -> None:
            if "" in bars:
                bar.remove_task(bars.pop(""))
            if label not in bars:
                bars[label] = bar.add_task(visible_line(label))
            bar.update(bars[label], completed=done, total=total)

        yield report


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
