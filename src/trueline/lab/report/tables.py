"""Results -> a table a model and benchmark: means, intervals, differences from plain rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from trueline.lab.findings import can_gain, effect_of, key_of
from trueline.lab.measures import (
    Average,
    Cells,
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


class Counts(NamedTuple):
    """The numbers of samples of one task in a row, over its seeds."""

    wanted: int  # samples in all
    answered: int
    failed: int
    left: int
    skipped: int  # samples of the benchmark that the task cannot use
    cut_off: int  # answers that reached the limit of new tokens


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
        found: dict[Mode, Counts] = {}
        for task in dict.fromkeys(cell.head.task for cell in self.cells):
            cells = [cell for cell in self.cells if cell.head.task == task]
            answered = sum(len(cell.answers) + len(cell.choices) for cell in cells)
            failed = sum(len(cell.failed) for cell in cells)
            wanted = max(sum(cell.head.samples for cell in cells), answered + failed)
            skipped = sum(max(0, cell.head.test - cell.head.samples) for cell in cells)
            cut_off, left = sum(cell.cut_off for cell in cells), wanted - answered - failed
            found[task] = Counts(wanted, answered, failed, left, skipped, cut_off)
        return found


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
        groups.setdefault(key_of(cell, _TABLE), []).append(cell)
    tables = []
    for cells in groups.values():
        head = cells[0].head
        names = (head.model, head.benchmark)
        alike = [
            x[0] for x in groups.values() if (x[0].head.model, x[0].head.benchmark) == names
        ]
        apart = " ".join(getattr(head, x) for x in _differing(alike, ("dtype", "fingerprint")))
        tables.append(_table(cells, apart))
    return tables


def _differing(cells: Sequence[CellResults], names: Sequence[str]) -> list[str]:
    return [name for name in names if len({key_of(cell, (name,)) for cell in cells}) > 1]


def _table(cells: Sequence[CellResults], apart: str) -> Table:
    """A table of these cells, each row compared with the plain row most like it."""
    every, columns = _rows(cells), columns_of(cells)
    rows = tuple(row for row in every if not row.control)
    controls = tuple(row for row in every if row.control)
    hints, head = indicative_columns(cells, columns), cells[0].head
    table = Table(head.model, head.benchmark, tuple(columns), rows, hints, controls, apart)
    plain = [row for row in every if row.is_plain]
    for row in every:
        base: Cells = ()
        if plain and not row.is_plain:
            first, names = row.first, _VARIED + _ANSWERED
            base = min(plain, key=lambda x: len(_differing((x.first, first), names))).cells
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


def _rows(cells: Sequence[CellResults]) -> list[MethodRow]:
    """The rows of a table, plain first, then in the order they were run."""
    groups: dict[str, dict[str, list[CellResults]]] = {}  # by method, then by way of answering
    for cell in cells:
        answered = "" if cell.head.task == "choose" else key_of(cell, _ANSWERED)
        kind = key_of(cell, ("control", "method", "changed", *_VARIED, *_SPACE))
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
        head, words = part[0].head, [part[0].head.label]
        alike = [cell for cell in firsts if cell.head.method == head.method]
        for name in _differing(alike, _SPACE) + varied:
            value = getattr(head, name)
            if name == "stop" and head.stop is not None:
                value = ",".join(head.stop.strings) or "none"
            words += [] if value is None else [f"{name}={value}"]
        control = f", control: {head.control}" if head.control else ""
        rows.append(MethodRow(" ".join(words) + control, tuple(part)))
    return sorted(rows, key=lambda row: not row.is_plain)


def _compare(rows: Sequence[MethodRow], column: Column) -> None:
    """Correct each p for the number of comparisons; mark the best mean if no other is equal."""
    id, better = column.id, column.measure.better
    tested = [(row, p) for row in rows if (p := row.values[id].p) is not None]
    for (row, _), p in zip(tested, holm([p for _, p in tested]), strict=True):
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

    def order(point: tuple[Any, MethodRow]) -> tuple[bool, Any]:  # numbers by size, then words
        is_word = not isinstance(point[0], int | float)
        return is_word, str(point[0]) if is_word else point[0]

    plain = next((row for row in table.rows if row.is_plain), None)
    curves: dict[tuple[str, str], dict[str, dict[str, tuple[Any, MethodRow]]]] = {}
    for row in table.rows:  # curves by method and setting, then by the other settings
        known = {} if row.is_plain else swept_settings(row.first)
        for name, value in known.items():
            others = json.dumps({n: x for n, x in known.items() if n != name}, sort_keys=True)
            points = curves.setdefault((row.method, name), {}).setdefault(others, {})
            points.setdefault(json.dumps(value), (value, row))
    found = []
    for (method, name), by_rest in curves.items():
        rests = [json.loads(others) for others in by_rest]
        for others, points in zip(rests, by_rest.values(), strict=True):
            differing = [n for n, x in others.items() if any(x != y.get(n) for y in rests)]
            rest = ", ".join(f"{n}={others[n]}" for n in differing)
            if len(points) >= 3:
                values, rows = zip(*sorted(points.values(), key=order), strict=True)
                found.append(Sweep(method, name, values, rows, plain, rest))
    return found


def swept_settings(cell: CellResults) -> dict[str, Any]:
    """What can be swept: the settings of the method, and how its space was built."""
    head = cell.head
    build = {} if head.space is None else head.space.build
    found = {**build, **{name: getattr(head, name) for name in (*_SPACE, *_VARIED)}}
    return {**{name: x for name, x in found.items() if x is not None}, **head.settings}


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
    groups: dict[str, list[Column]] = {group: [] for group in get_args(MeasureGroup)}
    for column in table.columns:
        groups[column.measure.group].append(column)
    grids = []
    for group, columns in groups.items():
        head = ["method"]
        for column in columns:
            judge = f" ({column.judge})" if column.judge and names_judge else ""
            hint = ", indicative" if column.id in table.indicative else ""
            head.append(f"{column.measure.title}{judge}{hint}")
        shown = [x for x in every if columns and columns[0].measure.task in x.counts]
        if shown:
            rows = tuple(_grid_row(row, columns) for row in shown)
            grids.append(Grid(group, (*head, "counts"), rows))
    return tuple(grids)


def _grid_row(row: MethodRow, columns: list[Column]) -> tuple[GridText, ...]:
    found = [row.values.get(column.id) for column in columns]
    counts = row.counts[columns[0].measure.task]
    unscored = max((value.unscored for value in found if value), default=0)
    to_judge = max((value.to_come for value in found if value), default=0)
    below = [f"{unscored} unscored, {counts.failed} failed, {counts.skipped} skipped"]
    more = ((counts.cut_off, "cut off"), (counts.left, "to come"), (to_judge, "to be judged"))
    below += [f"{number} {what}" for number, what in more if number]
    return (
        GridText(row.label),
        *map(entry_of, found, columns),
        GridText(f"n {counts.answered}", tuple(below)),
    )


def entry_of(value: Average | None, column: Column) -> GridText:
    """A mean; below it its interval, spread, difference with p, and effect."""
    if value is None:
        return GridText(DASH)
    below = []
    if value.low is not None and value.high is not None:
        low, high = number(value.low, column), number(value.high, column)
        below.append(f"[{low}, {high}] n {value.n}")
    if value.spread is not None:
        below.append(f"seeds ±{number(value.spread, column)}")
    if change := value.difference:
        ends = (change.mean, change.low, change.high)
        mean, low, high = (number(x, column, sign=True) for x in ends)
        corrected = "" if value.p_holm is None else f" (Holm {_p_text(value.p_holm)})"
        below += [f"{mean} [{low}, {high}]", f"p {_p_text(change.p)}{corrected}"]
    below += [value.effect] if value.effect else []
    return GridText(number(value.mean, column), tuple(below), value.is_best)


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def number(value: float, column: Column, *, sign: bool = False) -> str:
    """A number in the unit of its column, as in 52.0 or +2.4."""
    scaled = 100 * value if column.measure.is_percent else value
    text = f"{scaled:{'+' if sign else ''},.{column.measure.digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def one_line(text: str, longest: int | None = None) -> str:
    """Text on one line, perhaps shortened; control characters are spelled out, as in \\x1b."""
    text = visible_line(" ".join(text.split()))
    return text if longest is None or len(text) <= longest else f"{text[: longest - 3]}..."
