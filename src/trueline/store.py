"""The folder of a space: locked, committed by one rename, checked, never somebody else's.

    space.json    what belongs together: settings, checksums, history
    g-<hash>/     examples.jsonl, vectors.safetensors, and rad/ with RAD's entries, if any

The rename of space.json is the commit. While somebody writes there is also `.trueline` with the
lock and unfinished work; a kill leaves it, and a later commit clears it. See docs/format.md.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from reprlib import repr as short
from time import monotonic, sleep
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save

from trueline import files
from trueline.cluster import Run
from trueline.errors import SpaceConflictError, SpaceError, SpaceFormatError
from trueline.prompts import Prompt
from trueline.text import counted
from trueline.types import Example, OnProgress

FORMAT_VERSION: Final = 4
NAME, PRIVATE = "space.json", ".trueline"
EXAMPLES, VECTORS = "examples.jsonl", "vectors.safetensors"
_OLD_NAME = "manifest.json"  # of a space of 0.2.0
_HEAD = b'{\n "format": "trueline space",\n'
_NO_HASH = "0" * 64
_OURS = re.compile(  # all that is ever written into the folder of a space
    r"space\.json|(\.trueline|g-[0-9a-f]{16})(/work-[0-9a-f]{16}|/rad)?"
    r"(/(lock|space\.json|examples\.jsonl|[a-z]+(-\d+)?\.safetensors))?"
)
_LARGEST = 1 << 28  # bytes of space.json
_READS = 5  # times a folder is read while commits replace what is read
_WAITING = 60.0  # seconds that a commit waits for another

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]  # by the name under which they are stored
Stamp = tuple[int, int, int]  # of space.json: it changes with every commit
Read = Callable[[str], bytes]  # the name of a file of a space -> its bytes, checked
Plain = bool | int | float | str | None
Count = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")


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
    format_version: Literal[4] = FORMAT_VERSION
    embedder: str
    embedder_hash: str
    prompt: Prompt
    tuned: dict[str, Plain]  # settings fitted to this space
    entries: dict[str, Plain] | None  # how RAD's entries were made; only rad/ reads it
    folder: Annotated[str, msgspec.Meta(pattern="^g-[0-9a-f]{16}$")] = ""
    files: dict[str, FileRecord] = {}
    history: Annotated[tuple[Commit, ...], msgspec.Meta(min_length=1)]
    sha256: str = ""  # of this file, with 64 zeros in the place of this hash


class _Version(msgspec.Struct):
    format_version: int


def sealed(manifest: Manifest) -> tuple[Manifest, bytes]:
    """A manifest with the hash of itself, and the text of space.json."""
    unsigned = msgspec.structs.replace(manifest, sha256=_NO_HASH)
    text = msgspec.json.format(msgspec.json.encode(unsigned), indent=1) + b"\n"
    digest = _sha256(text)
    data = text[: text.rindex(_NO_HASH.encode())] + digest.encode() + b'"\n}\n'
    return msgspec.structs.replace(manifest, sha256=digest), data


def from_bytes(data: bytes) -> Manifest:
    """Read space.json, which must be to the byte what we would write; else a ValueError."""
    try:
        version = msgspec.json.decode(data, type=_Version).format_version
        if version != FORMAT_VERSION:
            advice = "; install a newer trueline" if version > FORMAT_VERSION else ""
            raise ValueError(f"it has format {version}, this release reads 4{advice}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{NAME} cannot be read: {error}") from None
    if sealed(manifest)[1] != data:
        raise ValueError(f"{NAME} was changed: its checksum differs")
    check_tuned(manifest.tuned)
    return manifest


def check_tuned(tuned: Mapping[Any, Any]) -> None:
    """Refuse tuned settings that are not plain values, or that no method can use."""
    for name, value in tuned.items():
        is_number = type(value) in (int, float) and abs(value) < 2**63  # NaN is not
        if type(name) is not str or not (is_number or type(value) in (bool, str, type(None))):
            raise ValueError("tuned must be an object of plain values")
        if name in ("threshold", "strength") and not (is_number and 0 <= value <= 1):
            raise ValueError(f"tuned {name} must lie in [0, 1], got {short(value)}")


# Reading


def read(folder: Path, parse: Callable[[Manifest, Read], T]) -> tuple[T, Stamp | None]:
    """What `parse` makes of the newest state of a folder; every byte it reads is checked."""
    for _ in range(_READS):
        stamp, manifest = read_stamp(folder), read_manifest(folder)
        try:
            return parse(manifest, partial(_read_file, folder, manifest)), stamp
        except ValueError as error:
            if read_manifest(folder).sha256 == manifest.sha256:
                raise unreadable(folder, str(error)) from error
            # else a commit replaced it while it was read
    raise SpaceError(f"{folder} changes faster than it can be read; try again")


def read_manifest(folder: Path) -> Manifest:
    """The content of space.json, checked; a folder without a space is refused."""
    try:
        with files.open_regular(folder / NAME) as file:
            return from_bytes(file.read(_LARGEST))
    except ValueError as error:
        raise unreadable(folder, str(error)) from error
    except OSError as error:
        raise _no_space(folder, error) from error


def _no_space(folder: Path, error: OSError) -> SpaceFormatError:
    """The error of a folder whose space.json cannot be opened."""
    reason = files.reason(error)
    if not os.path.isdir(folder):
        with suppress(OSError):
            spaces = {x.parent.stem: x.parent.name for x in folder.parent.glob(f"*/{NAME}")}
            for name in get_close_matches(folder.stem, spaces, n=1):
                reason = f"did you mean {spaces[name]}?"
        text = f"there is no space at {folder} ({reason}); build one with `trueline build`"
    elif os.path.lexists(folder / NAME):
        return unreadable(folder, f"{NAME} cannot be read ({reason})")
    elif os.path.lexists(folder / _OLD_NAME):
        text = (
            f"{folder} is a space of trueline 0.2.0 or before, which this release does not "
            f"read; take its examples into a new one with `trueline build {folder} --out "
            "NEW.space`"
        )
    else:
        return unreadable(folder, f"it has no {NAME} ({reason})")
    return SpaceFormatError(text)


def read_stamp(folder: Path) -> Stamp | None:
    """What changes with every commit, without reading the file."""
    try:
        status = (folder / NAME).stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_file(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The bytes of a file that space.json names: a regular one, as it was written."""
    record, path = manifest.files.get(name), folder / manifest.folder / name
    if record is None:
        raise ValueError(f"{NAME} names no {name}")
    try:
        if path.parent.is_symlink() or (folder / manifest.folder).is_symlink():
            raise OSError(errno.EINVAL, "it is in no folder of the space")
        with files.open_regular(path) as file:
            data = file.read(record.bytes + 1)
    except OSError as error:
        reason = f"{name} is missing or cannot be read ({files.reason(error)})"
        raise ValueError(reason) from error
    if _sha256(data) != record.sha256:
        raise ValueError(f"{name} was changed: its checksum differs")
    return data


