"""Answers on a screen: one as it is written, or several side by side."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

from trueline.cli.screen import console, flush, terminal_width, write
from trueline.visible import visible, visible_line

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
