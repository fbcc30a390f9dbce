"""Results -> a table a model and benchmark: means, intervals, differences from plain rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from trueline.lab.findings import can_gain, effect_of
from trueline.lab.measures import (
    Average,
    Column,
    MeasureGroup,
    average,
    columns_of,
    indicative_columns,
)
from trueline.lab.plan import Mode
from trueline.lab.results import CellResults, RunResults
from trueline.lab.statistics import holm
from trueline.text import visible_line

if TYPE_CHECKING:
    from trueline.lab.report.plots import Plot

MARK = "Made by trueline report"  # in every file of a report except its CSV
DASH = "\N{EN DASH}"  # in the place of a number that does not exist
_TABLE = ("model", "fingerprint", "dtype", "benchmark")
_VARIED = ("ground", "ground_from", "test", "fidelity")  # named in a label if rows differ
_SPACE = ("context", "embedder")  # the same, within the rows of one method
_ANSWERED = ("temperature", "max_new_tokens", "stop")  # the same, for generated answers
_FEWEST = 3  # values that make a curve


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of samples of one task in a row, over its seeds."""

    wanted: int  # samples in all
    answered: int
    failed: int
    skipped: int  # samples of the benchmark that the task cannot use
    cut_off: int  # answers that reached the limit of new tokens

    @property
    def left(self) -> int:
        return self.wanted - self.answered - self.failed


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method with its settings: the cells that differ only in seed or task."""

    label: str
    cells: tuple[CellResults, ...]
    values: dict[str, Average] = field(default_factory=dict)  # by column id

    @property
    def first(self) -> CellResults:
        """The first cell with generated answers, or else the first."""
        generated = (cell for cell in self.cells if cell.head.task == "generate")
        return next(generated, self.cells[0])

    @property
    def method(self) -> str:
        return self.first.head.method

    @property
    def control(self) -> str:
        return self.first.head.control or ""

    @property
    def is_plain(self) -> bool:
        return self.first.head.is_plain

    @property
    def counts(self) -> dict[Mode, Counts]:
        tasks = dict.fromkeys(cell.head.task for cell in self.cells)
        return {task: _count([x for x in self.cells if x.head.task == task]) for task in tasks}


def _count(cells: Sequence[CellResults]) -> Counts:
    answered = sum(len(cell.answers) + len(cell.choices) for cell in cells)
    failed = sum(len(cell.failed) for cell in cells)
    wanted = sum(cell.head.samples for cell in cells)
    skipped = sum(max(0, cell.head.test - cell.head.samples) for cell in cells)
    cut = sum(cell.cut_off for cell in cells)
    return Counts(max(wanted, answered + failed), answered, failed, skipped, cut)


@dataclass(frozen=True, slots=True)
class Table:
    """One model on one benchmark."""

    model: str
    benchmark: str
    columns: tuple[Column, ...]
    rows: tuple[MethodRow, ...]
    indicative: frozenset[str] = frozenset()  # ids of columns whose judge is only a hint
    controls: tuple[MethodRow, ...] = ()  # controls of the same methods
    apart: str = ""  # what distinguishes it from another table of this model and benchmark

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.benchmark, self.model, self.apart)))

    @property
    def cells(self) -> list[CellResults]:
        return [cell for row in (*self.rows, *self.controls) for cell in row.cells]

    @property
    def judges(self) -> list[str]:
        return list(dict.fromkeys(judge for cell in self.cells for judge in cell.judges))

    def controls_of(self, row: MethodRow) -> tuple[MethodRow, ...]:
        experiment = row.first.experiment
        return tuple(one for one in self.controls if one.first.experiment == experiment)


def tables_of(results: RunResults) -> list[Table]:
    """Every table of a run."""
    groups: dict[str, list[CellResults]] = {}
    for cell in results.cells:
        groups.setdefault(_key(cell, _TABLE), []).append(cell)
    tables = [_table(_rows(cells)) for cells in groups.values()]
    return [replace(table, apart=_apart(table, tables)) for table in tables]


def _apart(table: Table, tables: Sequence[Table]) -> str:
    """The dtype and the fingerprint, if they are all that distinguishes two tables."""
    name = (table.model, table.benchmark)
    alike = [other.cells[0] for other in tables if (other.model, other.benchmark) == name]
    differing = _differing(alike, ("dtype", "fingerprint"))
    return " ".join(getattr(table.cells[0].head, name) for name in differing)


def _key(cell: CellResults, names: Sequence[str]) -> str:
    return repr([getattr(cell.head, name) for name in names])


def _differing(cells: Sequence[CellResults], names: Sequence[str]) -> list[str]:
    return [name for name in names if len({_key(cell, (name,)) for cell in cells}) > 1]


def _rows(cells: Sequence[CellResults]) -> list[MethodRow]:
    """The rows of a table, plain first, then in the order they were run."""
    groups: dict[str, dict[str, list[CellResults]]] = {}  # by method, then by way of answering
    for cell in cells:
        answered = "" if cell.head.task == "choose" else _key(cell, _ANSWERED)
        kind = _key(cell, ("control", "method", "changed", *_VARIED, *_SPACE))
        groups.setdefault(kind, {}).setdefault(answered, []).append(cell)
    parts = []
    for group in groups.values():
        choices = group.pop("", [])  # they join the method's first way of answering
        first, *others = [*group.values()] or [[]]
        parts += [first + choices, *others]
    firsts = [part[0] for part in parts]
    varied = _differing(firsts, _VARIED + _ANSWERED)
    rows = []
    for part in parts:
        alike = [cell for cell in firsts if cell.head.method == part[0].head.method]
        rows.append(MethodRow(_label(part[0], _differing(alike, _SPACE) + varied), tuple(part)))
    return sorted(rows, key=lambda row: not row.is_plain)


def _label(cell: CellResults, names: Sequence[str]) -> str:
    head, words = cell.head, [cell.head.label]
    for name in names:
        value = getattr(head, name)
        if name == "stop" and head.stop is not None:
            value = ",".join(head.stop.strings) or "none"
        words += [] if value is None else [f"{name}={value}"]
    label = " ".join(words)
    return label if head.control is None else f"{label}, control: {head.control}"


def _table(every: list[MethodRow]) -> Table:
    """A table of these rows, each compared with the plain row most like it."""
    head, cells = every[0].first.head, [cell for row in every for cell in row.cells]
    columns = columns_of(cells)
    rows = tuple(row for row in every if not row.control)
    controls = tuple(row for row in every if row.control)
    hints = indicative_columns(cells, columns)
    table = Table(head.model, head.benchmark, tuple(columns), rows, hints, controls)
    for row in every:
        base = _baseline(row, every)
        others = {} if row.control else {x.control: x.cells for x in table.controls_of(row)}
        for column in columns:
            value = average(row.cells, column, base)
            effect = effect_of(row.cells, base, others, column) if can_gain(column) else None
            if value is not None:
                words = effect.in_words(column) if effect else ""
                row.values[column.id] = replace(value, effect=words)
    for column in columns:
        _compare([row for row in rows if column.id in row.values], column)
    return table


def _baseline(row: MethodRow, rows: Sequence[MethodRow]) -> tuple[CellResults, ...]:
    """The cells of the plain row most like a row in everything else; none for a plain row."""

    def likeness(other: MethodRow) -> int:
        names = _VARIED + _ANSWERED
        return sum(_key(other.first, (n,)) == _key(row.first, (n,)) for n in names)

    plain = [] if row.is_plain else [other for other in rows if other.is_plain]
    return max(plain, key=likeness).cells if plain else ()


def _compare(rows: Sequence[MethodRow], column: Column) -> None:
    """Correct each p for the number of comparisons; mark the best mean if no other is equal."""
    id, better = column.id, column.measure.better
    tested = [row for row in rows if row.values[id].p is not None]
    for row, p in zip(tested, holm([row.values[id].p or 0.0 for row in tested]), strict=True):
        row.values[id] = replace(row.values[id], p_holm=p)
    complete = [x for x in rows if not any(counts.left for counts in x.counts.values())]
    scores = [better * row.values[id].mean for row in complete]
    if better and len(scores) > 1 and scores.count(max(scores)) == 1:
        best = complete[scores.index(max(scores))]
        best.values[id] = replace(best.values[id], is_best=True)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of one method that differ in one setting only."""

    method: str
    name: str
    values: tuple[Any, ...]
    rows: tuple[MethodRow, ...]
    plain: MethodRow | None
    rest: str  # the other settings, if there are several such curves


