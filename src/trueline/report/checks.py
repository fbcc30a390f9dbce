"""A table in; what its reader must be warned of out, in plain sentences."""

from __future__ import annotations

from trueline.evaluation.checks import warnings
from trueline.report.tables import Table


def warnings_of(table: Table) -> tuple[str, ...]:
    """What is wrong with a table's runs, or makes its rows hard to compare."""
    cells = [cell for row in table.rows for cell in row.row.cells]
    found = []
    labels = [
        row.label for row in table.rows if any(cell.done is None for cell in row.row.cells)
    ]
    if labels:
        found.append(f"not finished: {', '.join(labels)}; their numbers will change")
    if not any(row.row.method == "greedy" for row in table.rows):
        found.append("there is no greedy row, so no differences from it can be given")
    lines = [line for cell in cells for line in cell.lines]
    return (*found, *warnings(lines, [cell.id for cell in cells]))
