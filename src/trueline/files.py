"""A path in, a file out that is whole or not there at all: write beside, sync, rename."""

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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Hand out a scratch path beside `path`; what the block writes there then takes its place.

    An error in the block leaves what stood at `path` as it was, and nothing beside it.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        yield scratch
        sync(scratch)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


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