def sweeps_of(table: Table) -> list[Sweep]:
    """Every setting with three values or more while the others are equal."""
    plain = next((row for row in table.rows if row.is_plain), None)
    varied = [(row, swept_settings(row.first)) for row in table.rows if not row.is_plain]
    found = []
    for method, name in dict.fromkeys((row.method, n) for row, known in varied for n in known):
        groups: dict[str, dict[str, tuple[Any, MethodRow]]] = {}  # by the other settings
        for row, known in varied:
            if row.method == method and name in known:
                others = json.dumps(
                    {n: x for n, x in known.items() if n != name}, sort_keys=True
                )
                value = known[name]
                groups.setdefault(others, {}).setdefault(json.dumps(value), (value, row))
        rests = {others: json.loads(others) for others in groups}
        for others, points in groups.items():
            if len(points) >= _FEWEST:
                values, curve = zip(*sorted(points.values(), key=_by_value), strict=True)
                rest = ", ".join(
                    f"{n}={x}"
                    for n, x in rests[others].items()
                    if any(other.get(n) != x for other in rests.values())
                )
                found.append(Sweep(method, name, values, curve, plain, rest))
    return found


def swept_settings(cell: CellResults) -> dict[str, Any]:
    """What can be swept: the settings of the method, and how its space was built."""
    head = cell.head
    build = {} if head.space is None else head.space.build
    found = {**build, **{name: getattr(head, name) for name in (*_SPACE, *_VARIED)}}
    return {**{name: x for name, x in found.items() if x is not None}, **head.settings}


