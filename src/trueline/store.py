"""The folder of a space: locked, committed by one rename, checked, and never one of others.

    space.json    what belongs together: checksums, settings, what was committed when
    g-<hash>/     examples.jsonl, vectors.safetensors, and what is attached, such as rad/

A commit takes the lock, checks that nobody came first, writes a new folder g-<hash> and renames
space.json over the old one: that rename is the commit. The old folder goes after it. While
somebody writes there is also `.trueline`, with the lock and the work that is not finished; a
kill leaves it, and the next commit clears it. docs/format.md says how other programs read it.
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
from pathlib import Path
from reprlib import repr as short
from time import monotonic, sleep
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save_file

from trueline import files
from trueline.errors import SpaceConflictError, SpaceError, SpaceFormatError
from trueline.prompts import Prompt
from trueline.text import counted
from trueline.types import Example, OnProgress

FORMAT = "trueline space"
FORMAT_VERSION = 4
NAME = "space.json"
PRIVATE = ".trueline"  # what is there only while somebody writes, or was killed
EXAMPLES, VECTORS = "examples.jsonl", "vectors.safetensors"
_OLD_NAME = "manifest.json"  # of a space of 0.2.0
_HEAD = f'{{\n "format": "{FORMAT}",\n'.encode()
_NO_HASH = "0" * 64
_GENERATION = re.compile(r"g-[0-9a-f]{16}")
_WORK = re.compile(r"work-[0-9a-f]{16}")
_STATE = r"(/[a-z]+)?(/[a-z]+\.(jsonl|safetensors)|/\.tmp\w{6})?"  # what a commit writes
_UNFINISHED = r"(/lock|/\.?[a-z]+-\d+\.safetensors(\.\d+-\d+\.tmp)?|/\.tmp\w{6})?"
_OURS = re.compile(  # all that we ever write into the folder of a space
    rf"space\.json|{_GENERATION.pattern}{_STATE}|\.trueline(/lock|/space\.json|/new{_STATE}|"
    rf"/{_WORK.pattern}{_UNFINISHED})?"
)
_LARGEST = 1 << 28  # bytes of space.json
_READS = 5  # times a folder is read while commits keep replacing what is read
_WAITING = 60.0  # seconds that a commit waits for another

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]  # by the name under which they are stored
Run = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]  # what `map` does
Stamp = tuple[int, int, int]  # of space.json: it changes with every commit
Read = Callable[[str], bytes]  # the name of a file of a space -> its bytes, checked
Plain = bool | int | float | str | None
Count = Annotated[int, msgspec.Meta(ge=0)]
Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
T = TypeVar("T")


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a space."""

    sha256: Hash
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


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What space.json says."""

    format: str
    format_version: int
    embedder: str
    embedder_hash: str
    prompt: Prompt
    tuned: dict[str, Plain]  # settings fitted to this space
    entries: dict[str, Plain] | None  # how RAD's entries were made; only rad/ reads it
    folder: Annotated[str, msgspec.Meta(pattern="^g-[0-9a-f]{16}$")]
    files: dict[str, FileRecord]
    history: Annotated[tuple[Commit, ...], msgspec.Meta(min_length=1)]
    sha256: str  # of this file, with 64 zeros in the place of this hash


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
        head = msgspec.json.decode(data, type=_Version)
        if head.format != FORMAT:
            raise ValueError(f"{NAME} does not say that this is a {FORMAT}")
        if head.format_version != FORMAT_VERSION:
            is_newer = head.format_version > FORMAT_VERSION
            raise ValueError(
                f"it has format {head.format_version}, this release reads format "
                f"{FORMAT_VERSION}{'; install a newer trueline' if is_newer else ''}"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except RecursionError:
        raise ValueError(f"{NAME} is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"{NAME} cannot be read: {error}") from None
    if sealed(manifest)[1] != data:
        raise ValueError(f"{NAME} was changed after it was written: its checksum differs")
    check_tuned(manifest.tuned)
    return manifest


class _Version(msgspec.Struct):
    format: str
    format_version: int


def check_tuned(tuned: Mapping[Any, Any]) -> None:
    """Refuse tuned settings that are not plain values, or that no method can use."""
    for name, value in tuned.items():
        is_number = type(value) in (int, float) and abs(value) < 2**63  # no NaN is
        if type(name) is not str or not (is_number or type(value) in (bool, str, type(None))):
            raise ValueError("tuned must be an object of plain values")
        if name in ("threshold", "strength") and not (is_number and 0 <= value <= 1):
            raise ValueError(f"tuned {name} must lie in [0, 1], got {short(value)}")


# Reading


def read(folder: Path, parse: Callable[[Manifest, Read], T]) -> tuple[T, Manifest, Stamp]:
    """What `parse` makes of the newest state of a folder; every byte it reads is checked."""
    for _ in range(_READS):
        stamp, manifest = read_stamp(folder), read_manifest(folder)
        try:
            found = parse(manifest, lambda name, m=manifest: read_file(folder, m, name))  # type: ignore[misc]
            return found, manifest, stamp or (0, 0, 0)
        except (SpaceFormatError, ValueError) as error:
            if read_manifest(folder).sha256 != manifest.sha256:
                continue  # it was replaced while it was read
            if isinstance(error, SpaceFormatError):
                raise
            raise unreadable(folder, str(error)) from error
    raise SpaceError(f"{folder} changes faster than it can be read; try again")


def read_manifest(folder: Path) -> Manifest:
    """What space.json says, checked; a folder without a space is refused with the reason."""
    _check_is_folder(folder)
    try:
        with files.open_regular(folder / NAME) as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        if os.path.lexists(folder / _OLD_NAME) and not os.path.lexists(folder / NAME):
            raise SpaceFormatError(_old_message(folder)) from None
        if is_begun(folder):
            raise SpaceFormatError(
                f"{folder} holds an unfinished build; run the same `trueline build` again"
            ) from None
        reason = f"{NAME} is missing or no regular file ({files.reason(error)})"
        raise unreadable(folder, reason) from error
    try:
        if len(data) > _LARGEST:
            raise ValueError(f"{NAME} has more than {_LARGEST:,} bytes")
        return from_bytes(data)
    except ValueError as error:
        raise unreadable(folder, str(error)) from error


def read_stamp(folder: Path) -> Stamp | None:
    """What changes with every commit, without reading the file."""
    try:
        found = (folder / NAME).stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_file(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The bytes of a file that space.json names: a regular one, and to the byte as written."""
    record = manifest.files.get(name)
    if record is None:
        raise unreadable(folder, f"{NAME} names no {name}")
    try:
        parent = folder / manifest.folder
        inner = (parent / name).parent
        if parent.is_symlink() or inner.is_symlink():
            raise OSError(errno.EINVAL, "it is in no folder of the space")
        with files.open_regular(parent / name) as file:
            if (size := os.fstat(file.fileno()).st_size) != record.bytes:
                reason = f"{name} has {size} bytes, {NAME} says {record.bytes}"
                raise unreadable(folder, reason)
            data = file.read()
    except OSError as error:  # a failing disk or a server that is gone, too
        reason = f"{name} is missing or cannot be read ({files.reason(error)})"
        raise unreadable(folder, reason) from error
    if hashlib.sha256(data).hexdigest() != record.sha256:
        raise unreadable(folder, f"{name} was changed: its checksum differs")
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
    encode = msgspec.json.Encoder().encode
    return b"".join(encode(example) + b"\n" for example in examples)


