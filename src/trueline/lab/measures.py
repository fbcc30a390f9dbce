"""Cells and a column -> values by sample; their mean, interval, difference from a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import mean, stdev
from typing import Any, Literal

from trueline.examples import COVERED, Regime
from trueline.lab.metrics import auroc, ece
from trueline.lab.plan import Mode
from trueline.lab.results import CellResults
from trueline.lab.samples import About
from trueline.lab.statistics import (
    Difference,
    mcnemar,
    mean_interval,
    paired_difference,
    paired_statistic,
    redrawn_interval,
    share_interval,
)

Cells = Sequence[CellResults]
ValuesBySample = dict[str, float]
MeasureGroup = Literal[
    "Regimes", "Fluency and form", "Judged", "Overlap", "Choices", "Behaviour"
]
STATISTICS = {"ece": ece, "auroc": auroc}  # of confidences and verdicts
_TRUSTED = 0.75  # balanced accuracy against people below which verdicts are only indicative
_SAME = "same"  # the plain model's answer, token for token: compared when results are read


@dataclass(frozen=True, slots=True)
class Measure:
    """What a column shows."""

    key: str
    title: str
    group: MeasureGroup
    better: int  # 1: more is better, -1: less is better, 0: neither
    is_percent: bool = True
    is_binary: bool = False  # right or wrong, one a sample: McNemar's test applies
    digits: int = 1
    asks: tuple[About, ...] = ()  # the verdicts it needs; empty: no judge
    regimes: tuple[Regime, ...] = ()  # the answers it looks at; empty: all
    score: str = ""  # the score of an answer it shows; empty: the one named like the key

    @property
    def task(self) -> Mode:
        return "choose" if self.group == "Choices" else "generate"


def _regime(key: str, title: str, regime: Regime, score: str = "right") -> Measure:
    return Measure(key, title, "Regimes", 1, is_binary=True, regimes=(regime,), score=score)


def _form(key: str, title: str, better: int = -1, score: str = "") -> Measure:
    options: dict[str, Any] = {"is_binary": True, "regimes": COVERED}
    return Measure(key, title, "Fluency and form", better, score=score or key, **options)


def _judged(key: str, title: str, *asks: About, better: int = 1) -> Measure:
    return Measure(key, title, "Judged", better, is_binary=len(asks) == 1, asks=asks)


def _calibration(key: str, title: str, better: int) -> Measure:
    return Measure(key, title, "Behaviour", better, is_percent=False, digits=3, asks=("truth",))


MEASURES = {
    measure.key: measure
    for measure in (
        _regime("efficacy", "efficacy (exact)", "exact"),
        _regime("generalisation", "generalisation (paraphrase)", "paraphrase"),
        _regime("styled", "styled", "styled"),
        _regime("double", "double", "double"),
        _regime("mid_text", "mid-text", "mid-text"),
        _regime("near_miss", "locality (near miss)", "near miss", _SAME),
        _regime("unrelated", "locality (unrelated)", "unrelated", _SAME),
        _form("fluency", "fluency", 1, "fluent"),
        _form("repeated", "repeats itself"),
        _form("joined", "answers run together"),
        _form("cut", "cut off"),
        _form("form", "form kept", 1),
        _form("wrong_polarity", "wrong yes or no"),
        _judged("truth", "%Truth", "truth"),
        _judged("info", "%Info", "info"),
        _judged("truth_info", "T*I", "truth", "info"),
        _judged("hallucination", "HalluRate", "hallucination", better=-1),
        Measure("rouge_l", "ROUGE-L", "Overlap", 1),
        Measure("bleu", "BLEU", "Overlap", 1),
        Measure("bertscore", "BERTScore", "Overlap", 1),
        Measure("bleu_accuracy", "BLEU accuracy", "Overlap", 1, is_binary=True),
        Measure("rouge_accuracy", "ROUGE accuracy", "Overlap", 1, is_binary=True),
        Measure("mc1", "MC1", "Choices", 1, is_binary=True),
        Measure("mc2", "MC2", "Choices", 1),
        Measure("mc3", "MC3", "Choices", 1),
        _calibration("ece", "ECE", -1),
        _calibration("auroc", "AUROC", 1),
        Measure("grounded", "grounded tokens", "Behaviour", 0),
        Measure("edits", "changed tokens", "Behaviour", 0),
        Measure("speed", "tokens/s", "Behaviour", 1, is_percent=False),
    )
}


@dataclass(frozen=True, slots=True)
class Column:
    """A measure, and the judge it needs if it needs one."""

    measure: Measure
    judge: str = ""

    @property
    def id(self) -> str:
        """The name of the column in files, as in truth@offline."""
        return f"{self.measure.key}@{self.judge}" if self.judge else self.measure.key


@dataclass(frozen=True, slots=True)
class _Series:
    """The values of one column in cells that differ only in their seed or task."""

    seeds: tuple[ValuesBySample, ...] = ()  # in the order of the cells
    number: float | None = None  # of a measure that is not a mean over samples
    unscored: int = 0  # samples that were looked at and have no value
    to_come: int = 0  # samples that were not looked at yet

    @property
    def pooled(self) -> ValuesBySample:
        """Each sample's mean over the seeds that have it."""
        ids = dict.fromkeys(id for seed in self.seeds for id in seed)
        return {id: _mean([seed[id] for seed in self.seeds if id in seed]) for id in ids}


