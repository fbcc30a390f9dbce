"""Retrieved entries in, the examples that moved a token out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from trueline.fusion import move_of
from trueline.records import Neighbor
from trueline.search import Hits
from trueline.space.retriever import Retriever
from trueline.space.space import GroundingSpace
from trueline.votes import Voice, Votes

# What some entries say of some tokens: (n,), (tokens,) -> (n, tokens).
Says = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Evidence(Protocol):
    """Who moved the tokens of one step."""

    def count(self, row: int) -> int:
        """How many entries or answers had a say in one row."""
        ...

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """Those of one row that moved picked and rival apart, the strongest first."""
        ...


@dataclass(frozen=True)
class VoteEvidence:
    """What verified answers voted for in one step, and how far that moved the logits."""

    votes: Sequence[Votes | None]  # of each row
    base: torch.Tensor  # (rows, vocabulary)
    final: torch.Tensor  # (rows, vocabulary)

    def count(self, row: int) -> int:
        """How many answers voted in one row."""
        votes = self.votes[row]
        return 0 if votes is None else len({v for own in votes.shares.values() for v in own})

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """The answers that voted, each with its part of how far picked moved from rival."""
        votes = self.votes[row]
        if votes is None:
            return []
        moved = move_of(self.base[row], self.final[row], picked, rival)
        weights: dict[Voice, float] = {}
        for own in votes.shares.values():
            for voice, share in own.items():
                weights[voice] = weights.get(voice, 0.0) + share
        best = sorted(weights, key=lambda voice: -weights[voice])[:most]
        return [
            Neighbor(
                example=voice.speaker.example.id,
                question=voice.speaker.example.question,
                answer=voice.text,
                source=voice.speaker.example.source,
                step=0,
                similarity=voice.speaker.probability,
                weight=weights[voice],
                push=weights[voice] * moved,
                nearness="probability",
            )
            for voice in best
        ]


@dataclass(frozen=True)
class RetrievedEvidence:
    """What was retrieved in one step, and with which weight it went into the result."""

    space: GroundingSpace
    retriever: Retriever
    hits: Hits
    weights: torch.Tensor  # (hits,), summing to 1 in each row
    strength: float  # what the weighted values are multiplied with before they are added
    says: Says
    is_wrong: bool = False  # whether the entries stand in wrong answers
    scale: torch.Tensor | None = None  # (rows,) what each row's sum is multiplied with at last

    def count(self, row: int) -> int:
        """How many entries one row hit."""
        return int((self.hits.rows == row).sum())

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """The neighbors of one row that moved picked and rival apart, the strongest first."""
        places = (self.hits.rows == row).nonzero()[:, 0]
        entries = self.hits.entries[places]
        said = self.says(entries, torch.tensor([picked, rival], device=entries.device))
        pushes = self.strength * self.weights[places] * (said[:, 0] - said[:, 1])
        if self.scale is not None:
            pushes = pushes * self.scale[row]
        best = pushes.abs().argsort(descending=True, stable=True)[:most]
        columns = (entries, self.hits.similarities[places], self.weights[places], pushes)
        return [
            self._neighbor(*values)
            for values in zip(*(column[best].tolist() for column in columns), strict=True)
        ]

    def _neighbor(self, entry: int, similarity: float, weight: float, push: float) -> Neighbor:
        example, answer, step = self.space.source_of(entry, wrong=self.is_wrong)
        answers = example.wrong_answers if self.is_wrong else example.answers
        return Neighbor(
            example=example.id,
            question=example.question,
            answer=answers[answer],
            source=example.source,
            step=step,
            similarity=similarity,
            weight=weight,
            push=push,
            is_wrong=self.is_wrong,
        )
