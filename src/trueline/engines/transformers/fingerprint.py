"""A loaded model or tokenizer in, a hash out that tells it from any other."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SAMPLES = 64  # values of each tensor hashed in their order, beside the sums over all of them
_NO_MATTER = (  # settings that leave the logits as they are
    "_name_or_path _model_name_or_path architectures auto_map bos_token_id dtype eos_token_id "
    "initializer_range pad_token_id quantization_config torch_dtype transformers_version "
    "unk_token_id use_cache"
).split()


def fingerprint(model: PreTrainedModel) -> str:
    """Hash every weight, rounded to bfloat16 so that fp32 and bf16 copies are the same model.

    Each tensor goes in as the integer sums of the bit patterns of its rows, which see every
    weight and do not depend on the order of summation, and as a strided sample.
    """
    digest = hashlib.sha256(_own_code(model))
    settings = model.config.get_text_config().to_diff_dict()
    told = {name: repr(value) for name, value in settings.items() if name not in _NO_MATTER}
    digest.update(json.dumps(told, sort_keys=True).encode())
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(_row_sums(weight).cpu().numpy().tobytes())
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
    content += [code.hex()] if (code := _own_code(tokenizer)) else []
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _bits(values: torch.Tensor) -> torch.Tensor:
    import torch

    return values.to(torch.bfloat16).view(torch.int16)


def _row_sums(weight: torch.Tensor) -> torch.Tensor:
    """The sum of the bit patterns of each row: (rows,), a few rows at a time."""
    import torch

    rows = weight.detach().reshape(weight.shape[0] if weight.dim() else 1, -1)
    step = max(1, (1 << 24) // max(1, rows.shape[1]))  # bounds the memory of a large model
    return torch.cat(
        [
            _bits(rows[at : at + step]).sum(1, dtype=torch.int64)
            for at in range(0, len(rows), step)
        ]
    )


def _own_code(part: object) -> bytes:
    """A hash of the code that a model's folder brings; nothing where transformers has it.

    transformers copies the files that such code is made of into one folder.
    """
    module = type(part).__module__
    if not module.startswith("transformers_modules."):
        return b""
    folder = Path(sys.modules[module].__file__ or "").parent
    files = sorted(folder.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).digest()
