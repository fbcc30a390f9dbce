"""The content of a space in, a folder out, and back: manifest, segments, checksums.

docs/format.md tells another program how to read it.

The files of a segment are written under names that carry their own hash, then the manifest is
renamed over the old one: that rename is the moment the folder changes from the old state to the
new. A kill before it leaves the old state, or none; a kill after it leaves files nobody names,
which the next commit removes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from trueline import files
from trueline.errors import SpaceError, SpaceFormatError, TruelineError
from trueline.examples import EXAMPLE_FIELDS, to_lines
from trueline.records import Example
from trueline.space import manifest
from trueline.space.content import Content
from trueline.space.folder import (
    check_base,
    committing,
    is_begun,
    is_plain,
    remove_strays,
    sync_folder,
)
from trueline.space.manifest import Manifest, SegmentRecord
from trueline.space.segment import (
    QUESTIONS,
    Array,
    Entries,
    FileRecord,
    Part,
    Segment,
    nonsense,
)

_CHECKED_ON_OPEN = 256 << 20  # bytes; above it opening checks sizes only, `verify` every byte
_READS = 5  # times a folder is read while commits keep replacing what is read
_DTYPES = {"F16": np.float16, "F32": np.float32, "I32": np.int32, "I64": np.int64}

Stamp = tuple[int, int, int]  # of the manifest's file: it changes with every commit


class State(NamedTuple):
    """Which commit of a folder something shows."""

    hash: str
    stamp: Stamp | None = None  # None: not known, the manifest has to be read


def read_content(folder: Path) -> Content:
    """What a folder holds, its arrays left on disk until a row is asked for."""
    return read_state(folder)[0]


def read_state(
    folder: Path, known: Mapping[str, Segment] | None = None
) -> tuple[Content, State]:
    """What a folder holds now; segments in `known` are taken from there, not opened again."""
    for _ in range(_READS):
        stamp, found = read_stamp(folder), read_manifest(folder)
        try:
            return _open(folder, found, known or {}), State(found.state, stamp)
        except SpaceFormatError:
            if read_manifest(folder).state == found.state:  # else: replaced while it was read
                raise
    raise SpaceError(f"{folder} changes faster than it can be read; try again")


def read_stamp(folder: Path) -> Stamp | None:
    """What changes with every commit, without reading the manifest."""
    try:
        found = (folder / manifest.NAME).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a space, its own checksum and format checked."""
    path = folder / manifest.NAME
    if not folder.is_dir():
        raise SpaceFormatError(
            f"there is no space at {folder}; build one with `trueline build`"
        )
    if is_begun(folder):
        raise SpaceFormatError(
            f"{folder} holds an unfinished build; run the same `trueline build` again"
        )
    try:
        if not is_plain(path):
            raise ValueError(f"{path.name} is missing or no regular file")
        text = path.read_text("utf-8")
        if command := manifest.rebuilding(json.loads(text), folder):
            raise SpaceFormatError(
                f"{folder} has format 1, this release reads format {manifest.FORMAT_VERSION}; "
                f"make it anew with `{command}`"
            )
        return manifest.parse(text)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(folder, str(error) or type(error).__name__) from error


def commit(
    content: Content, folder: Path, base: str | None, work: Path | None, *, check: bool = True
) -> State:
    """Change a folder from the state `base` to this content, in one moment.

    New segments are written into `work` first. Without `check` any state may be replaced.
    """
    standing = _standing_names(folder, base) if check else set()
    scratch: dict[str, Path] = {}
    for number, part in enumerate(content.parts):
        segment = part.segment
        if not segment.records or not _names(segment) <= standing:
            assert work is not None
            scratch |= _write_segment(segment, work, number)
    described = manifest.describe(content)
    with committing(folder, base, check=check):
        for name, path in scratch.items():
            os.replace(path, folder / name)
        sync_folder(folder)
        files.write_text(folder / manifest.NAME, manifest.to_text(described))
        sync_folder(folder)
        stamp = read_stamp(folder)
        remove_strays(folder, described.names())
    return State(described.state, stamp)


def check_vacant(folder: Path) -> None:
    """Refuse to put a new space where another stands, which would be lost with its edits."""
    try:
        found, _ = read_state(folder)
    except SpaceFormatError:  # none, a damaged one, or one of an older format
        return
    last = f", last changed by {found.commits[-1]}" if found.commits else ""
    raise SpaceError(
        f"{folder} holds another space ({len(found)} examples{last}); nothing was written; "
        "change it with `trueline add` and `trueline remove`, name another folder, or replace "
        "it with --overwrite (overwrite=True)"
    )


def tidy(folder: Path, base: str) -> None:
    """Remove what interrupted commits left behind, in a folder whose state is `base`."""
    with committing(folder, base):
        remove_strays(folder, read_manifest(folder).names())


def verify_content(content: Content, folder: Path | None) -> dict[str, Any]:
    """Check every byte on disk against the manifest, and every number against its meaning."""
    checked: dict[str, Any] = {}
    if folder is not None:
        segments = read_manifest(folder).segments
        records = {file.name: file for each in segments for file in each.files.values()}
        for record in records.values():
            _check_file(folder, record, is_whole=True)
        checked["files"] = len(records)
    for part in content.parts:
        if problem := nonsense(part.segment):
            raise _unreadable(folder or Path("the space"), problem)
    return {**checked, **content.counts()}


