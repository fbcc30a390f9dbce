"""Cells and a column -> values by sample; their mean, interval, difference from a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any, Literal, get_args

from trueline.examples import COVERED, Regime
from trueline.lab.metrics import auroc, ece
from trueline.lab.plan import Mode
from trueline.lab.results import AnswerLine, CellResults
from trueline.lab.samples import About
from trueline.lab.statistics import (
    Difference,
    Interval,
    mcnemar,
    mean_interval,
    paired_difference,
    paired_statistic,
    redrawn_interval,
    share_interval,
)

_TRUSTED = 0.75  # balanced accuracy against people from which on verdicts are more than a hint
MeasureGroup = Literal[
    "Regimes", "Fluency and form", "Judged", "Overlap", "Choices", "Behaviour"
]
ValuesBySample = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measure:
    """What a column shows."""

    key: str
    title: str
    group: MeasureGroup
    better: int  # 1: more is better, -1: less is, 0: neither
    is_percent: bool = True
    is_binary: bool = False  # right or wrong, one a sample: McNemar's test applies
    digits: int = 1
    asks: tuple[About, ...] = ()  # what the judge it rests on was asked; empty: no judge
    regimes: tuple[Regime, ...] = ()  # the answers it looks at; empty: all
    score: str = ""  # the score of an answer it shows; empty: the one of its own name

    @property
    def task(self) -> Mode:
        return "choose" if self.group == "Choices" else "generate"


_SAME = "same"  # as the plain model's answer, token for token: worked out when results are read
_REGIMES: tuple[tuple[str, str, Regime, str], ...] = (  # key, title, regime, score
    ("efficacy", "efficacy (exact)", "exact", "right"),
    ("generalisation", "generalisation (paraphrase)", "paraphrase", "right"),
    ("styled", "styled", "styled", "right"),
    ("double", "double", "double", "right"),
    ("mid_text", "mid-text", "mid-text", "right"),
    ("near_miss", "locality (near miss)", "near miss", _SAME),
    ("unrelated", "locality (unrelated)", "unrelated", _SAME),
)
_FORMS = (  # key, title, which way is better, score
    ("fluency", "fluency", 1, "fluent"),
    ("repeated", "repeats itself", -1, "repeated"),
    ("joined", "answers run together", -1, "joined"),
    ("cut", "cut off", -1, "cut"),
    ("form", "form kept", 1, "form"),
    ("wrong_polarity", "wrong yes or no", -1, "wrong_polarity"),
)
_ABOUT: tuple[About, ...] = get_args(About)
_TRUTH: tuple[About, ...] = ("truth",)
MEASURES = {
    measure.key: measure
    for measure in (
        *(
            Measure(key, title, "Regimes", 1, is_binary=True, regimes=(regime,), score=score)
            for key, title, regime, score in _REGIMES
        ),
        *(
            Measure(
                key,
                title,
                "Fluency and form",
                better,
                is_binary=True,
                regimes=COVERED,
                score=score,
            )
            for key, title, better, score in _FORMS
        ),
        Measure("truth", "%Truth", "Judged", 1, is_binary=True, asks=_TRUTH),
        Measure("info", "%Info", "Judged", 1, is_binary=True, asks=("info",)),
        Measure("truth_info", "T*I", "Judged", 1, asks=("truth", "info")),
        Measure(
            "hallucination", "HalluRate", "Judged", -1, is_binary=True, asks=("hallucination",)
        ),
        Measure("rouge_l", "ROUGE-L", "Overlap", 1),
        Measure("bleu", "BLEU", "Overlap", 1),
        Measure("bertscore", "BERTScore", "Overlap", 1),
        Measure("bleu_accuracy", "BLEU accuracy", "Overlap", 1, is_binary=True),
        Measure("rouge_accuracy", "ROUGE accuracy", "Overlap", 1, is_binary=True),
        Measure("mc1", "MC1", "Choices", 1, is_binary=True),
        Measure("mc2", "MC2", "Choices", 1),
        Measure("mc3", "MC3", "Choices", 1),
        Measure("ece", "ECE", "Behaviour", -1, is_percent=False, digits=3, asks=_TRUTH),
        Measure("auroc", "AUROC", "Behaviour", 1, is_percent=False, digits=3, asks=_TRUTH),
        Measure("grounded", "grounded tokens", "Behaviour", 0),
        Measure("edits", "changed tokens", "Behaviour", 0),
        Measure("speed", "tokens/s", "Behaviour", 1, is_percent=False),
    )
}


@dataclass(frozen=True, slots=True)
class Column:
    """A measure, and the judge it rests on if it rests on one."""

    measure: Measure
    judge: str = ""

    @property
    def id(self) -> str:
        """The name of the column in files, as in truth@offline."""
        return f"{self.measure.key}@{self.judge}" if self.judge else self.measure.key


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one column in cells that differ in their seed or their task alone."""

    seeds: tuple[ValuesBySample, ...] = ()  # in the order of the cells
    number: float | None = None  # the one number of a measure that is no mean over samples
    unscored: int = 0  # samples that were looked at and have no value
    to_come: int = 0  # samples nobody has looked at yet

    @property
    def pooled(self) -> ValuesBySample:
        """Each sample's mean over the seeds that have it."""
        ids = dict.fromkeys(id for seed in self.seeds for id in seed)
        return {id: _mean([seed[id] for seed in self.seeds if id in seed]) for id in ids}


