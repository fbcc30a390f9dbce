"""The files of a segment in, the segment out: regular files, whole and sound."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Any

from trueline import files
from trueline.errors import ExampleError, SpaceFormatError
from trueline.examples import EXAMPLE_FIELDS
from trueline.space.arrays import arrays_in
from trueline.space.content import Recipe
from trueline.space.json_text import parse_json
from trueline.space.manifest import SegmentRecord
from trueline.space.segment import Entries, FileRecord, Segment
from trueline.space.soundness import form_flaw, number_flaw, vector_flaw
from trueline.types import Example

IN_MEMORY = 64 << 20  # bytes of a file that is read; a larger one is mapped
_LONGEST_LINE = 16 << 20  # characters of one example


def read_segment(
    folder: Path, record: SegmentRecord, recipe: Recipe, *, is_whole: bool
) -> Segment:
    """A segment as it lies in a folder; a ValueError or SpaceError says what is wrong with it.

    What is not `is_whole` is held to its sizes, forms and whole numbers alone.
    """
    data = {kind: _read(folder, file, is_whole) for kind, file in record.files.items()}
    examples = _from_lines(bytes(data.pop("examples")))
    arrays = {kind: arrays_in(each) for kind, each in data.items()}
    vectors = arrays.pop("vectors")
    for kind, named in arrays.items():
        if set(named) != set(Entries.__slots__):
            raise ValueError(f"the {kind} hold the arrays {sorted(named)}")
    sets = {kind: Entries(**named) for kind, named in arrays.items()}
    segment = Segment(
        examples, vectors, **sets, records=dict(record.files), is_checked=is_whole
    )
    if segment.counts() != dict(record.counts):
        raise ValueError(f"it holds {segment.counts()}, the manifest says {record.counts}")
    check_segment(segment, recipe, is_whole=is_whole)
    return segment


def check_segment(segment: Segment, recipe: Recipe, *, is_whole: bool) -> None:
    """Refuse a segment that has a flaw."""
    flaw = form_flaw(segment, recipe) or number_flaw(segment, recipe)
    if is_whole:
        flaw = flaw or vector_flaw(segment, recipe)
    if not flaw and len(segment.numbers) != len(segment.examples):
        flaw = "it repeats ids"
    if flaw:
        raise ValueError(f"a segment is not sound: {flaw}")


def _from_lines(data: bytes) -> list[Example]:
    """Read back the examples that `to_lines` wrote."""
    *lines, rest = data.decode("utf-8").split("\n")
    if rest:
        raise ValueError("the last line of the examples is cut short")
    check_line_lengths(lines)
    return [_from_line(line) for line in lines]


def _from_line(line: str) -> Example:
    record = parse_json(line)
    if not isinstance(record, dict) or tuple(record) != EXAMPLE_FIELDS:
        raise ValueError(f"a line of the examples has other fields than {EXAMPLE_FIELDS}")
    answers = record["answers"], record["wrong_answers"]
    example = Example(**record)
    if not example.id or not all(isinstance(each, list) for each in answers):
        raise ValueError("an example has no id, or no list of answers")
    if tuple(map(list, (example.answers, example.wrong_answers))) != answers:
        raise ValueError(f"the example {example.id!r} gives an answer twice")
    return example


def check_line_lengths(lines: Iterable[str]) -> None:
    """Refuse examples that are longer than any is, when they are written and when read."""
    for number, line in enumerate(lines, 1):
        if len(line) > _LONGEST_LINE:
            raise ExampleError(
                f"example {number} takes {len(line):,} characters, at most {_LONGEST_LINE:,} "
                "can be kept; split it"
            )


def _read(folder: Path, record: FileRecord, is_whole: bool) -> bytearray | mmap:
    """The bytes of a file, in memory or mapped: those that are checked are those given out."""
    with _reading(folder, record) as file:
        if record.bytes > IN_MEMORY:
            if is_whole:
                _check_hash(folder, record, hashlib.file_digest(file, "sha256"))
            # Copy-on-write: torch shares it without a warning, and the file stays as it is.
            return mmap(file.fileno(), record.bytes, access=ACCESS_COPY)
        data = bytearray(record.bytes)
        if file.readinto(data) != record.bytes:
            raise unreadable(folder, f"{record.name} was cut while it was read")
    if is_whole:
        _check_hash(folder, record, hashlib.sha256(data))
    return data


def check_file(folder: Path, record: FileRecord) -> None:
    """Refuse a file that is not as it was written, to the byte."""
    with _reading(folder, record) as file:
        _check_hash(folder, record, hashlib.file_digest(file, "sha256"))


@contextmanager
def _reading(folder: Path, record: FileRecord) -> Iterator[BufferedReader]:
    """Open a file that the manifest names; what the system refuses is an error of the space."""
    with _open_file(folder, record) as file:
        try:
            yield file
        except OSError as error:  # a failing disk, a server that is gone, no memory to map it
            reason = f"{record.name} cannot be read ({files.reason(error)})"
            raise unreadable(folder, reason) from error


def _open_file(folder: Path, record: FileRecord) -> BufferedReader:
    """A file that the manifest names: a regular one, of the right size."""
    try:
        file = files.open_regular(folder / record.name)
    except OSError as error:
        reason = f"{record.name} is missing or no regular file"
        raise unreadable(folder, f"{reason} ({files.reason(error)})") from error
    if (size := os.fstat(file.fileno()).st_size) != record.bytes:
        file.close()
        raise unreadable(
            folder, f"{record.name} has {size} bytes, the manifest says {record.bytes}"
        )
    return file


def _check_hash(folder: Path, record: FileRecord, found: Any) -> None:
    if found.hexdigest() != record.sha256:
        raise unreadable(folder, f"{record.name} was changed: its checksum differs")


def unreadable(folder: Path, reason: str) -> SpaceFormatError:
    """The error of a folder that holds no space, or a damaged one."""
    return SpaceFormatError(
        f"{folder} is no readable grounding space: {reason}. "
        "Restore it from a copy or build it anew with `trueline build`"
    )
