"""Methods that contrast two prompts: CAD, AdaCAD, instructive decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from trueline.methods.base import Adjusted, Method, Needs, Step
from trueline.prompts import ModelInput, Prompt, prompts_with
from trueline.settings import Between


class BareMethod(Method):
    """Reads the question also in a bare template; None: the one of the prompt."""

    prompt: Prompt
    bare: str | None
    needs = Needs(second_prompt=True, question=True)

    def inputs(self, given: ModelInput) -> tuple[ModelInput, ...]:
        usual = prompts_with(self.prompt).bare.template
        return given, given.bare(usual if self.bare is None else self.bare)


@dataclass(frozen=True)
class CAD(BareMethod):
    """Amplify what the full prompt adds to the bare question (arXiv 2305.14739).

    final = (1 + a) * l(full prompt) - a * l(bare prompt)
    """

    prompt: Prompt = Prompt()
    a: Annotated[float, Between(0)] = 0.5  # weight of the bare prompt; 0 is plain decoding
    bare: str | None = None  # the bare template; None: the one that belongs to the prompt
    name = "cad"

    def adjust(self, step: Step) -> Adjusted:
        return Adjusted((1 + self.a) * step.logits - self.a * step.other_logits)


@dataclass(frozen=True)
class Instructive(Method):
    """Move away from the answer to a misleading instruction (arXiv 2311.00233).

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


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """The divergence of two distributions of log-probabilities, in nats: 0 to log 2."""
    middle = torch.logaddexp(one, other) - math.log(2)
    halves = [(x.exp() * (x - middle)).nan_to_num(0.0).sum(-1) for x in (one, other)]
    return (halves[0] + halves[1]) / 2


@dataclass(frozen=True)
class AdaCAD(BareMethod):
    """Contrast the bare prompt as far as it disagrees with the full one (arXiv 2409.07394).

    final = (1 + a) * l(full prompt) - a * l(bare prompt),   a = scale * JSD(p_full, p_bare)
    The divergence is in nats, as in the authors' code, so it is at most log 2.
    """

    prompt: Prompt = Prompt()
    scale: Annotated[float, Between(0)] = 1.0  # 0 is plain decoding
    bare: str | None = None  # the bare template; None: the one that belongs to the prompt
    name = "adacad"

    def adjust(self, step: Step) -> Adjusted:
        full, bare = step.logits.float(), step.other_logits.float()
        apart = jensen_shannon(full.log_softmax(-1), bare.log_softmax(-1))  # (rows,)
        weight = (self.scale * apart)[:, None]
        moved = torch.where(weight > 0, (1 + weight) * full - weight * bare, full)
        return Adjusted(moved.to(step.logits.dtype))
