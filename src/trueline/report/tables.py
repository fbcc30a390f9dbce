"""Results in; a table a model and benchmark out: means, intervals, differences from greedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from trueline.evaluation.plan import Task
from trueline.evaluation.statistics import (
    Difference,
    Interval,
    mcnemar,
    mean_interval,
    paired_difference,
    product_difference,
    product_interval,
    redrawn_interval,
)
from trueline.report.measures import (
    MEASURES,
    STATISTICS,
    Column,
    Samples,
    columns_of,
    confidences,
    series_of,
)
from trueline.report.results import Cell, Results
from trueline.report.rows import Row, baseline, rows_by_table


@dataclass(frozen=True, slots=True)
class Value:
    """One number of a table, in its own unit: a share lies from 0 to 1."""

    mean: float
    low: float | None = None  # the 95 % interval; None where the number is no mean
    high: float | None = None
    n: int = 0  # samples it rests on; 0 where it is no mean
    unscored: int = 0  # answers that were looked at and have no value
    to_come: int = 0  # answers nobody has looked at yet
    spread: float | None = None  # standard deviation of the seeds' means
    difference: Difference | None = None  # from greedy, paired
    p: float | None = None  # of the difference: McNemar where it is right or wrong
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the samples of one task in a row, over its seeds."""

    asked: int
    answered: int
    failed: int
    skipped: int  # samples of the benchmark that the task has no use for

    @property
    def left(self) -> int:
        """Samples the run has not come to yet."""
        return self.asked - self.answered - self.failed


@dataclass(frozen=True, slots=True)
class TableRow:
    """One method."""

    row: Row
    counts: dict[Task, Counts]
    values: dict[str, Value]  # by column id

    @property
    def label(self) -> str:
        """What the row is called."""
        return self.row.label

    @property
    def is_whole(self) -> bool:
        """Whether the run has come to all its samples; before that nothing of it is best."""
        return not any(counts.left for counts in self.counts.values())


@dataclass(frozen=True, slots=True)
class Table:
    """One model on one benchmark."""

    model: str
    benchmark: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    apart: str = ""  # what tells it from another table of this model and benchmark

    @property
    def title(self) -> str:
        """What it is of."""
        return ", ".join(filter(None, (self.benchmark, self.model, self.apart)))

    @property
    def cells(self) -> list[Cell]:
        """Everything it rests on."""
        return [cell for row in self.rows for cell in row.row.cells]


def tables_of(results: Results) -> list[Table]:
    """Work out every table of a run."""
    tables = [_table(rows) for rows in rows_by_table(results.cells)]
    return [replace(table, apart=_apart(table, tables)) for table in tables]


def _apart(table: Table, tables: Sequence[Table]) -> str:
    """The dtype and the fingerprint, where another table differs in nothing but them."""
    name = (table.model, table.benchmark)
    alike = [other.cells[0] for other in tables if (other.model, other.benchmark) == name]
    told = [n for n in ("dtype", "fingerprint") if len({cell[n] for cell in alike}) > 1]
    return " ".join(str(table.cells[0][name]) for name in told)


def _table(rows: list[Row]) -> Table:
    columns = columns_of(cell for row in rows for cell in row.cells)
    made = []
    for row in rows:
        base = baseline(row, rows)
        values = {column.id: _value(row, column, base) for column in columns}
        found = {id: value for id, value in values.items() if value is not None}
        counts = {task: counts_of(row, task) for task in row.tasks}
        made.append(TableRow(row, counts, found))
    best = {
        column.id: _best(column, [row for row in made if row.is_whole]) for column in columns
    }
    marked = tuple(
        replace(
            row,
            values={
                id: replace(value, is_best=row.is_whole and value.mean == best[id])
                for id, value in row.values.items()
            },
        )
        for row in made
    )
    first = rows[0].first
    return Table(str(first["model"]), str(first["benchmark"]), tuple(columns), marked)


