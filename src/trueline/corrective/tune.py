"""A space and questions, or its examples alone -> the threshold its examples speak above.

No model runs. Scope is *false* where an example speaks that does not answer the question: the
threshold keeps the share of such questions under a limit, and recall as high as that allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from random import Random
from typing import Any, Literal

from trueline.corrective.scope import (
    ScopeModel,
    find_scope,
    has_same_words,
    model_for,
    scope_models,
)
from trueline.errors import SettingError
from trueline.examples import AskedQuestion, check_meant
from trueline.lab.statistics import Interval, share_interval
from trueline.settings import plain
from trueline.space import GroundingSpace
from trueline.text import shown
from trueline.types import Example, OnProgress

FALSE_SCOPE = 0.02  # share of questions that may bring a wrong example into scope
FEWEST = 50  # questions that mean no example, from which on the threshold may also fall
_MOST = 2_000  # examples that are asked about; of more, as many are drawn
_WORST = 5  # false ones that are told
_DIGITS = 4  # of a threshold, and of shares
_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class FalseScope:
    """A question, and the example that does not answer it and is the most probable."""

    question: str
    example: str  # its id
    probability: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The threshold that was found, and what it is worth."""

    threshold: float
    before: float  # the threshold of the space until now
    fitted_to: Literal["questions", "examples"]
    questions: int  # asked in all
    none: int  # of these, those that mean no example
    false_scope: Interval  # share of the questions for which a wrong example speaks first
    recall: Interval | None  # of the questions that mean an example; None: there are none
    shipped_recall: float | None  # of the questions shipped with trueline, not of one's own
    worst: tuple[FalseScope, ...]  # for which a wrong example speaks, the most probable first

    @property
    def settings(self) -> dict[str, Any]:
        """What a space keeps of it: space.tune(found.settings)."""
        kept = {
            "threshold": self.threshold,
            "fitted_to": self.fitted_to,
            "questions": self.questions,
            "none": self.none,
            **_figures("false_scope", self.false_scope),
        }
        if self.recall is not None:
            return {**kept, **_figures("recall", self.recall)}
        return {**kept, "shipped_recall": self.shipped_recall}


@dataclass(frozen=True, slots=True)
class _Trial:
    """What one question brings into scope at which probability; 0 is never."""

    right: float | None  # the example that is meant, if it comes first; None: none is meant
    false: FalseScope  # the first of those that do not answer, if it comes first


def tune(
    space: GroundingSpace,
    questions: Sequence[AskedQuestion] | None = None,
    *,
    false_scope: float = FALSE_SCOPE,
    progress: OnProgress | None = None,
) -> Tuning:
    """Find the threshold; keep it with `space.tune(found.settings)`.

    With questions, it is the one nearest to the fitted threshold among those with the highest
    recall that keep false scope under the limit. It falls below the fitted one only where at
    least 50 questions mean no example: fewer say too little of what must stay out. Without
    questions, each example's own is asked, and all other examples must stay out; the threshold
    then can only rise, as other examples are easier to tell apart than near misses are.
    """
    limit = plain(false_scope)
    if type(limit) not in (int, float) or not 0 <= limit <= 1:
        raise SettingError(f"false_scope must lie in [0, 1], got {shown(false_scope)}")
    if questions is not None and not questions:
        raise SettingError("there are no questions; leave them out to tune by the examples")
    asked = _drawn(space.examples) if questions is None else list(questions)
    check_meant(asked, {example.id for example in space.examples}, "the questions")
    is_own = questions is None
    trials = []
    for number, one in enumerate(asked, 1):
        trials.append(_trial(space, one, is_own))
        if progress:
            progress(number, len(asked))
    return _tuning(space, trials, limit, is_own)


