"""What reads tokens and gives states or logits, and where its weights come from.

Each engine has a folder of its own, which nothing outside `engines` and `integrations` imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import WeakKeyDictionary

from trueline.errors import SettingError

if TYPE_CHECKING:
    import torch

    from trueline.engines.base import Engine, TokenReader
    from trueline.engines.transformers.model import AdjustScores, LanguageModel


Origin = Callable[[], Any]
_ORIGINS: WeakKeyDictionary[object, Origin] = WeakKeyDictionary()


def remember(opened: object, origin: Origin) -> None:
    """Keep how something was opened for as long as it is held."""
    _ORIGINS[opened] = origin


def origin_of(opened: Any) -> Origin:
    """What opens the same in another process; refused where it has no name."""
    if opened not in _ORIGINS:
        raise SettingError(
            f"{opened.id} was not opened by name, so no other process can open it; take one "
            "that tl.load or the name of an embedder gives, or work on this machine"
        )
    return _ORIGINS[opened]


def lasting_name(name: str | Path) -> str:
    """A name that means the same from any folder: a path becomes an absolute one."""
    path = Path(name)
    try:
        return str(path.resolve()) if path.exists() else str(name)
    except OSError:  # too long for a path
        return str(name)


DEFAULT_MODEL = "smollm2-135m"  # these two come from the package registry: no hub is needed
DEFAULT_EMBEDDER = "all-minilm-l6-v2"
ENGINES = {  # each has a `load`
    "transformers": "trueline.engines.transformers.model",
    "llama.cpp": "trueline.engines.llama_cpp.model",
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
    from trueline.engines.transformers.model import LanguageModel

    return LanguageModel(model, tokenizer)


def wrap_tokenizer(tokenizer: Any, stop_ids: Iterable[int] | None = None) -> TokenReader:
    """Somebody's tokenizer of transformers, for a model that runs elsewhere.

    `stop_ids` are the tokens that end an answer; without them, its own. What reads tokens
    already, as an engine does, stays as it is.
    """
    if hasattr(type(tokenizer), "tokenizer_hash"):
        reader: TokenReader = tokenizer
        return reader
    from trueline.engines.transformers.model import TokenizerReader

    return TokenizerReader(tokenizer, None if stop_ids is None else frozenset(stop_ids))


def as_logits_processor(adjust: AdjustScores) -> Any:
    """A function of tokens and scores as a logits processor of transformers."""
    from trueline.engines.transformers.model import ScoreProcessor

    return ScoreProcessor(adjust)


_SHOWN = 200  # characters of what torch says; of some devices it writes pages


def open_device(name: str | torch.device | None) -> torch.device:
    """The device of that name; None is the best there is."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("it holds shapes without values")
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError) as error:
        reason = (str(error).splitlines() or [""])[0][:_SHOWN]
        raise SettingError(
            f"device {str(name)!r} cannot be used here ({reason}); "
            "leave it out for the best there is"
        ) from error
    return device
