"""The folder of a space: locked, committed by one rename, checked, never one of others.

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
from safetensors.numpy import load, load_file, save_file

from trueline import files
from trueline.cluster import Run
from trueline.errors import SpaceConflictError, SpaceError, SpaceFormatError
from trueline.prompts import Prompt
from trueline.text import counted
from trueline.types import Example, OnProgress

FORMAT: Final = "trueline space"
FORMAT_VERSION: Final = 4
NAME = "space.json"
PRIVATE = ".trueline"
EXAMPLES, VECTORS = "examples.jsonl", "vectors.safetensors"
_OLD_NAME = "manifest.json"  # of a space of 0.2.0
_HEAD = f'{{\n "format": "{FORMAT}",\n'.encode()
_NO_HASH = "0" * 64
_GENERATION = re.compile(r"g-[0-9a-f]{16}")
_OURS = re.compile(  # all that is ever written into the folder of a space
    r"space\.json|(\.trueline|g-[0-9a-f]{16})(/new|/work-[0-9a-f]{16}|/rad)*"
    r"(/(lock|space\.json|examples\.jsonl|\.tmp\w{6}"
    r"|\.?[a-z]+(-\d+)?\.safetensors(\.\d+-\d+\.tmp)?))?"
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

    format: Literal["trueline space"] = FORMAT
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
    blank = msgspec.structs.replace(manifest, sha256=_NO_HASH)
    text = msgspec.json.format(msgspec.json.encode(blank), indent=1) + b"\n"
    digest = hashlib.sha256(text).hexdigest()
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
            return parse(manifest, partial(read_file, folder, manifest)), stamp
        except ValueError as error:
            if read_manifest(folder).sha256 == manifest.sha256:
                raise unreadable(folder, str(error)) from error
            # else a commit replaced it while it was read
    raise SpaceError(f"{folder} changes faster than it can be read; try again")


def read_manifest(folder: Path) -> Manifest:
    """The content of space.json, checked; a folder without a space is refused."""
    _check_is_folder(folder)
    try:
        with files.open_regular(folder / NAME) as file:
            return from_bytes(file.read(_LARGEST))
    except ValueError as error:
        raise unreadable(folder, str(error)) from error
    except OSError as error:
        if not os.path.lexists(folder / NAME):
            if os.path.lexists(folder / _OLD_NAME):
                raise SpaceFormatError(
                    f"{folder} is a space of trueline 0.2.0 or before, which this release does "
                    "not read; take its examples into a new one with "
                    f"`trueline build {folder} --out NEW.space`"
                ) from None
            if is_ours(folder):
                raise SpaceFormatError(
                    f"{folder} holds an unfinished build; run the same `trueline build` again"
                ) from None
        reason = f"{NAME} is missing or no regular file ({files.reason(error)})"
        raise unreadable(folder, reason) from error


def read_stamp(folder: Path) -> Stamp | None:
    """What changes with every commit, without reading the file."""
    try:
        found = (folder / NAME).stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_file(folder: Path, manifest: Manifest, name: str) -> bytes:
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
    if hashlib.sha256(data).hexdigest() != record.sha256:
        raise ValueError(f"{name} was changed: its checksum differs")
    return data


def examples_in(data: bytes) -> tuple[Example, ...]:
    """The examples of a file, which must be to the byte what we would write."""
    decode = msgspec.json.Decoder(Example).decode
    try:
        found = tuple(decode(line) for line in data.splitlines())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{EXAMPLES} cannot be read: {error}") from None
    if examples_bytes(found) != data:
        raise ValueError(f"{EXAMPLES} is not as trueline writes it")
    if not found or len({example.id for example in found} - {""}) != len(found):
        raise ValueError("it holds no example, one without an id, or two with one id")
    return found


def examples_bytes(examples: Sequence[Example]) -> bytes:
    """The examples as lines of JSON."""
    return msgspec.json.Encoder().encode_lines(examples)


def arrays_in(data: bytes, forms: Mapping[str, tuple[str, int]]) -> Arrays:
    """The arrays of a file: just those of the names, types and numbers of dimensions given."""
    try:
        found: Arrays = load(data)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its arrays cannot be read: {error}") from None
    if {name: (str(a.dtype), a.ndim) for name, a in found.items()} != dict(forms):
        wrong = {name: f"{a.dtype} of the shape {a.shape}" for name, a in found.items()}
        raise ValueError(f"its arrays are {short(wrong)}, not {short(dict(forms))}")
    return found


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as a file that others may read."""
    save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, path)
    path.chmod(0o644)  # safetensors writes private files; a space may be shared


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


