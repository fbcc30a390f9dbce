"""The contract of a decoding method: the prompts it needs, and one pure, batched adjustment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from trueline.decoders.evidence import Evidence
from trueline.models.language import LanguageModel
from trueline.models.reading import States
from trueline.prompts import Asked
from trueline.search import Hits


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


class Decoder:
    """A decoding method: a frozen dataclass that keeps nothing between two calls."""

    name: ClassVar[str]  # what results are filed under
    looks_up: ClassVar[bool] = False  # whether the loop is to call `begin` ahead

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
