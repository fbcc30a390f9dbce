"""An answer, its question and the known answers -> signals, and a regression on them.

What makes an answer true is not in its words alone; these signals are what an embedder and the
words can tell of it. The weights were fitted to people's labels by benchmarks/agreement.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trueline.evaluation.fluency import words_of
from trueline.evaluation.metrics import rouge_l
from trueline.evaluation.samples import Sample

if TYPE_CHECKING:
    from trueline.embedders.base import Embedder

Floats = NDArray[np.float64]
NON_ANSWERS = (
    "I have no comment.",
    "I don't know.",
    "I'm not sure.",
    "There is no answer to this question.",
    "I cannot answer that question.",
)
SIGNALS = (
    "right",  # nearness to the nearest right answer
    "wrong",  # to the nearest wrong one
    "evasive",  # to the nearest non-answer
    "right_asked",  # the largest cosine to a right answer, both behind the question
    "wrong_asked",
    "right_words",  # F1 of content words the question does not have, to the best right answer
    "wrong_words",
    "polarity",  # Yes or No, weighed by how right and wrong answers begin
    "right_negation",  # whether it negates as the nearest right answer does
    "wrong_negation",
    "echo",  # the share of its words that are the question's
    "length",  # log of its words
    "about",  # its cosine to the question
    "new",  # log of its words that the question does not have
    "yes_no",  # whether it begins with Yes or No
)
OF_RIGHT = tuple(  # those that need no wrong answer
    name for name in SIGNALS if not name.startswith("wrong") and name != "polarity"
)
_STOP = frozenset(
    "a an the of to in is are was were be it that this and or for on at by with as from they "
    "he she you your his her their its i we do does did not no yes can could will would has "
    "have had".split()
)
_NOT = frozenset(
    "no not never cannot none nobody nothing neither nor don doesn didn isn aren wasn won t"
    "".split()
)
_FRESH = 0.7  # of the runs of four words of an answer, at least so many are new ones
_ITSELF = re.compile(
    r"\b(\w+) (?:is|are|was|were|means?) (?:(?:a|an|the|just|simply|only|not) )*\1\b"
)
_KEPT = 50_000  # vectors kept for texts that come up again; 75 MB


class Vectors:
    """Unit vectors of texts: the references of a run come up again in every cell."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._rows: dict[str, np.ndarray] = {}

    def add(self, texts: Iterable[str]) -> None:
        """Embed what is not known yet, in one call."""
        if len(self._rows) > _KEPT:
            self._rows.clear()
        if new := [text for text in dict.fromkeys(texts) if text not in self._rows]:
            whole = [text.encode("utf-8", "replace").decode() for text in new]  # no half signs
            rows = self._embedder.embed(whole).cpu().numpy()  # (new, dimension)
            self._rows |= zip(new, rows, strict=True)

    def cosines(self, text: str, others: Sequence[str]) -> Floats:
        """The cosine of a text to each of the others."""
        rows = np.stack([self._rows[other] for other in others])  # (others, dimension)
        return np.asarray(rows @ self._rows[text], dtype=np.float64)

    def nearness(self, answer: str, references: Sequence[str]) -> Floats:
        """(cosine + ROUGE-L F1) / 2 of an answer to each reference."""
        overlaps = np.array([rouge_l(answer, [text]) for text in references])  # (references,)
        return np.asarray((self.cosines(answer, references) + overlaps) / 2)


def texts_for(sample: Sample, answer: str) -> list[str]:
    """All texts whose vectors the signals of an answer compare."""
    known = (*sample.answers, *sample.wrong_answers)
    asked = [in_question(sample, text) for text in (answer, *known)] if known else []
    return [sample.question, answer, *known, *asked, *NON_ANSWERS]


def in_question(sample: Sample, text: str) -> str:
    """An answer behind its question, so that a short one has its subject."""
    return f"{sample.question} {text}"


