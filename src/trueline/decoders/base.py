"""The contract of a decoding method: the prompts it needs, and one pure, batched adjustment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch

from trueline.decoders.evidence import Evidence
from trueline.engines.transformers.language import LanguageModel
from trueline.engines.transformers.reading import States
from trueline.prompts import Asked
from trueline.search import Hits
from trueline.settings import check_values


@dataclass(frozen=True)
class Lookup:
    """What a method looks up; known before the model has read the last token."""

    rows: int
    hits: tuple[Hits, ...]  # of every set of entries it looks into


@dataclass(frozen=True)
class Step:
    """Where a batch stands before its next tokens are picked."""

    lm: LanguageModel
    contexts: Sequence[Sequence[int]]  # the tokens so far of each row, under its first prompt
    starts: Sequence[int]  # where each row's answer begins
    states: States  # of every row under every prompt: prompt by prompt, row by row
    is_probability: bool = (
        False  # whether the result is read as probabilities, not as a ranking
    )
    lookup: Lookup | None = None  # what the method asked to be worked out ahead

    @property
    def hidden(self) -> torch.Tensor | None:
        """The last hidden states (rows, d) under the first prompt; None for an opaque head."""
        hidden = self.states.hidden
        return None if hidden is None else hidden[: len(self.contexts)]

    @cached_property
    def logits(self) -> torch.Tensor:
        """The model's own logits (rows, vocabulary): one head product, made when asked for."""
        return self._logits(self.states.map(lambda tensor: tensor[: len(self.contexts)]))

    @cached_property
    def other_logits(self) -> torch.Tensor:
        """The logits under the second prompt (rows, vocabulary)."""
        return self._logits(self.states.map(lambda tensor: tensor[len(self.contexts) :]))

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
    stretch: torch.Tensor | None = (
        None  # (rows,) what to divide by before probabilities are read
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a method cannot work without."""

    space: bool = False  # a grounding space: its first argument
    context: int | Literal["full"] | None = None  # entries of the space: their usual window
    second_prompt: bool = False  # it reads another prompt beside the one it is asked with
    own_prompt: bool = False  # it rewrites the prompt for each question
    layers: bool = False  # the states of earlier layers
    question: bool = False  # the text of the question, not its tokens alone


class Decoder:
    """A decoding method: a frozen dataclass that keeps nothing between two calls."""

    name: ClassVar[str]  # what results are filed under
    needs: ClassVar[Needs] = Needs()
    looks_up: ClassVar[bool] = False  # whether the loop is to call `begin` ahead

    def __post_init__(self) -> None:
        self.check_settings(self.settings())

    def settings(self) -> dict[str, Any]:
        """How it works, as plain values: every field but the space and the prompt."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name not in ("space", "prompt")}

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Refuse a value a setting cannot have; a method adds what goes across several."""
        check_values(cls, settings)

    @classmethod
    def needs_wrong(cls, settings: Mapping[str, Any]) -> bool:
        """Whether these settings want the entries of wrong answers in the space."""
        return False

    def check(self, lm: LanguageModel) -> None:
        """Refuse a model it cannot work with."""

    def prompts(self, question: str) -> tuple[Asked, ...]:
        """The prompt the question is asked with, then a second one if the method reads one."""
        raise NotImplementedError

    def layers(self, lm: LanguageModel) -> Sequence[int]:
        """The earlier layers whose states it reads; mostly none."""
        return ()

    def begin(
        self, lm: LanguageModel, contexts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Callable[[], Lookup]:
        """Begin to look up what `adjust` will need; the loop ends it while the model reads."""
        raise NotImplementedError

    def adjust(self, step: Step) -> Adjusted:
        """The logits to pick the next tokens from."""
        raise NotImplementedError
