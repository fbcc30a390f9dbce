"""Cells -> a number a sample for every measure, kept apart by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from trueline.evaluation.lines import AnswerLine
from trueline.evaluation.metrics import auroc, ece
from trueline.evaluation.outcomes import CellResults
from trueline.evaluation.plan import Mode
from trueline.evaluation.samples import About
from trueline.examples.asked import COVERED, Regime

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
    is_judged: bool = False  # whether it rests on a judge's verdicts
    regimes: tuple[Regime, ...] = ()  # the answers it looks at; empty: all
    score: str = ""  # the score of an answer it shows; empty: the one of its own name

    @property
    def asks(self) -> tuple[About, ...]:
        """What the judge it rests on was asked; nothing where it rests on none."""
        return _ASKS.get(self.key, ())

    @property
    def task(self) -> Mode:
        """The task whose lines it is worked out from."""
        return "choose" if self.group == "Choices" else "generate"


def _right(key: str, title: str, regime: Regime) -> Measure:
    return Measure(key, title, "Regimes", 1, is_binary=True, regimes=(regime,), score="right")


def _same(key: str, title: str, regime: Regime) -> Measure:
    return Measure(key, title, "Regimes", 1, is_binary=True, regimes=(regime,), score=_SAME)


def _form(key: str, title: str, better: int, score: str) -> Measure:
    return Measure(
        key, title, "Fluency and form", better, is_binary=True, regimes=COVERED, score=score
    )


_SAME = "same"  # as the plain model's answer, token for token: worked out when results are read
MEASURES = {
    measure.key: measure
    for measure in (
        _right("efficacy", "efficacy (exact)", "exact"),
        _right("generalisation", "generalisation (paraphrase)", "paraphrase"),
        _right("styled", "styled", "styled"),
        _right("double", "double", "double"),
        _right("mid_text", "mid-text", "mid-text"),
        _same("near_miss", "locality (near miss)", "near miss"),
        _same("unrelated", "locality (unrelated)", "unrelated"),
        _form("fluency", "fluency", 1, "fluent"),
        _form("repeated", "repeats itself", -1, "repeated"),
        _form("joined", "answers run together", -1, "joined"),
        _form("cut", "cut off", -1, "cut"),
        _form("form", "form kept", 1, "form"),
        _form("wrong_polarity", "wrong yes or no", -1, "wrong_polarity"),
        Measure("truth", "%Truth", "Judged", 1, is_binary=True, is_judged=True),
        Measure("info", "%Info", "Judged", 1, is_binary=True, is_judged=True),
        Measure("truth_info", "T*I", "Judged", 1, is_judged=True),
        Measure("hallucination", "HalluRate", "Judged", -1, is_binary=True, is_judged=True),
        Measure("rouge_l", "ROUGE-L", "Overlap", 1),
        Measure("bleu", "BLEU", "Overlap", 1),
        Measure("bertscore", "BERTScore", "Overlap", 1),
        Measure("bleu_accuracy", "BLEU accuracy", "Overlap", 1, is_binary=True),
        Measure("rouge_accuracy", "ROUGE accuracy", "Overlap", 1, is_binary=True),
        Measure("mc1", "MC1", "Choices", 1, is_binary=True),
        Measure("mc2", "MC2", "Choices", 1),
        Measure("mc3", "MC3", "Choices", 1),
        Measure("ece", "ECE", "Behaviour", -1, is_percent=False, digits=3, is_judged=True),
        Measure("auroc", "AUROC", "Behaviour", 1, is_percent=False, digits=3, is_judged=True),
        Measure("grounded", "grounded tokens", "Behaviour", 0),
        Measure("edits", "changed tokens", "Behaviour", 0),
        Measure("speed", "tokens/s", "Behaviour", 1, is_percent=False),
    )
}
_ABOUT: tuple[About, ...] = get_args(About)
_ASKS: dict[str, tuple[About, ...]] = {
    **{about: (about,) for about in _ABOUT},
    "truth_info": ("truth", "info"),
    **dict.fromkeys(("ece", "auroc"), ("truth",)),
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
            for judge in cell.judges if measure.is_judged else ("",):
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
    """The same as two lists."""
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
    return sum(not line.is_local for line in lines) if measure.is_judged else len(lines)


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