@dataclass(frozen=True, slots=True)
class Average:
    """One number of a table, in its own unit: a share lies from 0 to 1."""

    mean: float
    low: float | None = None  # the 95 % interval; None: the number is not a mean
    high: float | None = None
    n: int = 0  # samples; 0: the number is not a mean
    unscored: int = 0
    to_come: int = 0
    spread: float | None = None  # standard deviation of the seeds' means
    difference: Difference | None = None  # from the baseline, paired
    p: float | None = None  # of the difference; McNemar's if the measure is binary
    p_holm: float | None = None  # corrected for the comparisons of its column (Holm)
    effect: str = ""  # what the controls say of a gain; empty: no gain, or no control
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class CellSummary:
    """The progress of a cell, and its means."""

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


def columns_of(cells: Iterable[CellResults]) -> list[Column]:
    """Every column that some cell has a value for, in the order of MEASURES."""
    columns: dict[Column, None] = {}
    for cell in cells:
        for measure in MEASURES.values():
            for judge in cell.judges if measure.asks else ("",):
                series = _series([cell], column := Column(measure, judge))
                if series.seeds or series.number is not None:
                    columns[column] = None
    order = [*MEASURES]
    return sorted(columns, key=lambda column: order.index(column.measure.key))


def _series(cells: Cells, column: Column) -> _Series:
    key, judge = column.measure.key, column.judge
    if key == "speed" or key in STATISTICS:
        found = (_statistic(confidences(x, judge), key) if judge else _speed(x) for x in cells)
        numbers = [number for number in found if number is not None]
        return _Series(number=_mean(numbers) if numbers else None)
    seeds, unscored, to_come = [], 0, 0
    for cell in cells:
        values, expected = _values(cell, column.measure, judge)
        scored = {id: float(value) for id, value in values.items() if value is not None}
        seeds += [scored] if scored else []
        unscored += len(values) - len(scored)
        to_come += max(0, expected - len(values))
    return _Series(tuple(seeds), unscored=unscored, to_come=to_come)


