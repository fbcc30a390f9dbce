"""The model as it is."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.decoders.base import Adjusted, Decoder, Step
from trueline.prompts import Prompt


@dataclass(frozen=True)
class Greedy(Decoder):
    """Plain decoding: final = base."""

    prompt: Prompt = Prompt()
    name = "greedy"

    def adjust(self, step: Step) -> Adjusted:
        return Adjusted(step.logits)
