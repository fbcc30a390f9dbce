"""The frozen values that pass between the stages; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, log
from typing import TYPE_CHECKING, Annotated, Any, Literal

from trueline.errors import ExampleError, SettingError
from trueline.settings import Between, check_values, plain
from trueline.text import has_half_character, shown

if TYPE_CHECKING:
    from trueline.explain import Explanation


OnProgress = Callable[[int, int], None]  # how much is done, and how much there is in all


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its truthful answers, and optionally wrong ones, an id and a source."""

    question: str
    answers: Sequence[str]  # one or more; a single string is taken as one answer
    wrong_answers: Sequence[str] = ()
    id: str = ""  # empty: the first digits of a hash of its content stand in
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("answers", "wrong_answers"):
            object.__setattr__(self, name, _distinct(getattr(self, name), name))
        if problem := _problem(self):
            raise ExampleError(problem)


def _distinct(given: object, field: str) -> tuple[str, ...]:
    """The different texts among some answers, in order; blanks around them do not count."""
    if isinstance(given, str):
        return (given,)
    try:
        texts = list(given)  # type: ignore[call-overload]
    except TypeError:
        raise ExampleError(f"{field} must be a text or several, got {shown(given)}") from None
    for text in texts:
        if not isinstance(text, str):
            raise ExampleError(f"{field} must be texts, got {shown(text)}")
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(text.strip(), text)
    return tuple(first.values())


def _problem(example: Example) -> str:
    """Say what keeps an example from being used, or nothing."""
    for name in ("question", "id", "source"):
        if not isinstance(getattr(example, name), str):
            return f"{name} must be text, got {shown(getattr(example, name))}"
    if not example.question.strip():
        return "the question is empty"
    if not example.answers:
        return "there is no truthful answer; give one or more"
    for name in ("answers", "wrong_answers"):
        if not all(text.strip() for text in getattr(example, name)):
            return f"one of {name} is empty"
    return ""


@dataclass(frozen=True, slots=True)
class ScopedExample:
    """An example that is near to a question, and the probability that it answers it."""

    example: Example
    probability: float
    part: int = 0  # the part of the turn that it answers best
    part_probability: float = 0.0  # that it answers this part alone
    text: str = ""  # the text it is nearest to: the turn, a sentence or a part of it
    signals: Mapping[str, float] = field(default_factory=dict, hash=False)  # of that text

    @property
    def odds(self) -> float:
        """The logarithm of its odds."""
        return log(self.probability) - log(max(1e-12, 1 - self.probability))


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
    similarity: float  # how near it is, as `nearness` says
    weight: float  # its share among the neighbors of this step
    push: (
        float  # how far it raised the picked token over its rival, in logits (kNN-LM: in mass)
    )
    is_wrong: bool = False  # whether it stands in one of the example's wrong answers
    # What the similarity is: a cosine of windows, or the probability that it answers.
    nearness: Literal["cosine", "probability"] = "cosine"


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One picked token and why it was picked."""

    token: int
    text: str
    base: tuple[Candidate, ...]  # the model's own best five
    final: tuple[Candidate, ...]  # the best five after the method
    rival: int  # the model's own first choice, or its second where the first was picked
    # By how many logits the method widened the lead of the token over its rival.
    move: float
    hits: int
    neighbors: tuple[Neighbor, ...]  # the few that pushed most
    entropy: float  # of the model's own distribution, in nats
    flipped: bool  # whether the picked token is not the model's own first choice
    probability: float | None = None  # of the picked token, after the method


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How probable a token was after the method, and which tokens were most probable."""

    token: int
    logprob: float | None  # natural logarithm; None: nothing stands before it
    best: tuple[tuple[int, float], ...] = ()  # the most probable tokens, the best first


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an answer is written: its length, how tokens are picked, what ends it."""

    max_new_tokens: Annotated[int, Between(1)] = 64
    temperature: float = 0.0  # 0: the most probable token
    top_k: Annotated[int, Between(1)] | None = None  # draw from the k best
    top_p: Annotated[float, Between(0, 1, above=True)] | None = None  # from the best of mass p
    seed: int | None = None  # makes a draw repeatable
    stop: str | tuple[str, ...] = ()  # texts that end an answer, and are left out of it
    stop_ids: tuple[int, ...] = ()  # further tokens that end an answer
    trace: bool = False  # keep the reason for every token
    # Keep the log-probability of every token, and of this many of the best beside it.
    logprobs: Annotated[int, Between(0)] | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_ids"):
            object.__setattr__(self, name, several(getattr(self, name)))
        for name in (each.name for each in fields(self)):
            object.__setattr__(self, name, plain(getattr(self, name)))
        check_values(type(self), {f.name: getattr(self, f.name) for f in fields(self)})
        if not (self.temperature == 0 or 1e-3 <= self.temperature < inf):
            raise SettingError(
                f"temperature must be 0 (greedy) or at least 0.001, got {self.temperature}"
            )
        if self.seed is not None and not 0 <= self.seed < 1 << 62:
            raise SettingError(f"seed must lie between 0 and 2^62, got {shown(self.seed)}")
        draws = (self.top_k, self.top_p, self.seed)
        if not self.is_sampled and draws != (None,) * 3:
            raise SettingError("top_k, top_p and seed need a temperature above 0")
        for text in self.stop_strings:
            _check_stop(text)

    @property
    def is_sampled(self) -> bool:
        """Whether tokens are drawn, not just the most probable ones taken."""
        return self.temperature > 0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts that end an answer, also where only one was given."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop


def _check_stop(text: str) -> None:
    if not text:
        raise SettingError(
            "a stop string is empty; leave it out to stop at the model's own end"
        )
    if has_half_character(text):
        raise SettingError(f"a stop string is not valid Unicode: {shown(text)}")


def several(given: Any) -> Any:
    """What was given as a list or the like as a tuple; one text, or what is none, as it is."""
    if given is None:
        return ()
    is_many = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    return tuple(given) if is_many else given


Finish = Literal["stop", "length"]  # ended by itself or by a stop, or cut off at its length


@dataclass(frozen=True, slots=True)
class Source:
    """A verified example that spoke in an answer."""

    example: str  # its id
    question: str
    answer: str  # the one of its answers that spoke most
    source: str  # where its author found it
    share: float  # of the answer's tokens that were picked with its votes
    probability: float  # that it answers the question


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing that speaks for or against an example."""

    name: str
    words: str  # what it is
    value: float
    effect: float  # on the log-odds, against what it is for a near example on average


