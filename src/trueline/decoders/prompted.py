"""Plain decoding behind an instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trueline.decoders.base import Adjusted, Decoder, Needs, Step
from trueline.inputs import ModelInput
from trueline.prompts import Prompt

_LINES = {  # what stands ahead of the prompt; the whole answer is read, with its thoughts
    "none": "",
    "chain-of-thought": "Think step by step before you answer, and write it down.\n\n",
    "self-critique": "First write a draft of your answer. Then say what may be untrue in it, "
    "and give a corrected answer.\n\n",
}


@dataclass(frozen=True)
class Prompted(Decoder):
    """Ask for care in words: what needs no method, and what every method has to beat.

    final = base, read behind a line that asks to think step by step (arXiv 2205.11916) or to
    check a draft (in the sense of arXiv 2303.17651, in one pass).
    """

    prompt: Prompt = Prompt()
    ask: Literal["none", "chain-of-thought", "self-critique"] = "chain-of-thought"
    name = "prompted"
    needs = Needs(own_prompt=True)
    instead = ({"ask": "chain-of-thought"}, {"ask": "self-critique"})

    def inputs(self, given: ModelInput) -> tuple[ModelInput, ...]:  # noqa: D102
        return (given.preceded_by(_LINES[self.ask]) if _LINES[self.ask] else given,)

    def adjust(self, step: Step) -> Adjusted:  # noqa: D102
        return Adjusted(step.logits)
