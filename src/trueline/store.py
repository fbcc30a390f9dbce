"""The folder of a space: locked, committed by one rename, checked, never somebody else's.

    space.json    what belongs together: settings, checksums, history
    g-<hash>/     examples.jsonl, vectors.safetensors, and rad/ with RAD's entries, if any

The rename of space.json is the commit. While somebody writes there is also `.trueline` with the
lock and unfinished work; a kill leaves it, and a later commit clears it. See docs/format.md.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from pathlib import Path
from reprlib import repr as short
from time import monotonic, sleep
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save

from trueline import files
from trueline.cluster import Run
from trueline.errors import SpaceConflictError, SpaceError, SpaceFormatError
from trueline.prompts import Prompt
from trueline.text import counted, shown
from trueline.types import Example, OnProgress

NAME, PRIVATE = "space.json", ".trueline"
EXAMPLES, VECTORS = "examples.jsonl", "vectors.safetensors"
_OLD_NAME = "manifest.json"  # of a space of 0.2.0
_HEAD = b'{\n "format": "trueline space",\n'
_NO_HASH = b"0" * 64
_OURS = re.compile(  # all that is ever written into the folder of a space
    r"space\.json|(\.trueline|g-[0-9a-f]{16})(/work-[0-9a-f]{16}|/rad)?"
    r"(/(lock|space\.json|examples\.jsonl|[a-z]+(-\d+)?\.safetensors))?"
)
_LARGEST = 1 << 28  # bytes of space.json
_READS = 5  # times a folder is read while commits replace what is read
_WAITING = 60.0  # seconds that a commit waits for another

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]  # by the name under which they are stored
Read = Callable[[str], bytes]  # the name of a file of a space -> its bytes, checked
Plain = bool | int | float | str | None
Count = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")
as_lines = msgspec.json.Encoder().encode_lines  # examples -> their file


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a space."""

    sha256: str
    bytes: Count


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a space's history."""

    what: Literal["build", "add", "remove", "replace", "merge", "tune"]
    time: Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]  # UTC
    changed: Count  # examples it added, removed or replaced
    examples: Count  # examples in the space afterwards
    entries: Count  # RAD entries in the space afterwards

    def __str__(self) -> str:
        changed = f" of {counted(self.changed, 'example')}" if self.changed else ""
        return f"{self.what}{changed} at {self.time}"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of space.json."""

    format: Literal["trueline space"] = "trueline space"
    format_version: int = 4
    embedder: str
    embedder_hash: str
    prompt: Prompt
    tuned: dict[str, Plain]  # settings fitted to this space
    entries: dict[str, Plain] | None  # how RAD's entries were made; only rad/ reads it
    folder: Annotated[str, msgspec.Meta(pattern="^g-[0-9a-f]{16}$")] = ""
    files: dict[str, FileRecord] = {}
    history: Annotated[tuple[Commit, ...], msgspec.Meta(min_length=1)]
    sha256: str = ""  # of this file, with 64 zeros in the place of this hash


def _sealed(manifest: Manifest) -> tuple[Manifest, bytes]:
    """A manifest with the hash of itself, and the text of space.json."""
    unsigned = msgspec.structs.replace(manifest, sha256=_NO_HASH.decode())
    text = msgspec.json.format(msgspec.json.encode(unsigned), indent=1) + b"\n"
    digest = _hash(text)
    data = digest.encode().join(text.rsplit(_NO_HASH, 1))
    return msgspec.structs.replace(manifest, sha256=digest), data


def check_tuned(tuned: Mapping[Any, Any]) -> None:
    """Refuse tuned settings that are not plain values, or that no method can use."""
    for name, value in tuned.items():
        is_number = type(value) in (int, float) and abs(value) < 2**63  # NaN is not
        if type(name) is not str or not (is_number or type(value) in (bool, str, type(None))):
            raise ValueError("tuned must be an object of plain values")
        if name in ("threshold", "strength") and not (is_number and 0 <= value <= 1):
            raise ValueError(f"tuned {name} must lie in [0, 1], got {short(value)}")


# Reading


def read(folder: Path, parse: Callable[[Manifest, Read], T]) -> T:
    """What `parse` makes of the newest state of a folder; every byte it reads is checked."""
    for _ in range(_READS):
        manifest = read_manifest(folder)
        try:
            return parse(manifest, partial(_read_file, folder, manifest))
        except ValueError as error:
            if read_manifest(folder) == manifest:
                raise _unreadable(folder, str(error)) from error
            # else a commit replaced it while it was read
    raise SpaceError(f"{folder} changes faster than it can be read; try again")


def read_manifest(folder: Path) -> Manifest:
    """The content of space.json, which must be to the byte what we would write."""
    try:
        data = files.read_regular(folder / NAME, _LARGEST)
    except (OSError, ValueError) as error:
        raise _no_space(folder, files.reason(error)) from error
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("format_version")
        if version != 4:
            advice = "this release reads 4; install a newer trueline"
            raise ValueError(f"it has format {shown(version)}, {advice}")
        manifest = msgspec.json.decode(data, type=Manifest)
        check_tuned(manifest.tuned)
        if _sealed(manifest)[1] != data:
            raise ValueError("it was changed: its checksum differs")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _unreadable(folder, f"{NAME} cannot be read: {error}") from error
    return manifest


def _no_space(folder: Path, reason: str) -> SpaceFormatError:
    """The error of a folder whose space.json cannot be opened."""
    if os.path.lexists(folder / NAME):
        return _unreadable(folder, f"{NAME} cannot be read ({reason})")
    if os.path.lexists(folder / _OLD_NAME):
        return SpaceFormatError(
            f"{folder} is a space of trueline 0.2.0 or before, which this release does not "
            f"read; take its examples into a new one with `trueline build {folder} --out "
            "NEW.space`"
        )
    with suppress(OSError, ValueError):
        spaces = {path.parent.name for path in folder.parent.glob(f"*/{NAME}")}
        for name in get_close_matches(folder.name, spaces, n=1):
            reason = f"did you mean {name}?"
    return SpaceFormatError(
        f"there is no space at {folder} ({reason}); build one with `trueline build`"
    )


def state_in(folder: Path) -> Manifest | None:
    """The content of space.json; None if there is no space, or a damaged one."""
    with suppress(SpaceFormatError):
        return read_manifest(folder)
    return None


def _read_file(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The bytes of a file that space.json names: a regular one, as it was written."""
    path = folder / manifest.folder / name
    if (record := manifest.files.get(name)) is None:
        raise ValueError(f"{NAME} names no {name}")
    try:
        if path.parent.is_symlink() or (folder / manifest.folder).is_symlink():
            raise OSError("it is in no folder of the space")
        data = files.read_regular(path, record.bytes + 1)
    except OSError as error:
        reason = f"{name} is missing or cannot be read ({files.reason(error)})"
        raise ValueError(reason) from error
    if _hash(data) != record.sha256:
        raise ValueError(f"{name} was changed: its checksum differs")
    return data