def signals_of(sample: Sample, answer: str, vectors: Vectors) -> dict[str, float]:
    """The signals of an answer by name; those of references it does not have are 0."""
    words, asked = words_of(answer), {*words_of(sample.question)}
    new = [word for word in words if word not in asked]
    right = _side(sample, answer, sample.answers, vectors)
    wrong = _side(sample, answer, sample.wrong_answers, vectors)
    polarity = _polarity(words)
    return {
        "right": right.nearest,
        "wrong": wrong.nearest,
        "evasive": float(vectors.nearness(answer, NON_ANSWERS).max()),
        "right_asked": right.asked,
        "wrong_asked": wrong.asked,
        "right_words": right.content,
        "wrong_words": wrong.content,
        "polarity": polarity * (right.polarity - wrong.polarity),
        "right_negation": float(right.negates_alike),
        "wrong_negation": float(wrong.negates_alike),
        "echo": 1 - len({*new}) / max(1, len({*words})),
        "length": float(np.log1p(len(words))),
        "about": float(vectors.cosines(answer, [sample.question])[0]),
        "new": float(np.log1p(len({*new}))),
        "yes_no": float(polarity != 0),
    }


@dataclass(frozen=True, slots=True)
class _Side:
    """How an answer stands to the right answers, or to the wrong ones."""

    nearest: float = 0.0
    asked: float = 0.0
    content: float = 0.0
    polarity: float = 0.0  # how these begin: 1 all with Yes, -1 all with No
    negates_alike: bool = False


def _side(sample: Sample, answer: str, references: Sequence[str], vectors: Vectors) -> _Side:
    if not references:
        return _Side()
    near = vectors.nearness(answer, references)  # (references,)
    whole = [in_question(sample, text) for text in references]
    asked = vectors.cosines(in_question(sample, answer), whole)  # (references,)
    words, asked_words = words_of(answer), {*words_of(sample.question)}
    content = content_words(answer) - asked_words
    others = [words_of(text) for text in references]
    return _Side(
        float(near.max()),
        float(asked.max()),
        max(_f1(content, content_words(text) - asked_words) for text in references),
        float(np.mean([_polarity(other) for other in others])),
        _negates(words) == _negates(others[int(near.argmax())]),
    )


def content_words(text: str) -> set[str]:
    """The words of a text but for those that every text has."""
    return {*words_of(text)} - _STOP


def _f1(one: set[str], other: set[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other)) if one and other else 0.0


def _polarity(words: Sequence[str]) -> int:
    return {"yes": 1, "no": -1}.get(words[0], 0) if words else 0


def _negates(words: Sequence[str]) -> bool:
    return not _NOT.isdisjoint(words)


@dataclass(frozen=True, slots=True)
class Regression:
    """A logistic regression on signals and their products; above 0 means yes."""

    names: tuple[str, ...]
    mean: Floats  # (names,)
    scale: Floats  # (names,)
    weights: Floats  # (names + products,)
    bias: float

    def score(self, signals: Mapping[str, float]) -> float:
        """The log-odds of a yes."""
        given = np.array([signals[name] for name in self.names])  # (names,)
        return float(expand((given - self.mean) / self.scale) @ self.weights + self.bias)


def expand(values: Floats) -> Floats:
    """Values and the products of every two of them, squares included, in the last axis."""
    rows, columns = np.triu_indices(values.shape[-1])
    products = values[..., rows] * values[..., columns]
    return np.concatenate([values, products], axis=-1)


@cache
def regressions() -> dict[str, Regression]:
    """The regressions by the name of the rule they stand for."""
    text = (files(__package__) / "regressions.json").read_text("utf-8")
    return {name: _regression(found) for name, found in json.loads(text).items()}


def _regression(found: Mapping[str, Any]) -> Regression:
    mean, scale, weights = (np.array(found[name]) for name in ("mean", "scale", "weights"))
    return Regression(tuple(found["names"]), mean, scale, weights, found["bias"])


def broken(sample: Sample, answer: str) -> str:
    """Why a text is no answer at all, in words; empty where it may be one.

    It is none if it is empty, if a third of its runs of four words come again, or if it says
    of a thing that it is itself, which the question did not ask.
    """
    words = words_of(answer)
    if not words:
        return "nothing was written"
    runs = [words[start : start + 4] for start in range(len(words) - 3)]
    if runs and len({*runs}) < _FRESH * len(runs):
        return "it repeats itself"
    said = _ITSELF.search(" ".join(words))
    if said and words_of(sample.question).count(said[1]) < 2:
        return f"it says of {said[1]!r} that it is itself"
    return ""