def _values(
    cell: CellResults, measure: Measure, judge: str
) -> tuple[Mapping[str, float | None], int]:
    """The values of the samples that were looked at, and how many values to expect.

    A value may be None; the number is 0 where all samples were looked at.
    """
    key, score = measure.key, measure.score or measure.key
    if measure.asks:
        values = cell.labels(measure.asks[0], judge)
        if key == "truth_info":  # of samples with both verdicts; the product is of their means
            info = cell.labels("info", judge)
            values = {
                id: None if info[id] is None else x for id, x in values.items() if id in info
            }
        return values, sum(not line.is_local for line in cell.answers)
    if measure.task == "choose":
        return {line.sample: getattr(line, key) for line in cell.choices}, 0
    lines = [x for x in cell.answers if not measure.regimes or x.regime in measure.regimes]
    if key in ("grounded", "edits"):
        name = "hits" if key == "grounded" else "flipped"
        return {line.sample: _positive_share(getattr(line, name)) for line in lines}, 0
    if score == _SAME:
        plain = cell.plain
        same = {x.sample: x.token_hash == plain[x.sample] for x in lines if x.sample in plain}
        return same, len(lines) if plain else 0
    # Of answers with a regime only those that have the score count.
    known = [line for line in lines if not measure.regimes or score in line.scores]
    return {line.sample: line.scores.get(score) for line in known}, 0


def _positive_share(flags: Sequence[int]) -> float | None:
    return sum(flag > 0 for flag in flags) / len(flags) if flags else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _speed(cell: CellResults) -> float | None:
    """Tokens a second from the first token on; lines without that time do not count."""
    timed = [line for line in cell.answers if line.decoding_seconds is not None]
    seconds = sum(line.decoding_seconds or 0.0 for line in timed)
    return sum(max(0, line.tokens - 1) for line in timed) / seconds if seconds else None


Confident = dict[str, tuple[float, bool]]  # by sample: the confidence, and whether it is true


def confidences(cell: CellResults, judge: str) -> Confident:
    """The confidence of each answer with a truth verdict, and the verdict."""
    verdicts = cell.labels("truth", judge)
    return {
        line.sample: (line.confidence, label)
        for line in cell.answers
        if (label := verdicts.get(line.sample)) is not None and line.confidence is not None
    }


def _pairs(found: Confident, samples: Iterable[str]) -> tuple[list[float], list[bool]]:
    return [found[id][0] for id in samples], [found[id][1] for id in samples]


def _statistic(found: Confident, key: str) -> float | None:
    return STATISTICS[key](*_pairs(found, found))


def average(cells: Cells, column: Column, baseline: Cells = ()) -> Average | None:
    """The mean of a column over cells that differ only in seed or task; None without values.

    With a baseline also the difference from it, on the samples that both have.
    """
    series = _series(cells, column)
    if series.number is not None:
        return _average_statistic(series.number, cells, column, baseline)
    if not series.seeds:
        return None
    factors = _factors(cells, column)
    lists = [[*factor.values()] for factor in factors]
    is_binary = column.measure.is_binary and len(series.seeds) == 1
    interval = mean_interval(*lists)
    if is_binary:  # a share keeps a width at 0 and 1
        interval = share_interval(round(sum(lists[0])), len(lists[0]))
    found = Average(
        interval.mean,
        interval.low,
        interval.high,
        interval.n,
        unscored=series.unscored,
        to_come=series.to_come,
        spread=_spread(cells, column),
    )
    if not (paired := _paired(factors, baseline, column) if baseline else []):
        return found
    difference = paired_difference(*paired)
    p = difference.p
    if is_binary and len(_series(baseline, column).seeds) == 1:
        p = mcnemar(*[[x == 1.0 for x in values] for values in paired])
    return replace(found, difference=difference, p=p)


def difference_from(baseline: Cells, cells: Cells, column: Column) -> Difference | None:
    """The mean difference of cells from others on their common samples; None without any."""
    lists = _paired(_factors(cells, column), baseline, column)
    return paired_difference(*lists) if lists else None


