"""Methods that leave the logits alone: greedy decoding, and KATE's longer prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from trueline.methods.base import Adjusted, Method, Needs, SpaceMethod, Step
from trueline.prompts import ModelInput, Prompt, prompts_with
from trueline.settings import Between
from trueline.space import GroundingSpace
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

    The nearest comes first, as in the authors' code. Each has the first of its answers.
    """

    space: GroundingSpace
    k: Annotated[int, Between(0)] = 10  # 0 is plain decoding
    nearest_at: Literal["start", "end"] = "start"  # `end`: the nearest next to the question
    name = "kate"
    needs = Needs(space=True, own_prompt=True, question=True)
    baseline_settings: ClassVar[Any] = ({"k": 1}, {"k": 3})  # reported as baselines

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
        """The k examples with the nearest questions, in the order of the prompt."""
        if not self.k:
            return []
        (query,) = self.space.open_embedder("cpu").embed([question])
        cosines = self.space.question_vectors("cpu") @ query
        best = cosines.argsort(descending=True, stable=True)[: self.k]
        order = best if self.nearest_at == "start" else best.flip(0)
        return [self.space.examples[index] for index in order.tolist()]

    def adjust(self, step: Step) -> Adjusted:
        return Adjusted(step.logits)
