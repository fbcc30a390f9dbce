"""Results -> a table a model and benchmark: means, intervals, differences from plain rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trueline.evaluation.averages import average, indicative_columns
from trueline.evaluation.measures import Column, columns_of
from trueline.evaluation.outcomes import CellResults, RunResults
from trueline.report.method_rows import MethodRow, baseline, rows_by_table


@dataclass(frozen=True, slots=True)
class Table:
    """One model on one benchmark."""

    model: str
    benchmark: str
    columns: tuple[Column, ...]
    rows: tuple[MethodRow, ...]
    indicative: frozenset[str] = frozenset()  # ids of columns whose judge is a hint alone
    apart: str = ""  # what tells it from another table of this model and benchmark

    @property
    def title(self) -> str:
        """What it is of."""
        return ", ".join(filter(None, (self.benchmark, self.model, self.apart)))

    @property
    def cells(self) -> list[CellResults]:
        """Everything it rests on."""
        return [cell for row in self.rows for cell in row.cells]


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


def _table(rows: list[MethodRow]) -> Table:
    cells = [cell for row in rows for cell in row.cells]
    columns = columns_of(cells)
    filled = []
    for row in rows:
        base = baseline(row, rows)
        others = () if base is None else base.cells
        values = {column.id: average(row.cells, column, others) for column in columns}
        found = {id: value for id, value in values.items() if value is not None}
        filled.append(replace(row, values=found))
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
    head = rows[0].first.head
    hints = indicative_columns(cells, columns)
    return Table(head.model, head.benchmark, tuple(columns), marked, hints)


def _best(column: Column, rows: Sequence[MethodRow]) -> float | None:
    whole = [row for row in rows if row.is_whole]
    means = [row.values[column.id].mean for row in whole if column.id in row.values]
    if column.measure.better == 0 or len(means) < 2:
        return None
    return max(means) if column.measure.better > 0 else min(means)