def examples_in(data: bytes) -> tuple[Example, ...]:
    """The examples of a file, which must be to the byte what we would write."""
    decode = msgspec.json.Decoder(Example).decode
    try:
        examples = tuple(decode(line) for line in data.splitlines())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{EXAMPLES} cannot be read: {error}") from None
    if examples_bytes(examples) != data:
        raise ValueError(f"{EXAMPLES} is not as trueline writes it")
    if not examples or len({example.id for example in examples} - {""}) != len(examples):
        raise ValueError("it holds no example, one without an id, or two with one id")
    return examples


def examples_bytes(examples: Sequence[Example]) -> bytes:
    """The examples as lines of JSON."""
    return msgspec.json.Encoder().encode_lines(examples)


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
    for start in range(0, len(vectors), 4096):
        wide = np.asarray(vectors[start : start + 4096], np.float32)
        squares = np.einsum("ij,ij->i", wide, wide)
        if not np.all((np.abs(squares - 1) < 2e-3) | (squares == 0)):
            return False
    return True


def unreadable(folder: Path | None, reason: str) -> SpaceFormatError:
    """The error of a folder that holds no space, or a damaged one."""
    return SpaceFormatError(
        f"{folder or 'the space'} is no readable grounding space: {reason}. "
        "Restore it from a copy or build it anew with `trueline build`"
    )


def examples_of_space(source: object) -> list[Example] | None:
    """The examples of a space, also of one of 0.2.0; None if the source is not one."""
    if not isinstance(source, (str, os.PathLike)) or not os.path.isdir(source):
        return None
    folder = Path(source)
    if os.path.lexists(folder / NAME):
        return list(read(folder, lambda _, data: examples_in(data(EXAMPLES)))[0])
    return _old_examples(folder) if os.path.lexists(folder / _OLD_NAME) else None


