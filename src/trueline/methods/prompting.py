"""The model as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from trueline.methods.base import Adjusted, Method, Needs, SpaceMethod, Step
from trueline.prompts import ModelInput, Prompt, prompts_with
from trueline.settings import Between
from trueline.space.space import GroundingSpace
from trueline.types import Example


@dataclass(frozen=True)
class Greedy(Method):
    """Plain decoding: final = base."""

    prompt: Prompt = Prompt()
    name = "greedy"

    def adjust(self, step: Step) -> Adjusted:
        return Adjusted(step.logits)


@dataclass(frozen=True)
class KATE(SpaceMethod):
    """Show the model the k examples whose questions are nearest (arXiv 2101.06804).

    The nearest stands first, as in the authors' code. Each comes with the first of its answers.
    """

    space: GroundingSpace
    k: Annotated[int, Between(0)] = 10  # 0 is plain decoding
    nearest_at: Literal["start", "end"] = "start"  # `end`: the nearest next to the question
    name = "kate"
    needs = Needs(space=True, own_prompt=True, question=True)
    baseline_settings = ({"k": 1}, {"k": 3})

    def inputs(self, given: ModelInput) -> tuple[ModelInput, ...]:
        form = prompts_with(self.space.prompt).demonstration
        before = "".join(
            form.replace("{answer}", example.answers[0], 1).replace(
                "{question}", example.question, 1
            )
            for example in self.nearest(given.question or "")
        )
        return (given.preceded_by(before),)

    def nearest(self, question: str) -> list[Example]:
        """The k examples with the nearest questions, in the order in which they are shown."""
        if not self.k:
            return []
        (query,) = self.space.open_embedder("cpu").embed([question])
        best = (self.space.question_vectors("cpu") @ query).argsort(
            descending=True, stable=True
        )[: self.k]
        order = best if self.nearest_at == "start" else best.flip(0)
        return [self.space.examples[place] for place in order.tolist()]

    def adjust(self, step: Step) -> Adjusted:
        return Adjusted(step.logits)
