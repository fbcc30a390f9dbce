"""Lines in, an append-only results.jsonl out; what a kill left half written is cut off."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trueline.errors import SettingError

RESULTS = "results.jsonl"
SAMPLE_KINDS = ("answer", "choice", "failed")  # the lines a sample of a cell can end in
_HEAD = b'{"kind"'  # how every line begins

Line = dict[str, Any]
Group = tuple[str, ...]  # what lines of one chunk have in common


@dataclass(frozen=True, slots=True)
class Journal:
    """The results of a folder while a run holds it."""

    path: Path
    lines: list[Line]

    def append(self, lines: Sequence[Line]) -> None:
        """Add the lines of one chunk in one write that is on the disk when this returns."""
        text = "".join(
            json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines
        )
        rest = memoryview(text.encode("utf-8"))
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                while rest:
                    rest = rest[os.write(file, rest) :]
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise SettingError(
                f"{self.path} cannot be written ({error.strerror}); what was finished is kept; "
                "mend that and run the same again"
            ) from error
        self.lines.extend(lines)

    def drop(self, lines: Sequence[Line]) -> None:
        """Take lines out again: the file is written anew beside the old one, then renamed."""
        gone = {id(line) for line in lines}
        if not gone:
            return
        kept = [line for line in self.lines if id(line) not in gone]
        beside = Journal(self.path.with_suffix(".tmp"), [])
        beside.path.unlink(missing_ok=True)
        beside.append(kept)
        os.replace(beside.path, self.path)
        self.lines[:] = kept

    def of(self, cell: str, *kinds: str) -> list[Line]:
        """The lines of a cell, of some kinds, in their order."""
        return [line for line in self.lines if line["cell"] == cell and line["kind"] in kinds]


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
            f"{folder} cannot hold results ({error.strerror}); name another with --out"
        ) from error
    try:
        yield _mended(folder / RESULTS)
    finally:
        lock.release()


def read_lines(path: Path) -> list[Line]:
    """The whole lines of a results file; one that was cut off at the end does not count."""
    return [line for line, _ in _sized(path)]


def now() -> str:
    """The time of a line."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def group(line: Line) -> Group | None:
    """What the lines of one chunk share; None for a line that stands for itself."""
    return ("sample", line["cell"]) if line["kind"] in SAMPLE_KINDS else None


def _mended(path: Path) -> Journal:
    """The results as they stand, less a torn line and the chunk it belongs to."""
    sized = _sized(path)
    lines = [line for line, _ in sized]
    heads = {line["cell"] for line in lines if line["kind"] == "cell"}
    if strays := {line["cell"] for line in lines} - heads - {None}:
        raise SettingError(
            f"{path} has lines of {', '.join(sorted(strays))} and none that says what that "
            "cell is; move the file away, or name another folder with --out"
        )
    whole = len(lines) - _unfinished(lines)
    size = sum(length for _, length in sized[:whole])
    if path.exists() and path.stat().st_size > size:
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
    return Journal(path, lines[:whole])


def _sized(path: Path) -> list[tuple[Line, int]]:
    """Every whole line and how many bytes it takes."""
    try:
        *pieces, torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read ({error.strerror}); mend that, or name another folder with "
            "--out"
        ) from error
    found = []
    for number, piece in enumerate(pieces, 1):
        try:
            line = json.loads(piece)
            line["kind"], line["cell"]
        except (ValueError, KeyError, TypeError) as error:
            raise SettingError(
                f"{path}:{number} is no line of results ({error}); move the file away, or name "
                "another folder with --out"
            ) from error
        found.append((line, len(piece) + 1))
    if torn[: len(_HEAD)] != _HEAD[: len(torn)]:  # a run never begins a line otherwise
        raise SettingError(
            f"{path} ends in something that is no line of results; move the file away, or name "
            "another folder with --out"
        )
    return found


def _unfinished(lines: list[Line]) -> int:
    """How many lines at the end belong to a chunk that is not whole."""
    if not lines or (last := group(lines[-1])) is None:
        return 0
    of_cell = [line for line in lines if line["cell"] == last[1]]
    head = next(line for line in of_cell if line["kind"] == "cell")
    count = sum(group(line) == last for line in of_cell)
    return 0 if count == head["samples"] else count % int(head["batch_size"])
