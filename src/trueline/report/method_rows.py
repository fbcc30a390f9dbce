"""Cells -> the rows of each table: seeds and tasks of one method together, with a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trueline.evaluation.measures import Average
from trueline.evaluation.outcomes import CellResults
from trueline.evaluation.plan import Mode

_TABLE = ("model", "fingerprint", "dtype", "benchmark")
_VARIED = ("ground", "ground_from", "test", "fidelity")  # what may differ besides the label
_SPACE = ("context", "embedder")  # the same, where a method has more than one of them
_ANSWERED = ("temperature", "max_new_tokens", "stop")  # the same, where answers are generated


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the samples of one task in a row, over its seeds."""

    wanted: int  # samples in all
    answered: int
    failed: int
    skipped: int  # samples of the benchmark that the task has no use for
    cut_off: int  # answers that reached the limit of new tokens

    @property
    def left(self) -> int:
        """Samples the run has not come to yet."""
        return self.wanted - self.answered - self.failed


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method with its settings: the cells that differ only in seed or task."""

    label: str
    cells: tuple[CellResults, ...]
    values: dict[str, Average] = field(default_factory=dict)  # by column id

    @property
    def first(self) -> CellResults:
        """The cell that speaks for the others: one with answers, if there is any."""
        generated = (cell for cell in self.cells if cell.head.task == "generate")
        return next(generated, self.cells[0])

    @property
    def method(self) -> str:
        """The name of its method."""
        return self.first.head.method

    @property
    def control(self) -> str:
        """What was taken out of it; empty: it is the method itself."""
        return self.first.head.control or ""

    @property
    def is_plain(self) -> bool:
        """Whether it is the model as it is, which the other rows are compared with."""
        return self.first.head.is_plain

    @property
    def has_default_settings(self) -> bool:
        """Whether nothing was set for its method."""
        return not self.first.head.changed

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The different seeds, in the order they were run."""
        return tuple(dict.fromkeys(cell.head.seed for cell in self.cells))

    @property
    def counts(self) -> dict[Mode, Counts]:
        """What became of its samples, by task."""
        tasks = dict.fromkeys(cell.head.task for cell in self.cells)
        return {task: _count([x for x in self.cells if x.head.task == task]) for task in tasks}

    @property
    def is_whole(self) -> bool:
        """Whether the run has come to all its samples; before that nothing of it is best."""
        return not any(counts.left for counts in self.counts.values())


def rows_by_table(cells: Sequence[CellResults]) -> list[list[MethodRow]]:
    """The rows of each model and benchmark, plain first, then in the order they were run."""
    tables: dict[str, list[CellResults]] = {}
    for cell in cells:
        tables.setdefault(_key(cell, _TABLE), []).append(cell)
    return [_rows(group) for group in tables.values()]


def baseline(row: MethodRow, rows: Sequence[MethodRow]) -> MethodRow | None:
    """The plain row most like a row in everything else; None for a plain row itself."""
    if row.is_plain:
        return None

    def likeness(other: MethodRow) -> int:
        names = _VARIED + _ANSWERED
        return sum(_key(other.first, (n,)) == _key(row.first, (n,)) for n in names)

    return max((other for other in rows if other.is_plain), key=likeness, default=None)


def swept_settings(cell: CellResults) -> dict[str, Any]:
    """What can be swept: the settings of the method, and how its space was built."""
    head = cell.head
    build = {} if head.space is None else head.space.build
    found = {**build, **{name: getattr(head, name) for name in (*_SPACE, *_VARIED)}}
    return {**{name: x for name, x in found.items() if x is not None}, **head.settings}


def _count(cells: Sequence[CellResults]) -> Counts:
    answered = sum(len(cell.answers) + len(cell.choices) for cell in cells)
    failed = sum(len(cell.failed) for cell in cells)
    wanted = sum(cell.head.samples for cell in cells)
    skipped = sum(max(0, cell.head.test - cell.head.samples) for cell in cells)
    cut = sum(cell.cut_off for cell in cells)
    return Counts(max(wanted, answered + failed), answered, failed, skipped, cut)


def _rows(cells: Sequence[CellResults]) -> list[MethodRow]:
    groups: dict[str, dict[str, list[CellResults]]] = {}
    for cell in cells:
        is_choice = cell.head.task == "choose"  # how answers are generated is nothing to it
        inner = "" if is_choice else _key(cell, _ANSWERED)
        kind = _key(cell, ("control", "method", "changed", *_VARIED, *_SPACE))
        group = groups.setdefault(kind, {})
        group.setdefault(inner, []).append(cell)
    together = [part for group in groups.values() for part in _with_choices(group)]
    firsts = [part[0] for part in together]
    names = _differing(firsts, _VARIED + _ANSWERED)
    rows = []
    for part in together:
        alike = [cell for cell in firsts if cell.head.method == part[0].head.method]
        rows.append(MethodRow(_label(part[0], _differing(alike, _SPACE) + names), tuple(part)))
    return sorted(rows, key=lambda row: not row.is_plain)


def _differing(cells: Sequence[CellResults], names: Sequence[str]) -> list[str]:
    return [name for name in names if len({_key(cell, (name,)) for cell in cells}) > 1]


def _with_choices(group: dict[str, list[CellResults]]) -> list[list[CellResults]]:
    """The choices of a method go with its first way of answering."""
    choices = group.pop("", [])
    parts = list(group.values())
    return [parts[0] + choices, *parts[1:]] if parts else [choices]


def _label(cell: CellResults, names: Sequence[str]) -> str:
    head, words = cell.head, [cell.head.label]
    for name in names:
        value = getattr(head, name)
        if name == "stop" and head.stop is not None:
            value = ",".join(head.stop.strings) or "none"
        words += [] if value is None else [f"{name}={value}"]
    told = " ".join(words)
    return told if head.control is None else f"{told}, control: {head.control}"


def _key(cell: CellResults, names: Sequence[str]) -> str:
    return repr([getattr(cell.head, name) for name in names])