def counts_of(row: Row, task: Task) -> Counts:
    """Count the samples of one task in a row, seed by seed."""
    cells = [cell for cell in row.cells if cell["task"] == task]
    answered = sum(len(cell.answers or cell.choices) for cell in cells)
    failed = sum(len(cell.failed) for cell in cells)
    asked = sum(cell["samples"] or cell["test"] or 0 for cell in cells)
    skipped = sum(max(0, (cell["test"] or 0) - (cell["samples"] or 0)) for cell in cells)
    return Counts(max(asked, answered + failed), answered, failed, skipped)


def _value(row: Row, column: Column, base: Row | None) -> Value | None:
    series = series_of(row.cells, column)
    if series.number is not None:
        return Value(series.number, *_redrawn(row, column))
    if not series.seeds:
        return None
    parts = _parts(row, column)
    interval = _interval(parts)
    value = Value(
        interval.mean,
        interval.low,
        interval.high,
        interval.n,
        unscored=series.unscored,
        to_come=series.to_come,
        spread=_spread(row, column),
    )
    return value if base is None else _compared(value, column, parts, base, len(series.seeds))


def _redrawn(row: Row, column: Column) -> tuple[float | None, float | None, int]:
    """The interval of a number that is no mean, and n: of ECE and AUROC, of a single seed."""
    sets = [found for cell in row.cells if (found := confidences(cell, column.judge))[0]]
    if column.measure.key not in STATISTICS or len(sets) != 1:
        return None, None, 0
    interval = redrawn_interval(STATISTICS[column.measure.key], *sets[0])
    return (*interval, len(sets[0][0])) if interval else (None, None, 0)


def _parts(row: Row, column: Column) -> list[Samples]:
    """The values a sample: one list, or two whose means are multiplied (T*I)."""
    if column.measure.key != "truth_info":
        return [series_of(row.cells, column).pooled]
    both = [
        series_of(row.cells, Column(MEASURES[key], column.judge)).pooled
        for key in ("truth", "info")
    ]
    return _aligned(both)


def _aligned(parts: Sequence[Samples]) -> list[Samples]:
    common = [id for id in parts[0] if all(id in part for part in parts)]
    return [{id: part[id] for id in common} for part in parts]


def _interval(parts: Sequence[Samples]) -> Interval:
    first, *more = ([*part.values()] for part in parts)
    return product_interval(first, *more) if more else mean_interval(first)


def _compared(
    value: Value, column: Column, parts: list[Samples], base: Row, seeds: int
) -> Value:
    others = _parts(base, column)
    aligned = _aligned([*parts, *others])
    lists = [[*part.values()] for part in aligned]
    if not lists[0]:
        return value
    if len(parts) == 1:
        found = paired_difference(*lists)
    else:
        found = product_difference(*lists)
    p = found.p
    is_single = seeds == 1 == len(series_of(base.cells, column).seeds)
    if column.measure.is_binary and is_single:
        p = mcnemar(*[[x == 1.0 for x in values] for values in lists])
    return replace(value, difference=found, p=p)


def _spread(row: Row, column: Column) -> float | None:
    """How far the seeds lie apart: the standard deviation of their means."""
    by_seed = [[cell for cell in row.cells if cell["seed"] == seed] for seed in row.seeds]
    means = []
    for cells in by_seed:
        parts = _parts(replace(row, cells=tuple(cells)), column)
        if parts[0]:
            factors = [mean(part.values()) for part in parts]
            means.append(factors[0] * (factors[1] if len(factors) > 1 else 1.0))
    return stdev(means) if len(means) > 1 else None


def _best(column: Column, rows: Sequence[TableRow]) -> float | None:
    means = [row.values[column.id].mean for row in rows if column.id in row.values]
    if column.measure.better == 0 or len(means) < 2:
        return None
    return max(means) if column.measure.better > 0 else min(means)
