"""A hub id in, the folder of the hub's own cache out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from trueline.engines.model_cache import is_full
from trueline.errors import DownloadError

_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
_COPIES = ["original/*", "consolidated*", "onnx/*", "openvino/*"]  # the same weights again


def download_snapshot(name: str) -> Path:
    """Return the hub's own cached copy of a model, downloaded if need be; never pickles."""
    from huggingface_hub import errors, snapshot_download

    bar = None if sys.stderr.isatty() else _hidden_bar()
    try:
        return Path(
            snapshot_download(
                name, allow_patterns=_FILES, ignore_patterns=_COPIES, tqdm_class=bar
            )
        )
    except errors.GatedRepoError:
        step = "its owner asks for consent: give it on the model's page, then `hf auth login`"
    except errors.RepositoryNotFoundError:
        step = "the hub has no such model, or it is private and wants `hf auth login`"
    except Exception as error:  # whatever its HTTP library raises
        step = f"the hub did not give it ({type(error).__name__}); look at the network"
        if is_full(error):
            step = "there is no room left; free some, or set HF_HOME to a larger disk"
    raise DownloadError(f"{name} is no folder here and could not be fetched: {step}")


def is_cached(name: str) -> bool:
    """Whether the hub's cache holds a copy of a model already; nothing is fetched."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(name, local_files_only=True)
    except (OSError, ValueError):  # not there, or no name the hub could have
        return False
    return True


def _hidden_bar() -> Any:
    """A bar that shows nothing; switching all of the hub's off would last beyond this call."""
    from huggingface_hub.utils.tqdm import tqdm

    class HiddenBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

    return HiddenBar
