"""A table of numbers -> grids of text, one a group of measures, ready for any format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from trueline.evaluation.measures import Average, Column, MeasureGroup
from trueline.report.method_rows import Counts, MethodRow
from trueline.report.tables import Table

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
