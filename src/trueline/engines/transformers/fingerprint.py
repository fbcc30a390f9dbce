"""A loaded model or tokenizer in, a hash out that tells it from any other."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PART = 1 << 22  # values that are rounded at a time, which bounds the memory it takes
_NO_MATTER = (  # settings that leave the logits as they are
    "_name_or_path _model_name_or_path architectures auto_map bos_token_id dtype eos_token_id "
    "initializer_range pad_token_id quantization_config torch_dtype transformers_version "
    "unk_token_id use_cache"
).split()


def fingerprint(model: PreTrainedModel) -> str:
    """Hash every weight in its order, and the settings that shape the logits.

    Weights are rounded to bfloat16, so that float32 and bfloat16 copies are the same model; a
    change that is lost in this rounding is not seen.
    """
    digest = hashlib.sha256(_own_code(model))
    settings = model.config.get_text_config().to_diff_dict()
    told = {name: repr(value) for name, value in settings.items() if name not in _NO_MATTER}
    digest.update(json.dumps(told, sort_keys=True).encode())
    for name, weight in sorted(_weights(model)):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        flat = weight.detach().reshape(-1)
        for at in range(0, flat.numel(), _PART):
            digest.update(_bits(flat[at : at + _PART]))
    return digest.hexdigest()


def weights_state(model: PreTrainedModel) -> tuple[object, ...]:
    """What changes when a weight is replaced, moved or written to; takes about a millisecond.

    Writes that torch itself does not count are not seen: those through `weight.data`, through
    NumPy, or inside torch.inference_mode to weights that were made in it.
    """
    return tuple(
        (weight.data_ptr(), None if weight.is_inference() else weight._version)
        for tensors in (model.parameters(), model.buffers())
        for weight in tensors
    )


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


def _weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, those that are shared once, and the buffers that are saved with them."""
    yield from model.named_parameters()
    saved = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


def _bits(values: torch.Tensor) -> memoryview:
    import torch

    if values.is_floating_point():
        values = values.to(torch.bfloat16)
    return values.contiguous().view(torch.uint8).cpu().numpy().data


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
