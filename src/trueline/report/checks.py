"""A table in; what its reader must be warned of out, in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from trueline.evaluation.checks import warnings
from trueline.evaluation.samples import Task
from trueline.report.results import Cell
from trueline.report.tables import Table


def warnings_of(table: Table) -> tuple[str, ...]:
    """What is wrong with a table's runs, or makes its rows hard to compare."""
    cells = table.cells
    found = []
    labels = [
        row.label for row in table.rows if any(cell.done is None for cell in row.row.cells)
    ]
    if labels:
        found.append(f"not finished: {', '.join(labels)}; their numbers will change")
    for judge in dict.fromkeys(line["judge"] for cell in cells for line in cell.verdicts):
        left = {row.label: _to_be_judged(row.row.cells, judge, cells) for row in table.rows}
        told = [f"{label} ({count} to come)" for label, count in left.items() if count]
        if told:
            found.append(
                f"not judged to the end by {judge}: {', '.join(told)}; "
                "their numbers will change"
            )
    if not any(row.row.method == "greedy" for row in table.rows):
        found.append("there is no greedy row, so no differences from it can be given")
    lines = [line for cell in cells for line in cell.lines]
    return (*found, *warnings(lines, [cell.id for cell in cells]))


def _to_be_judged(own: Sequence[Cell], judge: str, cells: Sequence[Cell]) -> int:
    """How many verdicts of a judge a row still lacks; a judge is asked about every row."""
    from trueline.evaluation.judges import questions_for

    lines = [line for cell in cells for line in cell.verdicts if line["judge"] == judge]
    asked = {line["about"] for line in lines}
    sets = [questions_for(task) for task in get_args(Task)]
    questions = {about for some in sets if asked & set(some) for about in some}
    has = [line for cell in own for line in cell.verdicts if line["judge"] == judge]
    return len(questions) * sum(len(cell.answers) for cell in own) - len(has)
