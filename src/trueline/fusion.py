"""Logits and neighbors in, adjusted logits out: pure functions that know no engine.

They hold for hidden states as they do for logits: where a model's head is linear, fusing before
it is fusing after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

Aggregation = Literal["weighted", "mean"]
Fusion = Literal["add", "mix", "prob"]


def weigh(
    similarities: torch.Tensor, rows: torch.Tensor, count: int, how: Aggregation = "weighted"
) -> torch.Tensor:
    """The weight of each hit in its row: s_i / sum_S s, or 1 / |S|; each row's sum to 1."""
    shares = similarities if how == "weighted" else torch.ones_like(similarities)
    totals = shares.new_zeros(count).index_add_(0, rows, shares)  # (count,)
    return (shares / totals[rows]).nan_to_num(0.0)  # cosines of 0, below a negative tau


def aggregate(
    weights: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, count: int
) -> torch.Tensor:
    """sum_i w_i v_i in each row: (hits, width) -> (count, width); zero where nothing was hit.

    On a CPU hits are added one after the other, so a row's sum does not depend on its batch.
    """
    total = values.new_zeros(count, values.shape[1])
    return total.index_add_(0, rows, values * weights[:, None])


def fuse(
    base: torch.Tensor,
    pull: torch.Tensor,
    hit: torch.Tensor,
    *,
    alpha: float,
    how: Fusion = "add",
) -> torch.Tensor:
    """Combine the model's own (rows, width) with the neighbors' sum, in rows with a hit.

    add: base + alpha * pull
    mix: (1 - alpha) * base + alpha * pull
    prob: log((1 - alpha) * softmax(base) + alpha * softmax(pull)), for logits only
    """
    if how == "add":
        fused = base + alpha * pull
    elif how == "mix":
        fused = (1 - alpha) * base + alpha * pull
    else:
        own, theirs = base.float().log_softmax(-1), pull.float().log_softmax(-1)
        fused = torch.logaddexp(own + _log(1 - alpha), theirs + _log(alpha))
    return torch.where(hit[:, None], fused.to(base.dtype), base)


def neutralize(fused: torch.Tensor, hit: torch.Tensor, alpha: float) -> torch.Tensor:
    """Take back how far `add` stretches the rows that hit: the model's own scale."""
    return torch.where(hit[:, None], fused / (1 + alpha), fused)


def lift(
    base: torch.Tensor,
    candidates: Sequence[Sequence[int]],
    *,
    margin: float | torch.Tensor,
    strength: float | torch.Tensor,
) -> torch.Tensor:
    """Raise the candidates together until they hold probability sigmoid(margin).

    L = max(0, margin + log sum_{v not in C} e^base(v) - log sum_{x in C} e^base(x))
    final(x) = base(x) + strength * L for x in C, base(x) elsewhere

    `base` is (rows, vocabulary), `candidates` the tokens C of each row, each once and none
    banned; margin and strength are numbers, or one for each row. A row without candidates, or
    whose candidates hold that much already, stays as it is.
    """
    if not any(candidates):
        return base
    most = max(map(len, candidates))
    filled = [[*own, *[-1] * (most - len(own))] for own in candidates]
    index = torch.tensor(filled, device=base.device)  # (rows, most), -1 where there are fewer
    is_one = index >= 0
    # What is no candidate repeats the first, or rewrites token 0 as it is in a row without any.
    index = torch.where(is_one, index, index[:, :1].clamp(min=0))
    own = base.gather(1, index)
    without = base.scatter(1, index, -torch.inf)
    outside = without.float().logsumexp(-1)  # (rows,)
    inside = own.float().masked_fill(~is_one, -torch.inf).logsumexp(-1)
    raised = (margin + outside - inside).clamp(min=0.0).nan_to_num(0.0, posinf=0.0)
    lifted = own.float() + (strength * raised)[:, None]
    return without.scatter_(1, index, lifted.to(base.dtype))


def move_of(base: torch.Tensor, final: torch.Tensor, picked: int, rival: int) -> float:
    """How far picked moved from its rival, in the logits (vocabulary,) of one row.

    move = (final[picked] - final[rival]) - (base[picked] - base[rival])

    Where the rival was ruled out, it is the least that put picked ahead.
    """
    lead = float(base[picked] - base[rival])
    move = float(final[picked] - final[rival]) - lead
    if math.isfinite(move):
        return move
    return max(0.0, -lead) if math.isfinite(lead) else 0.0


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy of each row's distribution, in nats: (rows, vocabulary) -> (rows,)."""
    log_probs = logits.float().log_softmax(-1)
    return -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(-1)


def jensen_shannon(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How far log-probabilities are apart, in nats: from 0, for equals, to log 2."""
    middle = torch.logaddexp(one, other) - math.log(2)
    halves = [(x.exp() * (x - middle)).nan_to_num(0.0).sum(-1) for x in (one, other)]
    return (halves[0] + halves[1]) / 2


def _log(share: float) -> float:
    return float(torch.tensor(share).log())
