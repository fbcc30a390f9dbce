"""Printing the verified answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch

from trueline.corrector import CorrectivePlan
from trueline.decoders.base import Adjusted, Needs, Rows
from trueline.decoders.corrective import Corrective, lift_votes, make_plan
from trueline.decoders.scoped import ScopeDecoder
from trueline.engines.base import Engine, TokenReader
from trueline.records import Example, NearExample
from trueline.settings import Between
from trueline.space.space import GroundingSpace
from trueline.votes import Speaker


@dataclass(frozen=True)
class Lookup(ScopeDecoder):
    """Print the first verified answer of the nearest example in scope, word for word.

    What corrective decoding has to beat: the same scope, no decoding. Nothing in scope is plain
    decoding.
    """

    space: GroundingSpace
    threshold: Annotated[float, Between(0, 1)] | None = None  # as that of corrective decoding
    name = "lookup"
    needs = Needs(space=True)
    instead = ({},)

    def plan_for(
        self, lm: TokenReader, question: str, stop_ids: Sequence[int] = ()
    ) -> CorrectivePlan | None:
        scope = self._scope
        for best in scope.near(lm, question)[:1]:
            if scope.is_heard(best, question):
                printed = Example(
                    best.example.question,
                    best.example.answers[:1],
                    id=best.example.id,
                    source=best.example.source,
                )
                speaker = Speaker(printed, best.probability, best.odds)
                return make_plan(self.space, lm, (speaker,), stop_ids, is_fixed=True)
        return None

    @property
    def _scope(self) -> Corrective:
        return Corrective(self.space, threshold=self.threshold)

    def near_examples(self, lm: Engine, question: str) -> tuple[NearExample, ...]:
        """The examples near to a question; the first one is printed if it may speak."""
        return self._scope.near_examples(lm, question)

    def adjust_logits(self, rows: Rows, base: torch.Tensor) -> Adjusted:
        return lift_votes(rows, base, margin=0.0, strength=1.0)