def columns_of(cells: Iterable[CellResults]) -> list[Column]:
    """Every column that some cell has a value for, judge by judge, in the order above."""
    found: dict[Column, None] = {}
    for cell in cells:
        for measure in MEASURES.values():
            for judge in cell.judges if measure.asks else ("",):
                column = Column(measure, judge)
                series = series_of([cell], column)
                if series.seeds or series.number is not None:
                    found[column] = None
    order = [*MEASURES]
    return sorted(found, key=lambda column: order.index(column.measure.key))


def series_of(cells: Sequence[CellResults], column: Column) -> Series:
    """The values of a column over cells that differ only in their seed or their task."""
    key, judge = column.measure.key, column.judge
    if key in _NUMBERS:
        numbers = [n for cell in cells if (n := _NUMBERS[key](cell, judge)) is not None]
        return Series(number=_mean(numbers) if numbers else None)
    seeds, unscored, to_come = [], 0, 0
    for cell in cells:
        looked_at = _values(cell, key, judge)
        scored = {id: float(value) for id, value in looked_at.items() if value is not None}
        seeds += [scored] if scored else []
        unscored += len(looked_at) - len(scored)
        to_come += _looked_for(cell, column.measure) - len(looked_at)
    return Series(tuple(seeds), unscored=unscored, to_come=to_come)


def confidences_by_sample(cell: CellResults, judge: str) -> dict[str, tuple[float, bool]]:
    """How sure the model was of each answer that has a truth verdict, and the verdict."""
    verdicts = cell.labels("truth", judge)
    return {
        line.sample: (line.confidence, label)
        for line in cell.answers
        if (label := verdicts.get(line.sample)) is not None and line.confidence is not None
    }


def confidences(cell: CellResults, judge: str) -> tuple[list[float], list[bool]]:
    pairs = confidences_by_sample(cell, judge).values()
    return [sure for sure, _ in pairs], [label for _, label in pairs]


def _values(cell: CellResults, key: str, judge: str) -> Mapping[str, float | None]:
    """Every sample that was looked at; None where there is no value to be had."""
    if key == "truth_info":  # its samples: those with both verdicts; the product is of means
        truth, info = cell.labels("truth", judge), cell.labels("info", judge)
        return {id: None if info[id] is None else x for id, x in truth.items() if id in info}
    for about in _ABOUT:
        if key == about:
            return cell.labels(about, judge)
    measure = MEASURES[key]
    if measure.score == _SAME:
        lines = [line for line in _probed(cell, measure) if line.sample in cell.plain]
        return {x.sample: float(x.token_hash == cell.plain[x.sample]) for x in lines}
    if measure.regimes:
        return {x.sample: x.scores[measure.score] for x in _probed(cell, measure)}
    if measure.task == "choose":
        return {line.sample: getattr(line, key) for line in cell.choices}
    if key in ("grounded", "edits"):
        flags = "hits" if key == "grounded" else "flipped"
        return {line.sample: _share(getattr(line, flags)) for line in cell.answers}
    return {line.sample: line.scores.get(key) for line in cell.answers}


def _probed(cell: CellResults, measure: Measure) -> list[AnswerLine]:
    """The answers of the regimes that a measure looks at."""
    lines = [line for line in cell.answers if line.regime in measure.regimes]
    if measure.score == _SAME:
        return lines if cell.plain else []  # without a plain row there is nothing to compare
    return [line for line in lines if measure.score in line.scores]


def _looked_for(cell: CellResults, measure: Measure) -> int:
    """How many samples will have been looked at when all is done."""
    if measure.task == "choose":
        return len(cell.choices)
    if measure.regimes:
        return len(_probed(cell, measure))
    lines = cell.answers
    return sum(not line.is_local for line in lines) if measure.asks else len(lines)


def _share(flags: Sequence[int]) -> float | None:
    return _mean([float(flag > 0) for flag in flags]) if flags else None


def _speed(cell: CellResults, judge: str) -> float | None:
    """Tokens a second from the first token on; older lines do not tell that, and give none."""
    timed = [line for line in cell.answers if line.decoding_seconds is not None]
    seconds = sum(line.decoding_seconds or 0.0 for line in timed)
    return sum(max(0, line.tokens - 1) for line in timed) / seconds if seconds else None


STATISTICS = {"ece": ece, "auroc": auroc}  # of confidences and verdicts
_NUMBERS: Mapping[str, Callable[[CellResults, str], float | None]] = {
    "ece": lambda cell, judge: ece(*confidences(cell, judge)),
    "auroc": lambda cell, judge: auroc(*confidences(cell, judge)),
    "speed": _speed,
}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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


def indicative(cells: Iterable[CellResults]) -> set[tuple[str, About]]:
    """The judges and what they were asked where their verdicts are a hint, no measurement.

    That is where their balanced accuracy against people is below 75 %, or is not known of a
    rule that could have been measured.
    """
    found = set()
    for judge, about, basis in rules_used(cells):
        known = measured_agreement(judge, about, basis)
        if known is None or known["balanced_accuracy"][0] < _TRUSTED:
            found.add((judge, about))
    return found


def rules_used(cells: Iterable[CellResults]) -> list[tuple[str, About, str]]:
    """The judges, what they were asked, and by which measured rule they answered."""
    lines = (line for cell in cells for line in cell.verdicts if line.basis)
    return list(dict.fromkeys((line.judge, line.about, line.basis) for line in lines))


def measured_agreement(judge: str, about: About, basis: str) -> Mapping[str, Any] | None:
    """How far a judge agrees with people by one rule; None where nobody measured it."""
    from trueline.lab.judges import agreement

    known = agreement()
    by_rule = known if judge == known.get("judge") else known.get("others", {}).get(judge, {})
    found: Mapping[str, Any] | None = by_rule.get(basis)
    return found
