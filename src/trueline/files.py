"""Read text files as people write them; write files so that they are whole or not there."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from trueline.errors import SettingError

_OTHER_MARKS = {  # how files begin that are text, but not in UTF-8
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x00\x00\xfe\xff": "UTF-32",
}
_NAME_KEPT = 40  # characters of a name in that of its scratch file; 255 bytes is the most


def reason(error: Exception) -> str:
    """What the system says of a path, in its own words and without its numbers."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def refusal(path: str | os.PathLike[str]) -> str:
    """Say why a path names no file that can be read, or nothing; no device is ever opened."""
    if "\0" in os.fspath(path):
        return "its name holds a NUL character, which no file can have"
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return reason(error)
    if stat.S_ISDIR(mode):
        return "it is a folder; name a file"
    if not stat.S_ISREG(mode):
        return "it is no regular file; save what it gives to one"
    return ""


def foreign_encoding(beginning: bytes) -> str:
    """Say that a text which begins so is not in UTF-8, or nothing."""
    for mark, name in _OTHER_MARKS.items():
        if beginning.startswith(mark):
            return f"it is {name}; save it as UTF-8"
    return ""


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """A text file as people write it: UTF-8 with or without a mark, any kind of line ends."""
    if problem := refusal(path):
        raise SettingError(f"{what} {os.fspath(path)} cannot be read: {problem}")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SettingError(
            f"{what} {os.fspath(path)} cannot be read: {reason(error)}"
        ) from error
    if problem := foreign_encoding(data):
        raise SettingError(f"{what} {os.fspath(path)} cannot be read: {problem}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise SettingError(
            f"{what} {os.fspath(path)} cannot be read: in line {line} the byte "
            f"0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """Hand out an empty file beside `path`, which is gone after the block."""
    name = path.name
    if len(name) > _NAME_KEPT:  # cut, and told from others that begin like it
        name = f"{name[:_NAME_KEPT]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"
    scratch = path.with_name(f".{name}.{os.getpid()}-{threading.get_ident()}.tmp")
    scratch.unlink(missing_ok=True)
    scratch.touch(exist_ok=False)  # ours alone: a link that somebody put there is not followed
    try:
        yield scratch
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Hand out an empty file beside `path`; what the block writes there then takes its place.

    An error in the block leaves what stood at `path` as it was, and nothing beside it.
    """
    with scratch_beside(path) as scratch:
        yield scratch
        sync(scratch)
        os.replace(scratch, path)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, at once or not at all."""
    with replacing(path) as scratch:
        scratch.write_text(text, "utf-8", newline="\n")


def sync(path: Path) -> None:
    """Return when the bytes of a file are on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def file_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read it; a link, device, pipe or folder is an OSError at once.

    What is looked at is what was opened: nobody can put another file in between.
    """
    refused = OSError(errno.EINVAL, "it is no regular file", str(path))
    if not stat.S_ISREG(path.lstat().st_mode):  # opening some devices does something already
        raise refused
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise refused
    return os.fdopen(handle, "rb")