def examples_in(data: bytes) -> tuple[Example, ...]:
    """The examples of a file, which must be to the byte what we would write."""
    decode = msgspec.json.Decoder(Example).decode
    try:
        examples = tuple(map(decode, data.splitlines()))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{EXAMPLES} cannot be read: {error}") from None
    if as_lines(examples) != data:
        raise ValueError(f"{EXAMPLES} is not as trueline writes it")
    if not examples or len({example.id for example in examples} - {""}) != len(examples):
        raise ValueError("it holds no example, one without an id, or two with one id")
    return examples


def arrays_in(data: bytes, forms: Mapping[str, tuple[str, int]]) -> Arrays:
    """The arrays of a file: just those of the names, types and numbers of dimensions given."""
    try:
        arrays: Arrays = load(data)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its arrays cannot be read: {error}") from None
    if {name: (str(a.dtype), a.ndim) for name, a in arrays.items()} != dict(forms):
        wrong = {name: f"{a.dtype} of the shape {a.shape}" for name, a in arrays.items()}
        raise ValueError(f"its arrays are {short(wrong)}, not {short(dict(forms))}")
    return arrays


def arrays_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Arrays as the content of a file."""
    data: bytes = save({name: np.ascontiguousarray(a) for name, a in arrays.items()})
    return data


def are_unit(vectors: Array) -> bool:
    """Whether every row has length 1, or 0 where the embedder knew no word."""
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32)
    return bool(np.all((np.abs(squares - 1) < 2e-3) | (squares == 0)))


def _unreadable(folder: Path, reason: str) -> SpaceFormatError:
    return SpaceFormatError(
        f"{folder} is no readable grounding space: {reason}. Restore it from a copy or build "
        "it anew with `trueline build`"
    )


def examples_of_space(source: object) -> list[Example] | None:
    """The examples of a space, also of one of 0.2.0; None if the source is not one."""
    if not isinstance(source, (str, os.PathLike)) or not os.path.isdir(source):
        return None
    folder = Path(source)
    if os.path.lexists(folder / NAME):
        return list(read(folder, lambda _, data: examples_in(data(EXAMPLES))))
    if not os.path.lexists(folder / _OLD_NAME):
        return None
    examples: list[Example] = []
    try:
        manifest = msgspec.json.decode(files.read_regular(folder / _OLD_NAME))
        for segment in manifest["segments"]:
            record = segment["files"]["examples"]
            data = files.read_regular(folder / Path(record["name"]).name)
            if _hash(data) != record["sha256"]:
                raise ValueError(f"{record['name']} was changed: its checksum differs")
            lines = [msgspec.json.decode(line, type=Example) for line in data.splitlines()]
            examples += [x for x in lines if x.id not in segment["removed"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SpaceFormatError(
            f"the examples of {folder} cannot be read ({files.reason(error)}); restore it from "
            "a copy"
        ) from error
    return examples


# Writing


def commit(
    folder: Path, manifest: Manifest, contents: Mapping[str, bytes], base: Manifest | None
) -> Manifest:
    """Change a folder from the state `base` to one with these files, in one moment."""
    records = {name: FileRecord(_hash(x), len(x)) for name, x in sorted(contents.items())}
    name = f"g-{_hash(msgspec.json.encode(records))[:16]}"
    manifest, text = _sealed(msgspec.structs.replace(manifest, folder=name, files=records))
    _check_base(folder, base)  # a folder that is gone is not made anew
    with _writing(folder), locked(folder / PRIVATE / "lock", _WAITING):
        _check_base(folder, base)
        try:
            for path in contents:
                _read_file(folder, manifest, path)  # all is there: only space.json changes
        except ValueError:
            _remove(folder, folder / name)  # damaged, or left by a kill
            (folder / name).mkdir()
            for path, data in contents.items():
                (folder / name / path).parent.mkdir(exist_ok=True)
                _write(folder / name / path, data)
            files.sync(folder / name)
            files.sync(folder)
        written = folder / PRIVATE / NAME
        written.unlink(missing_ok=True)
        _write(written, text)
        os.replace(written, folder / NAME)
        files.sync(folder)
        _clear(folder, name)
    return manifest


def _check_base(folder: Path, base: Manifest | None) -> None:
    """Refuse a commit if another came first: the folder must still be in the state `base`."""
    if (state := state_in(folder)) != base:
        last = f"another commit came first: {state.history[-1]}" if state else ""
        raise SpaceConflictError(
            f"the space at {folder} is not the one that was opened "
            f"({last or 'it is gone or damaged'}); nothing was changed, and what was computed "
            "is kept; take the newest state (space.current()) and do the same again, or run "
            "the same command again"
        )


@contextmanager
def working(folder: Path | None, plan: str) -> Iterator[Path | None]:
    """Hold the folder of unfinished work on a plan; if the block fails, the work stays.

    None for a space in memory, whose work is not kept.
    """
    if folder is None:
        yield None
        return
    work = folder / PRIVATE / f"work-{plan[:16]}"
    with _writing(folder), locked(work / "lock", 1.0):
        yield work
        _remove(folder, work)


def resumed(
    make: Callable[[Any], Arrays],
    units: Sequence[Any],
    sizes: Sequence[int],
    *,
    kind: str,
    work: Path | None,
    run: Run,
    progress: OnProgress | None,
) -> list[Arrays]:
    """What is made of every unit, or was kept in `work` when an earlier call made it."""
    paths = [work and work / f"{kind}-{number:05d}.safetensors" for number in range(len(units))]
    kept: list[Arrays] = [{} for _ in units]
    for path, arrays in zip(paths, kept, strict=True):
        with suppress(OSError, SafetensorError):  # it was not made yet
            arrays.update(load_file(path) if path else {})
    made = run(make, [unit for unit, arrays in zip(units, kept, strict=True) if not arrays])
    for number, (path, arrays) in enumerate(zip(paths, kept, strict=True)):
        if progress:
            progress(sum(sizes[:number]), sum(sizes))
        if not arrays:
            arrays.update(next(made))
            if path:
                _write(path, arrays_bytes(arrays))
    if progress:
        progress(sum(sizes), sum(sizes))
    return kept


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock file, which is gone again afterwards; the system frees it at a kill."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    end = monotonic() + seconds
    while True:
        with suppress(FileNotFoundError):  # whoever held it has just removed the folder
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, flags, 0o644)
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(handle), os.lstat(path)):
                    break  # else it was removed meanwhile
            os.close(handle)
        if monotonic() >= end:
            raise TimeoutError
        sleep(0.01)
    with os.fdopen(handle):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                path.parent.rmdir()
                if path.parent.parent.name == PRIVATE:
                    path.parent.parent.rmdir()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Claim a folder; what cannot be written ends in one error of the space."""
    check_folder(folder)
    try:
        yield
    except TimeoutError as error:
        raise SpaceError(
            f"another build or edit like this one is writing to {folder}; wait for it or name "
            "another folder"
        ) from error
    except OSError as error:
        raise SpaceError(
            f"{folder} cannot be written ({files.reason(error)}); what was finished is kept; "
            "make room or open it for writing, and run the same again"
        ) from error


