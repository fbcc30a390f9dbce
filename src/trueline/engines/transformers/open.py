"""A folder in, a tokenizer or model of transformers out: the one place that opens their files.

Code that a folder brings runs only where it is trusted, and nobody is asked on stdin. Weights
are read from safetensors alone. What would be larger than the weights there are is refused
before memory is taken for it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import torch

from trueline.engines.fetch import say
from trueline.engines.weights import (
    IMPORTING,
    WeightCount,
    check_weights,
    opening,
    read_gguf_header,
)
from trueline.errors import ModelError, import_extra

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)
_lock = Lock()  # guards the two below
_blocks = 0  # how many quiet blocks run now, in all threads
_restore: Callable[[], None]  # puts back what the first of them found


@contextmanager
def quiet() -> Iterator[None]:
    """Show errors only, ask nothing, and leave transformers' own settings as they were.

    The first block to begin changes the settings and the last to end restores them, so that
    threads may open models at once. Bars that others show meanwhile are shown.
    """
    global _blocks, _restore
    with _lock:
        if not _blocks:
            _restore = _silence()
        _blocks += 1
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)
        with _lock:
            _blocks -= 1
            if not _blocks:
                _restore()


def _silence() -> Callable[[], None]:
    """Let transformers log errors only and ask us about its bars; return the way back.

    Where a library opens a folder without saying whether to run its code, transformers asks on
    stdin and waits for an answer; with no time to wait it refuses.
    """
    from transformers import dynamic_module_utils as foreign_code
    from transformers.utils import logging

    def make_bar(
        factory: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if _is_quiet.get():
            return logging.EmptyTqdm(*args, **options)
        return hook(factory, args, options) if hook else factory(*args, **options)

    def restore() -> None:
        logging.set_verbosity(level)
        logging.set_tqdm_hook(hook)
        foreign_code.TIME_OUT_REMOTE_CODE = patience

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    hook = logging.set_tqdm_hook(make_bar)
    patience, foreign_code.TIME_OUT_REMOTE_CODE = foreign_code.TIME_OUT_REMOTE_CODE, 0
    return restore


ModelClass = Literal["causal", "encoder"]
_SPARE = 1 << 20  # values a model may have beyond twice those of its files
_PACKED = 32  # values that one value of a quantized file may stand for
_BUFFERS = 1 << 26  # values beside the weights, such as the number of each position
_REPEATED = re.compile(r"(layers?|blocks|depth)$")  # settings that say how often a part stands


def open_tokenizer(
    folder: Path, *, trust_remote_code: bool = False, **source: Any
) -> PreTrainedTokenizerBase:
    """Open the tokenizer of a folder, or of a GGUF file in it (`gguf_file`)."""
    with IMPORTING, quiet():
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=bool(trust_remote_code), local_files_only=True, **source
        )
    return tokenizer


def open_model(
    folder: Path,
    kind: ModelClass,
    dtype: Any,
    *,
    trust_remote_code: bool = False,
    count: WeightCount | None = None,
    **source: Any,
) -> PreTrainedModel:
    """Open the model of a folder, or of a GGUF file in it (`gguf_file`, with its `count`)."""
    options = {"trust_remote_code": bool(trust_remote_code), **source}
    config = check_folder(folder, kind, count=count, **options)
    options |= {"config": config, "dtype": dtype, "use_safetensors": True}
    with IMPORTING, quiet():
        model, found = _auto_class(kind).from_pretrained(
            folder, output_loading_info=True, local_files_only=True, **options
        )
    _check_whole(found["missing_keys"])
    opened: PreTrainedModel = model
    return opened


def check_folder(
    folder: Path,
    kind: ModelClass,
    *,
    trust_remote_code: bool = False,
    count: WeightCount | None = None,
    **source: Any,
) -> Any:
    """The settings of a model that is safe to open; whoever opens it need not be us."""
    count = count or check_weights(folder)
    with IMPORTING, quiet():
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=bool(trust_remote_code), local_files_only=True, **source
        )
        if not trust_remote_code:  # code that is trusted may make what it likes
            _check_settings(config)
            _check_size(_auto_class(kind), config, count)
    return config


def _auto_class(kind: ModelClass) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM

    return AutoModel if kind == "encoder" else AutoModelForCausalLM


def _check_settings(config: Any) -> None:
    """Refuse settings that have transformers open what is not the folder's weights."""
    for name in ("transformers_weights", "_attn_implementation", "_experts_implementation"):
        value = getattr(config, name, None)
        if value is not None and (name == "transformers_weights" or "/" in str(value)):
            raise ModelError(
                f"its config.json names weights or code of its own ({name.lstrip('_')}: "
                f"{value!r}), which is not opened; leave that setting out"
            )


