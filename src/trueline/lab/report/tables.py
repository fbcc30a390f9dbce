"""Results -> a table a model and benchmark: means, intervals, differences from plain rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from trueline.lab.findings import effect_of, judged_columns
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


@dataclass(frozen=True, slots=True)
class Table:
    """One model on one benchmark."""

    model: str
    benchmark: str
    columns: tuple[Column, ...]
    rows: tuple[MethodRow, ...]
    indicative: frozenset[str] = frozenset()  # ids of columns whose judge is a hint alone
    controls: tuple[MethodRow, ...] = ()  # the same methods with the truth taken out
    apart: str = ""  # what tells it from another table of this model and benchmark

    @property
    def title(self) -> str:
        """What it is of."""
        return ", ".join(filter(None, (self.benchmark, self.model, self.apart)))

    @property
    def cells(self) -> list[CellResults]:
        """Everything it rests on."""
        return [cell for row in (*self.rows, *self.controls) for cell in row.cells]

    def controls_of(self, row: MethodRow) -> tuple[MethodRow, ...]:
        """The controls of a row."""
        meant = row.first.experiment
        return tuple(one for one in self.controls if one.first.experiment == meant)


def tables_of(results: RunResults) -> list[Table]:
    """Work out every table of a run."""
    tables = [_table(rows) for rows in rows_by_table(results.cells)]
    return [replace(table, apart=_apart(table, tables)) for table in tables]


def _apart(table: Table, tables: Sequence[Table]) -> str:
    """The dtype and the fingerprint, where another table differs in nothing but them."""
    name = (table.model, table.benchmark)
    alike = [other.cells[0] for other in tables if (other.model, other.benchmark) == name]
    names = ("dtype", "fingerprint")
    differing = [n for n in names if len({getattr(cell.head, n) for cell in alike}) > 1]
    return " ".join(getattr(table.cells[0].head, n) for n in differing)


def _table(every: list[MethodRow]) -> Table:
    cells = [cell for row in every for cell in row.cells]
    columns = columns_of(cells)
    head = every[0].first.head
    controls = tuple(_filled(row, every, columns) for row in every if row.control)
    hints = indicative_columns(cells, columns)
    table = Table(head.model, head.benchmark, tuple(columns), (), hints, controls)
    filled = [_filled(row, every, columns) for row in every if not row.control]
    filled = [_with_effects(row, every, table) for row in _corrected(filled, columns)]
    best = {column.id: _best(column, filled) for column in columns}
    marked = tuple(
        replace(
            row,
            values={
                id: replace(value, is_best=row.is_whole and value.mean == best[id])
                for id, value in row.values.items()
            },
        )
        for row in filled
    )
    return replace(table, rows=marked)


def _filled(row: MethodRow, rows: list[MethodRow], columns: Sequence[Column]) -> MethodRow:
    """A row with its values, each compared with the plain row most like it."""
    base = baseline(row, rows)
    others = () if base is None else base.cells
    values = {column.id: average(row.cells, column, others) for column in columns}
    return replace(row, values={id: x for id, x in values.items() if x is not None})


def _with_effects(row: MethodRow, rows: list[MethodRow], table: Table) -> MethodRow:
    """A row with what its controls say of each gain."""
    base = baseline(row, rows)
    controls = {one.control: one.cells for one in table.controls_of(row)}
    if base is None or not controls:
        return row
    values = dict(row.values)
    for column in judged_columns(row.cells):
        effect = effect_of(row.cells, base.cells, controls, column)
        if effect is not None:
            words = effect.in_words(column)
            values[column.id] = replace(values[column.id], effect=words)
    return replace(row, values=values)


def _corrected(rows: list[MethodRow], columns: Sequence[Column]) -> list[MethodRow]:
    """The rows with p corrected, column by column, for how many of them were compared."""
    made = [dict(row.values) for row in rows]
    for column in columns:
        tested = [x for x in made if column.id in x and x[column.id].p is not None]
        raw = [float(x[column.id].p or 0.0) for x in tested]
        for values, p in zip(tested, holm(raw), strict=True):
            values[column.id] = replace(values[column.id], p_holm=p)
    return [replace(row, values=values) for row, values in zip(rows, made, strict=True)]


def _best(column: Column, rows: Sequence[MethodRow]) -> float | None:
    whole = [row for row in rows if row.is_whole]
    means = [row.values[column.id].mean for row in whole if column.id in row.values]
    if column.measure.better == 0 or len(means) < 2:
        return None
    best = max(means) if column.measure.better > 0 else min(means)
    return best if means.count(best) == 1 else None  # of equals none is ahead


_FEWEST = 3  # values that make a curve


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of one method that differ in one setting only."""

    method: str
    name: str
    values: tuple[Any, ...]
    rows: tuple[MethodRow, ...]
    plain: MethodRow | None  # the model as it is
    rest: str  # what else was set, where there is more than one such curve


def sweeps_of(table: Table) -> list[Sweep]:
    """Every setting that takes three values or more while the others stand still."""
    plain = next((row for row in table.rows if row.is_plain), None)
    varied = [row for row in table.rows if not row.is_plain]
    found = []
    for method in dict.fromkeys(row.method for row in varied):
        rows = [row for row in varied if row.method == method]
        names = dict.fromkeys(name for row in rows for name in swept_settings(row.first))
        for name in names:
            found += _curves(method, name, rows, plain)
    return found


