"""Cells and a column -> values by sample; their mean, interval, difference from a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from statistics import fmean, stdev
from typing import Any, Literal

from trueline.examples import COVERED, Regime
from trueline.lab.judges.questions import About
from trueline.lab.metrics import auroc, ece
from trueline.lab.plan import Mode
from trueline.lab.results import CellResults
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
Confident = dict[str, tuple[float, bool]]  # by sample: the confidence, and whether it is true
MeasureGroup = Literal[
    "Regimes", "Fluency and form", "Judged", "Overlap", "Choices", "Behaviour"
]
STATISTICS = {"ece": ece, "auroc": auroc}  # of confidences and verdicts
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
    verdicts: tuple[About, ...] = ()  # the verdicts it needs; empty: no judge
    regimes: tuple[Regime, ...] = ()  # the answers it looks at; empty: all
    score: str = ""  # the score of an answer it shows; empty: the one named like the key

    @property
    def task(self) -> Mode:
        return "choose" if self.group == "Choices" else "generate"


_regime = partial(Measure, group="Regimes", better=1, is_binary=True, score="right")
_form = partial(Measure, group="Fluency and form", better=-1, is_binary=True, regimes=COVERED)
_judged = partial(Measure, group="Judged", better=1, is_binary=True)
_calibration = partial(
    Measure, group="Behaviour", is_percent=False, digits=3, verdicts=("truth",)
)
MEASURES = {
    measure.key: measure
    for measure in (
        _regime("efficacy", "efficacy (exact)", regimes=("exact",)),
        _regime("generalisation", "generalisation (paraphrase)", regimes=("paraphrase",)),
        _regime("styled", "styled", regimes=("styled",)),
        _regime("double", "double", regimes=("double",)),
        _regime("mid_text", "mid-text", regimes=("mid-text",)),
        _regime("near_miss", "locality (near miss)", regimes=("near miss",), score=_SAME),
        _regime("unrelated", "locality (unrelated)", regimes=("unrelated",), score=_SAME),
        _form("fluency", "fluency", better=1, score="fluent"),
        _form("repeated", "repeats itself"),
        _form("joined", "answers run together"),
        _form("cut", "cut off"),
        _form("form", "form kept", better=1),
        _form("wrong_polarity", "wrong yes or no"),
        _judged("truth", "%Truth", verdicts=("truth",)),
        _judged("info", "%Info", verdicts=("info",)),
        _judged("truth_info", "T*I", verdicts=("truth", "info"), is_binary=False),
        _judged("hallucination", "HalluRate", verdicts=("hallucination",), better=-1),
        Measure("rouge_l", "ROUGE-L", "Overlap", 1),
        Measure("bleu", "BLEU", "Overlap", 1),
        Measure("bertscore", "BERTScore", "Overlap", 1),
        Measure("bleu_accuracy", "BLEU accuracy", "Overlap", 1, is_binary=True),
        Measure("rouge_accuracy", "ROUGE accuracy", "Overlap", 1, is_binary=True),
        Measure("mc1", "MC1", "Choices", 1, is_binary=True),
        Measure("mc2", "MC2", "Choices", 1),
        Measure("mc3", "MC3", "Choices", 1),
        _calibration("ece", "ECE", better=-1),
        _calibration("auroc", "AUROC", better=1),
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
    p_holm: float | None = None  # corrected for the comparisons of its column (Holm)
    effect: str = ""  # what the controls show about a gain; empty: no gain, or no control
    is_best: bool = False

    @property
    def p(self) -> float | None:
        """The p of the difference; McNemar's if the measure is binary."""
        return self.difference.p if self.difference else None


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


def columns_of(cells: Cells) -> list[Column]:
    """Every column that some cell has a value for, in the order of MEASURES."""
    columns = [
        column
        for measure in MEASURES.values()
        for cell in cells
        for judge in (cell.judges if measure.verdicts else ("",))
        if _number(cell, column := Column(measure, judge)) is not None or _scored(cell, column)
    ]
    return list(dict.fromkeys(columns))


def _number(cell: CellResults, column: Column) -> float | None:
    """The value of a measure that is not a mean over samples: tokens/s, ECE and AUROC."""
    if statistic := STATISTICS.get(column.measure.key):
        found = confidences(cell, column.judge)
        return statistic(*_pairs(found, found))
    if column.measure.key != "speed":
        return None
    # Tokens from the first one on; lines without that time do not count.
    timed = [(x.tokens, x.decoding_seconds) for x in cell.answers if x.decoding_seconds]
    tokens = sum(max(0, count - 1) for count, _ in timed)
    return tokens / sum(seconds for _, seconds in timed) if timed else None


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


def _looked_at(cell: CellResults, column: Column) -> tuple[Mapping[str, float | None], int]:
    """The values of the samples that were looked at, and how many values to expect.

    A value may be None; the number is 0 where all samples were looked at.
    """
    measure, judge = column.measure, column.judge
    key, score = measure.key, measure.score or measure.key
    if key in STATISTICS or key == "speed":
        return {}, 0
    if measure.verdicts:
        values = cell.labels(measure.verdicts[0], judge)
        if key == "truth_info":  # of samples with both verdicts; the product is of their means
            info = cell.labels("info", judge)
            values = {
                id: None if info[id] is None else x for id, x in values.items() if id in info
            }
        return values, sum(not line.is_local for line in cell.answers)
    if measure.task == "choose":
        return {line.sample: getattr(line, key) for line in cell.choices}, 0
    lines = [x for x in cell.answers if not measure.regimes or x.regime in measure.regimes]
    if name := {"grounded": "hits", "edits": "flipped"}.get(key):
        flags = {line.sample: [flag > 0 for flag in getattr(line, name)] for line in lines}
        return {id: fmean(x) if x else None for id, x in flags.items()}, 0
    if score == _SAME:
        plain = cell.plain
        same = {x.sample: x.token_hash == plain[x.sample] for x in lines if x.sample in plain}
        return same, len(lines) if plain else 0
    # Of answers with a regime only those that have the score count.
    known = [line for line in lines if not measure.regimes or score in line.scores]
    return {line.sample: line.scores.get(score) for line in known}, 0


