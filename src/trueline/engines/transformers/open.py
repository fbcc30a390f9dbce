"""The only place that opens files with transformers: tokenizers, models, GGUF, encoders.

Code in a folder runs only if it is trusted, and transformers never reads stdin. Weights are
read from safetensors only. Settings that need more memory than the weights are refused first.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from trueline.engines.fetch import say
from trueline.engines.gguf import read_gguf_header
from trueline.engines.models import IMPORTING, check_weights, opening
from trueline.errors import ModelError, import_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ModelClass = Literal["AutoModelForCausalLM", "AutoModel"]  # of transformers
_SPARE = 1 << 20  # values a model may have beyond twice those of its files
_PACKED = 32  # values that one value of a quantized file may stand for
_BUFFERS = 1 << 26  # values in buffers, such as position numbers, beyond those of the weights
_REPEATED = re.compile(r'"(\w*(?:layers?|blocks|depth))": (\d+)')  # numbers of repeated parts
_PART = 1 << 22  # values that are rounded at a time, to bound the memory
_NOT_IN_LOGITS = (  # settings that do not change the logits
    "_name_or_path _model_name_or_path architectures auto_map bos_token_id dtype eos_token_id "
    "initializer_range pad_token_id quantization_config torch_dtype transformers_version "
    "unk_token_id use_cache"
).split()


@contextmanager
def quiet() -> Iterator[None]:
    """Make transformers log errors only and read no stdin; restore its settings afterwards.

    One thread at a time may be here. Where a library leaves open whether to run a folder's
    code, transformers reads the answer from stdin; with no time to wait it refuses.
    """
    with IMPORTING:
        from transformers import dynamic_module_utils as foreign_code
        from transformers.utils import logging

        level = logging.get_verbosity()
        logging.set_verbosity_error()
        hook = logging.set_tqdm_hook(lambda _, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
        patience, foreign_code.TIME_OUT_REMOTE_CODE = foreign_code.TIME_OUT_REMOTE_CODE, 0
        try:
            yield
        finally:
            logging.set_verbosity(level)
            logging.set_tqdm_hook(hook)
            foreign_code.TIME_OUT_REMOTE_CODE = patience


def open_tokenizer(folder: Path, **source: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder; see `open_model` for `source`."""
    with quiet():
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, **_safely(source)
        )
    return tokenizer


def open_model(
    folder: Path,
    kind: ModelClass,
    dtype: Any,
    *,
    count: tuple[int, int] | None = None,
    **source: Any,
) -> PreTrainedModel:
    """Open the model of a folder, or of a GGUF file in it.

    `source` has trust_remote_code, or gguf_file with `count`, the number of tensors and of
    values in the weights.
    """
    config = check_folder(folder, kind, count=count, **source)
    options = {"config": config, "dtype": dtype, "use_safetensors": True}
    with quiet():
        import transformers

        model, report = getattr(transformers, kind).from_pretrained(
            folder, output_loading_info=True, **options, **_safely(source)
        )
    # Embedders pool the states themselves; some are saved without the layer that would do it.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise ModelError(
            f"the weights lack {missing[0]}, which would be random; fetch the model again"
        )
    opened: PreTrainedModel = model
    return opened


def check_folder(
    folder: Path, kind: ModelClass, *, count: tuple[int, int] | None = None, **source: Any
) -> Any:
    """The configuration of a model, checked to be safe to open with any library."""
    count = count or check_weights(folder)
    with quiet():
        import transformers

        config = transformers.AutoConfig.from_pretrained(folder, **_safely(source))
        if not source.get("trust_remote_code"):  # trusted code may allocate what it likes
            check_config(getattr(transformers, kind), config, *count)
    return config


def _safely(source: dict[str, Any]) -> dict[str, Any]:
    """Options for transformers; without an answer about code it would read one from stdin."""
    is_trusted = bool(source.get("trust_remote_code"))
    return {**source, "trust_remote_code": is_trusted, "local_files_only": True}


def check_config(auto: Any, config: Any, tensors: int, values: int) -> None:
    """Refuse settings that name weights or code elsewhere, or need more than the weights hold.

    It allocates no memory.
    """
    for name in ("transformers_weights", "_attn_implementation", "_experts_implementation"):
        value = getattr(config, name, None)
        if value is not None and (name == "transformers_weights" or "/" in str(value)):
            raise ModelError(
                f"its config.json names other weights or code ({name.lstrip('_')}: "
                f"{value!r}), which is not opened; leave that setting out"
            )
    for name, number in _REPEATED.findall(json.dumps(config.to_dict(), default=str)):
        if int(number) > tensors:
            raise ModelError(
                f"its settings have {name}={number}, and the weights {tensors} tensors; "
                "fetch the model again"
            )
    with torch.device("meta"):
        model = auto.from_config(deepcopy(config), trust_remote_code=False)
    needed = sum(weight.numel() for weight in model.parameters())
    others = sum(buffer.numel() for buffer in model.buffers())
    packed = _PACKED if getattr(config, "quantization_config", None) else 1
    if needed > 2 * packed * values + _SPARE or others > values + _BUFFERS:
        raise ModelError(
            f"its settings need {needed + others} values, and the weights hold {values}; "
            "fetch the model again"
        )


