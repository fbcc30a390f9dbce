"""A space and questions, or its examples alone -> the threshold of scope.

No model runs. Scope is *false* if it contains an example that does not answer the question: the
threshold keeps the share of such questions under a limit, and recall as high as that allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from random import Random
from typing import Annotated, Any, Literal

from trueline.corrective.scope import find_scope, has_same_words, model_for, scope_models
from trueline.errors import SettingError
from trueline.examples import UserQuestion, check_meant
from trueline.settings import Between, check_value, plain
from trueline.space import GroundingSpace
from trueline.types import OnProgress

FALSE_SCOPE = 0.02  # share of questions that may bring a wrong example into scope
FEWEST = 50  # questions that no example answers, with which the threshold may also fall
_MOST = 2_000  # examples whose question is tried; of more, as many are drawn
_WORST = 5  # false ones that are reported
_STEPS = 10_000  # possible thresholds between 0 and 1
_DEVIATIONS = 1.959964  # of a normal distribution: its middle 95 %


@dataclass(frozen=True, slots=True)
class FalseScope:
    """A question, and the most probable of the examples that do not answer it."""

    question: str
    example: str  # its id
    probability: float


@dataclass(frozen=True, slots=True)
class Share:
    """A share of n questions, with Wilson's 95 % interval."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """The threshold, and how good it is."""

    threshold: float
    before: float  # the threshold of the space until now
    fitted_to: Literal["questions", "examples"]
    questions: int
    none: int  # of these, those that no example answers
    false_scope: Share  # of the questions for which a wrong example comes first
    recall: Share | None  # of the questions that an example answers; None: there are none
    shipped_recall: float | None  # of the questions shipped with trueline
    worst: tuple[FalseScope, ...]  # with a wrong example in scope, the most probable first

    @property
    def settings(self) -> dict[str, Any]:
        """What a space stores: space.tune(tuning.settings)."""
        names = ("threshold", "fitted_to", "questions", "none")
        stored: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name, share in (("false_scope", self.false_scope), ("recall", self.recall)):
            if share is not None:
                values = {"": share.mean, "_low": share.low, "_high": share.high}
                stored |= {f"{name}{key}": round(value, 4) for key, value in values.items()}
        return stored if self.recall else {**stored, "shipped_recall": self.shipped_recall}


def tune(
    space: GroundingSpace,
    questions: Sequence[UserQuestion] | None = None,
    *,
    false_scope: float = FALSE_SCOPE,
    progress: OnProgress | None = None,
) -> Tuning:
    """Find the threshold; store it with `space.tune(tuning.settings)`.

    With questions, it is the one nearest to the fitted threshold among those with the highest
    recall that keep false scope under the limit. It falls below the fitted one only if at
    least 50 questions have no answer: fewer say too little about what must stay out. Without
    questions, each example's own is tried, and all other examples must stay out; the threshold
    can then only rise, as other examples are easier to distinguish than near misses.
    """
    limit, examples = plain(false_scope), space.examples
    check_value("false_scope", limit, Annotated[float, Between(0, 1)])
    if is_own := questions is None:
        if len(examples) < 2:
            raise SettingError("the space has only one example; give questions")
        some = Random(0).sample(range(len(examples)), min(_MOST, len(examples)))
        tried = [UserQuestion(examples[n].question, examples[n].id) for n in sorted(some)]
    elif not (tried := list(questions or ())):
        raise SettingError("there are no questions; leave them out to tune by the examples")
    check_meant(tried, {example.id for example in examples}, "the questions")
    trials = []
    for number, question in enumerate(tried, 1):
        trials.append(_trial(space, question, is_own))
        if progress:
            progress(number, len(tried))

    have_wrong = [bool(example.wrong_answers) for example in examples]
    usual = examples[have_wrong.index(2 * sum(have_wrong) >= len(examples))]
    model = model_for(space, usual)  # as most examples have wrong answers, or have none
    rights = [right for right, _ in trials if right is not None]
    none = 0 if is_own else len(trials) - len(rights)
    false = sorted((one for _, one in trials), key=lambda one: -one.probability)
    allowed = min(floor(limit * len(false)), len(false) - 1)
    # The least threshold; an example's own words, at 1, are in scope in any case.
    lowest = min(ceil(false[allowed].probability * _STEPS) / _STEPS, 1 - 1 / _STEPS)
    if none < FEWEST:
        lowest = max(lowest, model.threshold)
    kept = [right for right in rights if right > lowest]
    highest = max(lowest, (ceil(min(kept) * _STEPS) - 1) / _STEPS) if kept else 1.0
    threshold = min(max(model.threshold, lowest), highest)
    wrong = [one for one in false if one.probability > threshold]
    shipped = model.measured if space.embedder_id in scope_models() else ()
    return Tuning(
        threshold=threshold,
        before=float(space.tuned.get("threshold", model.threshold)),
        fitted_to="examples" if is_own else "questions",
        questions=len(trials),
        none=none,
        false_scope=share_of(len(wrong), len(trials)),
        recall=share_of(sum(r > threshold for r in rights), len(rights)) if rights else None,
        # At the next threshold that was measured.
        shipped_recall=next((r.recall for r in shipped if r.threshold >= threshold), None),
        worst=tuple(wrong[:_WORST]),
    )


def share_of(found: int, n: int) -> Share:
    """The share of n questions, with an interval that has a width also at 0 and at 1."""
    share, square = found / n, _DEVIATIONS**2 / n
    middle = (share + square / 2) / (1 + square)
    half = _DEVIATIONS * sqrt(share * (1 - share) / n + square / n / 4) / (1 + square)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Share(share, min(low, share), max(high, share), n)  # which rounding may pass


def _trial(
    space: GroundingSpace, question: UserQuestion, is_own: bool
) -> tuple[float | None, FalseScope]:
    """At which probabilities a question brings its example, and a wrong one, into scope.

    0 is never; None if no example answers. An example's own question is tried on the others.
    """
    meant = space.example(question.id) if question.id else None
    right, wrong = 0.0, None
    for one in reversed(find_scope(space, question.question)):  # the most probable last
        other = one.example
        if meant is not None and (
            meant.id == other.id
            or has_same_words(meant.question, other.question)
            or set(meant.answers) & set(other.answers)
        ):
            right = one.probability
        else:
            wrong = one
    is_first = wrong is not None and (is_own or meant is None or wrong.probability > right)
    id, probability = (wrong.example.id, wrong.probability) if wrong else ("", 0.0)
    false = FalseScope(question.question, id, probability if is_first else 0.0)
    if is_own or meant is None:
        return None, false
    return 0.0 if is_first else right, false
