"""What reads tokens and gives states or logits, and where its weights come from.

Each engine has a folder of its own, which nothing outside `engines` and `integrations` imports.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from trueline.engines.origins import lasting_name, remember
from trueline.errors import SettingError

if TYPE_CHECKING:
    import torch

    from trueline.engines.base import Engine, TokenReader
    from trueline.engines.transformers.language import LanguageModel
    from trueline.engines.transformers.processor import AdjustScores

DEFAULT_MODEL = "smollm2-135m"  # these two come from the package registry: no hub is needed
DEFAULT_EMBEDDER = "all-minilm-l6-v2"
ENGINES = {  # each has a `load`
    "transformers": "trueline.engines.transformers.language",
    "llama.cpp": "trueline.engines.llama_cpp.language",
}


@overload
def load(
    name: str | Path,
    *,
    engine: Literal["transformers"] = ...,
    dtype: str | torch.dtype = ...,
    device: str | torch.device | None = ...,
    trust_remote_code: bool = ...,
) -> LanguageModel: ...


@overload
def load(
    name: str | Path,
    *,
    engine: str,
    dtype: str | torch.dtype = ...,
    device: str | torch.device | None = ...,
    trust_remote_code: bool = ...,
) -> Engine: ...


def load(
    name: str | Path,
    *,
    engine: str = "transformers",
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
) -> Engine:
    """Open a model by alias, hub id, local folder or .gguf file.

    `auto` is float32 on a CPU and the checkpoint's own type elsewhere. Code that comes with a
    model runs only with trust_remote_code=True. engine="llama.cpp" reads a .gguf file, or that
    of an alias, as it is, on the CPU.
    """
    if engine not in ENGINES:
        raise SettingError(f"there is no engine {engine!r}; there are {', '.join(ENGINES)}")
    options = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
    opened: Engine = import_module(ENGINES[engine]).load(name, **options)
    remember(opened, partial(load, lasting_name(name), engine=engine, **options))
    return opened


def wrap_transformers(model: Any, tokenizer: Any) -> Engine:
    """Somebody's own model of transformers as an engine."""
    from trueline.engines.transformers.language import LanguageModel

    return LanguageModel(model, tokenizer)


def wrap_tokenizer(tokenizer: Any, stop_ids: Iterable[int] | None = None) -> TokenReader:
    """Somebody's tokenizer of transformers, for a model that runs elsewhere.

    `stop_ids` are the tokens that end an answer; without them, its own. What reads tokens
    already, as an engine does, stays as it is.
    """
    if hasattr(type(tokenizer), "tokenizer_hash"):
        reader: TokenReader = tokenizer
        return reader
    from trueline.engines.transformers.reader import TokenizerReader

    return TokenizerReader(tokenizer, None if stop_ids is None else frozenset(stop_ids))


def as_logits_processor(adjust: AdjustScores) -> Any:
    """A function of tokens and scores as a logits processor of transformers."""
    from trueline.engines.transformers.processor import ScoreProcessor

    return ScoreProcessor(adjust)
