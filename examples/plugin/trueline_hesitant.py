"""A method from another package: `pip install ./examples/plugin`, then `--method hesitant`."""

from dataclasses import dataclass
from typing import Annotated

import trueline as tl
from trueline.methods.base import Adjusted, Method, Step
from trueline.settings import Between


@dataclass(frozen=True)
class Hesitant(Method):
    """Give the two best tokens their mean if they differ by less than `margin`."""

    prompt: tl.Prompt = tl.Prompt()
    margin: Annotated[float, Between(0)] = 1.0  # in logits; 0 is plain decoding
    name = "hesitant"

    def adjust(self, step: Step) -> Adjusted:
        best = step.logits.topk(2)  # (rows, 2)
        means = best.values.mean(-1, keepdim=True).expand_as(best.values)
        is_close = (best.values[:, :1] - best.values[:, 1:]) < self.margin
        level = step.logits.scatter(-1, best.indices, means)
        return Adjusted(level.where(is_close, step.logits))
