"""The folder of a space while it is written: whose it is, who may write, what is left over.

Beside the files of the space there is one folder of ours, `.trueline`, with a mark, the lock of
commits, and the work that writers have not finished. Nothing else is ever written or deleted.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from trueline import files
from trueline.errors import SpaceConflictError, SpaceError
from trueline.space import manifest
from trueline.space.json_text import parse_json

PRIVATE = ".trueline"  # what only we write to, inside the folder of a space
_MARK = "mark"
_MARK_TEXT = f"{manifest.FORMAT}\n"
_WAITING = 60  # seconds a commit waits for another, which takes far less
_SCRATCH = re.compile(r"\.manifest\.json\.\d+-\d+\.tmp")  # what a kill leaves of a manifest
_WORK = re.compile(r"(build|edit)-[0-9a-f]{16}")
_WORK_FILE = re.compile(  # what is kept of unfinished work, and what a kill leaves of it
    r"\.?((vectors-)?\d{5,}\.safetensors|\d+-[a-z]+)(\.\d+-\d+\.tmp)?|\.tmp\w{6}"
)
_LONGEST = 1 << 28  # bytes of a manifest: that of a million removed examples has a tenth


def check_space_folder(folder: Path) -> None:
    """Refuse to write over something that is not a space, or through a link out of it."""
    try:
        if not _is_there(folder):
            return
        if not folder.is_dir():
            raise SpaceError(f"{folder} is a file; name a folder for the space")
        if not any(folder.iterdir()):
            return
        if not is_ours(folder):
            raise SpaceError(
                f"{folder} is not empty and holds no space; nothing was written; name another "
                "folder"
            )
        _check_names(folder)
    except (OSError, ValueError) as error:
        raise SpaceError(
            f"{folder} cannot be a folder for a space ({files.reason(error)}); nothing was "
            "written; name another folder"
        ) from error


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a space, whole or damaged, or one that was begun."""
    try:
        if os.path.lexists(folder / PRIVATE):
            return _is_folder(folder / PRIVATE) and _is_marked(folder)
        content = parse_json(read_manifest_text(folder))
        is_first_format = manifest.rebuilding(content, folder) is not None
        return is_first_format or content["format"] == manifest.FORMAT
    except (OSError, ValueError, TypeError, KeyError):
        return False


def read_manifest_text(folder: Path) -> str:
    """The text of a manifest, which is a regular file of a size that can be read."""
    with files.open_regular(folder / manifest.NAME) as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise ValueError(f"{manifest.NAME} has more than {_LONGEST:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{manifest.NAME} is not UTF-8: byte 0x{data[error.start]:02x} at {error.start:,}"
        ) from None


def is_begun(folder: Path) -> bool:
    """Whether a space was begun in a folder and has never been finished."""
    return is_ours(folder) and not os.path.lexists(folder / manifest.NAME)


@contextmanager
def working(folder: Path, plan: str, *, is_build: bool = False) -> Iterator[Path]:
    """Hold the place of unfinished work on a plan; it stays until `clear` removes it.

    One build at a time works in a folder. What cannot be written ends in one error, and what
    was there before still stands.
    """
    name = f"{'build' if is_build else 'edit'}-{plan[:16]}"
    lock = "build.lock" if is_build else f"{name}.lock"
    try:
        _claim(folder)
        with FileLock(folder / PRIVATE / lock, timeout=0):
            (folder / PRIVATE / name).mkdir(exist_ok=True)
            yield folder / PRIVATE / name
            if not is_build and not (folder / PRIVATE / name).exists():
                (folder / PRIVATE / lock).unlink(missing_ok=True)
    except Timeout as error:
        raise SpaceError(
            f"another build or edit like this one is writing to {folder}; wait for it or name "
            "another folder"
        ) from error
    except (OSError, SafetensorError) as error:  # safetensors has its own for a full disk
        raise _unwritable(folder, error) from error


@contextmanager
def committing(folder: Path, base: str | None, *, check: bool = True) -> Iterator[None]:
    """Hold the lock of commits while the folder changes from the state `base` to another."""
    try:
        _claim(folder)
        with FileLock(folder / PRIVATE / "lock", timeout=_WAITING):
            if check:
                check_base(folder, base)
            yield
    except Timeout as error:
        raise SpaceError(
            f"another commit to {folder} has not ended within {_WAITING} seconds; run the same "
            "again when it has"
        ) from error
    except (OSError, SafetensorError) as error:
        raise _unwritable(folder, error) from error


def remove_strays(folder: Path, named: set[str]) -> None:
    """Delete files of ours that no manifest names any more; the lock of commits is held."""
    for path in folder.iterdir():
        is_stray = manifest.is_file_name(path.name) and path.name not in named
        if (is_stray or _SCRATCH.fullmatch(path.name)) and is_plain(path):
            path.unlink()