def _check_is_folder(folder: Path) -> None:
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            return
        reason = "it is no folder"
    except FileNotFoundError:
        spaces: dict[str, str] = {}
        with suppress(OSError):
            for path in folder.parent.glob(f"*/{NAME}"):
                spaces[path.parent.stem] = path.parent.name
        near = get_close_matches(folder.stem, spaces, n=1)
        reason = f"did you mean {spaces[near[0]]}?" if near else "nothing is there"
    except (OSError, ValueError) as error:
        reason = files.reason(error)
    raise SpaceFormatError(
        f"there is no space at {folder} ({reason}); build one with `trueline build`"
    )


def examples_of_space(source: object) -> list[Example] | None:
    """The examples of a space, also of one of 0.2.0; None if the source is not one."""
    if not isinstance(source, (str, os.PathLike)) or not os.path.isdir(source):
        return None
    folder = Path(source)
    if os.path.lexists(folder / NAME):
        return list(read(folder, lambda _, data: examples_in(data(EXAMPLES)))[0])
    if not os.path.lexists(folder / _OLD_NAME):
        return None
    found: list[Example] = []
    decode = msgspec.json.Decoder(Example).decode
    try:
        with files.open_regular(folder / _OLD_NAME) as file:
            manifest = msgspec.json.decode(file.read())
        for segment in manifest["segments"]:
            record, removed = segment["files"]["examples"], set(segment["removed"])
            with files.open_regular(folder / Path(record["name"]).name) as file:
                data = file.read()
            if hashlib.sha256(data).hexdigest() != record["sha256"]:
                raise ValueError(f"{record['name']} was changed: its checksum differs")
            examples = map(decode, data.splitlines())
            found += [example for example in examples if example.id not in removed]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SpaceFormatError(
            f"the examples of {folder} cannot be read ({files.reason(error)}); restore it from "
            "a copy"
        ) from error
    return found


# Writing


def commit(
    folder: Path,
    manifest: Manifest,
    write: Callable[[Path], None],
    base: str | None,
    *,
    check: bool = True,
) -> tuple[Manifest, Stamp | None]:
    """Change a folder from the state `base` to another, in one moment.

    `write` puts the files of the new state into a folder. Without `check` any state may be
    replaced.
    """
    if check and not folder.exists():
        check_base(folder, base)
    with _writing(folder), locked(folder / PRIVATE / "lock", _WAITING):
        if check:
            check_base(folder, base)
        scratch = folder / PRIVATE / "new"
        _remove(folder, scratch)
        scratch.mkdir()
        write(scratch)
        manifest, data = sealed(_with_files(manifest, scratch))
        if not _is_whole(folder, manifest):  # else only space.json changes
            _remove(folder, folder / manifest.folder)  # damaged, or left by a kill
            scratch.rename(folder / manifest.folder)
        _remove(folder, scratch)
        _sync_folder(folder)
        written = folder / PRIVATE / NAME
        written.unlink(missing_ok=True)
        written.write_bytes(data)
        files.sync(written)
        os.replace(written, folder / NAME)
        _sync_folder(folder)
        stamp = read_stamp(folder)
        _remove_others(folder, manifest.folder)
    return manifest, stamp


