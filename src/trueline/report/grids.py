"""A table of numbers in; grids of text out, a grid a kind of measure, ready for any format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from trueline.report.measures import Column, Kind
from trueline.report.tables import Counts, Table, TableRow, Value


@dataclass(frozen=True, slots=True)
class Entry:
    """The text of one place in a grid: a main line, and smaller ones below it."""

    text: str
    below: tuple[str, ...] = ()
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """Text in rows and columns, with a title and notes below."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
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
    """One grid a kind of measure; a judge is named where there are several."""
    judges = {column.judge for column in table.columns if column.judge}
    grids = []
    for kind in get_args(Kind):
        columns = [column for column in table.columns if column.measure.kind == kind]
        if columns:
            head = ("method", *(_title(column, len(judges) > 1) for column in columns))
            rows = tuple(_row(row, columns) for row in table.rows if _has_task(row, columns))
            grids.append(Grid(kind, (*head, "counts"), rows))
    return tuple(grids)


def number(value: float, column: Column, *, sign: bool = False) -> str:
    """A number in the unit of its column, as in 52.0 or +2.4."""
    shown = 100 * value if column.measure.is_percent else value
    text = f"{shown:{'+' if sign else ''},.{column.measure.digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _title(column: Column, is_judge_told: bool) -> str:
    judge = f" ({column.judge})" if column.judge and is_judge_told else ""
    return f"{column.measure.title}{judge}"


def _has_task(row: TableRow, columns: list[Column]) -> bool:
    return columns[0].measure.task in row.counts


def _row(row: TableRow, columns: list[Column]) -> tuple[Entry, ...]:
    values = [_entry(row.values.get(column.id), column) for column in columns]
    found = [row.values[column.id] for column in columns if column.id in row.values]
    counts = _counts(row.counts[columns[0].measure.task], found)
    return (Entry(row.label), *values, counts)


def _counts(counts: Counts, values: list[Value]) -> Entry:
    unscored = max((value.unscored for value in values), default=0)
    to_judge = max((value.to_come for value in values), default=0)
    told = [f"{unscored} unscored, {counts.failed} failed, {counts.skipped} skipped"]
    told += [f"{counts.left} to come"] if counts.left else []
    told += [f"{to_judge} to be judged"] if to_judge else []
    return Entry(f"n {counts.answered}", tuple(told))


def _entry(value: Value | None, column: Column) -> Entry:
    if value is None:
        return Entry("\N{EN DASH}")
    below = []
    if value.low is not None and value.high is not None:
        below.append(f"[{number(value.low, column)}, {number(value.high, column)}] n {value.n}")
    if value.spread is not None:
        below.append(f"seeds ±{number(value.spread, column)}")
    if value.difference is not None:
        change = value.difference
        low, high = (number(x, column, sign=True) for x in (change.low, change.high))
        below.append(f"{number(change.mean, column, sign=True)} [{low}, {high}]")
        below.append(p_text(value.p))
    return Entry(number(value.mean, column), tuple(below), value.is_best)


def p_text(p: float | None) -> str:
    """A p as people write it."""
    if p is None:
        return "no p"
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"
