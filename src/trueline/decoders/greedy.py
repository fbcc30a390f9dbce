"""The model as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from trueline.decoders.base import Adjusted, Step
from trueline.models.language import LanguageModel
from trueline.prompts import Prompt


@dataclass(frozen=True)
class Greedy:
    """Plain decoding: final = base."""

    prompt: Prompt = field(default_factory=Prompt)
    name = "greedy"

    def check(self, lm: LanguageModel) -> None:  # noqa: D102
        pass

    def prompt_ids(self, lm: LanguageModel, question: str) -> list[int]:  # noqa: D102
        return self.prompt.encode(question, lm.tokenizer)

    def answer_ids(self, lm: LanguageModel, question: str, answer: str) -> list[int]:  # noqa: D102
        return self.prompt.encode_answer(question, answer, lm.tokenizer)

    def adjust(self, step: Step) -> Adjusted:  # noqa: D102
        return Adjusted(step.logits)
