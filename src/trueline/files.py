"""Read regular files only; write files atomically; the folder of trueline's cache."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, AnyStr

from trueline.errors import SettingError

# How texts begin that are not UTF-8; one of the two of UTF-16 also begins UTF-32.
_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_MOST_TEXT = 16_000_000  # bytes of a text file
_MOST_UNPACKED = 2_000_000_000  # of a table; a small packed one may hold any number
_LONGEST_LINE = 16_000_000  # of a table; the longest of any benchmark here has 40,000


class UnreadableError(OSError):
    """A file that is not read; the message gives the reason."""


def reason(error: BaseException) -> str:
    """The message of an error; of an OSError without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def open_file(path: str | os.PathLike[str], flags: int = 0) -> BufferedReader:
    """Open a regular file, or a pipe of the shell, to read it; links are followed."""
    if "\0" in os.fspath(path):
        raise UnreadableError("its name holds a NUL character, which no file can have")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    mode = os.fstat(handle).st_mode
    # A shell makes a pipe for <(...), or into us; both have an end.
    is_shell_pipe = stat.S_ISFIFO(mode) and os.fspath(path).startswith("/dev/")
    if not (stat.S_ISREG(mode) or is_shell_pipe):
        os.close(handle)
        is_folder = stat.S_ISDIR(mode)
        problem = "it is no regular file; save what it gives to one"
        raise UnreadableError("it is a folder; name a file" if is_folder else problem)
    os.set_blocking(handle, True)  # a pipe may have nothing to read yet
    return os.fdopen(handle, "rb")


def read_regular(path: Path, most: int = -1) -> bytes:
    """The first bytes of a regular file, or all; no links."""
    with open_file(path, os.O_NOFOLLOW) as file:
        return file.read(most)


def foreign_encoding(beginning: bytes) -> str:
    """What to do about a text that begins like UTF-16 or UTF-32, or ''."""
    is_other = beginning.startswith(_OTHER_MARKS)
    return "it is UTF-32 or UTF-16; save it as UTF-8" if is_other else ""


def read_bytes(path: str | os.PathLike[str], what: str, *, most: int = _MOST_TEXT) -> bytes:
    """The bytes of a text file; one with more than `most` is refused."""
    try:
        with open_file(path) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise UnreadableError(f"it has more than {most:,} bytes")
        if problem := foreign_encoding(data[:4]):
            raise UnreadableError(problem)
    except OSError as error:
        raise SettingError(
            f"{what} {os.fspath(path)} cannot be read: {reason(error)}"
        ) from error
    return data


def read_text(path: str | os.PathLike[str], what: str, *, most: int = _MOST_TEXT) -> str:
    """A text file: UTF-8 with or without a byte order mark, any kind of line ends."""
    data = read_bytes(path, what, most=most)
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
def open_unpacked(path: Path) -> Iterator[BufferedReader[Any]]:
    """Open a table, unpacked if its name ends in .gz."""
    with open_file(path) as file:
        if path.suffix.lower() == ".gz":
            with gzip.GzipFile(fileobj=file) as packed, BufferedReader(packed) as unpacked:
                yield unpacked
        else:
            yield file


def capped_lines(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """The lines of a table; one that is too long is an error, and so are too many."""
    size = 0
    while line := file.readline(_LONGEST_LINE + 1):
        unit = "characters" if isinstance(line, str) else "bytes"
        size += len(line)
        if len(line) > _LONGEST_LINE:
            raise UnreadableError(f"it has a line of more than {_LONGEST_LINE:,} {unit}")
        if size > _MOST_UNPACKED:
            raise UnreadableError(f"it has more than {_MOST_UNPACKED:,} {unit}")
        yield line


@contextmanager
def scratch_file(path: Path) -> Iterator[Path]:
    """An empty file in the folder of `path`, which is removed after the block."""
    name = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]  # of a name of any length
    scratch = path.with_name(f".{name}.{os.getpid()}-{threading.get_ident()}.tmp")
    scratch.unlink(missing_ok=True)
    scratch.touch(exist_ok=False)  # a link that somebody put there is not followed
    try:
        yield scratch
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file that replaces `path` after the block; an error leaves `path` unchanged."""
    with scratch_file(path) as scratch:
        yield scratch
        sync(scratch)
        os.replace(scratch, path)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    with replacing(path) as scratch:
        scratch.write_text(text, "utf-8", newline="\n")


def sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
