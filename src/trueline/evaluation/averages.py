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
    confidences_by_sample,
    series_of,
)
from trueline.evaluation.outcomes import CellResults
from trueline.evaluation.statistics import (
    Difference,
    Interval,
    mcnemar,
    mean_interval,
    paired_difference,
    paired_statistic,
    redrawn_interval,
    share_interval,
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
    p_holm: float | None = None  # corrected for the comparisons of its column (Holm)
    effect: str = ""  # what controls say of a gain; empty: there is none, or no control
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
    cut_off: int = 0  # answers that reached the limit of new tokens
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
        cut_off=cell.cut_off,
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
        return _of_a_statistic(series.number, cells, column, baseline)
    if not series.seeds:
        return None
    factors = _factors(cells, column)
    interval = _interval(factors, is_share=column.measure.is_binary and len(series.seeds) == 1)
    found = Average(
        interval.mean,
        interval.low,
        interval.high,
        interval.n,
        unscored=series.unscored,
        to_come=series.to_come,
        spread=_spread(cells, column),
    )
    lists = _paired(factors, baseline, column) if baseline else []
    if not lists:
        return found
    difference = paired_difference(*lists)
    p = difference.p
    is_single = len(series.seeds) == 1 == len(series_of(baseline, column).seeds)
    if column.measure.is_binary and is_single:
        p = mcnemar(*[[x == 1.0 for x in values] for values in lists])
    return replace(found, difference=difference, p=p)


def difference_from(
    baseline: Sequence[CellResults], cells: Sequence[CellResults], column: Column
) -> Difference | None:
    """How far cells are ahead of others on the samples that both have; None: on none."""
    lists = _paired(_factors(cells, column), baseline, column)
    return paired_difference(*lists) if lists else None


def _interval(factors: Sequence[ValuesBySample], *, is_share: bool) -> Interval:
    """The mean with its interval; a share keeps a width at 0 and 1, redrawing would not."""
    lists = [[*factor.values()] for factor in factors]
    if is_share:
        return share_interval(round(sum(lists[0])), len(lists[0]))
    return mean_interval(*lists)


def _of_a_statistic(
    number: float, cells: Sequence[CellResults], column: Column, baseline: Sequence[CellResults]
) -> Average:
    """A number that is no mean; ECE and AUROC of a single seed have an interval and a p."""
    ours, base = (_confident(some, column.judge) for some in (cells, baseline))
    statistic = STATISTICS.get(column.measure.key)
    if statistic is None or not ours:
        return Average(number)
    low, high = redrawn_interval(statistic, *_columns(ours, [*ours])) or (None, None)
    found = Average(number, low, high, 0 if low is None else len(ours))
    common = [sample for sample in ours if sample in base]
    if not common:
        return found
    difference = paired_statistic(statistic, _columns(ours, common), _columns(base, common))
    p = None if difference is None else difference.p
    return replace(found, difference=difference, p=p)


Confident = dict[str, tuple[float, bool]]  # by sample: how sure, and whether it is true


def _confident(cells: Sequence[CellResults], judge: str) -> Confident:
    """Confidence and verdict by sample, where one cell alone has them."""
    sets = [found for cell in cells if (found := confidences_by_sample(cell, judge))]
    return sets[0] if len(sets) == 1 else {}


def _columns(found: Confident, samples: Sequence[str]) -> tuple[list[float], list[bool]]:
    return [found[id][0] for id in samples], [found[id][1] for id in samples]


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


def _paired(
    factors: Sequence[ValuesBySample], baseline: Sequence[CellResults], column: Column
) -> list[list[float]]:
    """The values of cells, then those of the baseline, on their common samples, if any."""
    lists = [[*values.values()] for values in _aligned([*factors, *_factors(baseline, column)])]
    return lists if lists[0] else []


def _spread(cells: Sequence[CellResults], column: Column) -> float | None:
    """How far the seeds lie apart: the standard deviation of their means."""
    means = []
    for seed in dict.fromkeys(cell.head.seed for cell in cells):
        factors = _factors([cell for cell in cells if cell.head.seed == seed], column)
        if factors[0]:
            first, *second = (mean(values.values()) for values in factors)
            means.append(first * second[0] if second else first)
    return stdev(means) if len(means) > 1 else None
