"""A GGUF file in, the same model as a folder of safetensors out."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from trueline.engines.gguf_header import read_gguf_header
from trueline.engines.model_cache import say
from trueline.engines.transformers.opening import open_model, open_tokenizer
from trueline.engines.transformers.quiet import quiet
from trueline.engines.weights import opening
from trueline.errors import import_extra


def check_gguf_extra(label: str) -> None:
    """Refuse early what needs packages that are not installed; transformers wants both."""
    for package in ("gguf", "accelerate"):
        import_extra(package, f"converting {label} from GGUF", "gguf")


def convert_gguf(file: Path, folder: Path, label: str) -> None:
    """Write a GGUF's weights, as the float32 they stand for, and its tokenizer to a folder."""
    say(f"converting {label} to safetensors, once ...")
    with opening(label, "a GGUF language model; it may be cut short or of an unknown kind"):
        count, name = read_gguf_header(file, label).count, file.name
        tokenizer = open_tokenizer(file.parent, gguf_file=name)
        model = open_model(file.parent, "causal", "float32", count=count, gguf_file=name)
    _forget_quantization(model)
    _begin_with_bos(tokenizer, file)
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o644)  # they are made private; a cache may be shared


def _forget_quantization(model: Any) -> None:
    """Drop the marks of quantization, which refuse to be saved: the weights are plain now."""
    model.hf_quantizer, model.is_quantized = None, False
    model.config._is_quantized = False
    for owner, mark in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(owner, mark):
            delattr(owner, mark)


def _begin_with_bos(tokenizer: Any, file: Path) -> None:
    """Make the tokenizer prepend BOS where the GGUF asks for it, as llama.cpp does."""
    from tokenizers.processors import TemplateProcessing

    with file.open("rb") as opened:
        data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    with data:  # the key, the number of the type "bool", and true
        wants_bos = data.find(b"tokenizer.ggml.add_bos_token\x07\0\0\0\x01") >= 0
    bos, number = tokenizer.bos_token, tokenizer.bos_token_id
    if wants_bos and bos is not None and tokenizer("a").input_ids[:1] != [number]:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B:1"], special_tokens=[(bos, number)]
        )