def _by_value(point: tuple[Any, MethodRow]) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    is_number = isinstance(point[0], int | float)
    return (not is_number, point[0] if is_number else 0.0, str(point[0]))


@dataclass(frozen=True, slots=True)
class GridText:
    """One entry of a grid: a main line, and smaller ones below it."""

    text: str
    below: tuple[str, ...] = ()
    is_bold: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """Text in rows and columns, with a title and notes below."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[GridText, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document; warnings come before the grids, facts below them."""

    title: str
    warnings: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    plots: tuple[Plot, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a report, in any format."""

    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def plots(self) -> list[Plot]:
        return [plot for section in self.sections for plot in section.plots]


def grids_of(table: Table) -> tuple[Grid, ...]:
    """One grid a group of measures."""
    names_judge = len({column.judge for column in table.columns if column.judge}) > 1
    every = [x for row in table.rows for x in (row, *table.controls_of(row))]
    grids = []
    for group in get_args(MeasureGroup):
        columns = [column for column in table.columns if column.measure.group == group]
        titles = []
        for column in columns:
            judge = f" ({column.judge})" if column.judge and names_judge else ""
            hint = ", indicative" if column.id in table.indicative else ""
            titles.append(f"{column.measure.title}{judge}{hint}")
        rows = [
            _grid_row(x, columns)
            for x in every
            if columns and columns[0].measure.task in x.counts
        ]
        if rows:
            grids.append(Grid(group, ("method", *titles, "counts"), tuple(rows)))
    return tuple(grids)


def _grid_row(row: MethodRow, columns: list[Column]) -> tuple[GridText, ...]:
    found = [row.values.get(column.id) for column in columns]
    counts = row.counts[columns[0].measure.task]
    unscored = max((value.unscored for value in found if value), default=0)
    to_judge = max((value.to_come for value in found if value), default=0)
    below = [f"{unscored} unscored, {counts.failed} failed, {counts.skipped} skipped"]
    more = ((counts.cut_off, "cut off"), (counts.left, "to come"), (to_judge, "to be judged"))
    below += [f"{number} {what}" for number, what in more if number]
    entries = (entry_of(value, column) for value, column in zip(found, columns, strict=True))
    return (GridText(row.label), *entries, GridText(f"n {counts.answered}", tuple(below)))


def entry_of(value: Average | None, column: Column) -> GridText:
    if value is None:
        return GridText(DASH)
    below = interval_lines(value, column)
    if value.spread is not None:
        below.append(f"seeds ±{number(value.spread, column)}")
    if value.difference is not None:
        change = value.difference
        ends = (change.mean, change.low, change.high)
        mean, low, high = (number(x, column, sign=True) for x in ends)
        below += [f"{mean} [{low}, {high}]", p_text(value.p, value.p_holm)]
    below += [value.effect] if value.effect else []
    return GridText(number(value.mean, column), tuple(below), value.is_best)


def one_line(text: str, longest: int | None = None) -> str:
    """Text on one line, perhaps shortened; control characters are spelled out, as in \\x1b."""
    text = visible_line(" ".join(text.split()))
    return text if longest is None or len(text) <= longest else f"{text[: longest - 3]}..."


def number(value: float, column: Column, *, sign: bool = False) -> str:
    """A number in the unit of its column, as in 52.0 or +2.4."""
    scaled = 100 * value if column.measure.is_percent else value
    text = f"{scaled:{'+' if sign else ''},.{column.measure.digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def interval_lines(value: Average, column: Column) -> list[str]:
    """The interval of a mean and its number of samples; empty without an interval."""
    if value.low is None or value.high is None:
        return []
    return [f"[{number(value.low, column)}, {number(value.high, column)}] n {value.n}"]


def p_text(p: float | None, corrected: float | None = None) -> str:
    """A p, with the one corrected for several comparisons."""
    if p is None:
        return "no p"
    text = "p < 0.001" if p < 0.001 else f"p {p:.3f}"
    if corrected is None:
        return text
    return f"{text} (Holm {'< 0.001' if corrected < 0.001 else f'{corrected:.3f}'})"