def arrays_in(data: bytes, forms: Mapping[str, tuple[str, int]]) -> Arrays:
    """The arrays of a file: just those of the names, types and numbers of dimensions given."""
    try:
        found: Arrays = load(data)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its arrays cannot be read: {error}") from None
    wrong = {name: f"{a.dtype} of the shape {a.shape}" for name, a in found.items()}
    if {name: (str(a.dtype), a.ndim) for name, a in found.items()} != dict(forms):
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


# Spaces of other releases


def examples_of_space(source: object) -> list[Example] | None:
    """The examples of a space, also of one of 0.2.0; None where the source is not one."""
    if not isinstance(source, (str, os.PathLike)) or not os.path.isdir(source):
        return None
    folder = Path(source)
    if os.path.lexists(folder / NAME):
        return list(read(folder, lambda _, data: examples_in(data(EXAMPLES)))[0])
    if not os.path.lexists(folder / _OLD_NAME):
        return None
    found: list[Example] = []
    try:
        manifest = msgspec.json.decode(_bytes(folder / _OLD_NAME))
        for segment in manifest["segments"]:
            file, removed = segment["files"]["examples"], set(segment["removed"])
            data = _bytes(folder / Path(file["name"]).name)
            if hashlib.sha256(data).hexdigest() != file["sha256"]:
                raise ValueError(f"{file['name']} was changed: its checksum differs")
            examples = map(msgspec.json.Decoder(Example).decode, data.splitlines())
            found += [example for example in examples if example.id not in removed]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SpaceFormatError(
            f"the examples of {folder} cannot be read ({files.reason(error)}); restore it from "
            "a copy"
        ) from error
    return found


def _bytes(path: Path) -> bytes:
    with files.open_regular(path) as file:
        return file.read()


def _old_message(folder: Path) -> str:
    return (
        f"{folder} is a space of trueline 0.2.0 or before, which this release does not read; "
        f"take its examples into a new one with `trueline build {folder} --out NEW.space`"
    )


