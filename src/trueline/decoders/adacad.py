"""Context-aware decoding that adapts to how far the two prompts disagree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from trueline.decoders.base import Adjusted, Decoder, Needs, Step
from trueline.decoders.cad import with_bare
from trueline.fusion import jensen_shannon
from trueline.inputs import ModelInput
from trueline.prompts import Prompt
from trueline.settings import Between


@dataclass(frozen=True)
class AdaCAD(Decoder):
    """Push the bare prompt away as far as it disagrees with the full one (arXiv 2409.07394).

    final = (1 + a) * l(full prompt) - a * l(bare prompt),   a = scale * JSD(p_full, p_bare)
    The divergence is in nats, as in the authors' code, so it is at most log 2.
    """

    prompt: Prompt = Prompt()
    scale: Annotated[float, Between(0)] = 1.0  # 0 is plain decoding
    bare: str | None = None  # the bare template; None: the one that belongs to the prompt
    name = "adacad"
    needs = Needs(second_prompt=True, question=True)

    def inputs(self, given: ModelInput) -> tuple[ModelInput, ...]:
        return with_bare(given, self.prompt, self.bare)

    def adjust(self, step: Step) -> Adjusted:
        full, bare = step.logits.float(), step.other_logits.float()
        apart = jensen_shannon(full.log_softmax(-1), bare.log_softmax(-1))  # (rows,)
        weight = (self.scale * apart)[:, None]
        moved = torch.where(weight > 0, (1 + weight) * full - weight * bare, full)
        return Adjusted(moved.to(step.logits.dtype))
