"""Context-aware decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from trueline.decoders.base import Adjusted, Decoder, Needs, Step
from trueline.inputs import ModelInput
from trueline.prompts import Prompt, prompts_with
from trueline.settings import Between


@dataclass(frozen=True)
class CAD(Decoder):
    """Amplify what the full prompt says over what the bare question says (arXiv 2305.14739).

    final = (1 + a) * l(full prompt) - a * l(bare prompt)
    """

    prompt: Prompt = Prompt()
    a: Annotated[float, Between(0)] = (
        0.5  # how far the bare prompt is pushed away; 0 is plain decoding
    )
    bare: str | None = None  # the bare template; None: the one that belongs to the prompt
    name = "cad"
    needs = Needs(second_prompt=True, question=True)

    def inputs(self, given: ModelInput) -> tuple[ModelInput, ...]:
        return with_bare(given, self.prompt, self.bare)

    def adjust(self, step: Step) -> Adjusted:
        return Adjusted((1 + self.a) * step.logits - self.a * step.other_logits)


def with_bare(
    given: ModelInput, prompt: Prompt, template: str | None
) -> tuple[ModelInput, ModelInput]:
    """What was given, and its question in the bare template, or in that of the prompt."""
    usual = prompts_with(prompt).bare.template
    return given, given.bare(usual if template is None else template)
