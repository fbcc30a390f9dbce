"""The contract of a decoding method: the prompts it needs, and one pure, batched adjustment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from trueline.decoders.evidence import Evidence
from trueline.models.language import LanguageModel
from trueline.space.windows import Context, Window, window_tokens


@dataclass(frozen=True)
class Step:
    """Where a batch stands before its next tokens are picked."""

    lm: LanguageModel
    contexts: Sequence[Sequence[int]]  # the tokens so far of each row
    starts: Sequence[int]  # where each row's answer begins
    hidden: torch.Tensor | None  # (rows, d), the last hidden states; None for an opaque head
    own: torch.Tensor | None = None  # (rows, vocabulary), the model's logits for an opaque head
    is_probability: bool = (
        False  # whether the result is read as probabilities, not as a ranking
    )

    @cached_property
    def logits(self) -> torch.Tensor:
        """The model's own logits (rows, vocabulary): one head product, made when asked for."""
        if self.hidden is None or self.lm.head is None:
            assert self.own is not None
            return self.own
        return self.lm.head(self.hidden)

    def windows(self, context: Context, window: Window) -> list[str]:
        """The text of each row's last tokens."""
        return self.lm.decode_all(
            [
                window_tokens(tokens, start, context, window)
                for tokens, start in zip(self.contexts, self.starts)
            ]
        )


@dataclass(frozen=True)
class Adjusted:
    """What a method makes of a step."""

    logits: torch.Tensor  # (rows, vocabulary)
    evidence: Evidence | None = None  # what was retrieved for it, where the method retrieves


class Decoder(Protocol):
    """A decoding method; it keeps nothing between two calls."""

    @property
    def name(self) -> str:
        """What results are filed under."""
        ...

    def check(self, lm: LanguageModel) -> None:
        """Refuse a model it cannot work with."""
        ...

    def prompt_ids(self, lm: LanguageModel, question: str) -> list[int]:
        """The tokens the model reads before it answers the question."""
        ...

    def answer_ids(self, lm: LanguageModel, question: str, answer: str) -> list[int]:
        """The tokens of a given answer, as they would follow that prompt."""
        ...

    def adjust(self, step: Step) -> Adjusted:
        """The logits to pick the next tokens from."""
        ...
