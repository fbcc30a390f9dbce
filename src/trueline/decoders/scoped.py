"""What the methods share that tell verified answers where an example is in scope."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trueline.corrector import CorrectivePlan
from trueline.decoders.base import Adjusted, Rows, SpaceDecoder, Step
from trueline.engines.base import Engine, TokenReader
from trueline.inputs import ModelInput
from trueline.questions import find_question
from trueline.records import GenerateOptions


class ScopeDecoder(SpaceDecoder):
    """Decides once by the question what may be told; nothing in scope is plain decoding."""

    def plan_for(
        self, lm: TokenReader, question: str, stop_ids: Sequence[int] = ()
    ) -> CorrectivePlan | None:
        """The answers that may be told to a question; None: none are."""
        raise NotImplementedError

    def adjust_logits(self, rows: Rows, base: torch.Tensor) -> Adjusted:
        """Lift what is told in every row that has something to tell."""
        raise NotImplementedError

    def prepare(
        self, lm: Engine, given: ModelInput, options: GenerateOptions
    ) -> CorrectivePlan | None:
        """The answers that may be told; None: none are, and the model is left alone."""
        question = self._question_of(lm, given)
        return None if question is None else self.plan_for(lm, question, options.stop_ids)

    def _question_of(self, lm: Engine, given: ModelInput) -> str | None:
        """The question that was given, or the one that bare tokens end with in a known form."""
        if given.question is not None:
            return given.question
        tokens = given.encode(lm.tokenizer)
        found = find_question(self.space.prompt, lm.tokenizer, tokens)
        return found.question if found is not None and found.start >= len(tokens) else None

    def is_covered(self, prepared: CorrectivePlan | None) -> bool:
        """Whether an example was in scope."""
        return prepared is not None and prepared.is_covered

    def adjust(self, step: Step) -> Adjusted:
        if not any(step.rows.prepared):
            return Adjusted(step.logits)
        return self.adjust_logits(step.rows, step.logits)
