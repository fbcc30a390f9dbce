"""Decoding by contrasting layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch.nn.functional import kl_div

from trueline.decoders.base import UNLIKELY, Adjusted, Step
from trueline.decoders.layers import LayerDecoder, early_logits
from trueline.engines.base import Engine
from trueline.fusion import jensen_shannon
from trueline.prompts import Prompt
from trueline.settings import Between

Divergence = Literal["code", "textbook"]
# By the textbook, sharp early distributions are often as far from the last one as can be. Which
# of those is farthest would be rounding; the earliest is taken instead.
_DECIMALS = 4


@dataclass(frozen=True)
class DoLa(LayerDecoder):
    """Keep what the last layer learnt over an earlier one (arXiv 2309.03883).

    early = the candidate layer whose distribution is farthest from the last one's
    final = log p_last - log p_early where p_last >= plausibility * max p_last, elsewhere -inf
    Tokens that were read before are then made less likely by the repetition penalty.

    How far two distributions are apart, with m their mean: the authors' code averages
    m (log m - log p) over the vocabulary, for p_last and p_early; the Jensen-Shannon divergence
    of the paper's text (`textbook`) sums p (log p - log m).
    """

    prompt: Prompt = Prompt()
    # Half of the layers, or these.
    candidates: Literal["low", "high"] | tuple[int, ...] = "high"
    # The share of the best probability a token needs; 1 is plain decoding.
    plausibility: Annotated[float, Between(0, 1, above=True)] = 0.1
    repetition_penalty: Annotated[float, Between(0, above=True)] = 1.2  # 1: none
    divergence: Divergence = "code"  # how the layer is chosen, see above
    name = "dola"

    def named_layers(self, lm: Engine) -> Sequence[int]:
        """Every second layer of the half that was asked for, twenty layers deep at most."""
        depth = lm.depth
        if self.candidates == "high":
            return range(max(depth // 2, depth - 20), depth, 2)
        first = min(2, depth - 1) if lm.is_tied else 0
        return range(first, min(depth // 2, 20), 2) or range(first, first + 1)

    def adjust(self, step: Step) -> Adjusted:
        last = step.logits.float().log_softmax(-1)  # (rows, vocabulary)
        early = early_logits(step, self.layers(step.lm))  # (layers, rows, vocabulary)
        early = early.float().log_softmax(-1)
        farthest = distances(last, early, self.divergence).argmax(0)  # (rows,)
        contrast = last - early[farthest, torch.arange(len(last), device=last.device)]
        floor = last.max(-1, keepdim=True).values + math.log(self.plausibility)
        barred = UNLIKELY if step.is_probability else -torch.inf
        contrast = contrast.masked_fill(last < floor, barred)
        return Adjusted(penalized(contrast, step.contexts, self.repetition_penalty))


def distances(last: torch.Tensor, early: torch.Tensor, how: Divergence) -> torch.Tensor:
    """How far each early layer is from the last, of log-probabilities: (layers, rows)."""
    last = last.expand_as(early)
    if how == "code":
        middle = (last.exp() + early.exp()) / 2
        parts = [kl_div(part, middle, reduction="none").mean(-1) for part in (last, early)]
        return (parts[0] + parts[1]) / 2
    return jensen_shannon(last, early).round(decimals=_DECIMALS)


def penalized(
    scores: torch.Tensor, contexts: Sequence[Sequence[int]], penalty: float
) -> torch.Tensor:
    """Divide the positive scores of tokens read before, multiply the negative ones."""
    if penalty == 1.0:
        return scores
    scores = scores.clone()
    for row, tokens in zip(scores, contexts, strict=True):
        seen = torch.tensor(sorted(set(tokens)), dtype=torch.long, device=row.device)
        was = row[seen]
        row[seen] = torch.where(was < 0, was * penalty, was / penalty)
    return scores
