"""The folder of a space while it is written: whose it is, who may write, what is left."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from trueline.errors import SpaceError

BUILDING = "building"  # the folder of unfinished work, inside the space's own
_OURS = re.compile(r"(entries|wrong|examples)-[0-9a-f]{12}\.(safetensors|jsonl)")


def check_target(folder: Path) -> None:
    """Refuse to write over something that is not a space."""
    if folder.exists() and not folder.is_dir():
        raise SpaceError(f"{folder} is a file; name a folder for the space")
    if not folder.is_dir() or not any(folder.iterdir()) or _is_ours(folder):
        return
    raise SpaceError(
        f"{folder} is not empty and holds no space; nothing was written; name another folder"
    )


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Hold a folder while it is written to; hands out where unfinished work may lie.

    The lock goes with the process. What cannot be written ends in one error, and what was there
    before still stands.
    """
    check_target(folder)
    work = folder / BUILDING
    try:
        work.mkdir(parents=True, exist_ok=True)
        with FileLock(work / ".lock", timeout=0):
            yield work
            if all(path.name == ".lock" for path in work.iterdir()):
                shutil.rmtree(work)
    except Timeout as error:
        raise SpaceError(
            f"another build is writing to {folder}; wait for it or name another folder"
        ) from error
    except (OSError, SafetensorError) as error:  # safetensors has its own for a full disk
        raise SpaceError(
            f"{folder} cannot be written ({getattr(error, 'strerror', None) or error}); what "
            "was finished is kept; free some room and run the same again"
        ) from error


def remove_strays(folder: Path, manifest: dict[str, Any]) -> None:
    """Delete the arrays and examples that no manifest names any more."""
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and path.name not in manifest["files"]:
            path.unlink()


def _is_ours(folder: Path) -> bool:
    """Whether a folder holds a space, whole or damaged, or one that was begun."""
    if any(_OURS.fullmatch(path.name) or path.name == BUILDING for path in folder.iterdir()):
        return True
    try:
        return "format_version" in json.loads((folder / "manifest.json").read_text("utf-8"))
    except (OSError, ValueError, TypeError):
        return False
