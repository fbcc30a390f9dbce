"""Results -> a table a model and benchmark: means, intervals, differences from plain rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trueline.evaluation.findings import effect_of, judged_columns
from trueline.evaluation.measures import Column, average, columns_of, indicative_columns
from trueline.evaluation.outcomes import CellResults, RunResults
from trueline.evaluation.statistics import holm
from trueline.report.method_rows import MethodRow, baseline, rows_by_table


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
