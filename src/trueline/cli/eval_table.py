"""The results of a run -> tables for a person at a terminal: methods down, measures across."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trueline.decoders import PLAIN
from trueline.visible import counted

if TYPE_CHECKING:
    from trueline.evaluation.measures import Average, Column
    from trueline.report.method_rows import MethodRow
    from trueline.report.tables import Table


def show_tables(folder: Path, cells: Sequence[str]) -> None:
    """Print a table for each model and benchmark of these cells, and how to read on."""
    from dataclasses import replace

    from trueline.cli.screen import show_line, terminal_width
    from trueline.evaluation.outcomes import read_results
    from trueline.report.tables import tables_of

    results = read_results(folder)
    kept = [cell for cell in results.cells if cell.head.cell in cells]
    tables = tables_of(replace(results, cells=tuple(kept)))
    for table in tables:
        _show(table, terminal_width())
    if any(value.difference for t in tables for row in t.rows for value in row.values.values()):
        show_line(f"Below a mean: the difference from {PLAIN}, and its 95 % interval.")
    show_line(f"More, with the answers: trueline report {folder}")


def _show(table: Table, width: int) -> None:
    """One table, in as many pieces as its measures need at this width."""
    from trueline.cli.screen import print_stacked, show_line

    columns = [one for one in table.columns if one.measure.group != "Behaviour"]
    judges = list(dict.fromkeys(column.judge for column in columns if column.judge))
    judged = f", judged by {', '.join(judges)}" if judges else ""
    samples = counted(max(row.first.head.samples for row in table.rows), "sample")
    show_line(f"{table.title}: {samples}{judged}")
    names = [_name(row) for row in table.rows]
    left = max(map(len, ["method", *names])) + 2
    while columns:
        piece: list[Column] = []
        room = width - left
        while columns and (not piece or room >= _width(table, columns[0], judges)):
            room -= _width(table, columns[0], judges)
            piece.append(columns.pop(0))
        head = ["method", *(_title(column, judges) for column in piece)]
        rows = [
            [(name,), *(_lines(row.values.get(column.id), column) for column in piece)]
            for name, row in zip(names, table.rows, strict=True)
        ]
        print_stacked(head, rows)
        show_line("")


def _name(row: MethodRow) -> str:
    """The method, and how many samples it rests on where some are missing."""
    told = [
        f"{counts.answered} of {counts.wanted}"
        for counts in row.counts.values()
        if counts.answered != counts.wanted
    ]
    return f"{row.label} ({', '.join(told)})" if told else row.label


def _title(column: Column, judges: Sequence[str]) -> str:
    judge = f" by {column.judge}" if column.judge and len(judges) > 1 else ""
    return f"{column.measure.title}{judge}"


def _width(table: Table, column: Column, judges: Sequence[str]) -> int:
    """How wide a column is, with the gap before it."""
    texts = [_title(column, judges)]
    for row in table.rows:
        texts += _lines(row.values.get(column.id), column)
    return 2 + max(map(len, texts))


def _lines(value: Average | None, column: Column) -> tuple[str, ...]:
    """A mean, and below it the difference from the plain model with its interval."""
    from trueline.report.grids import number

    if value is None:
        return ("\N{EN DASH}",)
    if value.difference is None:
        return (number(value.mean, column),)
    change = value.difference
    low, high = (number(x, column, sign=True) for x in (change.low, change.high))
    mean = number(change.mean, column, sign=True)
    return (number(value.mean, column), mean, f"{low} to {high}")