def _average_statistic(number: float, cells: Cells, column: Column, baseline: Cells) -> Average:
    """A number that is not a mean; ECE and AUROC of a single seed have an interval and a p."""
    ours, base = (_confidences_of_one(some, column.judge) for some in (cells, baseline))
    statistic = STATISTICS.get(column.measure.key)
    if statistic is None or not ours:
        return Average(number)
    low, high = redrawn_interval(statistic, *_pairs(ours, ours)) or (None, None)
    found = Average(number, low, high, 0 if low is None else len(ours))
    if not (common := [sample for sample in ours if sample in base]):
        return found
    difference = paired_statistic(statistic, _pairs(ours, common), _pairs(base, common))
    return replace(found, difference=difference, p=None if difference is None else difference.p)


def _confidences_of_one(cells: Cells, judge: str) -> Confident:
    """Confidences and verdicts, if exactly one cell has them."""
    sets = [found for cell in cells if (found := confidences(cell, judge))]
    return sets[0] if len(sets) == 1 else {}


def _factors(cells: Cells, column: Column) -> list[ValuesBySample]:
    """The values by sample: one set, or two whose means are multiplied (T*I)."""
    keys = ("truth", "info") if column.measure.key == "truth_info" else (column.measure.key,)
    return _aligned(
        [_series(cells, Column(MEASURES[key], column.judge)).pooled for key in keys]
    )


def _aligned(sets: Sequence[ValuesBySample]) -> list[ValuesBySample]:
    """The sets, reduced to the samples that all have."""
    common = [id for id in sets[0] if all(id in values for values in sets)]
    return [{id: values[id] for id in common} for values in sets]


def _paired(
    factors: Sequence[ValuesBySample], baseline: Cells, column: Column
) -> list[list[float]]:
    """The values of cells, then those of the baseline, on their common samples, if any."""
    lists = [[*values.values()] for values in _aligned([*factors, *_factors(baseline, column)])]
    return lists if lists[0] else []


def _spread(cells: Cells, column: Column) -> float | None:
    """The standard deviation of the seeds' means."""
    means = []
    for seed in dict.fromkeys(cell.head.seed for cell in cells):
        factors = _factors([cell for cell in cells if cell.head.seed == seed], column)
        if factors[0]:
            means.append(prod(mean(values.values()) for values in factors))
    return stdev(means) if len(means) > 1 else None


def summarize_cell(cell: CellResults) -> CellSummary:
    """The progress of a cell, and every mean over its samples."""
    columns = [one for one in columns_of([cell]) if one.measure.group != "Behaviour"]
    means = {one.id: x for one in columns if (x := average([cell], one)) is not None}
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


def indicative_columns(cells: Cells, columns: Sequence[Column]) -> frozenset[str]:
    """The ids of the columns that need a judge whose verdicts are only indicative."""
    hints = indicative(cells)
    return frozenset(
        x.id for x in columns if any((x.judge, about) in hints for about in x.measure.asks)
    )


def indicative(cells: Iterable[CellResults]) -> set[tuple[str, About]]:
    """The judges, with what they judged, whose verdicts are a hint and not a measurement.

    Their balanced accuracy against people is below 75 %, or is not known of a measurable rule.
    """
    return {
        (judge, about)
        for judge, about, basis in rules_used(cells)
        if (known := measured_agreement(judge, about, basis)) is None
        or known["balanced_accuracy"][0] < _TRUSTED
    }


def rules_used(cells: Iterable[CellResults]) -> list[tuple[str, About, str]]:
    """The judges, what they judged, and the measurable rules they judged by."""
    lines = (line for cell in cells for line in cell.verdicts if line.basis)
    return list(dict.fromkeys((line.judge, line.about, line.basis) for line in lines))


def measured_agreement(judge: str, about: About, basis: str) -> Mapping[str, Any] | None:
    """How far a judge agrees with people by one rule; None if nobody measured it."""
    from trueline.lab.judges.offline import agreement

    known = agreement()
    by_rule = known if judge == known.get("judge") else known.get("others", {}).get(judge, {})
    found: Mapping[str, Any] | None = by_rule.get(basis)
    return found
