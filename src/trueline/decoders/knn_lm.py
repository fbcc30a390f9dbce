"""Nearest-neighbor language modelling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch

from trueline.decoders.base import Adjusted, Needs, Step
from trueline.decoders.evidence import RetrievedEvidence
from trueline.decoders.grounded import Grounded, StepHits
from trueline.engines.base import Engine
from trueline.settings import Between
from trueline.space.space import GroundingSpace


@dataclass(frozen=True)
class KNNLM(Grounded):
    """Mix the model's distribution with the next tokens of near contexts (arXiv 1911.00172).

    p = (1 - lam) * p_model + lam * p_knn,   p_knn(x) = sum_{i of k : x_i = x} softmax(-d_i)
    d_i is the squared distance of the unit vectors. The paper's setting is a space built with
    context="full"; the space of RAD works too.
    """

    space: GroundingSpace
    k: Annotated[int, Between(1)] = 1024  # neighbors, or all if there are fewer
    lam: Annotated[float, Between(0, 1)] = 0.5  # weight of the neighbors; 0 is plain decoding
    name = "knn-lm"
    needs = Needs(space=True, context="full")

    def look_up_by(self, lm: Engine, queries: torch.Tensor, windows: Sequence[str]) -> StepHits:
        nearest = self.retriever(lm).nearest(queries, self.k)
        return StepHits(len(windows), (nearest,))

    def adjust(self, step: Step) -> Adjusted:
        if self.lam == 0:
            return Adjusted(step.logits)
        retriever = self.retriever(step.lm)
        lookup = step.fetched or self.look_up(step.rows)
        (hits,), rows = lookup.hits, lookup.rows
        distances = 2 - 2 * hits.similarities.view(rows, -1)  # (rows, k), of unit vectors
        weights = (-distances).softmax(-1).reshape(-1)
        tokens = retriever.tokens[hits.entries]
        weights = weights * (tokens >= 0)  # an end without a token of its own says nothing
        own = step.logits.float().log_softmax(-1)
        mass = torch.zeros_like(own)  # (rows, vocabulary)
        mass.index_put_((hits.rows, tokens.clamp(min=0)), weights, accumulate=True)
        keep = math.log1p(-self.lam) if self.lam < 1 else -math.inf
        mixed = torch.logaddexp(own + keep, mass.log() + math.log(self.lam))
        evidence = RetrievedEvidence(
            self.space,
            retriever,
            hits,
            weights,
            self.lam,
            says=lambda entries, asked: (retriever.tokens[entries, None] == asked).float(),
        )
        return Adjusted(mixed, (evidence,))
