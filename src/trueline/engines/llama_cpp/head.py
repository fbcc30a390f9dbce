"""The head of a GGUF file: a last hidden state in, logits out, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from trueline.engines.gguf_header import GgufTensor
from trueline.engines.llama_cpp.weights import Weights
from trueline.errors import import_extra

# llama.cpp rounds the hidden state to 8 bits before it multiplies, and we do not: the logits
# differ by so much of their deviation at most. Another form of the head differs by far more.
TOLERANCE = 0.1


@dataclass(frozen=True)
class GgufHead:
    """logits = cap * tanh(scale * (W h + b) / cap), less the parts the model does not have."""

    weight: torch.Tensor  # (vocabulary, d)
    own_bias: torch.Tensor | None = None  # (vocabulary,)
    scale: float = 1.0
    cap: float | None = None

    @property
    def is_linear(self) -> bool:
        """Whether a sum of hidden states gives the sum of their logits."""
        return self.cap is None

    @property
    def bias(self) -> torch.Tensor | None:
        """What the head adds whatever the hidden state, on the scale of the logits."""
        return None if self.own_bias is None else self.own_bias * self.scale

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of hidden states (..., d)."""
        return self._scaled(torch.nn.functional.linear(hidden, self.weight, self.own_bias))

    @torch.inference_mode()
    def at(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of a few tokens only: (n, d) -> (n, tokens)."""
        bias = None if self.own_bias is None else self.own_bias[tokens]
        return self._scaled(torch.nn.functional.linear(hidden, self.weight[tokens], bias))

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits


def is_tied(weights: Weights) -> bool:
    """Whether the head is the input embedding."""
    return "output.weight" not in weights.header.tensors


def find_head(weights: Weights, hidden: torch.Tensor, logits: torch.Tensor) -> GgufHead | None:
    """The head that gives these logits (tokens, vocabulary) of these states (tokens, d).

    None where no known form (linear, constant scale, soft cap) comes near enough.
    """
    tensors = weights.header.tensors
    name = "token_embd.weight" if is_tied(weights) else "output.weight"
    shape = (weights.vocabulary, weights.width)
    if name not in tensors or tensors[name].shape != shape:
        return None
    bias = tensors.get("output.bias")
    head = GgufHead(
        read_tensor(weights, tensors[name]),
        None if bias is None else read_tensor(weights, bias),
    )
    best = min(_forms(weights, head), key=lambda form: distance(form, hidden, logits))
    return best if distance(best, hidden, logits) <= TOLERANCE else None


def distance(head: GgufHead, hidden: torch.Tensor, logits: torch.Tensor) -> float:
    """How far the head is from the logits, against how far they deviate from their mean."""
    error = (head(hidden) - logits).square().mean().sqrt()
    return float(error / logits.std())


def _forms(weights: Weights, head: GgufHead) -> Iterator[GgufHead]:
    """The head with what a file may say of it; some models multiply and some divide by it."""
    yield head
    settings = weights.header.settings
    kind = settings.get("general.architecture")
    scale = float(settings.get(f"{kind}.logit_scale", 0.0))
    if scale:
        yield replace(head, scale=scale)
        yield replace(head, scale=1 / scale)
    cap = float(settings.get(f"{kind}.final_logit_softcapping", 0.0))
    if cap:
        yield replace(head, cap=cap)


def read_tensor(weights: Weights, tensor: GgufTensor) -> torch.Tensor:
    """A tensor of the file as the float32 it stands for."""
    gguf = import_extra("gguf", "reading the head of a GGUF file", "llama")
    kind = gguf.GGMLQuantizationType(tensor.kind)
    values, size = gguf.GGML_QUANT_SIZES[kind]  # in a block
    *rows, width = tensor.shape
    packed = np.memmap(
        weights.file, np.uint8, "r", tensor.start, (*rows, width // values * size)
    )
    found = np.asarray(gguf.dequantize(packed, kind), np.float32).reshape(tensor.shape)
    return torch.from_numpy(np.array(found))