def _check_size(auto: Any, config: Any, count: WeightCount) -> None:
    """Refuse settings that ask for more than the weights hold; takes no memory itself."""
    import torch

    settings = config.to_dict()
    for name, number in _whole_numbers(settings):
        if _REPEATED.search(name) and number > count.tensors:
            raise ModelError(
                f"its settings say {name}={number}, and the weights are {count.tensors} "
                "tensors; fetch the model again"
            )
    with torch.device("meta"):
        model = auto.from_config(deepcopy(config), trust_remote_code=False)
    wanted = sum(weight.numel() for weight in model.parameters())
    others = sum(buffer.numel() for buffer in model.buffers())
    packed = _PACKED if settings.get("quantization_config") else 1
    if wanted > 2 * packed * count.values + _SPARE or others > count.values + _BUFFERS:
        raise ModelError(
            f"its settings ask for {wanted + others} values, and the weights hold "
            f"{count.values}; fetch the model again"
        )


def _whole_numbers(settings: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _whole_numbers(value)
        elif isinstance(value, int):
            yield str(name), value


def _check_whole(missing: set[str]) -> None:
    """Refuse a model with weights that nothing was read for: they would be random."""
    # Embedders pool the states themselves; some are saved without the part that would do it.
    names = sorted(name for name in missing if not name.startswith("pooler."))
    if names:
        raise ModelError(
            f"the weights lack {names[0]}"
            + (f" and {len(names) - 1} more" if names[1:] else "")
            + ", which would be random; fetch the model again"
        )


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


class TransformersEncoder(torch.nn.Module):
    """An encoder of transformers behind the protocol of `engines.encoders`."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model.eval()
        self.width = int(model.config.hidden_size)
        self.limit: int | None = getattr(model.config, "max_position_embeddings", None)
        self.pad_id = int(getattr(model.config, "pad_token_id", 0) or 0)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def word_vectors(self) -> torch.Tensor:
        """The vectors that token ids begin with: (vocabulary, width)."""
        table: torch.Tensor = self.model.get_input_embeddings().weight.detach()
        return table

    def fingerprint(self) -> str:
        """A hash of its weights and settings."""
        return fingerprint(self.model)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(rows, tokens) of ids -> (rows, tokens, width)."""
        found = self.model(input_ids=ids, attention_mask=mask)
        states: torch.Tensor = found.last_hidden_state
        return states


def open_encoder(folder: Path, device: torch.device) -> TransformersEncoder:
    """Open the encoder of a folder in float32; code that comes with it never runs."""
    return TransformersEncoder(open_model(folder, "encoder", torch.float32).to(device))


def open_bert_scorer(folder: str, layers: int) -> Any:
    """Open an encoder with bert-score, which is built on transformers."""
    scorer_class = import_extra("bert_score", "BERTScore", "eval").BERTScorer
    with opening(folder, f"an encoder with its tokenizer, for BertScore's layer {layers}"):
        check_folder(Path(folder), "encoder")  # which bert-score then opens itself
        kind = json.loads((Path(folder) / "config.json").read_text("utf-8"))["model_type"]
        if "t5" in folder and kind not in ("t5", "mt5"):  # it would get random weights
            raise ValueError("bert-score takes a path with 't5' in it for a T5; rename it")
        with quiet():
            scorer = scorer_class(model_type=folder, num_layers=layers, use_fast_tokenizer=True)
    # A tokenizer that names no limit would let a long text run past the last position. A model
    # of relative positions (T5) has no last one.
    if limit := getattr(scorer._model.config, "max_position_embeddings", None):
        scorer._tokenizer.model_max_length = min(scorer._tokenizer.model_max_length, limit)
    return scorer
