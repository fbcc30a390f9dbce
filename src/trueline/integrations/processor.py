"""A method as a logits processor of transformers, for anybody's own `generate` call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import LogitsProcessor

from trueline.engines.transformers.language import LanguageModel
from trueline.errors import SettingError
from trueline.fusion import entropy

if TYPE_CHECKING:
    from trueline.decoders.rad import RAD


class RadProcessor(LogitsProcessor):
    """RAD inside transformers' own loop; one instance serves any number of calls.

    Every call is answered from its arguments alone, so batches, beams and streamers may come in
    any order. Pads are special tokens and drop out of the window with the others.
    """

    def __init__(self, rad: RAD, lm: LanguageModel) -> None:
        rad.check(lm)
        if rad.space.recipe.window == "answer":
            raise SettingError(
                "a space built with window='answer' needs to know where the answer begins, and "
                "transformers does not tell; use trueline.generate, or build with window='all'"
            )
        self._rad, self._lm = rad, lm

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The adjusted scores (rows, vocabulary); rows without a hit keep theirs to the bit."""
        lookup = self._rad.look_up(self._lm, input_ids.tolist(), [0] * len(input_ids))
        gate = self._rad.gate
        is_open = None if gate is None else entropy(scores) > gate
        evidence = self._rad.retrieve(self._lm, lookup, is_open)
        if not any(len(found.hits) for found in evidence):
            return scores
        return self._rad.after_head(self._lm, scores, evidence, neutral=bool(self._rad.neutral))
