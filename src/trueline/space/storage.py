"""The content of a space in, a folder out, and back: manifest, arrays, checksums.

docs/format.md tells another program how to read it.

Arrays and examples are written under names that carry their own hash, then the manifest is
renamed over the old one: that rename is the moment the folder changes from the old space to the
new. A kill before it leaves the old space, or none; a kill after it leaves files nobody names,
which the next write removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from trueline.errors import SpaceError, SpaceFormatError, TruelineError
from trueline.examples import read_examples, to_lines
from trueline.prompts import Prompt
from trueline.space.content import Array, Content, Entries, Recipe
from trueline.space.folder import BUILDING, claimed, remove_strays

FORMAT_VERSION = 1
_CHECKED_ON_OPEN = 256 << 20  # bytes; above it opening checks sizes only, `verify` every byte
_DTYPES = {"F16": np.float16, "F32": np.float32, "I32": np.int32, "I64": np.int64}


def write_content(space: Content, folder: Path) -> None:
    """Write what a space holds; the folder changes at one moment, or not at all."""
    with claimed(folder) as work:
        commit(space, folder, work / "save")


def commit(space: Content, folder: Path, scratch: Path) -> None:
    """Put a space into a folder one has claimed, by way of a scratch folder inside it."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    lines = scratch / "examples"
    lines.write_text("".join(to_lines(space.examples)), "utf-8", newline="\n")
    files = [_settle(lines, folder, ".jsonl")]
    for stem, entries in space.sets().items():
        arrays = {name: np.ascontiguousarray(array) for name, array in entries.arrays().items()}
        save_file(arrays, scratch / stem)
        files.append(_settle(scratch / stem, folder, ".safetensors"))
    manifest = _manifest(space, files)
    told = scratch / "manifest"
    told.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
    _sync(told)
    os.replace(told, folder / "manifest.json")
    remove_strays(folder, manifest)
    shutil.rmtree(scratch)


def read_content(folder: Path) -> Content:
    """What a folder holds, its arrays left on disk until a row is asked for."""
    manifest = read_manifest(folder)
    try:
        size = sum(entry["bytes"] for entry in manifest["files"].values())
        for name, entry in manifest["files"].items():
            _check_file(folder / name, entry, whole=size <= _CHECKED_ON_OPEN)
        names = {name.split("-")[0]: folder / name for name in manifest["files"]}
        recipe = dict(manifest["recipe"])
        recipe["prompt"] = Prompt(**recipe["prompt"])
        space = Content(
            Recipe(**recipe),
            Entries(**dict(_map_arrays(names["entries"]))),
            read_examples(names["examples"]),
            manifest["plan"],
            wrong=Entries(**dict(_map_arrays(names["wrong"]))) if recipe["wrong"] else None,
        )
        _check_counts(space, manifest["counts"])
        return space
    except SpaceError:
        raise
    except (OSError, KeyError, TypeError, ValueError, SafetensorError, TruelineError) as error:
        raise _unreadable(folder, f"{type(error).__name__}: {error}") from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a space, its own checksum and format checked."""
    path = folder / "manifest.json"
    if not folder.is_dir():
        raise SpaceFormatError(
            f"there is no space at {folder}; build one with `trueline build`"
        )
    if (folder / BUILDING).exists() and not path.exists():
        raise SpaceFormatError(
            f"{folder} holds an unfinished build; run the same `trueline build` again"
        )
    try:
        manifest = json.loads(path.read_text("utf-8"))
        version = manifest["format_version"]
        if version != FORMAT_VERSION:
            newer = "; install a newer trueline" if version > FORMAT_VERSION else ""
            reason = (
                f"it has format {version}, this release reads format {FORMAT_VERSION}{newer}"
            )
            raise ValueError(reason)
        if manifest.pop("sha256") != _content_hash(manifest):
            raise ValueError(
                "manifest.json was changed after it was written: its checksum differs"
            )
        return dict(manifest)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(folder, str(error) or type(error).__name__) from error


def verify_content(space: Content, folder: Path | None) -> dict[str, Any]:
    """Check every byte on disk against the manifest, and every number against its meaning."""
    checked: dict[str, Any] = {}
    if folder is not None:
        manifest = read_manifest(folder)
        for name, entry in manifest["files"].items():
            _check_file(folder / name, entry, whole=True)
        checked["files"] = len(manifest["files"])
    for entries in space.sets().values():
        if problem := _nonsense(entries, len(space.examples)):
            raise _unreadable(folder or Path("the space"), problem)
    return {**checked, **space.counts()}


def _nonsense(entries: Entries, examples: int) -> str:
    """Say which numbers mean nothing, if some do."""
    for start in range(0, len(entries), 1 << 16):
        keys = np.asarray(entries.keys[start : start + (1 << 16)], np.float32)
        lengths = np.linalg.norm(keys, axis=1)
        if not np.all((np.abs(lengths - 1) < 1e-3) | (lengths == 0)):
            return "some keys are not of unit length"
        if not np.isfinite(entries.values[start : start + (1 << 16)]).all():
            return "some values are not finite"
    places = entries.examples
    if len(entries) and not 0 <= places.min() <= places.max() < examples:
        return "some entries name an example that is not there"
    return ""


def _manifest(space: Content, files: list[Path]) -> dict[str, Any]:
    recipe = asdict(space.recipe)
    manifest: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "recipe": recipe,
        "prompt_hash": space.recipe.prompt.hash,
        "counts": space.counts(),
        "arrays": {
            stem: {
                name: {"dtype": str(array.dtype), "shape": list(array.shape)}
                for name, array in entries.arrays().items()
            }
            for stem, entries in space.sets().items()
        },
        "files": {
            path.name: {"sha256": file_hash(path), "bytes": path.stat().st_size}
            for path in files
        },
        "plan": space.plan,
    }
    return {**manifest, "sha256": _content_hash(manifest)}


def _content_hash(manifest: dict[str, Any]) -> str:
    content = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def file_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _settle(scratch: Path, folder: Path, suffix: str) -> Path:
    """Give a finished file the name that carries its hash."""
    _sync(scratch)
    path = folder / f"{scratch.name}-{file_hash(scratch)[:12]}{suffix}"
    scratch.chmod(0o644)  # safetensors writes private files; a space may be shared
    os.replace(scratch, path)
    return path


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _check_file(path: Path, entry: dict[str, Any], *, whole: bool) -> None:
    if not path.exists():
        raise _unreadable(path.parent, f"{path.name} is missing")
    if (size := path.stat().st_size) != entry["bytes"]:
        raise _unreadable(
            path.parent, f"{path.name} has {size} bytes, the manifest says {entry['bytes']}"
        )
    if whole and file_hash(path) != entry["sha256"]:
        raise _unreadable(path.parent, f"{path.name} was changed: its checksum differs")


def _check_counts(space: Content, counts: dict[str, int]) -> None:
    found = space.counts()
    ragged = any(
        len({len(array) for array in entries.arrays().values()}) > 1
        for entries in space.sets().values()
    )
    if found != counts or ragged:
        raise ValueError(f"it holds {found}, the manifest says {counts}")


def _map_arrays(path: Path) -> Iterator[tuple[str, Array]]:
    """The arrays of a safetensors file as memory maps."""
    with safe_open(path, framework="np") as file:  # checks that header and size fit
        names = list(file.keys())
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
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