def _old_examples(folder: Path) -> list[Example]:
    """The examples of a space of 0.2.0: those of its segments that were not removed."""
    examples: list[Example] = []
    decode = msgspec.json.Decoder(Example).decode
    try:
        with files.open_regular(folder / _OLD_NAME) as file:
            manifest = msgspec.json.decode(file.read())
        for segment in manifest["segments"]:
            record = segment["files"]["examples"]
            with files.open_regular(folder / Path(record["name"]).name) as file:
                data = file.read()
            if _sha256(data) != record["sha256"]:
                raise ValueError(f"{record['name']} was changed: its checksum differs")
            lines = map(decode, data.splitlines())
            examples += [line for line in lines if line.id not in segment["removed"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SpaceFormatError(
            f"the examples of {folder} cannot be read ({files.reason(error)}); restore it from "
            "a copy"
        ) from error
    return examples


# Writing


def commit(
    folder: Path,
    manifest: Manifest,
    contents: Mapping[str, bytes],
    base: str | None,
    *,
    check: bool = True,
) -> tuple[Manifest, Stamp | None]:
    """Change a folder from the state `base` to one with these files, in one moment.

    Without `check` any state may be replaced.
    """
    records = {x: FileRecord(_sha256(data), len(data)) for x, data in sorted(contents.items())}
    name = f"g-{_sha256(msgspec.json.encode(records))[:16]}"
    manifest, text = sealed(msgspec.structs.replace(manifest, folder=name, files=records))
    if check and not folder.exists():
        _check_base(folder, base)
    with _writing(folder), locked(folder / PRIVATE / "lock", _WAITING):
        if check:
            _check_base(folder, base)
        if not _is_whole(folder, manifest):  # else only space.json changes
            _remove(folder, folder / name)  # damaged, or left by a kill
            (folder / name).mkdir()
            for path, data in contents.items():
                (folder / name / path).parent.mkdir(exist_ok=True)
                _write(folder / name / path, data)
            _sync(folder / name)
            _sync(folder)
        written = folder / PRIVATE / NAME
        written.unlink(missing_ok=True)
        _write(written, text)
        os.replace(written, folder / NAME)
        _sync(folder)
        stamp = read_stamp(folder)
        _remove_others(folder, name)
    return manifest, stamp


def _check_base(folder: Path, base: str | None) -> None:
    """Refuse a commit if another came first: the folder must still be in the state `base`."""
    state = state_in(folder)
    if (None if state is None else state.sha256) != base:
        what = "it is gone or damaged"
        if state is not None:
            what = f"another commit came first: {state.history[-1]}"
        raise SpaceConflictError(
            f"the space at {folder} is not the one that was opened ({what}); nothing was "
            "changed, and what was computed is kept; take the newest state (space.current()) "
            "and do the same again, or run the same command again"
        )


def state_in(folder: Path) -> Manifest | None:
    """The content of space.json; None if there is no space, or a damaged one."""
    with suppress(SpaceFormatError):
        return read_manifest(folder)
    return None


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


def clear_others(folder: Path) -> None:
    """Delete what a kill left: work that nobody is doing any more, and old states."""
    with suppress(OSError, SpaceFormatError), locked(folder / PRIVATE / "lock", 0.0):
        _remove_others(folder, read_manifest(folder).folder)
    for work in (folder / PRIVATE).glob("work-*"):
        if _is_ours(folder, work):
            with suppress(OSError), locked(work / "lock", 0.0):
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
    kept = [_kept(path) for path in paths]
    made = run(make, [unit for unit, arrays in zip(units, kept, strict=True) if arrays is None])
    report, done = progress or (lambda done, total: None), 0
    results = []
    for path, arrays, size in zip(paths, kept, sizes, strict=True):
        report(done, sum(sizes))
        if arrays is None:
            arrays = next(made)
            if path is not None:
                _write(path, arrays_bytes(arrays))
        results.append(arrays)
        done += size
    report(done, sum(sizes))
    return results


def _kept(path: Path | None) -> Arrays | None:
    try:
        return None if path is None else load_file(path)
    except (OSError, SafetensorError):  # it was not made yet
        return None


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock file, which is gone again afterwards; the system frees it at a kill."""
    end = monotonic() + seconds
    while (handle := _try_lock(path)) is None:
        if monotonic() >= end:
            raise TimeoutError
        sleep(0.01)
    try:
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)
        with suppress(OSError):  # not empty
            path.parent.rmdir()
            if path.parent.parent.name == PRIVATE:
                path.parent.parent.rmdir()


def _try_lock(path: Path) -> int | None:
    """An open lock file that this process alone holds; None if another holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, flags, 0o644)
    except FileNotFoundError:  # whoever held it has just removed the folder
        return None
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.lstat(path)):  # else it was removed meanwhile
            return handle
    os.close(handle)
    return None


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


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Whether all files that a state names are there already, as they were written."""
    with suppress(ValueError):
        return all(_read_file(folder, manifest, name) is not None for name in manifest.files)
    return False


def _remove(folder: Path, path: Path) -> None:
    """Delete what we made at a path in the folder of a space, and nothing else."""
    if path.is_symlink() or not path.is_dir():
        return
    for inner in [*sorted(path.rglob("*"), reverse=True), path]:  # a folder after its files
        if inner.is_dir() and not inner.is_symlink():
            with suppress(OSError):  # something else is in it
                inner.rmdir()
        elif inner.name != "lock" and _is_ours(folder, inner):
            inner.unlink(missing_ok=True)


def _remove_others(folder: Path, name: str) -> None:
    """Delete all states of a space but one."""
    for path in folder.glob("g-*"):
        if _is_ours(folder, path) and path.name != name:
            _remove(folder, path)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    _sync(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Folders of others


def check_folder(folder: Path) -> None:
    """Refuse to write over something that is not a space, or through a link out of it."""
    try:
        is_link = (folder / PRIVATE).is_symlink()
        if not is_link and (not any(folder.iterdir()) or is_ours(folder)):
            return
        problem = "is not empty and holds no space of this release"
    except FileNotFoundError:
        return
    except NotADirectoryError:
        problem = "is a file"
    except (OSError, ValueError) as error:
        problem = f"cannot be written to ({files.reason(error)})"
    raise SpaceError(f"{folder} {problem}; nothing was written; name another folder")


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a space, whole or damaged, or one that was begun."""
    with suppress(OSError), files.open_regular(folder / NAME) as file:
        if file.read(len(_HEAD)) == _HEAD:
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