@dataclass(frozen=True, slots=True)
class NearExample:
    """An example that is near to a question, whether it may speak, and why."""

    example: str  # its id
    question: str
    answer: str  # its first truthful answer
    source: str
    probability: float  # that it answers the question
    threshold: float  # it may speak if the probability is above this
    is_in_scope: bool
    text: str  # the part of what was asked that it is nearest to
    signals: tuple[Signal, ...]  # the greatest effect first
    reasons_for: tuple[str, ...] = ()  # what they come to, in plain words
    reasons_against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer that is being written."""

    text: str  # what can no longer change; may be empty while a character is half written
    token_ids: tuple[int, ...]  # picked since the last piece
    finish: Finish | None = None  # set on the last piece
    steps: tuple[TraceStep, ...] = ()  # the reason for each token, when asked for
    sources: tuple[Source, ...] = ()  # on the last piece: who spoke
    is_covered: bool | None = None  # on the last piece: whether an example was in scope
    answer: Answer | None = field(default=None, repr=False)  # on the last piece: all of it

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got: the text, its tokens and, when asked for, the reason for each."""

    question: str  # empty where only tokens were given
    text: str
    token_ids: tuple[int, ...]  # all that were picked, the one that ended the answer included
    finish: Finish
    method: str
    prompt_tokens: int  # read before the first token was picked, under the first prompt
    prompt_hashes: tuple[str, ...] = ()  # of every prompt the method read, the first one first
    trace: tuple[TraceStep, ...] | None = None  # when asked for
    sources: tuple[
        Source, ...
    ] = ()  # the verified examples that spoke, the largest share first
    is_covered: bool | None = None  # whether one was in scope; None: the method has no scope
    # With the trace: the examples near to the question, the most probable first.
    scope: tuple[NearExample, ...] | None = None
    seconds: float = field(default=0.0, compare=False)  # from the request to the last token
    first_token_seconds: float = field(default=0.0, compare=False)  # to the first one

    @property
    def new_tokens(self) -> int:
        """How many tokens were written."""
        return len(self.token_ids)

    def explain(
        self, beside: Answer | None = None, *, settings: Mapping[str, Any] | None = None
    ) -> Explanation:
        """Why it says what it says, optionally beside the greedy answer to the same question.

        `settings` are shown as they are: the model, alpha, tau, or what else is worth knowing.
        """
        from trueline.explain import explain

        return explain(self, beside, settings=settings)
