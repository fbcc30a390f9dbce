"""The content of a space in, a folder out, and back: manifest, segments, checksums.

docs/format.md tells another program how to read it.

The files of a segment are written under names that carry their own hash, then the manifest is
renamed over the old one: that rename is the moment the folder changes from the old state to the
new. A kill before it leaves the old state, or none; a kill after it leaves files nobody names,
which the next commit removes.
"""

from __future__ import annotations

import math
import os
import stat
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from trueline import files
from trueline.errors import SpaceError, SpaceFormatError
from trueline.examples import to_lines
from trueline.space import manifest
from trueline.space.content import Content
from trueline.space.folder import (
    check_base,
    committing,
    is_begun,
    is_ours,
    read_manifest_text,
    remove_strays,
    sync_folder,
)
from trueline.space.json_text import parse_json
from trueline.space.manifest import Manifest
from trueline.space.reading import (
    check_file,
    check_line_lengths,
    check_segment,
    read_segment,
    unreadable,
)
from trueline.space.segment import FileRecord, Part, Segment
from trueline.space.soundness import join_flaw

_CHECKED_ON_OPEN = 256 << 20  # bytes of new files; above it `verify` checks every byte
_READS = 5  # times a folder is read while commits keep replacing what is read

Stamp = tuple[int, int, int]  # of the manifest's file: it changes with every commit


class State(NamedTuple):
    """Which commit of a folder something shows."""

    hash: str
    stamp: Stamp | None = None  # None: not known, the manifest has to be read


def read_content(folder: Path) -> Content:
    """What a folder holds, its arrays left on disk until a row is asked for."""
    return read_state(folder)[0]


def read_state(
    folder: Path, known: Content | None = None, limit: float = 0
) -> tuple[Content, State]:
    """What a folder holds now; segments of `known` are taken from there, not opened again.

    New files are checked to the byte up to `limit` bytes, and always up to a size that costs
    little.
    """
    for _ in range(_READS):
        stamp, found = read_stamp(folder), read_manifest(folder)
        try:
            content = _open(folder, found, known, max(limit, _CHECKED_ON_OPEN))
            return content, State(found.state, stamp)
        except SpaceFormatError:
            if read_manifest(folder).state == found.state:  # else: replaced while it was read
                raise
    raise SpaceError(f"{folder} changes faster than it can be read; try again")


def read_stamp(folder: Path) -> Stamp | None:
    """What changes with every commit, without reading the manifest."""
    try:
        found = (folder / manifest.NAME).stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a space, its own checksum and format checked."""
    _check_folder(folder)
    if is_begun(folder):
        raise SpaceFormatError(
            f"{folder} holds an unfinished build; run the same `trueline build` again"
        )
    try:
        text = read_manifest_text(folder)
    except OSError as error:
        reason = f"{manifest.NAME} is missing or no regular file"
        raise unreadable(folder, f"{reason} ({files.reason(error)})") from error
    except ValueError as error:
        raise unreadable(folder, str(error)) from error
    try:
        return manifest.parse(text)
    except ValueError as error:
        if command := _rebuilding(text, folder):
            raise SpaceFormatError(
                f"{folder} has format 1, this release reads format {manifest.FORMAT_VERSION}; "
                f"make it anew with `{command}`"
            ) from None
        raise unreadable(folder, str(error)) from error


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
    """Refuse to put a new space where another stands, which would be lost with its edits.

    One that cannot be read, damaged or of a newer format, may be all that is left of it.
    """
    if not is_ours(folder) or is_begun(folder) or _is_first_format(folder):
        return
    try:
        found, _ = read_state(folder)
    except SpaceFormatError as error:
        raise SpaceError(
            f"nothing was written: {error}, name another folder, or replace what is there with "
            "--overwrite (overwrite=True)"
        ) from error
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
            check_file(folder, record)
        checked["files"] = len(records)
    try:
        for part in content.parts:
            check_segment(part.segment, content.recipe, is_whole=True)
        _check_whole(content)
    except ValueError as error:
        raise unreadable(folder or Path("the space"), str(error)) from error
    return {**checked, **content.counts()}


def verify_folder(folder: Path) -> dict[str, Any]:
    """Check every byte and number of a folder once, however large it is."""
    content, _ = read_state(folder, limit=math.inf)
    records = [each for part in content.parts for each in part.segment.records.values()]
    return {"files": len({record.name for record in records}), **content.counts()}


def _open(folder: Path, found: Manifest, known: Content | None, limit: float) -> Content:
    parts = known.parts if known is not None and known.recipe == found.recipe else ()
    opened = {part.segment.name: part.segment for part in parts}
    new = {each.name: each for each in found.segments if each.name not in opened}
    sizes = [record.bytes for each in new.values() for record in each.files.values()]
    is_whole = sum(sizes) <= limit
    try:
        for name, each in new.items():
            opened[name] = read_segment(folder, each, found.recipe, is_whole=is_whole)
        parts = tuple(
            Part(opened[each.name], frozenset(each.removed)) for each in found.segments
        )
        content = Content(found.recipe, parts, found.history, found.tuned)
        _check_whole(content)
        return content
    except ValueError as error:  # also a SettingError or an ExampleError
        raise unreadable(folder, str(error)) from error


def _check_whole(content: Content) -> None:
    """Refuse parts that do not belong together, and a history that tells of others."""
    if flaw := join_flaw(content.parts):
        raise ValueError(flaw)
    counts = content.counts()
    for last in content.commits[-1:]:
        if (last.examples, last.entries) != (counts["examples"], counts["entries"]):
            raise ValueError(f"it holds {counts}, its history says {last}")


def _write_segment(segment: Segment, work: Path, number: int) -> dict[str, Path]:
    """Write the files of a segment into a folder of work: final name -> where it is."""
    paths = {
        kind: work / f"{number}-{kind}" for kind in ("examples", "vectors", *segment.sets())
    }
    lines = list(to_lines(segment.examples))
    check_line_lengths(lines)
    for path in paths.values():
        path.unlink(missing_ok=True)  # a file that a kill left is not written into
    paths["examples"].write_text("".join(lines), "utf-8", newline="\n")
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


def _spaces_beside(folder: Path) -> dict[str, str]:
    """The spaces in the folder that a path is in: their names by what comes before a dot."""
    try:
        found = [one.parent for one in folder.parent.glob(f"*/{manifest.NAME}")]
    except OSError:
        return {}
    return {one.stem: one.name for one in found}


def _check_folder(folder: Path) -> None:
    """Refuse a path where no space can be, also one that the system does not take."""
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            return
        reason = "it is no folder"
    except FileNotFoundError:
        beside = _spaces_beside(folder)
        near = get_close_matches(folder.stem, beside, n=1)
        reason = f"did you mean {beside[near[0]]}?" if near else "nothing is there"
    except (OSError, ValueError) as error:
        reason = files.reason(error)
    raise SpaceFormatError(
        f"there is no space at {folder} ({reason}); build one with `trueline build`"
    )


def _rebuilding(text: str, folder: Path) -> str | None:
    """The command that makes a space of the first format anew, if the manifest is of one."""
    try:
        return manifest.rebuilding(parse_json(text), folder)
    except ValueError:
        return None


def _is_first_format(folder: Path) -> bool:
    """Whether a folder holds a space of the first format, which `build` makes anew."""
    try:
        return _rebuilding(read_manifest_text(folder), folder) is not None
    except (OSError, ValueError):
        return False