# Writing


def check_folder(folder: Path) -> None:
    """Refuse to write over something that is not a space, or through a link out of it."""
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            if any(folder.iterdir()) and not is_ours(folder):
                raise _refused(folder, "is not empty and holds no space of this release")
            written = [folder / NAME, folder / PRIVATE, *(folder / PRIVATE).rglob("*")]
            for path in written:
                if not _is_file_or_folder(path):
                    raise _refused(path, "is no file that trueline made (a link or a device)")
        else:
            raise _refused(folder, "is a file")
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise _refused(folder, f"cannot be written to ({files.reason(error)})") from error


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a space, whole or damaged, or one that was begun."""
    with suppress(OSError), files.open_regular(folder / NAME) as file:
        if file.read(len(_HEAD)) == _HEAD:
            return True
    has_folder = False
    for path in folder.rglob("*"):
        has_folder |= _is_folder(path)
        if not _is_named_by_us(folder, path):
            return False
    return has_folder


def is_begun(folder: Path) -> bool:
    """Whether a space was begun in a folder and has never been finished."""
    return not os.path.lexists(folder / NAME) and is_ours(folder)


def commit(
    folder: Path,
    manifest: Manifest,
    write: Callable[[Path], None] | None,
    base: str | None,
    *,
    check: bool = True,
) -> tuple[Manifest, Stamp | None]:
    """Change a folder from the state `base` to another, in one moment.

    `write` puts the files of the new state into a folder; None: they are those of the old
    state. Without `check` any state may be replaced.
    """
    if check and not folder.exists():
        check_base(folder, base)
    with _writing(folder), locked(folder / PRIVATE / "lock", _WAITING):
        if check:
            check_base(folder, base)
        scratch = folder / PRIVATE / "new"
        _remove(folder, scratch)
        if write is not None:
            scratch.mkdir()
            write(scratch)
            manifest = _with_files(manifest, scratch)
            if not _is_whole(folder, manifest):  # else: the same space once more
                _remove(folder, folder / manifest.folder)  # damaged, or left by a kill
                scratch.rename(folder / manifest.folder)
            _remove(folder, scratch)
            _sync_folder(folder)
        manifest, data = sealed(manifest)
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
    standing = standing_in(folder)
    if standing is None and base is not None:
        raise SpaceConflictError(
            f"the space at {folder} is gone or damaged since it was opened; what was computed "
            "is kept there; restore it from a copy, open it, and do the same again"
        )
    if standing is not None and standing.sha256 != base:
        raise SpaceConflictError(
            f"another commit to {folder} came first: {standing.history[-1]}; nothing was "
            "changed, and what was computed is kept; take the newest state (space.current()) "
            "and do the same again, or run the same command again"
        )


def standing_in(folder: Path) -> Manifest | None:
    """What space.json says; None where there is no space, or a damaged one."""
    try:
        return read_manifest(folder)
    except SpaceFormatError:
        return None


@contextmanager
def working(folder: Path | None, plan: str) -> Iterator[Path | None]:
    """Hold the place of unfinished work on a plan; where the block fails, the work stays.

    None for a space in memory, whose work is kept nowhere.
    """
    if folder is None:
        yield None
        return
    work = folder / PRIVATE / f"work-{plan[:16]}"
    with _writing(folder), locked(work / "lock", 1.0):
        yield work
        _remove(folder, work)


def clear_others(folder: Path) -> None:
    """Delete what a kill left: work that nobody is at any more, and states that are gone."""
    lock = folder / PRIVATE / "lock"
    with suppress(OSError, TimeoutError, SpaceFormatError), locked(lock, 0.0):
        _remove(folder, folder / PRIVATE / "new")
        _remove_others(folder, read_manifest(folder).folder)
    for work in _works(folder):
        with suppress(OSError, TimeoutError), locked(work / "lock", 0.0):
            _remove(folder, work)


def resumed(
    units: Sequence[Any],
    kind: str,
    make: Callable[[Any], Arrays],
    is_whole: Callable[[Any, Arrays], bool],
    *,
    work: Path | None,
    run: Run,
    size: Callable[[Any], int],
    progress: OnProgress | None,
) -> list[Arrays]:
    """What is made of every unit, from its file in `work` if an earlier call finished it."""
    names = [f"{kind}-{number:05d}.safetensors" for number in range(len(units))]
    kept = [_kept(work, name, unit, is_whole) for unit, name in zip(units, names, strict=True)]
    made = run(make, [unit for unit, one in zip(units, kept, strict=True) if one is None])
    tell, sizes = progress or (lambda done, total: None), list(map(size, units))
    found: list[Arrays] = []
    for number, one in enumerate(kept):
        tell(sum(sizes[:number]), sum(sizes))
        if one is None:
            one = next(made)
            if work is not None:
                with files.replacing(work / names[number]) as scratch:
                    save_file(one, scratch)
        found.append(one)
    tell(sum(sizes), sum(sizes))
    return found


def _kept(
    work: Path | None, name: str, unit: Any, is_whole: Callable[[Any, Arrays], bool]
) -> Arrays | None:
    try:
        found: Arrays | None = None if work is None else load_file(work / name)
        return found if found is not None and is_whole(unit, found) else None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):  # not there, or cut
        return None


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock file, which is gone again afterwards; the system frees it at a kill."""
    end = monotonic() + seconds
    handle = -1
    while handle < 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _try_lock(path)
        if handle < 0 and monotonic() >= end:
            raise TimeoutError
        if handle < 0:
            sleep(0.01)
    try:
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)
        for emptied in (path.parent, path.parent.parent):  # those of ours that are empty now
            if emptied.name == PRIVATE or _WORK.fullmatch(emptied.name):
                with suppress(OSError):
                    emptied.rmdir()