def _curves(
    method: str, name: str, rows: list[MethodRow], plain: MethodRow | None
) -> list[Sweep]:
    groups: dict[str, dict[str, tuple[Any, MethodRow]]] = {}
    rests: dict[str, dict[str, Any]] = {}  # the other settings of each group
    for row in rows:
        settings = swept_settings(row.first)
        if name in settings:
            value = settings.pop(name)
            key = json.dumps(settings, sort_keys=True)
            rests.setdefault(key, settings)
            groups.setdefault(key, {}).setdefault(json.dumps(value), (value, row))
    others = list(rests.values())
    curves = []
    for rest, points in zip(others, groups.values(), strict=True):
        if len(points) >= _FEWEST:
            ordered = sorted(points.values(), key=lambda point: _order(point[0]))
            values, curve = zip(*ordered, strict=True)
            curves.append(
                Sweep(method, name, values, curve, plain, _differing_sweeps(rest, others))
            )
    return curves


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    is_number = isinstance(value, int | float)
    return (not is_number, value if is_number else 0.0, str(value))


def _differing_sweeps(settings: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """The settings in which one curve differs from another."""
    return ", ".join(
        f"{name}={value}"
        for name, value in settings.items()
        if any(other.get(name) != value for other in others)
    )


MARK = "Made by trueline report"  # stands in every file of a report, but not in its CSV


@dataclass(frozen=True, slots=True)
class GridText:
    """The text of one place in a grid: a main line, and smaller ones below it."""

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
class Figure:
    """A plot: the name of its files, and its SVG."""

    name: str
    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document; warnings stand before the grids, facts below them."""

    title: str
    warnings: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    figures: tuple[Figure, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """Everything a report says, whatever the format."""

    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...]


def grids_of(table: Table) -> tuple[Grid, ...]:
    """One grid a group of measures; a judge is named where there are several."""
    judges = {column.judge for column in table.columns if column.judge}
    grids = []
    for group in get_args(MeasureGroup):
        columns = [column for column in table.columns if column.measure.group == group]
        if columns:
            head = ("method", *(_title(one, len(judges) > 1, table) for one in columns))
            every = [x for row in table.rows for x in (row, *table.controls_of(row))]
            rows = tuple(_row(row, columns) for row in every if _has_task(row, columns))
            grids.append(Grid(group, (*head, "counts"), rows))
    return tuple(grids)


def number(value: float, column: Column, *, sign: bool = False) -> str:
    """A number in the unit of its column, as in 52.0 or +2.4."""
    shown = 100 * value if column.measure.is_percent else value
    text = f"{shown:{'+' if sign else ''},.{column.measure.digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _title(column: Column, names_judge: bool, table: Table) -> str:
    judge = f" ({column.judge})" if column.judge and names_judge else ""
    hint = ", indicative" if column.id in table.indicative else ""
    return f"{column.measure.title}{judge}{hint}"


def _has_task(row: MethodRow, columns: list[Column]) -> bool:
    return columns[0].measure.task in row.counts


def _row(row: MethodRow, columns: list[Column]) -> tuple[GridText, ...]:
    values = [_text(row.values.get(column.id), column) for column in columns]
    found = [row.values[column.id] for column in columns if column.id in row.values]
    counts = _counts(row.counts[columns[0].measure.task], found)
    return (GridText(row.label), *values, counts)


def _counts(counts: Counts, values: list[Average]) -> GridText:
    unscored = max((value.unscored for value in values), default=0)
    to_judge = max((value.to_come for value in values), default=0)
    below = [f"{unscored} unscored, {counts.failed} failed, {counts.skipped} skipped"]
    below += [f"{counts.cut_off} cut off"] if counts.cut_off else []
    below += [f"{counts.left} to come"] if counts.left else []
    below += [f"{to_judge} to be judged"] if to_judge else []
    return GridText(f"n {counts.answered}", tuple(below))


def _text(value: Average | None, column: Column) -> GridText:
    if value is None:
        return GridText("\N{EN DASH}")
    below = interval_lines(value, column)
    if value.spread is not None:
        below.append(f"seeds ±{number(value.spread, column)}")
    if value.difference is not None:
        change = value.difference
        low, high = (number(x, column, sign=True) for x in (change.low, change.high))
        below.append(f"{number(change.mean, column, sign=True)} [{low}, {high}]")
        below.append(p_text(value.p, value.p_holm))
    if value.effect:
        below.append(value.effect)
    return GridText(number(value.mean, column), tuple(below), value.is_best)


def interval_lines(value: Average, column: Column) -> list[str]:
    """The interval of a mean and the samples it rests on; nothing where it has none."""
    if value.low is None or value.high is None:
        return []
    return [f"[{number(value.low, column)}, {number(value.high, column)}] n {value.n}"]


def p_text(p: float | None, corrected: float | None = None) -> str:
    """A p as people write it, with the one that is corrected for several comparisons."""
    if p is None:
        return "no p"
    text = "p < 0.001" if p < 0.001 else f"p {p:.3f}"
    if corrected is None:
        return text
    return f"{text} (Holm {'< 0.001' if corrected < 0.001 else f'{corrected:.3f}'})"
