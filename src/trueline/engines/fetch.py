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
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from platformdirs import user_cache_path

from trueline.engines.weights import check_weights
from trueline.errors import DownloadError, ModelError, SettingError
from trueline.files import open_regular, reason
from trueline.text import visible

Facts = dict[str, Any]  # what a folder of the cache is made from
NO_ROOM = "there is no room left; free some, or set TRUELINE_HOME to a folder on a larger disk"


def say(text: str) -> None:
    """Print a line to stderr."""
    with suppress(OSError):  # nobody reads it, or its disk is full
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()


def home() -> Path:
    """The folder of trueline's cache: TRUELINE_HOME, or one in the user's cache folder."""
    named = os.environ.get("TRUELINE_HOME") or user_cache_path("trueline")
    try:
        folder = Path(named).expanduser()
        if not folder.exists() or folder.is_dir():  # in this order: somebody may make it now
            return folder
        why = "it is no folder"
    except (OSError, RuntimeError, ValueError) as error:  # an unknown user, a closed folder
        why = reason(error)
    raise SettingError(
        f"the cache {str(named)!r} cannot be used ({why}); "
        "set TRUELINE_HOME to a folder, or to a name where one can be made"
    )


def is_finished(folder: Path, facts: Facts) -> bool:
    """Whether a folder was finished from exactly these facts."""
    try:
        with open_regular(folder / "source.json") as file:
            return bool(json.load(file) == facts)
    except (OSError, ValueError):
        return False


def prepare(
    target: Path,
    facts: Facts,
    make: Callable[[Path, Path], None],
    *,
    check: Callable[[Path], object] = check_weights,
) -> Path:
    """The finished folder; if it is not there, make(folder, scratch) makes it."""
    if is_finished(target, facts):
        return target
    try:
        with locked(target.parent):
            if is_finished(target, facts):  # another process made it meanwhile
                return target
            for stale in target.parent.glob(".tmp-*"):  # of killed runs: others hold the lock
                shutil.rmtree(stale, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=".tmp-", dir=target.parent, ignore_cleanup_errors=True
            ) as name:
                scratch, folder = Path(name), Path(name, "folder")
                folder.mkdir()
                make(folder, scratch)
                check(folder)
                text = json.dumps(facts, indent=2) + "\n"
                (folder / "source.json").write_text(text, "utf-8")
                if target.exists():  # unfinished or from another release
                    os.replace(target, scratch / "old")
                os.replace(folder, target)
    except Exception as error:
        if is_full(error):  # an OSError, or what safetensors makes of one
            raise DownloadError(f"{target.name} could not be stored: {NO_ROOM}") from None
        if isinstance(error, OSError):
            raise _unwritable(target.parent, error) from None
        raise
    return target


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
    """Whether an error means that the disk is full."""
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
    requirements = scratch / "requirements.txt"
    lines = [f"{pin} --hash=sha256:{sha256}\n" for pin, sha256 in pins.items()]
    requirements.write_text("".join(lines), "utf-8")
    flags = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"]
    flags += ["--progress-bar", _progress_kind(), *options]
    paths = ["--dest", str(scratch), "-r", str(requirements)]
    with (
        (scratch / "pip.log").open("w+", encoding="utf-8", errors="replace") as log,
        _progress_bar(label, size) as advance,
        subprocess.Popen(
            [sys.executable, "-m", "pip", "download", *flags, *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            env={**os.environ, "TMPDIR": str(scratch), "PIP_NO_INPUT": "1"},
        ) as pip,
    ):
        assert pip.stdout is not None
        try:
            output = _follow(pip.stdout, advance)
            pip.wait()
        finally:
            pip.kill()  # where the user interrupts; else it has ended
        log.seek(0)
        if pip.returncode:
            raise DownloadError(
                f"{label} could not be fetched: {_meaning(output + log.read())}"
            )
    stems = [pin.replace("-", "_").replace("==", "-") for pin in pins]
    return [next(scratch.glob(f"{stem}-*.whl")) for stem in stems]


def _progress_kind() -> str:
    """`raw` is lines that a program can read, which pip has from 24.1 on."""
    try:
        version = [int(part) for part in re.findall(r"\d+", metadata.version("pip"))]
    except metadata.PackageNotFoundError:
        return "off"
    return "raw" if version >= [24, 1] else "off"


def _follow(output: IO[str], advance: Callable[[int], None]) -> str:
    """Show pip's progress lines on the bar and return its other lines."""
    other, finished, current = [], 0, 0
    for line in output:
        if not (found := re.match(r"Progress (\d+) of \d+", line)):
            other.append(line)
            continue
        if int(found[1]) < current:  # the next wheel has begun
            finished += current
        current = int(found[1])
        advance(finished + current)
    return "".join(other)


def _meaning(output: str) -> str:
    for pattern, meaning in _PIP_ERRORS.items():
        if re.search(pattern, output):
            return meaning
    last = (re.findall(r"^ERROR: (.+)$", output, re.MULTILINE) or output.split("\n"))[-1]
    return f"pip failed with {last.strip()!r}"


@contextmanager
def _progress_bar(label: str, size: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, one line elsewhere."""
    if not sys.stderr.isatty():
        say(f"fetching {label} ({size / 1e6:.0f} MB) ...")
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=size)
        yield lambda done: progress.update(task, completed=done)


def unpack(archives: Sequence[Path], members: Mapping[str, str], folder: Path) -> None:
    """Copy members of zip files, such as wheels, to names in the folder.

    A member that ends in a slash stands for all files below it: copied below a name that ends
    in a slash too, or joined to one file. Members with one name are joined in order.
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
