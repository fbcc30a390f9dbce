"""Cells and a column -> its mean, interval and difference from a baseline; nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from trueline.evaluation.consistency import indicative
from trueline.evaluation.measures import (
    MEASURES,
    STATISTICS,
    Column,
    ValuesBySample,
    columns_of,
    confidences,
    series_of,
)
from trueline.evaluation.outcomes import CellResults
from trueline.evaluation.statistics import (
    Difference,
    mcnemar,
    mean_interval,
    paired_difference,
    redrawn_interval,
)


@dataclass(frozen=True, slots=True)
class Average:
    """One number of a table, in its own unit: a share lies from 0 to 1."""

    mean: float
    low: float | None = None  # the 95 % interval; None where the number is no mean
    high: float | None = None
    n: int = 0  # samples it rests on; 0 where it is no mean
    unscored: int = 0  # answers that were looked at and have no value
    to_come: int = 0  # answers nobody has looked at yet
    spread: float | None = None  # standard deviation of the seeds' means
    difference: Difference | None = None  # from the baseline, paired
    p: float | None = None  # of the difference: McNemar where it is right or wrong
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class CellSummary:
    """How far a cell has come, and its means."""

    cell: str
    model: str
    benchmark: str
    label: str
    task: str
    seed: int | None
    done: int  # samples with an answer or a choice
    failed: int
    samples: int  # in all
    is_done: bool
    means: dict[str, float]  # by column, as in rouge_l or truth@offline
    intervals: dict[str, tuple[float, float]]  # of these, 95 %
    unscored: dict[str, int]  # verdicts that could not be read, by column
    seconds: float
    indicative: tuple[str, ...] = ()  # columns whose judge agrees too little with people


def indicative_columns(
    cells: Sequence[CellResults], columns: Sequence[Column]
) -> frozenset[str]:
    """The ids of the columns that are a hint alone, as their judge is not good enough."""
    hints = indicative(cells)
    return frozenset(
        one.id
        for one in columns
        if any((one.judge, about) in hints for about in one.measure.asks)
    )


def summarize_cell(cell: CellResults) -> CellSummary:
    """How far a cell has come, and every mean over its samples."""
    columns = [one for one in columns_of([cell]) if one.measure.group != "Behaviour"]
    found = {column.id: average([cell], column) for column in columns}
    means = {id: value for id, value in found.items() if value is not None}
    unread = (f"{x.about}@{x.judge}" for x in cell.verdicts if x.label is None)
    head = cell.head
    return CellSummary(
        cell=head.cell,
        model=head.model,
        benchmark=head.benchmark,
        label=cell.title,
        task=head.task,
        seed=head.seed,
        done=len(cell.answers) + len(cell.choices),
        failed=len(cell.failed),
        samples=head.samples,
        is_done=cell.done is not None,
        means={id: value.mean for id, value in means.items()},
        intervals={id: (x.low or 0.0, x.high or 0.0) for id, x in means.items()},
        unscored=dict(Counter(unread)),
        seconds=sum(x.seconds for x in cell.answers) + sum(x.seconds for x in cell.choices),
        indicative=tuple(sorted(indicative_columns([cell], columns))),
    )


def average(
    cells: Sequence[CellResults], column: Column, baseline: Sequence[CellResults] = ()
) -> Average | None:
    """The mean of a column over cells that differ only in seed or task; None without values.

    With a baseline also the difference from it, on the samples that both have.
    """
    series = series_of(cells, column)
    if series.number is not None:
        return Average(series.number, *_redrawn(cells, column))
    if not series.seeds:
        return None
    factors = _factors(cells, column)
    interval = mean_interval(*([*factor.values()] for factor in factors))
    found = Average(
        interval.mean,
        interval.low,
        interval.high,
        interval.n,
        unscored=series.unscored,
        to_come=series.to_come,
        spread=_spread(cells, column),
    )
    if not baseline:
        return found
    is_single = len(series.seeds) == 1 == len(series_of(baseline, column).seeds)
    return _compared(found, column, [*factors, *_factors(baseline, column)], is_single)


def _redrawn(
    cells: Sequence[CellResults], column: Column
) -> tuple[float | None, float | None, int]:
    """The interval of a number that is no mean, and n: of ECE and AUROC, of a single seed."""
    sets = [found for cell in cells if (found := confidences(cell, column.judge))[0]]
    if column.measure.key not in STATISTICS or len(sets) != 1:
        return None, None, 0
    interval = redrawn_interval(STATISTICS[column.measure.key], *sets[0])
    return (*interval, len(sets[0][0])) if interval else (None, None, 0)


def _factors(cells: Sequence[CellResults], column: Column) -> list[ValuesBySample]:
    """The values by sample: one set, or two whose means are multiplied (T*I)."""
    keys = ("truth", "info") if column.measure.key == "truth_info" else (column.measure.key,)
    return _aligned(
        [series_of(cells, Column(MEASURES[key], column.judge)).pooled for key in keys]
    )


def _aligned(sets: Sequence[ValuesBySample]) -> list[ValuesBySample]:
    """The samples that every set has."""
    common = [id for id in sets[0] if all(id in values for values in sets)]
    return [{id: values[id] for id in common} for values in sets]


def _compared(
    found: Average, column: Column, factors: Sequence[ValuesBySample], is_single: bool
) -> Average:
    """An average with its difference; the second half of the factors is the baseline's."""
    lists = [[*values.values()] for values in _aligned(factors)]
    if not lists[0]:
        return found
    difference = paired_difference(*lists)
    p = difference.p
    if column.measure.is_binary and is_single:
        p = mcnemar(*[[x == 1.0 for x in values] for values in lists])
    return replace(found, difference=difference, p=p)


def _spread(cells: Sequence[CellResults], column: Column) -> float | None:
    """How far the seeds lie apart: the standard deviation of their means."""
    means = []
    for seed in dict.fromkeys(cell.head.seed for cell in cells):
        factors = _factors([cell for cell in cells if cell.head.seed == seed], column)
        if factors[0]:
            first, *second = (mean(values.values()) for values in factors)
            means.append(first * second[0] if second else first)
    return stdev(means) if len(means) > 1 else None