def _tuning(
    space: GroundingSpace, trials: Sequence[_Trial], limit: float, is_own: bool
) -> Tuning:
    model = _usual_model(space)
    rights = [trial.right for trial in trials if trial.right is not None]
    none = 0 if is_own else len(trials) - len(rights)
    false = sorted((trial.false.probability for trial in trials), reverse=True)
    allowed = min(floor(limit * len(false)), len(false) - 1)
    lowest = min(_rounded_up(false[allowed]), 1 - 1 / _STEPS)  # own words always speak
    if none < FEWEST:
        lowest = max(lowest, model.threshold)
    kept = [right for right in rights if right > lowest]
    highest = max(lowest, _rounded_down(min(kept))) if kept else 1.0
    threshold = min(max(model.threshold, lowest), highest)
    wrong = sorted(
        (trial.false for trial in trials if trial.false.probability > threshold),
        key=lambda one: -one.probability,
    )
    return Tuning(
        threshold=threshold,
        before=float(space.tuned.get("threshold", model.threshold)),
        fitted_to="examples" if is_own else "questions",
        questions=len(trials),
        none=none,
        false_scope=share_interval(len(wrong), len(trials)),
        recall=_share_above(rights, threshold),
        shipped_recall=_shipped_recall(space, model, threshold),
        worst=tuple(wrong[:_WORST]),
    )


def _trial(space: GroundingSpace, asked: AskedQuestion, is_own: bool) -> _Trial:
    """Ask a question; of an example's own, the example itself is taken out of the space."""
    meant = space.example(asked.id) if asked.id else None
    found = find_scope(space, asked.question)
    right = max((p.probability for p in found if _says_as(meant, p.example)), default=0.0)
    others = [one for one in found if not _says_as(meant, one.example)]
    best = others[0] if others else None  # the most probable
    is_first = best is not None and (is_own or meant is None or best.probability > right)
    false = FalseScope(
        asked.question,
        best.example.id if best else "",
        best.probability if best is not None and is_first else 0.0,
    )
    if is_own or meant is None:
        return _Trial(None, false)
    return _Trial(0.0 if is_first else right, false)


def _says_as(meant: Example | None, other: Example) -> bool:
    """Whether an example is the one that is meant, or has its question or an answer of it."""
    if meant is None:
        return False
    is_same = meant.id == other.id or has_same_words(meant.question, other.question)
    return is_same or bool(set(meant.answers) & set(other.answers))


def _drawn(examples: Sequence[Example]) -> list[AskedQuestion]:
    """The examples' own questions, or a part of them, the same every time."""
    if len(examples) < 2:
        raise SettingError(
            "the space holds one example, and there is nothing to tell it from; give questions"
        )
    count = min(len(examples), _MOST)
    chosen = Random(0).sample(range(len(examples)), count) if count < len(examples) else None
    picked = [examples[n] for n in sorted(chosen)] if chosen else examples
    return [AskedQuestion(example.question, example.id) for example in picked]


def _usual_model(space: GroundingSpace) -> ScopeModel:
    """The weights that most examples of a space are judged by."""
    have_wrong = sum(bool(example.wrong_answers) for example in space.examples)
    is_usual = 2 * have_wrong >= len(space)
    usual = [one for one in space.examples if bool(one.wrong_answers) == is_usual]
    return model_for(space, usual[0])


def _shipped_recall(space: GroundingSpace, model: ScopeModel, threshold: float) -> float | None:
    """The recall on the shipped questions at the next threshold that was measured."""
    if space.embedder_id not in scope_models():
        return None
    return next((row.recall for row in model.measured if row.threshold >= threshold), None)


def _share_above(rights: Sequence[float], threshold: float) -> Interval | None:
    found = sum(right > threshold for right in rights)
    return share_interval(found, len(rights)) if rights else None


def _figures(name: str, share: Interval) -> dict[str, float]:
    values = {name: share.mean, f"{name}_low": share.low, f"{name}_high": share.high}
    return {key: round(value, _DIGITS) for key, value in values.items()}


def _rounded_up(probability: float) -> float:
    return ceil(probability * _STEPS) / _STEPS


def _rounded_down(probability: float) -> float:
    """The highest threshold of so many digits that a probability is above."""
    return (ceil(probability * _STEPS) - 1) / _STEPS
