"""Context-aware decoding."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.decoders.base import Adjusted, Decoder, Step
from trueline.errors import SettingError
from trueline.prompts import Asked, Prompt, prompts_with


@dataclass(frozen=True)
class CAD(Decoder):
    """Amplify what the full prompt says over what the bare question says (arXiv 2305.14739).

    final = (1 + a) * l(full prompt) - a * l(bare prompt)
    """

    prompt: Prompt = Prompt()
    a: float = 0.5  # how far the bare prompt is pushed away; 0 is plain decoding
    bare: Prompt | None = None  # None: the one that belongs to the prompt
    name = "cad"

    def __post_init__(self) -> None:
        if not 0.0 <= self.a < float("inf"):
            raise SettingError(f"a must be 0 or more, got {self.a}")

    def prompts(self, question: str) -> tuple[Asked, ...]:  # noqa: D102
        bare = self.bare or prompts_with(self.prompt).bare
        return Asked(self.prompt, question), Asked(bare, question)

    def adjust(self, step: Step) -> Adjusted:  # noqa: D102
        return Adjusted((1 + self.a) * step.logits - self.a * step.other_logits)