def _clear(folder: Path, name: str) -> None:
    """Delete all states of a space but one, and work that nobody is doing any more."""
    for path in folder.glob("g-*"):
        if path.name != name and _is_ours(folder, path):
            _remove(folder, path)
    for work in (folder / PRIVATE).glob("work-*"):
        if _is_ours(folder, work):
            with suppress(OSError), locked(work / "lock", 0.0):
                _remove(folder, work)


def _remove(folder: Path, path: Path) -> None:
    """Delete what we made at a path in the folder of a space, and nothing else."""
    if path.is_symlink():
        return
    for where, _, names in os.walk(path, topdown=False):
        for inner in (Path(where, name) for name in names if name != "lock"):
            if _is_ours(folder, inner):
                inner.unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            os.rmdir(where)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    files.sync(path)
    files.sync(path.parent)


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


# Folders of others


def check_folder(folder: Path) -> None:
    """Refuse to write over something that is not a space, or through a link out of it."""
    try:
        is_link = (folder / PRIVATE).is_symlink()
        if not is_link and (not any(folder.iterdir()) or _is_space(folder)):
            return
        problem = "is not empty and holds no space of this release"
    except FileNotFoundError:
        return
    except NotADirectoryError:
        problem = "is a file"
    except (OSError, ValueError) as error:
        problem = f"cannot be written to ({files.reason(error)})"
    raise SpaceError(f"{folder} {problem}; nothing was written; name another folder")


def _is_space(folder: Path) -> bool:
    """Whether a folder holds a space, whole or damaged, or one that was begun."""
    with suppress(OSError):
        if files.read_regular(folder / NAME, len(_HEAD)) == _HEAD:
            return True
    paths = list(folder.rglob("*"))
    return all(_is_ours(folder, x) for x in paths) and any(x.is_dir() for x in paths)


def _is_ours(folder: Path, path: Path) -> bool:
    """Whether we may have made a file or folder; no link or device is ours."""
    if not _OURS.fullmatch(path.relative_to(folder).as_posix()):
        return False
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        return stat.S_ISDIR(mode) or stat.S_ISREG(mode)
    return True  # somebody else has just removed it
