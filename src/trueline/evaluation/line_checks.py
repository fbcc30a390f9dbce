"""Refuses results with a line that is there twice, or that belongs to nothing before it."""

from __future__ import annotations

from collections.abc import Sequence
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
    VerdictLine,
)
from trueline.visible import shown


def check_lines(path: Path, lines: Sequence[AnyLine]) -> None:
    """Refuse the first line that repeats an earlier one, or belongs to none."""
    seen: dict[object, int] = {}  # the number of the line with this key
    for number, line in enumerate(lines, 1):
        problem = _orphan(line, seen)
        for key in _keys(line):
            if (first := seen.setdefault(key, number)) != number and not problem:
                problem = f"says again what line {first} says"
        if problem:
            raise SettingError(
                f"{path}:{number} {problem}; mend or remove the line, move the file away, or "
                "name another folder with --out"
            )


def _orphan(line: AnyLine, seen: dict[object, int]) -> str:
    """What a line lacks that must stand before it, in words."""
    if isinstance(line, CellLine | LeaksLine):
        return ""
    if (CellLine, line.cell) not in seen:
        return f"belongs to the cell {shown(line.cell)}, which no line before it describes"
    task = {AnswerLine: "generate", ChoiceLine: "choose"}.get(type(line))
    if task and (CellLine, line.cell, task) not in seen:
        return f"belongs to a cell with another task than {task}"
    if isinstance(line, VerdictLine) and (AnswerLine, line.cell, line.sample) not in seen:
        return f"judges {shown(line.sample)}, to which its cell has no answer before it"
    return ""


def _keys(line: AnyLine) -> list[object]:
    """What no other line may have."""
    if isinstance(line, LeaksLine):
        return []
    if isinstance(line, VerdictLine):
        return [(VerdictLine, line.cell, line.sample, line.judge, line.about)]
    if isinstance(line, AnswerLine | ChoiceLine | FailedLine):
        sample = ("sample", line.cell, line.sample)
        own = [(AnswerLine, line.cell, line.sample)] if isinstance(line, AnswerLine) else []
        return [sample, ("index", line.cell, line.index), *own]
    if isinstance(line, CellLine):
        return [(CellLine, line.cell), (CellLine, line.cell, line.task)]
    return [(DoneLine, line.cell)]
