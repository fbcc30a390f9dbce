"""What the commands print: pretty in a terminal, plain when piped; nothing else in cli/ writes.

All text goes through `trueline.visible`: no question, id or file name steers a terminal. Two
things stay as they are in a pipe: JSON, which spells such signs in its own way, and the answer
of a model, which is what was asked for.
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from trueline.errors import OutputError
from trueline.files import reason
from trueline.visible import visible, visible_json, visible_line

if TYPE_CHECKING:
    from rich.console import Console

_MARKS = {"right": "green", "wrong": "bold red", "not judged": "dim"}
_PLAIN_WIDTH = 100  # columns of text that no terminal shows
_SIDE_DIGITS = 4  # of the width or height of a terminal


def show(text: str) -> None:
    """Text and a newline to standard output."""
    _write(visible(text) + "\n")


def show_line(text: str) -> None:
    """Text that must stay on one line, such as one with a path in it."""
    _write(visible_line(text) + "\n")


def note(text: str) -> None:
    """Text and a newline to standard error, which is not worth ending a command for."""
    to_stderr(visible(text) + "\n")


def to_stderr(text: str) -> None:
    """Text to standard error as it is."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # nobody reads it, or its disk is full
        abandon(sys.stderr)


def tell(text: str) -> None:
    """What is not the answer itself: to whoever reads it, and not into a pipe."""
    (show if sys.stdout.isatty() else note)(text)


def is_terminal() -> bool:
    """Whether a person reads what is printed as it comes."""
    return sys.stdout.isatty()


def show_answer(text: str) -> None:
    """A part of an answer: exactly as it is in a pipe, safe in a terminal."""
    _write(visible(text) if sys.stdout.isatty() else text)
    flush()


def print_json(value: Any) -> None:
    """Anything as JSON that every reader takes: a number that is not finite is null."""
    plain = _plain(value)
    text = visible_json(json.dumps(plain, indent=1, ensure_ascii=False))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # JSON has ways of its own to spell a sign out
        text = visible_json(json.dumps(plain, indent=1))
    _write(text + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in a terminal, tab-separated lines elsewhere."""
    lines = [[visible_line(cell) for cell in row] for row in [head, *rows]]
    if not sys.stdout.isatty():
        _write("".join("\t".join(line) + "\n" for line in lines))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(lines[0]):
        table.add_column(Text(name), overflow="fold", no_wrap=place == 0)
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    _console().print(table)


def print_stacked(head: Sequence[str], rows: Sequence[Sequence[Sequence[str]]]) -> None:
    """A table in a terminal whose numbers have smaller lines below them."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(head):
        justify: Literal["left", "right"] = "right" if index else "left"
        table.add_column(Text(visible_line(name)), justify=justify, no_wrap=True)
    for row in rows:
        cells = []
        for first, *below in row:
            cell = Text(visible_line(first))
            cell.append("".join(f"\n{visible_line(line)}" for line in below), style="dim")
            cells.append(cell)
        table.add_row(*cells)
    _console().print(table)


class ShownAnswer(NamedTuple):
    """What a method answers."""

    name: str
    mark: str  # `right`, `wrong`, `not judged` or nothing
    text: str
    notes: Sequence[str]  # where it comes from


def print_answers(question: str, answers: Sequence[ShownAnswer]) -> None:
    """A question, what each method answers, and notes below; wrapped and hung in a terminal."""
    question = visible_line(question)
    shown = [
        ShownAnswer(
            visible_line(one.name),
            one.mark,
            visible_line(" ".join(one.text.split())),
            [visible_line(note) for note in one.notes],
        )
        for one in answers
    ]
    is_marked = any(one.mark for one in shown)
    if not sys.stdout.isatty():
        lines = [question]
        for one in shown:
            lines.append("\t".join([f"  {one.name}", *([one.mark] * is_marked), one.text]))
            lines += [f"    {note}" for note in one.notes]
        _write("\n".join(lines) + "\n\n")
        return
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    screen = _console()
    screen.print(Text(question, style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    if is_marked:
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in shown:
        mark = [Text(one.mark, style=_MARKS.get(one.mark, ""))] if is_marked else []
        table.add_row(Text(one.name), *mark, Text(one.text))
        for note in one.notes:
            table.add_row("", *([""] * is_marked), Text(note.strip(), style="dim"))
    screen.print(Padding(table, (0, 0, 0, 2)))
    screen.print()


def print_facts(facts: dict[str, Any]) -> None:
    """One fact a line."""
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key.replace('_', ' ')} {one}" for key, one in value.items())
        shown = f"{value:,}" if type(value) is int else visible_line(str(value))
        _write(f"{visible_line(name).replace('_', ' '):<{width}}{shown}\n")


def read_line(prompt: str) -> str:
    """The next line of standard input; a terminal sees the prompt."""
    return input(prompt if sys.stdin.isatty() else "")


def is_screen(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can rewrite a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """How many columns there are to write in."""
    return shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns


def _console() -> Console:
    """Standard output, where it is a terminal."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritten(error) from error


def flush() -> None:
    """Send what was printed on its way; what cannot be written is one error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritten(error) from error


def _unwritten(error: OSError) -> OutputError:
    abandon(sys.stdout)
    return OutputError(f"standard output cannot be written: {reason(error)}")


def has_reader() -> bool:
    """Whether anybody still reads our output; `head` leaves as soon as it has enough."""
    try:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        return not watch.poll(0)
    except (OSError, ValueError, AttributeError):  # no file, or a system without poll
        return False


def abandon(stream: TextIO) -> None:
    """Let the rest of a stream go nowhere, so that nothing fails when Python closes it."""
    with suppress(OSError, ValueError):  # a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def settle_streams() -> None:
    """Make the standard streams safe to use: none is missing, and any character goes through.

    A closed standard output is refused at once: a command would do its work for nobody.
    """
    is_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the file takes the lowest number, which is the closed
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        _reconfigure(stream, "backslashreplace")
    _reconfigure(sys.stdin, "surrogateescape")
    for name in ("COLUMNS", "LINES"):
        if len(os.environ.get(name, "")) > _SIDE_DIGITS:  # no size of a terminal
            del os.environ[name]
    if is_closed:
        raise OutputError(
            "standard output is closed; let it go to a terminal, a file or /dev/null"
        )


def _reconfigure(stream: object, errors: str) -> None:
    from io import TextIOWrapper, UnsupportedOperation

    with suppress(UnsupportedOperation):  # somebody has read from it before
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


def one_line(error: OSError) -> str:
    """What the system refused, and where."""
    where = [visible_line(str(error.filename))] if error.filename is not None else []
    return ": ".join([*where, reason(error)])


def size(count: int) -> str:
    """Bytes as people read them."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
