"""What the commands print: pretty in a terminal, plain when piped; all writing goes through it.

All text goes through `trueline.text`: no question, id or file name steers a terminal. Two
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from textwrap import wrap
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from trueline.errors import OutputError
from trueline.files import reason
from trueline.text import counted, visible, visible_json, visible_line

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


_MARKS = {"right": "green", "wrong": "bold red", "not judged": "dim"}
_WORDS = re.compile(r"\s*[^\s]+|\s+")  # a word with the blanks before it


class AnswerWriter:
    """Writes an answer as it comes: exactly as it is in a pipe, safe in a terminal.

    A terminal breaks a line wherever its margin is; here a word that does not fit goes to the
    next line whole, so a word is shown when it is complete.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._width = terminal_width()
        self._column = 0  # where the next character goes
        self._word = ""  # what is not shown yet: blanks, then the beginning of a word

    def write(self, text: str) -> None:
        """Write a part of the answer."""
        if not self._is_terminal:
            write(text)
        else:
            *done, self._word = _WORDS.findall(self._word + visible(text)) or [""]
            for word in done:
                self._place(word)
        flush()

    def end(self) -> None:
        """Write what is left, and end the line."""
        self._place(self._word)
        self._word, self._column = "", 0
        write("\n")
        flush()

    def _place(self, word: str) -> None:
        from trueline.explain.text import columns

        if "\n" in word:
            self._column = 0
        elif self._column and self._column + columns(word) > self._width:
            write("\n")
            self._column, word = 0, word.lstrip()
        write(word)
        self._column += columns(word.rpartition("\n")[2])


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
        write("\n".join(lines) + "\n\n")
        return
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    screen = console()
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