def _open(folder: Path, found: Manifest, known: Mapping[str, Segment]) -> Content:
    try:
        new = [each for each in found.segments if each.name not in known]
        records = [record for each in new for record in each.files.values()]
        is_whole = sum(record.bytes for record in records) <= _CHECKED_ON_OPEN
        for record in records:
            _check_file(folder, record, is_whole=is_whole)
        opened = dict(known)
        for each in new:
            opened.setdefault(each.name, _read_segment(folder, each, found))
        parts = [Part(opened[each.name], frozenset(each.removed)) for each in found.segments]
        content = Content(found.recipe, tuple(parts), found.history, found.tuned)
        _check_ids(parts)
        return content
    except SpaceError:
        raise
    except (OSError, KeyError, TypeError, ValueError, SafetensorError, TruelineError) as error:
        raise _unreadable(folder, f"{type(error).__name__}: {error}") from error


def _read_segment(folder: Path, record: SegmentRecord, found: Manifest) -> Segment:
    paths = {kind: folder / file.name for kind, file in record.files.items()}
    sets = {
        kind: Entries(**dict(_map_arrays(paths[kind])))
        for kind in manifest.SETS
        if kind in paths
    }
    if found.recipe.context is not None and "entries" not in sets:
        raise ValueError(f"the segment {record.name} has no entries")
    examples = _from_lines(paths["examples"].read_bytes().decode("utf-8"))
    vectors = dict(_map_arrays(paths["vectors"]))
    segment = Segment(examples, vectors, **sets, records=dict(record.files))
    lengths = {len(array) for array in vectors.values()}
    ragged = any(len({*map(len, each.arrays().values())}) > 1 for each in sets.values())
    if segment.counts() != dict(record.counts) or lengths != {len(examples)} or ragged:
        raise ValueError(f"it holds {segment.counts()}, the manifest says {record.counts}")
    if QUESTIONS not in vectors or len(segment.numbers) != len(examples):
        raise ValueError(f"the segment {record.name} lacks vectors of questions or repeats ids")
    return segment


def _check_ids(parts: list[Part]) -> None:
    """Every example is there once, and what is removed was there."""
    if not parts:
        raise ValueError("it holds no segment")
    if any(not part.removed <= part.segment.numbers.keys() for part in parts):
        raise ValueError("an example is removed that was never there")
    ids = [example.id for part in parts for example in part.examples]
    if len(set(ids)) != len(ids):
        raise ValueError("two examples have one id")


def _write_segment(segment: Segment, work: Path, number: int) -> dict[str, Path]:
    """Write the files of a segment into a folder of work: final name -> where it is."""
    paths = {
        kind: work / f"{number}-{kind}" for kind in ("examples", "vectors", *segment.sets())
    }
    lines = "".join(to_lines(segment.examples))
    paths["examples"].write_text(lines, "utf-8", newline="\n")
    arrays = {"vectors": dict(segment.vectors)}
    arrays |= {kind: entries.arrays() for kind, entries in segment.sets().items()}
    for kind, named in arrays.items():
        save_file({n: np.ascontiguousarray(a) for n, a in named.items()}, paths[kind])
        paths[kind].chmod(0o644)  # safetensors writes private files; a space may be shared
    records = {}
    for kind, path in paths.items():
        files.sync(path)
        hashed = files.file_hash(path)
        name = manifest.file_name(kind, hashed)
        records[kind] = FileRecord(name, hashed, path.stat().st_size)
    if segment.records and segment.records != records:
        raise SpaceFormatError("the files of a segment changed after it was opened; verify it")
    segment.records.update(records)
    return {records[kind].name: path for kind, path in paths.items()}


def _names(segment: Segment) -> set[str]:
    return {record.name for record in segment.records.values()}


def _standing_names(folder: Path, base: str | None) -> set[str]:
    """The files a folder already has; refused where another commit has come first."""
    check_base(folder, base)
    try:
        found = read_manifest(folder)
    except SpaceFormatError:  # none, or damaged
        return set()
    if found.state != base:  # a commit came between the two looks
        check_base(folder, base)
    return found.names()


def _from_lines(text: str) -> list[Example]:
    """Read back the examples that `to_lines` wrote."""
    records = [json.loads(line) for line in text.split("\n")[:-1]]
    if any(tuple(record) != EXAMPLE_FIELDS for record in records):
        raise ValueError(f"a line of the examples has other fields than {EXAMPLE_FIELDS}")
    return [Example(**record) for record in records]


def _check_file(folder: Path, record: FileRecord, *, is_whole: bool) -> None:
    path = folder / record.name
    if not is_plain(path):
        raise _unreadable(folder, f"{path.name} is missing or no regular file")
    if (size := path.stat().st_size) != record.bytes:
        raise _unreadable(
            folder, f"{path.name} has {size} bytes, the manifest says {record.bytes}"
        )
    if is_whole and files.file_hash(path) != record.sha256:
        raise _unreadable(folder, f"{path.name} was changed: its checksum differs")


def _map_arrays(path: Path) -> Iterator[tuple[str, Array]]:
    """The arrays of a safetensors file as memory maps."""
    with safe_open(path, framework="np") as file:  # checks that header and size fit
        names = list(file.keys())
    with path.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    for name in names:
        entry = header[name]
        shape, offset = tuple(entry["shape"]), 8 + size + entry["data_offsets"][0]
        if 0 in shape:
            yield name, np.zeros(shape, _DTYPES[entry["dtype"]])
        else:  # copy-on-write: torch shares it without a warning, and the file stays as it is
            yield name, np.memmap(path, _DTYPES[entry["dtype"]], "c", offset, shape)


def _unreadable(folder: Path, reason: str) -> SpaceFormatError:
    return SpaceFormatError(
        f"{folder} is no readable grounding space: {reason}. "
        "Restore it from a copy or build it anew with `trueline build`"
    )
