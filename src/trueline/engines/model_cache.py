"""The cache: finished folders of weights, each made once by one process, never half of one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from trueline.engines.weights import check_weights
from trueline.errors import DownloadError, ModelError, SettingError
from trueline.files import open_regular, reason
from trueline.visible import visible

NO_ROOM = "there is no room left; free some, or set TRUELINE_HOME to a folder on a larger disk"


def say(text: str) -> None:
    """Tell the user what is going on, on stderr."""
    with suppress(OSError):  # nobody reads it, or its disk is full
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()


def home() -> Path:
    """Return the folder of trueline's cache: TRUELINE_HOME, or one in the user's own cache."""
    named = os.environ.get("TRUELINE_HOME") or user_cache_path("trueline")
    try:
        folder = Path(named).expanduser()
        if not folder.exists() or folder.is_dir():  # in this order: somebody may make it now
            return folder
        why = "it is no folder"
    except (OSError, RuntimeError, ValueError) as error:  # nobody has it, or may look there
        why = reason(error)
    raise SettingError(
        f"the cache {str(named)!r} cannot be used ({why}); "
        "set TRUELINE_HOME to a folder, or to a name where one can be made"
    )


def is_finished(folder: Path, facts: dict[str, Any]) -> bool:
    """Say whether a folder was finished from exactly these facts."""
    try:
        with open_regular(folder / "source.json") as file:
            return bool(json.load(file) == facts)
    except (OSError, ValueError):
        return False


def prepare(
    target: Path,
    facts: dict[str, Any],
    make: Callable[[Path, Path], None],
    *,
    check: Callable[[Path], object] = check_weights,
) -> Path:
    """Return the finished folder, made first by make(folder, scratch) if it is not there."""
    if is_finished(target, facts):
        return target
    try:
        with locked(target.parent):
            if not is_finished(target, facts):  # another process may have made it meanwhile
                _make(target, facts, make, check)
    except Exception as error:
        if is_full(error):  # an OSError, or what safetensors makes of one
            raise DownloadError(f"{target.name} could not be stored: {NO_ROOM}") from None
        if isinstance(error, OSError):
            raise _unwritable(target.parent, error) from None
        raise
    return target


def _make(
    target: Path,
    facts: dict[str, Any],
    make: Callable[[Path, Path], None],
    check: Callable[[Path], object],
) -> None:
    for stale in target.parent.glob(".tmp-*"):  # of killed runs: live ones hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=".tmp-", dir=target.parent, ignore_cleanup_errors=True
    ) as name:
        scratch, folder = Path(name), Path(name, "folder")
        folder.mkdir()
        make(folder, scratch)
        check(folder)
        (folder / "source.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
        if target.exists():  # unfinished or from another release
            os.replace(target, scratch / "old")
        os.replace(folder, target)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of the cache, which is made if need be.

    The system frees the lock when a process dies.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        say("waiting for another trueline that is filling the cache ...")
        lock.acquire()
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        yield
    finally:
        lock.release()


def _unwritable(folder: Path, error: OSError) -> ModelError:
    return ModelError(
        f"the cache {folder} cannot be written ({reason(error)}); "
        "set TRUELINE_HOME to a folder that can"
    )


def is_full(error: BaseException) -> bool:
    """Say whether an error means that the disk is full."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or "os error 28" in str(error)