def _try_lock(path: Path) -> int:
    """An open lock file that this process alone holds; -1 where somebody else does."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o644)
    except FileNotFoundError:  # whoever was here before has just removed the folder
        return -1
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.lstat(path)):  # else removed meanwhile
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return -1


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
    for path in sorted(filter(_is_plain, scratch.rglob("*"))):
        files.sync(path)
        name = path.relative_to(scratch).as_posix()
        records[name] = FileRecord(files.file_hash(path), path.stat().st_size)
    for path in {scratch, *(path.parent for path in scratch.rglob("*"))}:
        _sync_folder(path)
    name = f"g-{hashlib.sha256(msgspec.json.encode(records)).hexdigest()[:16]}"
    return msgspec.structs.replace(manifest, folder=name, files=records)


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Whether all files that a state names are there already, as they were written."""
    try:
        return all(read_file(folder, manifest, name) is not None for name in manifest.files)
    except SpaceFormatError:
        return False


def _remove(folder: Path, path: Path) -> None:
    """Delete what we made at a path in the folder of a space, and nothing else."""
    if not _is_folder(path):
        return
    for one in [*sorted(path.rglob("*"), reverse=True), path]:  # the inner ones first
        if _is_folder(one):
            with suppress(OSError):  # something else is in it
                one.rmdir()
        elif one.name != "lock" and _is_plain(one) and _is_named_by_us(folder, one):
            one.unlink(missing_ok=True)


def _remove_others(folder: Path, name: str) -> None:
    """Delete the states of a space but the one of a name."""
    for path in folder.iterdir():
        if _GENERATION.fullmatch(path.name) and path.name != name:
            _remove(folder, path)


def _is_named_by_us(folder: Path, path: Path) -> bool:
    return (
        _is_file_or_folder(path)
        and _OURS.fullmatch(path.relative_to(folder).as_posix()) is not None
    )


def _works(folder: Path) -> list[Path]:
    """The folders of unfinished work."""
    if not _is_folder(folder / PRIVATE):
        return []
    return [path for path in (folder / PRIVATE).iterdir() if _WORK.fullmatch(path.name)]


def _is_folder(path: Path) -> bool:
    """Whether it is a folder itself, not a link to one."""
    return stat.S_ISDIR(_mode(path))


def _is_plain(path: Path) -> bool:
    """Whether it is a regular file itself: no link, no device, no folder."""
    return stat.S_ISREG(_mode(path))


def _is_file_or_folder(path: Path) -> bool:
    """Whether it is no link and no device; also what somebody else has just removed."""
    mode = _mode(path)
    return not mode or stat.S_ISDIR(mode) or stat.S_ISREG(mode)


def _mode(path: Path) -> int:
    """What kind of thing a path is; 0 where there is nothing."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return 0


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refused(path: Path, why: str) -> SpaceError:
    return SpaceError(f"{path} {why}; nothing was written; name another folder")


def _check_is_folder(folder: Path) -> None:
    """Refuse a path where no space can be, also one that the system does not take."""
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            return
        reason = "it is no folder"
    except FileNotFoundError:
        beside: dict[str, str] = {}
        with suppress(OSError):
            for path in folder.parent.glob(f"*/{NAME}"):
                beside[path.parent.stem] = path.parent.name
        near = get_close_matches(folder.stem, beside, n=1)
        reason = f"did you mean {beside[near[0]]}?" if near else "nothing is there"
    except (OSError, ValueError) as error:
        reason = files.reason(error)
    raise SpaceFormatError(
        f"there is no space at {folder} ({reason}); build one with `trueline build`"
    )
