"""The contract of a decoding method: what it needs, what it looks up, how it adjusts a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import torch

from trueline.corrective.votes import Corrector, Votes
from trueline.engines.base import Engine, States
from trueline.errors import SettingError
from trueline.prompts import ModelInput, Prompt
from trueline.settings import check_values, plain
from trueline.space.space import GroundingSpace
from trueline.types import NearExample, Neighbor, Sampling


class Evidence(Protocol):
    """Who moved the tokens of one step."""

    def count(self, row: int) -> int:
        """How many entries or answers had a say in one row."""
        ...

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """Those of one row that moved picked and rival apart, the strongest first."""
        ...


# The score of a barred token where a candidate answer may hold one, as in DoLa's code.
UNLIKELY = -1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a method cannot work without."""

    space: bool = False  # a grounding space: its first argument
    context: int | Literal["full"] | None = None  # entries of the space: their usual window
    second_prompt: bool = False  # it reads another prompt beside the one it is asked with
    own_prompt: bool = False  # it rewrites the prompt for each question
    layers: bool = False  # the states of earlier layers
    question: bool = False  # the text of the question, not its tokens alone


@dataclass(frozen=True)
class Rows:
    """The requests of one method in a step: all that is known before the model reads."""

    lm: Engine
    contexts: Sequence[Sequence[int]]  # the tokens so far of each row, under its first prompt
    starts: Sequence[int]  # where each row's answer begins
    questions: Sequence[str | None] = ()  # the text of each row's question, where it is known
    prepared: Sequence[Any] = ()  # what `prepare` gave for each row

    def __len__(self) -> int:
        return len(self.contexts)


class Prefetch(Protocol):
    """Work for a step that does not need the model; it runs while the model reads.

    A method does cheap work and Python work in `prefetch` itself; `run` does the rest, perhaps
    in another thread.
    """

    def run(self) -> Any:
        """What `adjust` finds in `step.fetched`."""
        ...


@dataclass(frozen=True)
class Step:
    """Where the rows of one method stand before their next tokens are picked."""

    rows: Rows
    states: States  # of each row, under its first prompt
    other: States | None = None  # under the second prompt, where the method reads one
    is_probability: bool = False  # whether the result is read as probabilities, or as a ranking
    fetched: Any = None  # what the method's prefetch came to; None: it has to look up by itself

    @property
    def lm(self) -> Engine:
        """The model."""
        return self.rows.lm

    @property
    def contexts(self) -> Sequence[Sequence[int]]:
        """The tokens so far of each row."""
        return self.rows.contexts

    @property
    def hidden(self) -> torch.Tensor | None:
        """The last hidden states (rows, d) under the first prompt; None for an opaque head."""
        return self.states.hidden

    @cached_property
    def logits(self) -> torch.Tensor:
        """The model's own logits (rows, vocabulary): one head product, made when asked for."""
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


@dataclass(frozen=True)
class Adjusted:
    """What a method makes of a step."""

    logits: torch.Tensor  # (rows, vocabulary)
    evidence: Sequence[Evidence] = ()  # what was retrieved for it, where the method retrieves
    stretch: torch.Tensor | None = None  # (rows,) divides logits before probabilities are read
    votes: Sequence[Votes | None] = ()  # what verified answers said in each row, if they vote


class Method:
    """A decoding method: a frozen dataclass that keeps nothing between two calls.

    Its fields are its settings, plain values all, beside `space` or `prompt`, which say what it
    works with.
    """

    name: ClassVar[str]  # what results are filed under
    needs: ClassVar[Needs] = Needs()
    prompt: Prompt | None = None  # what a question is put into
    # Settings that evaluations with controls report as baselines.
    baseline_settings: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    def __post_init__(self) -> None:
        for name, value in self.settings().items():
            object.__setattr__(self, name, plain(value))
        self.check_settings(self.settings())

    def settings(self) -> dict[str, Any]:
        """How it works, as plain values: every field but the space and the prompt."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name not in ("space", "prompt")}

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Refuse a value a setting cannot have; a method also checks combinations here."""
        check_values(cls, settings)

    @classmethod
    def needs_wrong(cls, settings: Mapping[str, Any]) -> bool:
        """Whether these settings want the entries of wrong answers in the space."""
        return False

    @classmethod
    def settings_past_boundary(cls, context: int | str | None) -> dict[str, Any] | None:
        """Settings that leave alone every step whose window reaches into the prompt.

        `context` is the window of its space. None: it looks at no windows, or always at all.
        """
        return None

    @property
    def question_prompt(self) -> Prompt:
        """The prompt a question is asked with."""
        return self.prompt or Prompt()

    def check(self, lm: Engine) -> None:
        """Refuse a model it cannot work with, and open what it will look into."""

    def inputs(self, given: ModelInput) -> tuple[ModelInput, ...]:
        """What the model reads: mostly what was given; then a second input if it needs one."""
        return (given,)

    def prepare(self, lm: Engine, given: ModelInput, options: Sampling) -> Any:
        """What is worked out once for a request, and found in `step.rows.prepared`."""
        return None

    def asks_model(self, question: str) -> bool:
        """Whether the model reads anything when a request is prepared: see `prepare`."""
        return False

    def is_covered(self, prepared: Any) -> bool | None:
        """Whether verified examples answer a request; None: the method does not go by that."""
        return None

    def near_examples(self, lm: Engine, question: str) -> tuple[NearExample, ...] | None:
        """The examples near to a question, and why they may speak or not, for explanations.

        None: the method does not go by that.
        """
        return None

    def layers(self, lm: Engine) -> Sequence[int]:
        """The earlier layers whose states it reads, for a method that needs layers."""
        return ()

    def read_layers(self, lm: Engine) -> Sequence[int]:
        """The layers an engine has to hand out for it; none unless it says it needs some."""
        return self.layers(lm) if self.needs.layers else ()

    def prefetch(self, rows: Rows) -> Prefetch | None:
        """What it looks up for a step without the model; None: nothing."""
        return None

    def adjust(self, step: Step) -> Adjusted:
        """The logits to pick the next tokens from."""
        raise NotImplementedError

    def corrector(self, tokenizer: Any, *, stop_ids: Iterable[int] | None = None) -> Corrector:
        """The method for an engine that gives logits and nothing else (`corrector`)."""
        raise SettingError(
            f"{self.name} needs more of an engine than logits, and this one gives no more; use "
            "trueline.generate"
        )


class SpaceMethod(Method):
    """A method that works with the examples of a grounding space, whatever the model."""

    space: GroundingSpace

    @property
    def question_prompt(self) -> Prompt:
        """The prompt of the space."""
        return self.space.prompt

    def check(self, lm: Engine) -> None:
        """Open the embedder; any model will do."""
        self.space.open_embedder("cpu")
