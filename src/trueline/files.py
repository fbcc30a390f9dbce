"""Read regular files only; write files atomically; the folder of trueline's cache."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, AnyStr

from trueline.errors import SettingError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer

_OTHER_MARKS = {  # how texts begin that are not UTF-8; UTF-32 may begin as UTF-16 does
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_NAME_KEPT = 40  # characters of a name in the name of its scratch file; 255 bytes is the most
_MOST_TEXT = 16_000_000  # bytes of a text file
_MOST_UNPACKED = 2_000_000_000  # bytes of a table; a small packed one may hold any number
_LONGEST_LINE = 16_000_000  # of a table; the longest of any benchmark here has 40,000


class UnreadableError(OSError):
    """A file that is not read; the message gives the reason."""


def reason(error: BaseException) -> str:
    """The message of an error; of an OSError without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def refusal(path: str | os.PathLike[str]) -> str:
    """Why a path cannot be read as a file, or ''; no device is opened."""
    if "\0" in os.fspath(path):
        return "its name holds a NUL character, which no file can have"
    try:
        return _unfit(path, os.stat(path).st_mode)
    except OSError as error:
        return reason(error)


def _unfit(path: str | os.PathLike[str], mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "it is a folder; name a file"
    # A shell makes a pipe for <(...), or into us; both have an end.
    is_shell_pipe = stat.S_ISFIFO(mode) and os.fspath(path).startswith("/dev/")
    if stat.S_ISREG(mode) or is_shell_pipe:
        return ""
    return "it is no regular file; save what it gives to one"


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file, or a pipe of the shell, to read it; links are followed."""
    if problem := refusal(path):
        raise UnreadableError(problem)
    return _open(path)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read it; no links."""
    if problem := _unfit(path, path.lstat().st_mode):
        raise UnreadableError(problem)
    return _open(path, os.O_NOFOLLOW)


def _open(path: str | os.PathLike[str], flags: int = 0) -> BufferedReader:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if problem := _unfit(path, os.fstat(handle).st_mode):  # it was replaced meanwhile
        os.close(handle)
        raise UnreadableError(problem)
    os.set_blocking(handle, True)  # a pipe may have nothing to read yet
    return os.fdopen(handle, "rb")


def foreign_encoding(beginning: bytes) -> str:
    """What to do about a text that begins like UTF-16 or UTF-32, or ''."""
    for mark, name in _OTHER_MARKS.items():
        if beginning.startswith(mark):
            return f"it is {name}; save it as UTF-8"
    return ""


def read_bytes(path: str | os.PathLike[str], what: str, *, most: int = _MOST_TEXT) -> bytes:
    """The bytes of a text file; one with more than `most` is refused."""
    try:
        with open_file(path) as file:
            is_small = os.fstat(file.fileno()).st_size <= most  # a pipe has no size
            data = bytearray()
            while is_small and len(data) <= most and (more := file.read(1 << 20)):
                data += more
        if not is_small or len(data) > most:
            raise UnreadableError(f"it has more than {most:,} bytes")
        if problem := foreign_encoding(bytes(data[:4])):
            raise UnreadableError(problem)
    except OSError as error:
        raise SettingError(
            f"{what} {os.fspath(path)} cannot be read: {reason(error)}"
        ) from error
    return bytes(data)


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
def open_unpacked(path: Path) -> Iterator[BufferedReader]:
    """Open a table, unpacked if its name ends in .gz; one of unbounded size is an error."""
    with ExitStack() as stack:
        file: BufferedReader | gzip.GzipFile = stack.enter_context(open_file(path))
        if path.suffix.lower() == ".gz":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        yield stack.enter_context(BufferedReader(_Capped(file), 1 << 20))


class _Capped(RawIOBase):
    """A file of at most _MOST_UNPACKED bytes."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._left = file, _MOST_UNPACKED

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        count = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise UnreadableError(f"it has more than {_MOST_UNPACKED:,} bytes")
        return count


def capped_lines(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """The lines of a table; one that is too long is an error."""
    while line := file.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            unit = "characters" if isinstance(line, str) else "bytes"
            raise UnreadableError(f"it has a line of more than {_LONGEST_LINE:,} {unit}")
        yield line


@contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """An empty file in the folder of `path`, which is removed after the block."""
    name = path.name
    if len(name) > _NAME_KEPT:  # shortened, and still different from others that begin alike
        name = f"{name[:_NAME_KEPT]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"
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
    with scratch_beside(path) as scratch:
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
