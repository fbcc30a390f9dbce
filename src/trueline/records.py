"""The frozen values that pass between the stages; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trueline.errors import ExampleError


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its truthful answers, and optionally wrong ones, an id and a source."""

    question: str
    answers: Sequence[str]  # one or more; a single string is taken as one answer
    wrong_answers: Sequence[str] = ()
    id: str = ""  # empty: the first digits of a hash of its content stand in
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("answers", "wrong_answers"):
            object.__setattr__(self, field, _distinct(getattr(self, field), field))
        if problem := _problem(self):
            raise ExampleError(problem)


def _distinct(given: object, field: str) -> tuple[str, ...]:
    """The different texts among some answers, in order; blanks around them do not count."""
    if isinstance(given, str):
        return (given,)
    try:
        texts = list(given)  # type: ignore[call-overload]
    except TypeError:
        raise ExampleError(f"{field} must be a text or several, got {given!r}") from None
    for text in texts:
        if not isinstance(text, str):
            raise ExampleError(f"{field} must be texts, got {text!r}")
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(text.strip(), text)
    return tuple(first.values())


def _problem(example: Example) -> str:
    """Say what keeps an example from being used, or nothing."""
    for field in ("question", "id", "source"):
        if not isinstance(getattr(example, field), str):
            return f"{field} must be text, got {getattr(example, field)!r}"
    if not example.question.strip():
        return "the question is empty"
    if not example.answers:
        return "there is no truthful answer; give one or more"
    texts = [
        (field, text)
        for field in ("answers", "wrong_answers")
        for text in getattr(example, field)
    ]
    for field, text in texts:
        if not text.strip():
            return f"one of {field} is empty"
    return ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token the model might pick."""

    token: int
    text: str
    logit: float
    probability: float  # on the model's own scale, also where RAD stretches the logits


@dataclass(frozen=True, slots=True)
class Neighbor:
    """A retrieved entry: which example spoke, how near it was, and how hard it pushed."""

    example: str  # its id
    question: str
    answer: str  # the one of its answers the entry stands in
    source: str
    step: int  # the entry's place in that answer, in tokens
    similarity: float
    weight: float  # its share among the neighbors of this step
    push: (
        float  # how far it raised the picked token over its rival, in logits (kNN-LM: in mass)
    )
    is_wrong: bool = False  # whether it stands in one of the example's wrong answers


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One picked token and why it was picked."""

    token: int
    text: str
    base: tuple[Candidate, ...]  # the model's own best five
    final: tuple[Candidate, ...]  # the best five after the method
    rival: int  # the model's own first choice, or its second where the first was picked
    hits: int
    neighbors: tuple[Neighbor, ...]  # the few that pushed most
    entropy: float  # of the model's own distribution, in nats
    flipped: bool  # whether the picked token is not the model's own first choice
    probability: float | None = None  # of the picked token, after the method
