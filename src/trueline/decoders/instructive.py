"""Instructive decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from trueline.decoders.base import Adjusted, Decoder, Needs, Step
from trueline.inputs import ModelInput
from trueline.prompts import Prompt, prompts_with
from trueline.settings import Between


@dataclass(frozen=True)
class Instructive(Decoder):
    """Move away from what a misleading instruction makes the model say (arXiv 2311.00233).

    final = l(prompt) - eta * l(noisy prompt)
    """

    prompt: Prompt = Prompt()
    eta: Annotated[float, Between(0)] = 0.3  # how far; 0 is plain decoding
    noise: str | None = None  # the misleading line; None: the one that belongs to the prompt
    name = "id"
    needs = Needs(second_prompt=True, question=True)

    def inputs(self, given: ModelInput) -> tuple[ModelInput, ...]:
        noise = prompts_with(self.prompt).noise if self.noise is None else self.noise
        return given, given.preceded_by(noise)

    def adjust(self, step: Step) -> Adjusted:
        return Adjusted(step.logits - self.eta * step.other_logits)
