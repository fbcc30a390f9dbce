"""What the commands print: pretty in a terminal, plain when piped; all writing goes through it.

All text goes through `trueline.visible`: no question, id or file name steers a terminal. Two
things stay as they are in a pipe: JSON, which spells such signs in its own way, and the answer
of a model, which is what was asked for.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TextIO

from trueline.errors import OutputError
from trueline.files import reason
from trueline.visible import counted, visible, visible_json, visible_line

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"dim": "2", "prompt": "36"}  # SGR numbers of a terminal
_PLAIN_WIDTH = 100  # columns of text that no terminal shows
_SIDE_DIGITS = 4  # of the width or height of a terminal


def show(text: str) -> None:
    """Text and a newline to standard output."""
    write(visible(text) + "\n")


def show_line(text: str) -> None:
    """Text that must stay on one line, such as one with a path in it."""
    write(visible_line(text) + "\n")


def note(text: str) -> None:
    """Text and a newline to standard error, which is not worth ending a command for."""
    text = visible(text)
    to_stderr(("\n".join(_wrapped(text)) if sys.stderr.isatty() else text) + "\n")


def _wrapped(text: str) -> Iterator[str]:
    """The lines of a text, broken between words where a terminal would break them anywhere.

    A line of flags stays whole, for somebody to copy.
    """
    for line in text.split("\n"):
        if line.startswith("  --"):
            yield line
        else:
            indent = " " * (len(line) - len(line.lstrip()))
            yield from wrap(
                line, terminal_width(), break_on_hyphens=False, subsequent_indent=indent
            ) or [""]


def to_stderr(text: str) -> None:
    """Text to standard error as it is."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # nobody reads it, or its disk is full
        abandon(sys.stderr)


def tell(text: str, style: str = "") -> None:
    """What is not the answer itself: to whoever reads it, and not into a pipe."""
    if not sys.stdout.isatty():
        note(text)
        return
    for line in _wrapped(visible(text)):
        write((styled(line, style) if style else line) + "\n")


def is_terminal() -> bool:
    """Whether a person reads what is printed as it comes."""
    return sys.stdout.isatty()


def styled(text: str, style: str) -> str:
    """Text in a style of `_STYLES` where there is a terminal with colours, else as it is."""
    if not is_screen(sys.stdout) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def print_json(value: Any) -> None:
    """Anything as JSON that every reader takes: a number that is not finite is null."""
    plain = _plain(value)
    text = visible_json(json.dumps(plain, indent=1, ensure_ascii=False))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # JSON has ways of its own to spell a sign out
        text = visible_json(json.dumps(plain, indent=1))
    write(text + "\n")


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
        write("".join("\t".join(line) + "\n" for line in lines))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(lines[0]):
        table.add_column(Text(name), overflow="fold", no_wrap=place == 0)
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    console().print(table)


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
    console().print(table)


def print_facts(facts: dict[str, Any]) -> None:
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


def has_piped_input() -> bool:
    """Whether standard input is a pipe or a file, which has an end."""
    return not sys.stdin.isatty()


def read_lines() -> dict[int, str]:
    """The lines of standard input that say something, by their number."""
    return {number: line.strip() for number, line in enumerate(sys.stdin, 1) if line.strip()}


def is_screen(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can rewrite a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """How many columns there are to write in."""
    return shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns


def text_width() -> int:
    """How wide running text is set: as a terminal is, but not wider than is read well."""
    return min(terminal_width(), _PLAIN_WIDTH)


def console() -> Console:
    """Standard output, where it is a terminal."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False)


def write(text: str) -> None:
    """Text to standard output as it is; what cannot be written is one error."""
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


def holdings(counts: Mapping[str, int]) -> str:
    """How much a space holds; RAD's entries only where there are some."""
    examples = counted(counts["examples"], "example")
    entries = counts["entries"]
    return f"{examples}, {counted(entries, 'entry')}" if entries else examples


def size(count: int) -> str:
    """Bytes as people read them."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
