"""A loaded model or tokenizer in, a hash out that tells it from any other."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SAMPLES = 64  # values of each tensor hashed in their order, beside the sum over all of them
_SETTINGS = (  # what changes the logits and is not in the weights
    "model_type hidden_act num_attention_heads num_key_value_heads head_dim rope_parameters "
    "rms_norm_eps layer_norm_eps layer_norm_epsilon sliding_window layer_types "
    "final_logit_softcapping attn_logit_softcapping query_pre_attn_scalar logit_scale "
    "logits_scaling embedding_multiplier residual_multiplier attention_multiplier"
).split()


def fingerprint(model: PreTrainedModel) -> str:
    """Hash every weight, rounded to bfloat16 so that fp32 and bf16 copies are the same model.

    Each tensor goes in as the integer sum of its bit patterns, which sees every weight and does
    not depend on the order of summation, and as a strided sample, which sees their order.
    """
    digest = hashlib.sha256()
    settings = {name: repr(getattr(model.config, name, None)) for name in _SETTINGS}
    digest.update(json.dumps(settings, sort_keys=True).encode())
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}{_bit_sum(weight)}".encode())
        flat = weight.detach().reshape(-1)
        sample = _bits(flat[:: max(1, flat.numel() // _SAMPLES)]).cpu()
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash what turns text into ids and back; padding and truncation settings do not count."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        content.pop("padding", None)
        content.pop("truncation", None)
    else:
        content = {"vocab": tokenizer.get_vocab(), "special": tokenizer.all_special_ids}
    content = [content, tokenizer.chat_template]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _bits(values: torch.Tensor) -> torch.Tensor:
    import torch

    return values.to(torch.bfloat16).view(torch.int16)


def _bit_sum(weight: torch.Tensor) -> int:
    import torch

    flat, size = weight.detach().reshape(-1), 1 << 24  # bounds the memory of a large model
    starts = range(0, flat.numel(), size)
    return sum(int(_bits(flat[at : at + size]).sum(dtype=torch.int64)) for at in starts)
