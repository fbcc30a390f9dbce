"""Printing the verified answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from trueline.decoders.base import Adjusted, Decoder, Needs, Step
from trueline.decoders.corrective import (
    Corrective,
    CorrectivePlan,
    lift_votes,
    make_plan,
    question_of,
)
from trueline.engines.base import Engine
from trueline.inputs import ModelInput
from trueline.prompts import Prompt
from trueline.records import Example, GenerateOptions, NearExample
from trueline.settings import Between
from trueline.space.space import GroundingSpace
from trueline.votes import Speaker


@dataclass(frozen=True)
class Lookup(Decoder):
    """Print the first verified answer of the nearest example in scope, word for word.

    What corrective decoding has to beat: the same scope, no decoding. Nothing in scope is plain
    decoding.
    """

    space: GroundingSpace
    threshold: Annotated[float, Between(0, 1)] | None = None  # as that of corrective decoding
    name = "lookup"
    needs = Needs(space=True)
    instead = ({},)

    @property
    def question_prompt(self) -> Prompt:
        """The prompt of the space."""
        return self.space.prompt

    def check(self, lm: Engine) -> None:
        """Open the embedder; any model will do."""
        self.space.open_embedder("cpu")

    def prepare(
        self, lm: Engine, given: ModelInput, options: GenerateOptions
    ) -> CorrectivePlan | None:
        """The answer that is printed; None: nothing is in scope."""
        question = question_of(self.space, lm, given)
        if question is None:
            return None
        scope = self._scope
        for best in scope.near(question)[:1]:
            if scope.is_heard(best):
                printed = Example(
                    best.example.question,
                    best.example.answers[:1],
                    id=best.example.id,
                    source=best.example.source,
                )
                speaker = Speaker(printed, best.probability, best.odds)
                return make_plan(self.space, lm, (speaker,), options.stop_ids, is_fixed=True)
        return None

    @property
    def _scope(self) -> Corrective:
        return Corrective(self.space, threshold=self.threshold)

    def near_examples(self, question: str) -> tuple[NearExample, ...]:
        """The examples near to a question; the first one is printed if it may speak."""
        return self._scope.near_examples(question)

    def is_covered(self, prepared: CorrectivePlan | None) -> bool:
        """Whether an example was in scope."""
        return prepared is not None

    def adjust(self, step: Step) -> Adjusted:  # noqa: D102
        if not any(step.rows.prepared):
            return Adjusted(step.logits)
        return lift_votes(step.rows, step.logits, margin=0.0, strength=1.0)
