"""The manifest of a space, as text and back: the one place that knows its fields."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trueline.prompts import Prompt
from trueline.settings import check_values
from trueline.space.content import Commit, Content, Recipe
from trueline.space.segment import FileRecord, segment_name

FORMAT = "trueline grounding space"  # what tells our folders from other people's
FORMAT_VERSION = 2
NAME = "manifest.json"
KINDS = {"examples": "jsonl", "vectors": "safetensors"}  # the files every segment has
SETS = {"entries": "safetensors", "wrong": "safetensors"}  # those that RAD needs
_SUFFIXES = KINDS | SETS
_FILE = re.compile(r"(examples|vectors|entries|wrong)-[0-9a-f]{12,16}\.(safetensors|jsonl)")
_SHARED = ("embedder", "embedder_hash", "prompt")  # of a recipe, with entries or without


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment as the manifest describes it."""

    name: str
    counts: Mapping[str, int]
    files: Mapping[str, FileRecord]  # by kind
    removed: tuple[str, ...]  # the ids of examples that count no more


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a folder holds."""

    recipe: Recipe
    segments: tuple[SegmentRecord, ...]
    history: tuple[Commit, ...]
    tuned: Mapping[str, Any]
    state: str  # the hash of all the rest: another commit, another state

    def names(self) -> set[str]:
        """The names of all files it vouches for."""
        return {file.name for segment in self.segments for file in segment.files.values()}


def file_name(kind: str, sha256: str) -> str:
    """The name of a file with such content."""
    return f"{kind}-{sha256[:16]}.{_SUFFIXES[kind]}"


def is_file_name(name: str) -> bool:
    """Whether a name has the form of a space's file."""
    return _FILE.fullmatch(name) is not None


def describe(content: Content) -> Manifest:
    """The manifest of a content whose segments have all been written."""
    segments = tuple(
        SegmentRecord(
            part.segment.name,
            part.segment.counts(),
            part.segment.records,
            tuple(sorted(part.removed)),
        )
        for part in content.parts
    )
    manifest = Manifest(content.recipe, segments, content.commits, content.tuned, "")
    return parse(to_text(manifest))


def to_text(manifest: Manifest) -> str:
    """A manifest as JSON, with a hash of itself."""
    recipe = asdict(manifest.recipe)
    shared = {name: recipe.pop(name) for name in _SHARED}
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **shared,
        "prompt_hash": manifest.recipe.prompt.hash,
        "entries": None if recipe["context"] is None else recipe,
        "tuned": dict(manifest.tuned),
        "segments": [asdict(segment) for segment in manifest.segments],
        "history": [asdict(commit) for commit in manifest.history],
    }
    content["sha256"] = manifest_hash(content)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def parse(text: str) -> Manifest:
    """Read a manifest; a ValueError says what is wrong with it."""
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"manifest.json does not say that this is a {FORMAT}")
    if (version := content.get("format_version")) != FORMAT_VERSION:
        is_newer = isinstance(version, int) and version > FORMAT_VERSION
        advice = "; install a newer trueline" if is_newer else ""
        raise ValueError(
            f"it has format {version}, this release reads format {FORMAT_VERSION}{advice}"
        )
    state = content.pop("sha256", None)
    if state != manifest_hash(content):
        raise ValueError("manifest.json was changed after it was written: its checksum differs")
    entries = content["entries"] or {}
    shared = {name: content[name] for name in _SHARED}
    recipe = Recipe(**_checked(Recipe, {**shared, **entries}, "prompt"))
    return Manifest(
        recipe,
        tuple(_segment(record) for record in content["segments"]),
        tuple(Commit(**_checked(Commit, record)) for record in content["history"]),
        dict(content["tuned"]),
        state,
    )


def manifest_hash(content: dict[str, Any]) -> str:
    """The hash of a manifest without this field."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def rebuilding(content: dict[str, Any], folder: Path) -> str | None:
    """The command that makes a space of the first format anew; None: it is not one."""
    try:
        recipe, seal = content["recipe"], content["sha256"]
        rest = {name: value for name, value in content.items() if name != "sha256"}
        if content["format_version"] != 1 or seal != manifest_hash(rest):
            return None
        (lines,) = [name for name in content["files"] if is_file_name(name) and "jsonl" in name]
        given = _build_options(recipe)
        source, out = (shlex.quote(str(path)) for path in (folder / lines, folder))
        return f"trueline build {source} {given} --out {out}"
    except (KeyError, TypeError, ValueError):
        return None


def _build_options(recipe: dict[str, Any]) -> str:
    """What `trueline build` was told for a space of the first format; defaults are left out."""
    prompt, values, plain = recipe["prompt"], recipe["values"], Prompt()
    is_chosen = values == "logits" and recipe["head"] != "opaque"
    is_wide = values == "hidden" and recipe["dtype"] == "float32"
    options = {
        "model": recipe["model"],
        "embedder": recipe["embedder"],
        "context": recipe["context"],
        "window": "" if recipe["window"] == "all" else recipe["window"],
        "values": values if is_chosen else "",
        "value-dtype": recipe["dtype"] if is_wide else "",
        "template": "" if prompt["template"] == plain.template else prompt["template"],
        "system": prompt["system"],
    }
    flags = {"end": recipe["end"], "wrong": recipe["wrong"], "no-chat": prompt["chat"] is False}
    told = [f"--{name} {shlex.quote(str(value))}" for name, value in options.items() if value]
    return " ".join([*told, *(f"--{name}" for name, is_set in flags.items() if is_set)])


def _segment(record: Any) -> SegmentRecord:
    files = {kind: FileRecord(**_checked(FileRecord, f)) for kind, f in record["files"].items()}
    unknown = set(files) - set(_SUFFIXES)
    if unknown or not set(KINDS) <= set(files):
        raise ValueError(f"a segment has the files {sorted(files)}")
    for kind, file in files.items():
        if file.name != file_name(kind, file.sha256):
            raise ValueError(f"{file.name!r} is no name of a file of ours")
    if record["name"] != segment_name(files):
        raise ValueError(f"the segment {record['name']!r} is not named by its files")
    counts = {str(kind): int(count) for kind, count in record["counts"].items()}
    return SegmentRecord(record["name"], counts, files, tuple(map(str, record["removed"])))


def _checked(cls: type, record: dict[str, Any], *free: str) -> dict[str, Any]:
    """The fields of a record, each of the type its class wants; `free` ones apart."""
    known = {field.name for field in fields(cls)}
    if not isinstance(record, dict) or not set(record) <= known:
        raise ValueError(f"a {cls.__name__} has the fields {sorted(record)}")
    check_values(cls, {name: value for name, value in record.items() if name not in free})
    if "prompt" in free:
        record = record | {"prompt": Prompt(**record["prompt"])}
    return record
