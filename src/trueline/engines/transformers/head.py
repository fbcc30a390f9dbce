"""A last hidden state in, logits out: the model's own head, and whether it is linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from trueline.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROBE = 24  # tokens of the text a head is first checked on


@dataclass(frozen=True)
class TransformersHead:
    """logits = cap * tanh(scale * (W h + b) / cap), less the parts the model does not have."""

    output: torch.nn.Module  # W and b
    multiplier: float = 1.0
    divisor: float = 1.0
    cap: float | None = None
    is_linear: bool = False  # whether a sum of hidden states gives the sum of their logits

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of hidden states (..., d), by the operations of the model's own head."""
        return self._scaled(self.output(hidden))

    @torch.inference_mode()
    def at(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of a few tokens only: (n, d) -> (n, tokens)."""
        if type(self.output) is not torch.nn.Linear:  # weights of another kind have no rows
            return self(hidden)[:, tokens]
        bias = None if self.output.bias is None else self.output.bias[tokens]
        return self._scaled(
            torch.nn.functional.linear(hidden, self.output.weight[tokens], bias)
        )

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        if self.divisor != 1.0:
            logits = logits / self.divisor
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits

    @property
    def bias(self) -> torch.Tensor | None:
        """What the head adds whatever the hidden state, on the scale of the logits."""
        bias = getattr(self.output, "bias", None)
        return None if bias is None else bias.detach() * self.multiplier / self.divisor


def find_head(model: PreTrainedModel, text: Sequence[int] = ()) -> TransformersHead | None:
    """The head of a model, checked on the hidden states of a text: what it gives, and how.

    None where the known forms (linear, constant scale, soft cap) do not give the model's own
    logits to the bit: its forward pass is then the only way to them.
    """
    head = _described_head(model)
    if head is None:
        return None
    vocabulary = model.config.get_text_config().vocab_size
    tokens = text or [token % vocabulary for token in range(1, _PROBE + 1)]
    ids = torch.tensor([tokens], device=model.device)
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        own = model(input_ids=ids, use_cache=False).logits
        check_numbers(own)
        if not torch.equal(head(hidden), own):
            return None
        return replace(head, is_linear=head.cap is None and _is_affine(head, hidden, own))


def check_numbers(logits: torch.Tensor) -> None:
    """Refuse a model whose logits are not numbers."""
    if logits.isnan().any():
        raise ModelError(
            "the model's logits are not numbers: its weights are damaged, or too large for "
            f"{str(logits.dtype).removeprefix('torch.')}; fetch it again, or try float32"
        )


def _described_head(model: PreTrainedModel) -> TransformersHead | None:
    """The head that a model's settings describe, before anybody has checked it."""
    output, config = model.get_output_embeddings(), model.config.get_text_config()
    if output is None or model.base_model is model:
        return None
    return TransformersHead(
        output,
        multiplier=getattr(config, "logit_scale", None) or 1.0,
        divisor=getattr(config, "logits_scaling", None) or 1.0,
        cap=getattr(config, "final_logit_softcapping", None),
    )


def _is_affine(head: TransformersHead, hidden: torch.Tensor, logits: torch.Tensor) -> bool:
    """Whether the head of a mean is the mean of the heads, up to rounding."""
    half = (hidden + hidden.flip(1)) / 2  # each state with one from the other end of the text
    difference = (head(half) - (logits + logits.flip(1)) / 2).abs().max()
    tolerance = max(1e-4, 4 * torch.finfo(logits.dtype).eps)
    return bool(difference <= tolerance * logits.abs().max())
