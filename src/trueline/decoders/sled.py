"""Self logits evolution decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch.nn.functional import cosine_similarity, one_hot

from trueline.decoders.base import UNLIKELY, Adjusted, Step
from trueline.decoders.layers import LayerDecoder, early_logits
from trueline.engines.base import Engine
from trueline.prompts import Prompt
from trueline.settings import Between


@dataclass(frozen=True)
class SLED(LayerDecoder):
    """Move the last layer on the way the earlier layers point (arXiv 2411.02433).

    Of the `scale` best tokens i, and every earlier layer n with logits l_n:
    m_ni = max(0, cos(l_n - l_last, p_n - e_i))^2,      latent_i = sum_n m_ni / sum_nj m_nj
    final = l_last - rate_t * (softmax(l) - latent), `steps` times; all other tokens are out.
    rate_t falls from `rate` in equal steps, as in the authors' code; the paper's text has one.
    """

    prompt: Prompt = Prompt()
    rate: Annotated[float, Between(0)] = 2.0  # how far a step goes; 0 is plain decoding
    scale: Annotated[int, Between(1)] = 10  # tokens that may be picked
    steps: Annotated[int, Between(1)] = 10
    candidates: Literal["all"] | tuple[int, ...] = "all"  # the earlier layers
    name = "sled"

    def named_layers(self, lm: Engine) -> Sequence[int]:
        """Every earlier layer."""
        return range(1 if lm.is_tied else 0, lm.depth)

    def adjust(self, step: Step) -> Adjusted:
        last = step.logits.float()  # (rows, vocabulary)
        best = last.topk(min(self.scale, last.shape[-1])).indices  # (rows, scale)
        early = early_logits(step, self.layers(step.lm)).float()  # (layers, rows, vocabulary)
        latent = torch.zeros_like(last).scatter(-1, best, latent_knowledge(last, early, best))
        moved = last
        for index in range(self.steps):
            rate = self.rate * (1 - index / self.steps)
            moved = moved - rate * (moved.softmax(-1) - latent)
        floor = UNLIKELY if step.is_probability else -torch.inf
        kept = torch.full_like(last, floor).scatter(-1, best, moved.gather(-1, best))
        return Adjusted(kept)


def latent_knowledge(
    last: torch.Tensor, early: torch.Tensor, best: torch.Tensor
) -> torch.Tensor:
    """The share of each best token in how the layers move towards the last: (rows, scale)."""
    total = torch.zeros_like(best, dtype=last.dtype)
    for layer in early:
        moved, own = layer - last, layer.softmax(-1)  # (rows, vocabulary)
        for place, tokens in enumerate(best.T):  # one token of each row at a time
            towards = own - one_hot(tokens, last.shape[-1])
            alike = cosine_similarity(moved, towards, dim=-1).clamp(min=0.0)  # (rows,)
            total[:, place] += alike.square()
    sums = total.sum(-1, keepdim=True)
    return torch.where(sums > 0, total / sums, torch.zeros_like(total))
