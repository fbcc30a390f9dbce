"""Methods that compare the last layer with earlier ones: DoLa, SLED."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, kl_div, one_hot

from trueline.engines.base import Engine
from trueline.errors import SettingError
from trueline.methods.base import UNLIKELY, Adjusted, Method, Needs, Step
from trueline.methods.contrast import jensen_shannon
from trueline.prompts import Prompt
from trueline.settings import Between


class LayerMethod(Method):
    """Compares the last layer with earlier ones, its `candidates`.

    Words for layers leave out layer 0 of a model with tied embeddings, where it would predict
    its own input.
    """

    needs = Needs(states=True)

    def check(self, lm: Engine) -> None:
        if not lm.gives_layers or lm.head is None:
            raise SettingError(
                f"{self.name} reads early layers of {lm.id}, which its engine or head cannot; "
                "load another model, with engine='transformers'"
            )
        layers = self.layers(lm)
        if not layers or not all(0 <= layer < lm.depth for layer in layers):
            raise SettingError(
                f"candidates must name layers from 0 to {lm.depth - 1} of {lm.id}, got {layers}"
            )


def early_logits(step: Step, layers: Sequence[int]) -> Tensor:
    """The logits of earlier layers: (layers, rows, vocabulary)."""
    assert step.lm.head is not None
    return step.lm.head(torch.stack([step.states.layers[layer] for layer in layers]))


Divergence = Literal["code", "textbook"]
# By the textbook, many sharp early distributions are equally far from the last one. Rounding
# would decide which is farthest; with few decimals it is the earliest.
_DECIMALS = 4


@dataclass(frozen=True)
class DoLa(LayerMethod):
    """Keep what the last layer adds to an earlier one (arXiv 2309.03883).

    early = the candidate layer whose distribution is farthest from the last one's
    final = log p_last - log p_early where p_last >= plausibility * max p_last, elsewhere -inf
    The repetition penalty then makes tokens of the context less likely.

    Distance of two distributions, with m their mean: the authors' code averages
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

    def layers(self, lm: Engine) -> Sequence[int]:
        """Every second layer of one half, at most twenty layers deep, or those named."""
        if isinstance(self.candidates, tuple):
            return self.candidates
        depth = lm.depth
        if self.candidates == "high":
            return range(max(depth // 2, depth - 20), depth, 2)
        first = min(2, depth - 1) if lm.is_tied else 0
        return range(first, min(depth // 2, 20), 2) or range(first, first + 1)

    def adjust(self, step: Step) -> Adjusted:
        last = step.logits.float().log_softmax(-1)  # (rows, vocabulary)
        early = early_logits(step, self.layers(step.lm)).float().log_softmax(-1)
        farthest = distances(last, early, self.divergence).argmax(0)  # (rows,)
        contrast = last - early[farthest, torch.arange(len(last), device=last.device)]
        floor = last.max(-1, keepdim=True).values + math.log(self.plausibility)
        banned = UNLIKELY if step.is_probability else -torch.inf
        contrast = contrast.masked_fill(last < floor, banned)
        return Adjusted(penalized(contrast, step.contexts, self.repetition_penalty))


def distances(last: Tensor, early: Tensor, how: Divergence) -> Tensor:
    """The distance of each early layer from the last, of log-probabilities: (layers, rows)."""
    last = last.expand_as(early)
    if how == "code":
        middle = (last.exp() + early.exp()) / 2
        parts = [kl_div(part, middle, reduction="none").mean(-1) for part in (last, early)]
        return (parts[0] + parts[1]) / 2
    return jensen_shannon(last, early).round(decimals=_DECIMALS)


def penalized(scores: Tensor, contexts: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Divide the positive scores of tokens in the context, multiply the negative ones."""
    if penalty == 1.0:
        return scores
    scores = scores.clone()
    for row, tokens in zip(scores, contexts, strict=True):
        seen = torch.tensor(sorted(set(tokens)), dtype=torch.long, device=row.device)
        was = row[seen]
        row[seen] = torch.where(was < 0, was * penalty, was / penalty)
    return scores


@dataclass(frozen=True)
class SLED(LayerMethod):
    """Move the last layer further in the direction of the earlier ones (arXiv 2411.02433).

    Of the `scale` best tokens i, and every earlier layer n with logits l_n:
    m_ni = max(0, cos(l_n - l_last, p_n - e_i))^2,      latent_i = sum_n m_ni / sum_nj m_nj
    final = l_last - rate_t * (softmax(l) - latent), `steps` times; all other tokens are banned.
    rate_t falls from `rate` in equal steps, as in the authors' code; the paper's text has one.
    """

    prompt: Prompt = Prompt()
    rate: Annotated[float, Between(0)] = 2.0  # how far a step goes; 0 is plain decoding
    scale: Annotated[int, Between(1)] = 10  # tokens that may be picked
    steps: Annotated[int, Between(1)] = 10
    candidates: Literal["all"] | tuple[int, ...] = "all"  # the earlier layers
    name = "sled"

    def layers(self, lm: Engine) -> Sequence[int]:
        return range(int(lm.is_tied), lm.depth) if self.candidates == "all" else self.candidates

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


def latent_knowledge(last: Tensor, early: Tensor, best: Tensor) -> Tensor:
    """How much of the layers' movement points at each best token: (rows, scale)."""
    total = torch.zeros_like(best, dtype=last.dtype)
    for layer in early:
        moved, own = layer - last, layer.softmax(-1)  # (rows, vocabulary)
        for column, tokens in enumerate(best.T):  # one token of each row at a time
            towards = own - one_hot(tokens, last.shape[-1])
            alike = cosine_similarity(moved, towards, dim=-1).clamp(min=0.0)  # (rows,)
            total[:, column] += alike.square()
    sums = total.sum(-1, keepdim=True)
    return torch.where(sums > 0, total / sums, torch.zeros_like(total))
