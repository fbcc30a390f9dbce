"""A last hidden state in, logits out: the model's own head, and whether it is linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROBE = 24  # tokens of the text a head is first checked on


@dataclass(frozen=True)
class Head:
    """logits = cap * tanh(scale * (W h + b) / cap), without the parts the model does not have."""

    output: torch.nn.Module  # W and b
    multiplier: float = 1.0
    divisor: float = 1.0
    cap: float | None = None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of hidden states (..., d), by the operations of the model's own forward."""
        logits: torch.Tensor = self.output(hidden)
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        if self.divisor != 1.0:
            logits = logits / self.divisor
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits

    @property
    def is_linear(self) -> bool:
        """Whether a sum of hidden states gives the sum of their logits."""
        return self.cap is None and isinstance(self.output, torch.nn.Linear)

    @property
    def bias(self) -> torch.Tensor | None:
        """What the head adds whatever the hidden state, on the scale of the logits."""
        bias = getattr(self.output, "bias", None)
        return None if bias is None else bias * self.multiplier / self.divisor

    def columns(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of a few tokens only: (n, d) -> (n, tokens)."""
        logits = torch.nn.functional.linear(
            hidden.to(self.output.weight.dtype),
            self.output.weight[tokens],
            None if self.output.bias is None else self.output.bias[tokens],
        )
        logits = logits * self.multiplier / self.divisor
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


def find_head(model: PreTrainedModel) -> Head | None:
    """The head of a model, if it is of a known form (linear, constant scale, soft cap).

    None where the known forms do not give the model's own logits to the bit: its forward pass
    is then the only way to them.
    """
    output, config = model.get_output_embeddings(), model.config.get_text_config()
    if not isinstance(output, torch.nn.Linear):
        return None
    head = Head(
        output,
        multiplier=getattr(config, "logit_scale", None) or 1.0,
        divisor=getattr(config, "logits_scaling", None) or 1.0,
        cap=getattr(config, "final_logit_softcapping", None),
    )
    probe = torch.arange(1, _PROBE + 1, device=model.device)[None] % config.vocab_size
    return head if gives_own_logits(head, model, probe) else None


@torch.inference_mode()
def gives_own_logits(head: Head, model: PreTrainedModel, ids: torch.Tensor) -> bool:
    """Whether the head turns the hidden states of a text (1, n) into the model's logits, to the bit."""
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return torch.equal(head(hidden), model(input_ids=ids, use_cache=False).logits)
