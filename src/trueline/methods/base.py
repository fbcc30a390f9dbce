"""The contract of a decoding method: what it needs, what it prepares, how it adjusts a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import torch

from trueline.engines.base import Engine, States
from trueline.prompts import ModelInput, Prompt
from trueline.settings import check_values, plain
from trueline.space import GroundingSpace
from trueline.types import NearExample, Neighbor, Sampling, Source

# The score of a banned token where a candidate answer may contain it, as in DoLa's code.
UNLIKELY = -1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a method cannot work without."""

    space: bool = False  # a grounding space: its first field
    context: int | Literal["full"] | None = None  # entries of the space: their usual window
    second_prompt: bool = False  # it reads two prompts: `inputs` returns two
    own_prompt: bool = False  # it rewrites the prompt for each question
    states: bool = False  # hidden states: of the last layer, or of those that `layers` names
    question: bool = False  # the text of the question, not only its tokens


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a method works out once for a request."""

    state: Any = None  # what `adjust` finds in `step.rows.prepared`
    coverage: bool | None = None  # whether verified examples answer it; None: not considered
    scope: tuple[NearExample, ...] | None = None  # the examples near to it, if it is traced


@dataclass(frozen=True)
class Rows:
    """The requests of one method in a step: all that is known before the model reads."""

    lm: Engine
    contexts: Sequence[Sequence[int]]  # the tokens so far of each row, under its first prompt
    starts: Sequence[int]  # where each row's answer begins
    questions: Sequence[str | None] = ()  # the text of each row's question, if it is known
    prepared: Sequence[Any] = ()  # the `state` that `prepare` returned for each row

    def __len__(self) -> int:
        return len(self.contexts)


@dataclass(frozen=True)
class Step:
    """Where the rows of one method stand before their next tokens are picked."""

    rows: Rows
    states: States  # of each row, under its first prompt
    other: States | None = None  # under the second prompt, if the method reads one
    _: KW_ONLY
    is_probability: bool = False  # whether the result is read as probabilities, or as a ranking
    fetched: Any = None  # what the function from `prefetch` returned; None: it did not run

    @property
    def lm(self) -> Engine:
        return self.rows.lm

    @property
    def contexts(self) -> Sequence[Sequence[int]]:
        return self.rows.contexts

    @property
    def hidden(self) -> torch.Tensor | None:
        """The last hidden states (rows, d) under the first prompt, if the engine gave them."""
        return self.states.hidden

    @cached_property
    def logits(self) -> torch.Tensor:
        """The model's own logits (rows, vocabulary)."""
        return self._logits(self.states)

    @cached_property
    def other_logits(self) -> torch.Tensor:
        """The logits under the second prompt (rows, vocabulary)."""
        assert self.other is not None
        return self._logits(self.other)

    def _logits(self, states: States) -> torch.Tensor:
        if states.hidden is None or self.lm.head is None:
            assert states.logits is not None
            return states.logits
        return self.lm.head(states.hidden)


class Evidence(Protocol):
    """Which examples moved the tokens of one step: for traces, and for an answer's sources."""

    def count(self, row: int) -> int:
        """How many entries or answers took part in one row."""

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """Those of one row that moved picked and rival apart, the strongest first."""

    def sources(self, row: int, picked: int) -> Sequence[Source]:
        """The verified answers that voted for the picked token; their shares sum to 1."""


@dataclass(frozen=True)
class Adjusted:
    """What a method makes of a step."""

    logits: torch.Tensor  # (rows, vocabulary)
    evidence: Sequence[Evidence] = ()
    stretch: torch.Tensor | None = None  # (rows,) divides logits before probabilities are read
    window: Callable[[int], str] | None = None  # the text that was looked up for a row


class Method:
    """A decoding method: a frozen dataclass that keeps nothing between two calls.

    Its fields are its settings (plain values), and `space` or `prompt`.
    """

    name: ClassVar[str]  # results are filed under it
    needs: ClassVar[Needs] = Needs()
    prompt: Prompt | None = None  # the template of a question

    def __post_init__(self) -> None:
        for name, value in self.settings().items():
            object.__setattr__(self, name, plain(value))
        self.check_settings(self.settings())

    def settings(self) -> dict[str, Any]:
        """Every field but the space and the prompt, as plain values."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name not in ("space", "prompt")}

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> None:
        """Refuse values that a setting cannot have; override it to refuse combinations."""
        check_values(cls, settings)

    @property
    def question_prompt(self) -> Prompt:
        """The template that a question is put into."""
        return self.prompt or Prompt()

    def check(self, lm: Engine) -> None:
        """Refuse a model it cannot work with, and open what it reads from disk."""

    def inputs(self, given: ModelInput) -> tuple[ModelInput, ...]:
        """What the model reads: mostly what was given; then a second input if it needs one."""
        return (given,)

    def prepare(self, lm: Engine, given: ModelInput, options: Sampling) -> Prepared:
        """What is worked out once for a request, without a pass of the model."""
        return Prepared()

    def complete(self, lm: Engine, prepared: Prepared) -> Prepared:
        """Add what takes passes of the model: called once, when the request joins the loop."""
        return prepared

    def layers(self, lm: Engine) -> Sequence[int]:
        """The earlier layers whose states it reads."""
        return ()

    def reads_states(self, lm: Engine) -> bool:
        """Whether it reads hidden states of this model; if not, it reads logits."""
        return self.needs.states and lm.head is not None and lm.head.is_exact

    def prefetch(self, rows: Rows) -> Callable[[], Any] | None:
        """Work for a step that needs no pass of the model, as a function; None: no such work.

        The function runs in another thread while the model reads, and what it returns is
        `step.fetched`. What needs the interpreter, such as tokenizing, belongs in `prefetch`.
        """
        return None

    def adjust(self, step: Step) -> Adjusted:
        """The logits to pick the next tokens from; the step itself is never changed."""
        raise NotImplementedError


class SpaceMethod(Method):
    """A method that works with the examples of a grounding space, whatever the model."""

    space: GroundingSpace

    @property
    def question_prompt(self) -> Prompt:
        return self.space.prompt

    def check(self, lm: Engine) -> None:
        self.space.open_embedder("cpu")
