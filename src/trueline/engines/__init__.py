"""Open a model by name, or wrap one that is open, as an engine (see `engines.base`).

Only this package and `trueline.integrations` import transformers or llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload
from weakref import WeakKeyDictionary

from trueline.errors import SettingError

if TYPE_CHECKING:
    import torch

    from trueline.engines.base import Engine, TokenReader
    from trueline.engines.transformers.model import LanguageModel

Origin = Callable[[], Any]
_ORIGINS: WeakKeyDictionary[object, Origin] = WeakKeyDictionary()
DEFAULT_MODEL = "smollm2-135m"  # both come from the package registry: no hub is needed
DEFAULT_EMBEDDER = "all-minilm-l6-v2"
ENGINES = {  # each module has a `load`
    "transformers": "trueline.engines.transformers.model",
    "llama.cpp": "trueline.engines.llama_cpp.model",
}


class LoadOptions(TypedDict, total=False):
    """How a model is opened, whatever runs it."""

    dtype: str | torch.dtype
    device: str | torch.device | None
    trust_remote_code: bool


@overload
def load(
    name: str | Path, *, engine: Literal["transformers"] = ..., **options: Unpack[LoadOptions]
) -> LanguageModel: ...
@overload
def load(name: str | Path, *, engine: str, **options: Unpack[LoadOptions]) -> Engine: ...
def load(
    name: str | Path, *, engine: str = "transformers", **options: Unpack[LoadOptions]
) -> Engine:
    """Open a model by alias, hub id, local folder or .gguf file.

    Options: dtype="auto", device=None, trust_remote_code=False. `auto` is float32 on a CPU and
    the checkpoint's own type elsewhere; a device of None is the best available. Code that comes
    with a model runs only if it is trusted. engine="llama.cpp" runs a .gguf file, or the one of
    an alias, without conversion, on the CPU.
    """
    if engine not in ENGINES:
        raise SettingError(f"no engine is called {engine!r}; take {' or '.join(ENGINES)}")
    opened: Engine = import_module(ENGINES[engine]).load(name, **options)
    remember(opened, partial(load, lasting_name(name), engine=engine, **options))
    return opened


def remember(opened: object, origin: Origin) -> None:
    """Store how an object was opened, for as long as the object lives."""
    _ORIGINS[opened] = origin


def origin_of(opened: Any) -> Origin:
    """A function that opens the same model or embedder in another process."""
    if opened not in _ORIGINS:
        raise SettingError(
            f"{opened.id} was not opened by name, so no other process can open it; take one "
            "that tl.load or the name of an embedder gives, or work on this machine"
        )
    return _ORIGINS[opened]


def lasting_name(name: str | Path) -> str:
    """The name of a model in any working directory: paths become absolute."""
    path = Path(name)
    return str(path.resolve() if path.exists() else name)


def wrap_transformers(model: Any, tokenizer: Any) -> Engine:
    """An open model of transformers as an engine."""
    from trueline.engines.transformers.model import LanguageModel

    return LanguageModel(model, tokenizer)


def wrap_tokenizer(tokenizer: Any, stop_ids: Iterable[int] | None = None) -> TokenReader:
    """A tokenizer of transformers as a TokenReader, for a model that runs elsewhere.

    `stop_ids` are the tokens that end an answer; the default is the tokenizer's own. A
    TokenReader, such as an engine, is returned as it is.
    """
    if hasattr(tokenizer, "stop_ids"):
        reader: TokenReader = tokenizer
        return reader
    from trueline.engines.transformers.model import TokenizerReader

    return TokenizerReader(tokenizer, stop_ids)


def as_logits_processor(
    adjust: Callable[[list[list[int]], torch.Tensor], torch.Tensor],
) -> Any:
    """A logits processor for the `generate` of transformers.

    `adjust` takes the tokens of each row so far and their scores (rows, vocabulary), and
    returns the scores to pick from.
    """
    from torch import no_grad
    from transformers import LogitsProcessor

    class ScoreProcessor(LogitsProcessor):
        @no_grad()
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return adjust(input_ids.tolist(), scores)

    return ScoreProcessor()


def open_bert_scorer(folder: str, layers: int) -> Any:
    """A scorer of bert-score with the encoder in a folder."""
    from trueline.engines.transformers import open

    return open.open_bert_scorer(folder, layers)


def open_device(name: str | torch.device | None) -> torch.device:
    """The device of that name; None is the best available."""
    import torch

    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device).cpu()  # "meta" has shapes and no values
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:
        reason = (str(error).splitlines() or [""])[0][:200]  # for some devices it writes pages
        raise SettingError(
            f"device {str(name)!r} cannot be used here ({reason}); "
            "leave it out for the best available"
        ) from error
    return device