def clear(work: Path) -> None:
    """Delete the work on a plan that has been committed: what we made, and nothing else."""
    for path in work.iterdir():
        if _WORK_FILE.fullmatch(path.name) and is_plain(path):
            path.unlink()
    if not any(work.iterdir()):
        work.rmdir()


def clear_others(folder: Path) -> None:
    """Delete work that was begun and that nobody is at any more."""
    begun = {path.name.removesuffix(".lock") for path in (folder / PRIVATE).iterdir()}
    for name in sorted(filter(_WORK.fullmatch, begun)):
        is_build, work = name.startswith("build"), folder / PRIVATE / name
        lock = folder / PRIVATE / ("build.lock" if is_build else f"{name}.lock")
        try:
            with FileLock(lock, timeout=0):
                if _is_folder(work):
                    clear(work)
                if not is_build:
                    lock.unlink(missing_ok=True)
        except (Timeout, OSError):  # somebody works on it, or it is not ours to delete
            continue


def is_plain(path: Path) -> bool:
    """Whether it is a regular file of the folder itself: no link, no device, no folder."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_there(folder: Path) -> bool:
    """Whether there is something; a path that no system takes is an error."""
    try:
        folder.stat()
        return True
    except FileNotFoundError:
        return False


def _is_folder(path: Path) -> bool:
    """Whether it is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _is_marked(folder: Path) -> bool:
    """Whether the mark is there, or a kill came while it was written, before all else."""
    text = _read_mark(folder)
    if text == _MARK_TEXT:
        return True
    others = {path.name for path in folder.iterdir()} - {PRIVATE}
    inside = {path.name for path in (folder / PRIVATE).iterdir()} - {_MARK}
    return _MARK_TEXT.startswith(text) and not others and not inside


def _read_mark(folder: Path) -> str:
    """What the mark says, or nothing where there is none."""
    try:
        with files.open_regular(folder / PRIVATE / _MARK) as file:
            return file.read(len(_MARK_TEXT) + 1).decode("utf-8")
    except FileNotFoundError:
        return ""


def _check_names(folder: Path) -> None:
    """Refuse a folder where a name that we write to leads elsewhere: we make no links."""
    private = folder / PRIVATE
    inside = _listed(private)
    work = [path for path in inside if _WORK.fullmatch(path.name)]
    named = [path for path in folder.iterdir() if _is_written(path.name)]
    for path in [*named, *inside, *(path for each in work for path in _listed(each))]:
        try:
            found = path.lstat()
        except FileNotFoundError:  # another writer is done with it
            continue
        is_kind = stat.S_ISDIR if path == private or path in work else stat.S_ISREG
        is_lock = path.name.endswith("lock") and path.parent == private
        if not is_kind(found.st_mode) or (is_lock and found.st_size):  # a lock is empty
            raise SpaceError(
                f"{path} is no file that trueline made (a link, a device or something else), "
                "so nothing was written; remove it, or name another folder"
            )


def _listed(folder: Path) -> list[Path]:
    """What is in a folder itself; nothing where it is none."""
    try:
        return list(folder.iterdir()) if _is_folder(folder) else []
    except FileNotFoundError:  # gone since
        return []


def _is_written(name: str) -> bool:
    return name in (PRIVATE, manifest.NAME) or _SCRATCH.fullmatch(name) is not None


def _claim(folder: Path) -> None:
    """Mark a folder as ours, unless it is somebody else's."""
    check_space_folder(folder)
    mark = folder / PRIVATE / _MARK
    mark.parent.mkdir(parents=True, exist_ok=True)
    if _read_mark(folder) != _MARK_TEXT:
        mark.write_text(_MARK_TEXT, "utf-8")  # in place: whoever else does it writes the same
        files.sync(mark)


def check_base(folder: Path, base: str | None) -> None:
    """Refuse a commit if another came first: the folder must still be in the state `base`."""
    try:
        standing = manifest.parse(read_manifest_text(folder))
    except (OSError, ValueError):  # none, or damaged
        if base is None:
            return
        raise SpaceConflictError(
            f"the space at {folder} is gone or damaged since it was opened; what was computed "
            "is kept there; restore it from a copy, open it, and do the same again"
        ) from None
    if standing.state != base:
        first = str(standing.history[-1]) if standing.history else "another space"
        raise SpaceConflictError(
            f"another commit to {folder} came first: {first}; nothing was changed, and what "
            "was computed is kept; take the newest state (space.current()) and do the same "
            "again, or run the same command again"
        )


def _unwritable(folder: Path, error: Exception) -> SpaceError:
    is_closed = getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS)
    step = "open it for writing, or name another folder" if is_closed else "free some room"
    return SpaceError(
        f"{folder} cannot be written ({files.reason(error)}); what was finished is kept; "
        f"{step}, and run the same again"
    )
