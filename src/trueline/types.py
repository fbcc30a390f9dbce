"""The frozen values that pass between the stages; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import log
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from msgspec import Meta

from trueline.errors import ExampleError, SettingError
from trueline.settings import Between, check_values, plain
from trueline.text import has_half_character, shown

if TYPE_CHECKING:
    from trueline.explain import Explanation


PLAIN = "greedy"  # the plain model, which every method is compared with
OnProgress = Callable[[int, int], None]  # how much is done, and how much there is in all
_MOST_SEED = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its truthful answers, and optionally wrong ones, an id and a source."""

    question: str
    answers: Sequence[str]  # one or more; a single string is taken as one answer
    wrong_answers: Sequence[str] = ()
    id: str = ""  # if empty, readers put the first digits of a hash of its content here
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("question", "id", "source"):
            if not isinstance(getattr(self, name), str):
                raise ExampleError(f"{name} must be text, got {shown(getattr(self, name))}")
        if not self.question.strip():
            raise ExampleError("the question is empty")
        for name in ("answers", "wrong_answers"):
            given = getattr(self, name)
            texts = (given,) if isinstance(given, str) else to_tuple(given)
            if not isinstance(texts, tuple) or not all(isinstance(x, str) for x in texts):
                raise ExampleError(f"{name} must be a text or several, got {shown(given)}")
            if not all(map(str.strip, texts)):
                raise ExampleError(f"one of {name} is empty")
            first = {x.strip(): x for x in reversed(texts)}  # spaces around do not count
            distinct = tuple(first[x] for x in dict.fromkeys(map(str.strip, texts)))
            object.__setattr__(self, name, distinct)
        if not self.answers:
            raise ExampleError("there is no truthful answer; give one or more")


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
        return log(self.probability) - log(max(1e-12, 1 - self.probability))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token the model might pick."""

    token: int
    text: str
    logit: float
    probability: float  # on the model's own scale, also if a method stretches the logits


@dataclass(frozen=True, slots=True)
class Neighbor:
    """A retrieved entry or a vote: its example, how near it is, and how much it moved."""

    example: str  # its id
    question: str
    answer: str  # the one of its answers the entry stands in
    source: str
    step: int  # the entry's place in that answer, in tokens
    similarity: float  # how near it is; `nearness` names the measure
    weight: float  # its share among the neighbors of this step
    push: float  # by how much it raised the picked token over its rival, in logits or mass
    is_wrong: bool = False  # whether it is from one of the example's wrong answers
    # What the similarity is: a cosine of windows, or the probability that it answers.
    nearness: Literal["cosine", "probability"] = "cosine"


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One picked token and why it was picked."""

    token: int
    text: str
    base: tuple[Candidate, ...]  # the model's own best five
    final: tuple[Candidate, ...]  # the best five after the method
    rival: int  # the model's own first choice, or its second if the first was picked
    move: float  # by how many logits the method widened its lead over the rival
    hits: int
    neighbors: tuple[Neighbor, ...]  # the few that pushed most
    entropy: float  # of the model's own distribution, in nats
    flipped: bool  # whether the picked token is not the model's own first choice
    probability: float | None = None  # of the picked token, after the method
    window: str = ""  # the text that was looked up, of a method that looks up entries


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How probable a token was after the method, and which tokens were most probable."""

    token: int
    logprob: float | None  # natural logarithm; None for the first token of a text
    best: tuple[tuple[int, float], ...] = ()  # the most probable tokens, the best first


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an answer is generated: its length, how tokens are picked, and what ends it.

    The only declaration of these options: calls, flags and the server take them from here. A
    description makes an option a flag of the command line.
    """

    max_new_tokens: Annotated[int, Between(1, help="The most tokens of an answer.")] = 64
    temperature: Annotated[float, Between(0, help="0 is greedy.")] = 0.0
    top_k: Annotated[int, Between(1, help="Draw from the K best tokens.")] | None = None
    top_p: (
        Annotated[float, Between(0, 1, above=True, help="Draw from the best tokens of mass P.")]
        | None
    ) = None
    seed: Annotated[int, Between(0, _MOST_SEED, help="Makes a draw repeatable.")] | None = None
    stop: Annotated[str | tuple[str, ...], Meta(description="End the answer before this.")] = ()
    stop_ids: tuple[int, ...] = ()  # further tokens that end an answer
    trace: bool = False  # keep the reason for every token
    logprobs: Annotated[int, Between(0)] | None = None  # of each token and of so many others

    def __post_init__(self) -> None:
        values = {each.name: plain(to_tuple(getattr(self, each.name))) for each in fields(self)}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        check_values(type(self), values)
        if 0 < self.temperature < 1e-3:
            raise SettingError(
                f"temperature must be 0 (greedy) or at least 0.001, got {self.temperature}"
            )
        if not self.is_sampled and (self.top_k, self.top_p, self.seed) != (None, None, None):
            raise SettingError("top_k, top_p and seed need a temperature above 0")
        for text in self.stop_strings:
            if not text:
                raise SettingError("a stop string is empty; leave it out")
            if has_half_character(text):
                raise SettingError(f"a stop string is not valid Unicode: {shown(text)}")

    @property
    def is_sampled(self) -> bool:
        """Whether tokens are drawn; otherwise the most probable one is taken."""
        return self.temperature > 0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts that end an answer, also if only one was given."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling` as keyword arguments, for type checkers."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop: str | Sequence[str]
    stop_ids: Sequence[int]
    trace: bool
    logprobs: int | None


