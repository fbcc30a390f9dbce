"""Logits and neighbors in, adjusted logits out: pure functions that know no engine.

They hold for hidden states as they do for logits: where a model's head is linear, fusing before
it is fusing after it.
"""

from __future__ import annotations

import math
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
    base: torch.Tensor, candidates: torch.Tensor, *, margin: float, strength: float
) -> torch.Tensor:
    """Raise the candidates together until they hold probability sigmoid(margin).

    L = max(0, margin + log sum_{v not in C} e^base(v) - log sum_{x in C} e^base(x))
    final(x) = base(x) + strength * L for x in C, base(x) elsewhere

    `base` is (rows, vocabulary), `candidates` a mask of the same shape. A row without
    candidates, or whose candidates hold that much already, stays as it is.
    """
    wide = base.float()
    inside = wide.masked_fill(~candidates, -torch.inf).logsumexp(-1)  # (rows,)
    outside = wide.masked_fill(candidates, -torch.inf).logsumexp(-1)
    raised = (margin + outside - inside).clamp(min=0.0).nan_to_num(0.0, posinf=0.0)
    return torch.where(candidates, (wide + strength * raised[:, None]).to(base.dtype), base)


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
