"""A folder of weights in; out: what was found out when it was last opened, if it is unchanged.

Trying a head takes two passes of the model, and a tokenizer is hashed as megabytes of JSON:
once is enough as long as neither the folder nor the libraries change.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from trueline.engines.model_cache import home
from trueline.errors import TruelineError
from trueline.files import write_text

_VERSION = 1  # counted up by a release that finds out other things


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a model before it has read anything."""

    has_head: bool  # whether its head gives its logits outside its own forward pass
    is_linear: bool
    tokenizer_hash: str


def read_kept(folder: Path, dtype: torch.dtype, device: torch.device) -> Kept | None:
    """What was kept of this folder, as it is now; None where nothing was."""
    try:
        found = json.loads(_file(folder, dtype, device).read_text("utf-8"))
        kept = Kept(**found)
    except (OSError, ValueError, TypeError, TruelineError):  # not there, or damaged
        return None
    types = (bool, bool, str)
    return kept if tuple(map(type, asdict(kept).values())) == types else None


def keep(folder: Path, dtype: torch.dtype, device: torch.device, found: Kept) -> None:
    """Keep what was found out; a cache that cannot be written is none."""
    with suppress(OSError, TruelineError):
        file = _file(folder, dtype, device)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(asdict(found)) + "\n")


def _file(folder: Path, dtype: torch.dtype, device: torch.device) -> Path:
    """Its name changes with every file of the folder, and with what reads them."""
    import transformers

    versions = (_VERSION, torch.__version__, transformers.__version__, str(dtype), str(device))
    states = [
        (path.name, state.st_size, state.st_mtime_ns, state.st_ino)
        for path in sorted(folder.iterdir())
        for state in [path.stat()]
    ]
    facts = repr((str(folder.resolve()), versions, states))
    return home() / "opened" / f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}.json"
