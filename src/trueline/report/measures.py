"""The cells of one row in; a number a sample for every measure out, kept apart by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trueline.evaluation.metrics import auroc, ece
from trueline.evaluation.plan import Task
from trueline.report.results import Cell, Line

Kind = Literal["Judged", "Overlap", "Choices", "Behaviour"]
Samples = dict[str, float]  # a value a sample, by its id


@dataclass(frozen=True, slots=True)
class Measure:
    """What a column shows."""

    key: str
    title: str
    kind: Kind
    better: int  # 1: more is better, -1: less is, 0: neither
    is_percent: bool = True
    is_binary: bool = False  # right or wrong, one a sample: McNemar's test applies
    digits: int = 1

    @property
    def task(self) -> Task:
        """The task whose lines it is worked out from."""
        return "choose" if self.kind == "Choices" else "generate"


MEASURES = {
    measure.key: measure
    for measure in (
        Measure("truth", "%Truth", "Judged", 1, is_binary=True),
        Measure("info", "%Info", "Judged", 1, is_binary=True),
        Measure("truth_info", "T*I", "Judged", 1),
        Measure("hallucination", "HalluRate", "Judged", -1, is_binary=True),
        Measure("rouge_l", "ROUGE-L", "Overlap", 1),
        Measure("bertscore", "BERTScore", "Overlap", 1),
        Measure("bleu_accuracy", "BLEU accuracy", "Overlap", 1, is_binary=True),
        Measure("rouge_accuracy", "ROUGE accuracy", "Overlap", 1, is_binary=True),
        Measure("mc1", "MC1", "Choices", 1, is_binary=True),
        Measure("mc2", "MC2", "Choices", 1),
        Measure("mc3", "MC3", "Choices", 1),
        Measure("ece", "ECE", "Behaviour", -1, is_percent=False, digits=3),
        Measure("auroc", "AUROC", "Behaviour", 1, is_percent=False, digits=3),
        Measure("grounded", "grounded tokens", "Behaviour", 0),
        Measure("edits", "changed tokens", "Behaviour", 0),
        Measure("speed", "tokens/s", "Behaviour", 1, is_percent=False),
        Measure("memory", "peak memory (MB)", "Behaviour", 0, is_percent=False, digits=0),
    )
}
_ABOUT = ("truth", "info", "hallucination")


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
    """The values of one column in one row: by sample, or one number where it is no mean."""

    seeds: tuple[Samples, ...] = ()  # in the order of the cells
    number: float | None = None
    unscored: int = 0  # samples that were looked at and have no value
    to_come: int = 0  # samples nobody has looked at yet

    @property
    def pooled(self) -> Samples:
        """Each sample's mean over the seeds that have it."""
        ids = dict.fromkeys(id for seed in self.seeds for id in seed)
        return {id: _mean([seed[id] for seed in self.seeds if id in seed]) for id in ids}


def columns_of(cells: Iterable[Cell]) -> list[Column]:
    """Every column that some cell has a value for, judge by judge, in the order above."""
    found: dict[Column, None] = {}
    for cell in cells:
        for column in _possible(cell):
            if _has_value(series_of([cell], column)):
                found[column] = None
    order = [*MEASURES]
    return sorted(found, key=lambda column: order.index(column.measure.key))


def series_of(cells: Sequence[Cell], column: Column) -> Series:
    """The values of a column over cells that differ only in their seed or their task."""
    key, judge = column.measure.key, column.judge
    if key in _NUMBERS:
        found = [n for cell in cells if (n := _NUMBERS[key](cell, judge)) is not None]
        return Series(number=_mean(found) if found else None)
    seeds, unscored, to_come = [], 0, 0
    for cell in cells:
        looked_at = _values(cell, key, judge)
        scored = {id: value for id, value in looked_at.items() if value is not None}
        seeds += [scored] if scored else []
        unscored += len(looked_at) - len(scored)
        lines = cell.choices if column.measure.task == "choose" else cell.answers
        to_come += len(lines) - len(looked_at)
    return Series(tuple(seeds), unscored=unscored, to_come=to_come)


def labels(cell: Cell, about: str, judge: str) -> dict[str, bool | None]:
    """A judge's verdicts on the answers of a cell; None where one could not be read."""
    return {
        line["sample"]: line["label"]
        for line in cell.verdicts
        if (line["judge"], line["about"]) == (judge, about)
    }


def confidences(cell: Cell, judge: str) -> tuple[list[float], list[bool]]:
    """How sure the model was of each answer that has a truth verdict, and the verdict."""
    verdicts = labels(cell, "truth", judge)
    pairs = [
        (float(line["confidence"]), bool(label))
        for line in cell.answers
        if (label := verdicts.get(line["sample"])) is not None
        and line.get("confidence") is not None
    ]
    return [sure for sure, _ in pairs], [label for _, label in pairs]


def _possible(cell: Cell) -> list[Column]:
    judges = dict.fromkeys(line["judge"] for line in cell.verdicts)
    about_judges = {*_ABOUT, "truth_info", "ece", "auroc"}
    plain = [Column(m) for key, m in MEASURES.items() if key not in about_judges]
    return [*(Column(MEASURES[key], j) for j in judges for key in about_judges), *plain]


def _has_value(series: Series) -> bool:
    return bool(series.seeds) or series.number is not None


def _values(cell: Cell, key: str, judge: str) -> dict[str, float | None]:
    """Every sample that was looked at; None where there is no value to be had."""
    if key in _ABOUT:
        return {
            id: None if x is None else float(x) for id, x in labels(cell, key, judge).items()
        }
    if key == "truth_info":  # its samples: those with both verdicts; the product is of means
        truth, info = (_values(cell, about, judge) for about in ("truth", "info"))
        return {id: None if info[id] is None else x for id, x in truth.items() if id in info}
    if key in ("mc1", "mc2", "mc3"):
        return _numbers(cell.choices, lambda line: line.get(key))
    if key in ("grounded", "edits"):
        return _numbers(cell.answers, _SHARES[key])
    return _numbers(cell.answers, lambda line: (line.get("scores") or {}).get(key))


def _numbers(lines: Sequence[Line], value: Callable[[Line], Any]) -> dict[str, float | None]:
    found = {line["sample"]: value(line) for line in lines}
    return {id: None if number is None else float(number) for id, number in found.items()}


def _share(values: Sequence[float] | None, is_counted: Callable[[float], bool]) -> float | None:
    return _mean([float(is_counted(value)) for value in values]) if values else None


_SHARES: Mapping[str, Callable[[Line], float | None]] = {
    "grounded": lambda line: _share(line.get("hits"), lambda hits: hits > 0),
    "edits": lambda line: _share(line.get("flipped"), bool),
}


def _speed(cell: Cell, judge: str) -> float | None:
    seconds = sum(line.get("seconds") or 0.0 for line in cell.answers)
    return sum(line["tokens"] for line in cell.answers) / seconds if seconds else None


def _memory(cell: Cell, judge: str) -> float | None:
    return cell.done.get("peak_mb") if cell.done and cell["task"] != "choose" else None


STATISTICS = {"ece": ece, "auroc": auroc}  # of confidences and verdicts
_NUMBERS: Mapping[str, Callable[[Cell, str], float | None]] = {
    "ece": lambda cell, judge: ece(*confidences(cell, judge)),
    "auroc": lambda cell, judge: auroc(*confidences(cell, judge)),
    "speed": _speed,
    "memory": _memory,
}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
