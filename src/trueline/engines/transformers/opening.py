"""A folder in, a tokenizer or model of transformers out: the one place that opens their files.

Code that a folder brings runs only where it is trusted, and nobody is asked on stdin. Weights
are read from safetensors alone. What would be larger than the weights there are is refused
before memory is taken for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trueline.engines.transformers.quiet import quiet
from trueline.engines.weights import IMPORTING, WeightCount, check_weights
from trueline.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

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