def check_base(folder: Path, base: str | None) -> None:
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
        _remove(folder, folder / PRIVATE / "new")
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
    found = [_kept(path) for path in paths]
    made = run(make, [unit for unit, one in zip(units, found, strict=True) if one is None])
    report, done = progress or (lambda done, total: None), 0
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        report(done, sum(sizes))
        if found[number] is None:
            found[number] = one = next(made)
            if path is not None:
                with files.replacing(path) as scratch:
                    save_file(one, scratch)
        done += size
    report(done, sum(sizes))
    return [one for one in found if one is not None]


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
    except (OSError, SafetensorError) as error:  # safetensors has its own for a full disk
        closed = (errno.EACCES, errno.EPERM, errno.EROFS)
        is_closed = getattr(error, "errno", None) in closed
        step = "open it for writing, or name another folder" if is_closed else "free some room"
        raise SpaceError(
            f"{folder} cannot be written ({files.reason(error)}); what was finished is kept; "
            f"{step}, and run the same again"
        ) from error


def _with_files(manifest: Manifest, scratch: Path) -> Manifest:
    """The manifest with the files of a folder, all of which are then on the disk."""
    records = {}
    for path in sorted(scratch.rglob("*"), reverse=True):  # a folder after its files
        if path.is_dir():
            _sync_folder(path)
        else:
            files.sync(path)
            name = path.relative_to(scratch).as_posix()
            records[name] = FileRecord(files.file_hash(path), path.stat().st_size)
    _sync_folder(scratch)
    records = dict(sorted(records.items()))
    name = f"g-{hashlib.sha256(msgspec.json.encode(records)).hexdigest()[:16]}"
    return msgspec.structs.replace(manifest, folder=name, files=records)


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Whether all files that a state names are there already, as they were written."""
    try:
        return all(read_file(folder, manifest, name) is not None for name in manifest.files)
    except ValueError:
        return False


def _remove(folder: Path, path: Path) -> None:
    """Delete what we made at a path in the folder of a space, and nothing else."""
    if path.is_symlink() or not path.is_dir():
        return
    for one in [*sorted(path.rglob("*"), reverse=True), path]:  # the inner ones first
        if one.is_dir() and not one.is_symlink():
            with suppress(OSError):  # something else is in it
                one.rmdir()
        elif one.name != "lock" and _is_ours(folder, one):
            one.unlink(missing_ok=True)


def _remove_others(folder: Path, name: str) -> None:
    """Delete all states of a space but one."""
    for path in folder.glob("g-*"):
        if _GENERATION.fullmatch(path.name) and path.name != name:
            _remove(folder, path)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Folders of others


def check_folder(folder: Path) -> None:
    """Refuse to write over something that is not a space, or through a link out of it."""

    def refused(path: Path, why: str) -> SpaceError:
        return SpaceError(f"{path} {why}; nothing was written; name another folder")

    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise refused(folder, "is a file")
        if any(folder.iterdir()) and not is_ours(folder):
            raise refused(folder, "is not empty and holds no space of this release")
        for path in [folder / NAME, folder / PRIVATE, *(folder / PRIVATE).rglob("*")]:
            if not _is_regular(path):
                raise refused(path, "is no file that trueline made (a link or a device)")
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise refused(folder, f"cannot be written to ({files.reason(error)})") from error


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a space, whole or damaged, or one that was begun."""
    with suppress(OSError), files.open_regular(folder / NAME) as file:
        if file.read(len(_HEAD)) == _HEAD:
            return True
    has_folder = False
    for path in folder.rglob("*"):
        if not _is_ours(folder, path):
            return False
        has_folder |= path.is_dir()
    return has_folder


def _is_ours(folder: Path, path: Path) -> bool:
    name = path.relative_to(folder).as_posix()
    return _OURS.fullmatch(name) is not None and _is_regular(path)


def _is_regular(path: Path) -> bool:
    """Whether it is no link and no device; also if somebody else has just removed it."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(mode) or stat.S_ISREG(mode)
