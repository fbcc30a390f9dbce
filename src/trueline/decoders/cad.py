"""Context-aware decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from trueline.decoders.base import Adjusted, Decoder, Needs, Step
from trueline.prompts import Asked, Prompt, prompts_with
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

    def prompts(self, question: str) -> tuple[Asked, ...]:  # noqa: D102
        bare = prompts_with(self.prompt).bare
        if self.bare is not None:
            bare = replace(self.prompt, template=self.bare)
        return Asked(self.prompt, question), Asked(bare, question)

    def adjust(self, step: Step) -> Adjusted:  # noqa: D102
        return Adjusted((1 + self.a) * step.logits - self.a * step.other_logits)
