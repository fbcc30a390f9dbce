"""A function of tokens and scores as a logits processor of transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import LogitsProcessor

# The tokens of each row so far and their scores (rows, vocabulary) -> the scores to pick from.
AdjustScores = Callable[[list[list[int]], torch.Tensor], torch.Tensor]


class ScoreProcessor(LogitsProcessor):
    """Answers every call from its arguments alone: batches, beams, streamers in any order."""

    def __init__(self, adjust: AdjustScores) -> None:
        self._adjust = adjust

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The adjusted scores (rows, vocabulary)."""
        return self._adjust(input_ids.tolist(), scores)