def to_tuple(given: Any) -> Any:
    """Iterables become tuples; strings, mappings and all else pass through."""
    is_many = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    return tuple(given) if is_many else given


Finish = Literal["stop", "length"]  # by itself or by a stop, or at its length


@dataclass(frozen=True, slots=True)
class Source:
    """A verified example whose votes an answer follows."""

    example: str  # its id
    question: str
    answer: str  # the one of its answers with most votes
    source: str  # where it comes from
    share: float  # of the answer's tokens that were picked with its votes
    probability: float  # that it answers the question


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal for or against an example."""

    name: str
    words: str  # what it is
    value: float
    effect: float  # on the log-odds, against what it is for a near example on average


@dataclass(frozen=True, slots=True)
class NearExample:
    """An example that is near to a question, whether it is in scope, and why."""

    example: str  # its id
    question: str
    answer: str  # its first truthful answer
    source: str
    probability: float  # that it answers the question
    threshold: float  # it is in scope if the probability is above this
    is_in_scope: bool
    text: str  # the part of the question that it is nearest to
    signals: tuple[Signal, ...]  # the greatest effect first
    reasons_for: tuple[str, ...] = ()  # the same in plain words
    reasons_against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer that is being generated."""

    text: str  # final text; empty while a character is incomplete
    token_ids: tuple[int, ...]  # picked since the last piece
    finish: Finish | None = None  # set on the last piece
    steps: tuple[TraceStep, ...] = ()  # the reason for each token, with trace=True
    sources: tuple[Source, ...] = ()  # on the last piece: the examples it follows
    is_covered: bool | None = None  # on the last piece: whether an example was in scope
    answer: Answer | None = field(default=None, repr=False)  # on the last piece: all of it

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request: text, tokens and, with trace=True, the reason for each."""

    question: str  # empty if only tokens were given
    text: str
    token_ids: tuple[int, ...]  # all that were picked, the one that ended the answer included
    finish: Finish
    method: str
    prompt_tokens: int  # read before the first token was picked, under the first prompt
    prompt_hashes: tuple[str, ...] = ()  # of every prompt the method read, the first one first
    trace: tuple[TraceStep, ...] | None = None
    sources: tuple[Source, ...] = ()  # the examples it follows, the largest share first
    is_covered: bool | None = None  # whether one was in scope; None: the method has no scope
    # With the trace: the examples near to the question, the most probable first.
    scope: tuple[NearExample, ...] | None = None
    seconds: float = field(default=0.0, compare=False)  # from the request to the last token
    first_token_seconds: float = field(default=0.0, compare=False)  # to the first one

    @property
    def new_tokens(self) -> int:
        """How many tokens it has."""
        return len(self.token_ids)

    def explain(
        self, beside: Answer | None = None, *, settings: Mapping[str, Any] | None = None
    ) -> Explanation:
        """Why it has these words, optionally next to the greedy answer to its question.

        `settings` are shown unchanged: the model, alpha, or what else is worth knowing.
        """
        from trueline.explain import explain

        return explain(self, beside, settings=settings)