def _scored(cell: CellResults, column: Column) -> dict[str, float]:
    values, _ = _looked_at(cell, column)
    return {id: float(value) for id, value in values.items() if value is not None}


def _lists(column: Column, *groups: Cells) -> list[list[float]]:
    """The values of each group of cells on the samples that all groups have.

    A sample counts with its mean over the seeds that have it. T*I has two lists a group, whose
    means are multiplied.
    """
    keys = ("truth", "info") if column.measure.key == "truth_info" else (column.measure.key,)
    sets = []
    for cells, key in product(groups, keys):
        seeds = [_scored(cell, Column(MEASURES[key], column.judge)) for cell in cells]
        ids = dict.fromkeys(id for seed in seeds for id in seed)
        sets.append({id: fmean([seed[id] for seed in seeds if id in seed]) for id in ids})
    common = [id for id in sets[0] if all(id in values for values in sets)]
    return [[values[id] for id in common] for values in sets]


def average(cells: Cells, column: Column, baseline: Cells = ()) -> Average | None:
    """The mean of a column over cells that differ only in seed or task; None without values.

    With a baseline also the difference from it, on the samples that both have.
    """
    numbers = [x for cell in cells if (x := _number(cell, column)) is not None]
    if numbers:
        return _average_statistic(fmean(numbers), cells, column, baseline)
    looked_at = [_looked_at(cell, column) for cell in cells]
    if not any(x is not None for values, _ in looked_at for x in values.values()):
        return None

    lists = _lists(column, cells)
    interval = mean_interval(*lists)
    if _is_binary(cells, column):  # a share keeps a width at 0 and 1
        interval = share_interval(round(sum(lists[0])), len(lists[0]))
    seeds = dict.fromkeys(cell.head.seed for cell in cells)
    by_seed = [_lists(column, [x for x in cells if x.head.seed == seed]) for seed in seeds]
    means = [prod(map(fmean, factors)) for factors in by_seed if factors[0]]
    return Average(
        *(interval.mean, interval.low, interval.high, interval.n),
        unscored=sum(x is None for values, _ in looked_at for x in values.values()),
        to_come=sum(max(0, expected - len(values)) for values, expected in looked_at),
        spread=stdev(means) if len(means) > 1 else None,
        difference=difference_from(baseline, cells, column),
    )


def _is_binary(cells: Cells, column: Column) -> bool:
    """Whether samples are right or wrong: a sample of several seeds has a share."""
    return column.measure.is_binary and sum(bool(_scored(x, column)) for x in cells) == 1


def _average_statistic(number: float, cells: Cells, column: Column, baseline: Cells) -> Average:
    """A number that is not a mean; ECE and AUROC of a single seed have an interval and a p."""
    statistic = STATISTICS.get(column.measure.key)
    ours, base = (
        [known for cell in some if (known := confidences(cell, column.judge))]
        for some in (cells, baseline)
    )
    if statistic is None or len(ours) != 1:
        return Average(number)
    low, high = redrawn_interval(statistic, *_pairs(ours[0], ours[0])) or (None, None)
    common = [sample for sample in ours[0] if len(base) == 1 and sample in base[0]]
    sides = (_pairs(ours[0], common), _pairs(base[0], common)) if common else None
    difference = paired_statistic(statistic, *sides) if sides else None
    return Average(number, low, high, 0 if low is None else len(ours[0]), difference=difference)


def difference_from(baseline: Cells, cells: Cells, column: Column) -> Difference | None:
    """The mean difference of cells from others on their common samples; None without any."""
    paired = _lists(column, cells, baseline)
    if not paired[0]:
        return None
    difference = paired_difference(*paired)
    if _is_binary(cells, column) and _is_binary(baseline, column):
        return replace(difference, p=mcnemar(*paired))
    return difference


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
    """The ids of the columns that need a judge whose verdicts are only indicative.

    Its balanced accuracy against people is below 75 %, or is not known of a measurable rule.
    """
    hints = {
        (judge, about)
        for (judge, about, _), known in agreements(cells).items()
        if known is None or known["balanced_accuracy"][0] < 0.75
    }
    return frozenset(
        x.id for x in columns if any((x.judge, about) in hints for about in x.measure.verdicts)
    )


def agreements(
    cells: Iterable[CellResults],
) -> dict[tuple[str, About, str], Mapping[str, Any] | None]:
    """How far judges agree with people, by judge, what they judged and the rule they used.

    None if nobody measured it; rules that cannot be measured are left out.
    """
    from trueline.lab.judges.offline import agreement

    known = agreement()
    others = {known.get("judge"): known, **known.get("others", {})}
    lines = (line for cell in cells for line in cell.verdicts if line.basis)
    rules = dict.fromkeys((line.judge, line.about, line.basis) for line in lines)
    return {rule: others.get(rule[0], {}).get(rule[2]) for rule in rules}