def convert_gguf(file: Path, folder: Path, label: str) -> None:
    """Write a GGUF's weights, in float32, and its tokenizer to a folder."""
    say(f"converting {label} to safetensors, once ...")
    with opening(label, "a GGUF language model; it may be cut short or of an unknown kind"):
        header, name = read_gguf_header(file, label), file.name
        shapes = [tensor.shape for tensor in header.tensors.values()]
        count = len(shapes), sum(map(prod, shapes))
        tokenizer: Any = open_tokenizer(file.parent, gguf_file=name)
        model: Any = open_model(
            file.parent, "AutoModelForCausalLM", "float32", count=count, gguf_file=name
        )
    # A model that is marked as quantized refuses to be saved; these weights are plain now.
    model.hf_quantizer, model.is_quantized = None, False
    model.config._is_quantized = False
    vars(model).pop("quantization_method", None)
    vars(model.config).pop("quantization_config", None)
    bos, number = tokenizer.bos_token, tokenizer.bos_token_id
    if header.settings.get("tokenizer.ggml.add_bos_token") is True and bos is not None:
        from tokenizers.processors import TemplateProcessing

        if tokenizer("a").input_ids[:1] != [number]:  # llama.cpp puts it in front of a text
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                single=[bos, "$A"],
                pair=[bos, "$A", bos, "$B:1"],
                special_tokens=[(bos, number)],
            )
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o644)  # they are made private; a cache may be shared


def fingerprint(model: PreTrainedModel) -> str:
    """A hash of every weight, and of the settings that change the logits.

    Weights are rounded to bfloat16, so that float32 and bfloat16 copies are the same model; a
    change that this rounding removes is not seen.
    """
    digest = hashlib.sha256(_code_hash(model))
    settings = model.config.get_text_config().to_diff_dict()
    kept = {name: repr(value) for name, value in settings.items() if name not in _NOT_IN_LOGITS}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    saved = model.state_dict().keys()  # named_parameters has shared weights once
    buffers = ((name, buffer) for name, buffer in model.named_buffers() if name in saved)
    for name, weight in sorted([*model.named_parameters(), *buffers]):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        for part in weight.detach().reshape(-1).split(_PART):
            if part.is_floating_point():
                part = part.to(torch.bfloat16)
            digest.update(part.contiguous().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def weights_state(model: PreTrainedModel) -> tuple[object, ...]:
    """Changes when a weight is replaced, moved or written to; takes about a millisecond.

    Writes that torch does not count are not seen: those through `weight.data`, through NumPy,
    or inside torch.inference_mode to weights that were made in it.
    """
    return tuple(
        (weight.data_ptr(), None if weight.is_inference() else weight._version)
        for tensors in (model.parameters(), model.buffers())
        for weight in tensors
    )


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of the tokenizer and its chat template, without padding and truncation."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        content.pop("padding", None)
        content.pop("truncation", None)
    else:
        content = {"vocab": tokenizer.get_vocab(), "special": tokenizer.all_special_ids}
    content = [content, tokenizer.chat_template]
    content += [code.hex()] if (code := _code_hash(tokenizer)) else []
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _code_hash(part: object) -> bytes:
    """A hash of the code in a model's folder; empty where the code is transformers' own.

    transformers copies the files of such code into one folder.
    """
    module = type(part).__module__
    if not module.startswith("transformers_modules."):
        return b""
    folder = Path(sys.modules[module].__file__ or "").parent
    files = sorted(folder.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).digest()


@cache
def open_bert_scorer(folder: str, layers: int) -> Any:
    """A scorer of bert-score with the encoder in a folder."""
    scorer_class = import_extra("bert_score", "BERTScore", "eval").BERTScorer
    with opening(folder, f"an encoder with its tokenizer, for BertScore's layer {layers}"):
        config = check_folder(Path(folder), "AutoModel")  # bert-score does not
        if "t5" in folder and config.model_type not in ("t5", "mt5"):
            raise ValueError("bert-score takes a path with 't5' in it for a T5; rename it")
        with quiet():
            scorer = scorer_class(model_type=folder, num_layers=layers, use_fast_tokenizer=True)
    # With a tokenizer that has no limit, a long text would run past the last position. A model
    # with relative positions (T5) has no last one.
    if limit := getattr(config, "max_position_embeddings", None):
        scorer._tokenizer.model_max_length = min(scorer._tokenizer.model_max_length, limit)
    return scorer
