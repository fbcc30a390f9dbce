"""Logits in, one token a row out: greedy, or drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trueline.errors import SettingError


@dataclass(frozen=True, slots=True)
class Pick:
    """How the next token is taken; each row draws from a generator of its own."""

    temperature: float = 0.0  # 0: the most probable token
    top_k: int | None = None
    top_p: float | None = None
    p_less: bool = False  # keep what is at least as probable as a draw hitting the same twice
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or 1e-3 <= self.temperature < float("inf")):
            raise SettingError(
                f"temperature must be 0 (greedy) or at least 0.001, got {self.temperature}"
            )
        if self.seed is not None and not 0 <= self.seed < 1 << 62:
            raise SettingError(f"seed must lie between 0 and 2^62, got {self.seed}")
        if self.top_k is not None and self.top_k < 1:
            raise SettingError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise SettingError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not self.is_sampled and (
            self.top_k or self.top_p or self.p_less or self.seed is not None
        ):
            raise SettingError("top_k, top_p, p_less and seed need a temperature above 0")

    @property
    def is_sampled(self) -> bool:
        """Whether chance has a part in it."""
        return self.temperature > 0

    def generator(self, place: int) -> torch.Generator:
        """The source of chance of one question."""
        source = torch.Generator()
        if self.seed is None:
            source.seed()
        else:
            source.manual_seed(self.seed + place)
        return source

    def __call__(self, logits: torch.Tensor, draws: Sequence[torch.Generator]) -> list[int]:
        """One token a row of logits (rows, vocabulary)."""
        if not self.is_sampled:
            return [int(token) for token in logits.argmax(-1).tolist()]
        probabilities = self.probabilities(logits).cpu()
        return [
            int(torch.multinomial(row, 1, generator=draw))
            for row, draw in zip(probabilities, draws, strict=True)
        ]

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """What is drawn from: temperature, the k best, the nucleus of mass p, and p-less.

        p-less (arXiv 2509.23234) keeps the tokens with p(x) >= sum_y p(y)^2; no parameter.
        """
        logits = logits.float() / self.temperature
        if self.top_k is not None:
            least = logits.topk(min(self.top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None:
            ranked, order = logits.sort(descending=True, stable=True)
            before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)  # mass above each token
            out = (before >= self.top_p).scatter(-1, order, before >= self.top_p)
            logits = logits.masked_fill(out, -torch.inf)
        probabilities = logits.softmax(-1)
        if self.p_less:
            least = probabilities.square().sum(-1, keepdim=True)
            probabilities = probabilities.masked_fill(probabilities < least, 0.0)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities
