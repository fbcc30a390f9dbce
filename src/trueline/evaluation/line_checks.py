"""Typed lines of results -> what they say against each other, with the line's number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trueline.errors import SettingError
from trueline.evaluation.lines import (
    AnswerLine,
    AnyLine,
    CellLine,
    ChoiceLine,
    DoneLine,
    FailedLine,
    LeaksLine,
    SampleLine,
    VerdictLine,
)
from trueline.visible import shown

_DEEPEST = 4  # lists and tables within a setting
_LARGEST = 2**63  # a whole number of a setting, which is what JSON readers agree on
_BUILT = ("context", "embedder")  # what a report tells of every space
_COUNTED = ("samples", "leaking")  # what it tells of every leak


def check_lines(path: Path, lines: Sequence[AnyLine]) -> None:
    """Refuse the first line that disagrees with itself or with one before it."""
    seen = _Seen()
    for number, line in enumerate(lines, 1):
        if problem := seen.problem(number, line):
            raise SettingError(
                f"{path}:{number} {problem}; mend or remove the line, move the file away, or "
                "name another folder with --out"
            )


@dataclass(slots=True)
class _Seen:
    """What the lines so far have told."""

    heads: dict[str, CellLine] = field(default_factory=dict)
    numbers: dict[object, int] = field(default_factory=dict)  # of the line that told a thing
    asked: dict[object, tuple[str, str]] = field(default_factory=dict)  # by data and index
    answered: set[tuple[str, str]] = field(default_factory=set)  # cell and sample
    counts: Counter[str] = field(default_factory=Counter)  # samples by cell

    def problem(self, number: int, line: AnyLine) -> str:
        """What is wrong with a line, in words; else it is kept in mind."""
        if isinstance(line, LeaksLine):
            return _lacking("counts", line.counts, _COUNTED)
        if isinstance(line, CellLine):
            found = _head_problem(line)
        elif (head := self.heads.get(line.cell)) is None:
            found = f"belongs to the cell {shown(line.cell)}, which no line before it describes"
        elif isinstance(line, VerdictLine):
            found = self._verdict_problem(line)
        elif isinstance(line, DoneLine):
            found = self._done_problem(line, head)
        else:
            found = self._sample_problem(line, head)
        return found or self._twice(number, line)

    def _twice(self, number: int, line: AnyLine) -> str:
        for key in _keys(line):
            first = self.numbers.setdefault(key, number)
            if first != number:
                return f"says again what line {first} says"
        if isinstance(line, CellLine):
            self.heads[line.cell] = line
        elif isinstance(line, SampleLine):
            self.counts[line.cell] += 1
        if isinstance(line, AnswerLine):
            self.answered.add((line.cell, line.sample))
        return ""

    def _verdict_problem(self, line: VerdictLine) -> str:
        if (line.cell, line.sample) in self.answered:
            return ""
        return f"judges {shown(line.sample)}, to which its cell has no answer before it"

    def _done_problem(self, line: DoneLine, head: CellLine) -> str:
        count = self.counts[line.cell]
        if count == head.samples:
            return ""
        return f"ends a cell of {head.samples} samples, of which {count} are there"

    def _sample_problem(self, line: SampleLine, head: CellLine) -> str:
        unfit = ChoiceLine if head.task == "generate" else AnswerLine
        if isinstance(line, unfit):
            return f"is of another kind than its cell, whose task is {head.task}"
        if line.index >= head.test:
            return f"has the index {line.index} in a benchmark of {head.test} samples"
        if self.counts[line.cell] == head.samples:
            return f"is more than the {head.samples} samples of its cell"
        question = line.question if isinstance(line, AnswerLine) else ""
        name, text = self.asked.get((head.data_hash, line.index), (line.sample, question))
        if name != line.sample or (question and text and question != text):
            return f"has another sample than other cells at the index {line.index}"
        self.asked[head.data_hash, line.index] = (name, text or question)
        if isinstance(line, AnswerLine) and not _is_aligned(line):
            return "has hits, flipped and entropy of different lengths"
        return ""


def _keys(line: AnyLine) -> list[object]:
    """What a line tells, which no other line may say again."""
    if isinstance(line, AnswerLine | ChoiceLine | FailedLine):
        return [("sample", line.cell, line.sample), ("index", line.cell, line.index)]
    if isinstance(line, VerdictLine):
        return [(line.cell, line.sample, line.judge, line.about)]
    return [] if isinstance(line, LeaksLine) else [(type(line), line.cell)]


def _head_problem(head: CellLine) -> str:
    tables = {"settings": head.settings, "defaults": head.defaults, "machine": head.machine}
    tables |= {"fidelity": head.fidelity}
    if (space := head.space) is not None:
        tables |= {"build": space.build, "default_build": space.default_build}
        tables |= {"built": space.built}
        if problem := _lacking("built", space.built, _BUILT):
            return problem
    for name, table in tables.items():
        if not _is_plain(table, _DEEPEST):
            return f"has {name} that are no plain values"
    if head.samples > head.test:
        return f"has {head.samples} samples of a benchmark of {head.test}"
    return ""


def _is_plain(value: object, depth: int) -> bool:
    """Whether a value is a text, a number of 64 bits or less, or lists of these, not deep."""
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_plain(item, depth - 1) for item in inner)
    return not isinstance(value, int) or -_LARGEST <= value < _LARGEST


def _lacking(name: str, table: Mapping[str, object], keys: Sequence[str]) -> str:
    missing = [key for key in keys if key not in table]
    return f"lacks {', '.join(missing)} in its {name}" if missing else ""


def _is_aligned(line: AnswerLine) -> bool:
    return len(line.hits) == len(line.flipped) == len(line.entropy)
