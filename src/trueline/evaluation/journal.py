"""Lines in, an append-only results.jsonl out; what a kill left half written is cut off."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trueline.errors import SettingError
from trueline.evaluation.line_checks import check_lines
from trueline.evaluation.lines import (
    RESULTS,
    AnyLine,
    CellLine,
    PartOfCell,
    SampleLine,
    encode_lines,
    read_written,
)
from trueline.files import reason, replacing, sync


@dataclass(frozen=True, slots=True)
class Journal:
    """The results of a folder while a run holds it."""

    path: Path
    lines: list[AnyLine]
    dropped: int = 0  # lines that a kill left behind, of a chunk that is not whole

    def append(self, lines: Sequence[AnyLine]) -> None:
        """Add the lines of one chunk in one write that is on the disk when this returns."""
        try:
            with self.path.open("ab", buffering=0) as file:
                rest = memoryview(encode_lines(lines))
                while rest:
                    rest = rest[file.write(rest) :]
            sync(self.path)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.lines.extend(lines)

    def drop(self, lines: Sequence[AnyLine]) -> None:
        """Take lines out again; the old file stands until the new one is whole."""
        dropped = {id(line) for line in lines}
        if not dropped:
            return
        kept = [line for line in self.lines if id(line) not in dropped]
        try:
            with replacing(self.path) as scratch:
                scratch.write_bytes(encode_lines(kept))
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.lines[:] = kept

    def samples_of(self, cell: str) -> list[SampleLine]:
        """The answers, choices and failures of a cell, in their order."""
        return [x for x in self.lines if isinstance(x, SampleLine) and x.cell == cell]

    def has(self, cell: str, kind: type[PartOfCell]) -> bool:
        """Whether there is a line of this kind for a cell."""
        return any(isinstance(line, kind) and line.cell == cell for line in self.lines)


@contextmanager
def open_journal(folder: Path) -> Iterator[Journal]:
    """Hold a folder of results; a second run on it is refused at once."""
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise SettingError(
            f"another run is writing to {folder}; wait for it, or name another with --out"
        ) from error
    except OSError as error:
        raise SettingError(
            f"{folder} cannot hold results ({reason(error)}); name another with --out"
        ) from error
    try:
        yield _mend(folder / RESULTS)
    finally:
        lock.release()


def _mend(path: Path) -> Journal:
    """The results as they stand, less a torn line and the chunk it belongs to."""
    written = read_written(path)
    lines = written.lines
    check_lines(path, lines)
    unfinished = _unfinished(lines)
    whole = len(lines) - unfinished
    if unfinished or written.torn:
        try:
            os.truncate(path, sum(written.sizes[:whole]))
            sync(path)
        except OSError as error:
            raise _unwritable(path, error) from error
    return Journal(path, lines[:whole], unfinished + written.torn)


def _unfinished(lines: list[AnyLine]) -> int:
    """How many lines at the end belong to a chunk that is not whole."""
    if not lines or not isinstance(last := lines[-1], SampleLine):
        return 0
    head = next(x for x in lines if isinstance(x, CellLine) and x.cell == last.cell)
    count = sum(isinstance(x, SampleLine) and x.cell == last.cell for x in lines)
    return 0 if count == head.samples else count % head.batch_size


def _unwritable(path: Path, error: OSError) -> SettingError:
    return SettingError(
        f"{path} cannot be written ({reason(error)}); what was finished is kept; mend that "
        "and run the same again"
    )
