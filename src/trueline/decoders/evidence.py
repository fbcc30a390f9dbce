"""Retrieved entries in, the examples that moved a token out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trueline.models.language import LanguageModel
from trueline.records import Neighbor
from trueline.retriever import Hits, Retriever


@dataclass(frozen=True)
class Evidence:
    """What was retrieved in one step, and with which weight it went into the result."""

    lm: LanguageModel
    retriever: Retriever
    hits: Hits
    weights: torch.Tensor  # (hits,), summing to 1 in each row
    strength: float  # what the weighted values are multiplied with before they are added

    def count(self, row: int) -> int:
        """How many entries one row hit."""
        return int((self.hits.rows == row).sum())

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """The neighbors of one row with the greatest weight, and how they moved picked over rival."""
        places = (self.hits.rows == row).nonzero()[:, 0]
        best = places[self.weights[places].argsort(descending=True, stable=True)[:most]]
        entries = self.hits.entries[best]
        pair = self._logits(entries, torch.tensor([picked, rival], device=entries.device))
        pushes = self.strength * self.weights[best] * (pair[:, 0] - pair[:, 1])
        columns = (entries, self.hits.similarities[best], self.weights[best], pushes)
        return [
            self._neighbor(*values)
            for values in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def _logits(self, entries: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """What some entries say of some tokens: (entries, tokens)."""
        values = self.retriever.values(entries)
        if self.retriever.space.recipe.values == "logits":
            return values[:, tokens]
        assert self.lm.head is not None
        return self.lm.head(values.to(self.lm.dtype)).float()[:, tokens]

    def _neighbor(self, entry: int, similarity: float, weight: float, push: float) -> Neighbor:
        space = self.retriever.space
        example = space.examples[int(space.entries.examples[entry])]
        return Neighbor(
            example=example.id,
            question=example.question,
            answer=example.answers[int(space.entries.answers[entry])],
            source=example.source,
            step=int(space.entries.steps[entry]),
            similarity=similarity,
            weight=weight,
            push=push,
        )
