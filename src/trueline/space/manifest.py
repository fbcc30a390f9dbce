"""The manifest of a space, as text and back: the one place that knows its fields."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from math import isfinite
from pathlib import Path
from reprlib import repr as short
from typing import Any

from trueline.prompts import Prompt
from trueline.settings import check_values
from trueline.space.content import Commit, Content, Recipe
from trueline.space.json_text import parse_json
from trueline.space.segment import FileRecord, segment_name

FORMAT = "trueline grounding space"  # what tells our folders from other people's
FORMAT_VERSION = 3
NAME = "manifest.json"
KINDS = {"examples": "jsonl", "vectors": "safetensors"}  # the files every segment has
SETS = {"entries": "safetensors", "wrong": "safetensors"}  # those that RAD needs
_SUFFIXES = KINDS | SETS
_FILE = re.compile(r"(examples|vectors|entries|wrong)-[0-9a-f]{12,16}\.(safetensors|jsonl)")
_SHARED = ("embedder", "embedder_hash", "prompt")  # of a recipe, with entries or without
_OTHERS = ("format", "format_version", "prompt_hash", "entries", "tuned", "segments", "history")
_WORDS = {  # what a recipe of entries may say
    "values": ("hidden", "logits"),
    "head": ("linear", "nonlinear", "opaque"),
    "dtype": ("float32", "float16"),
    "computed": ("float64", "float32", "bfloat16", "float16"),
}
_EDITS = ("build", "add", "remove", "replace", "merge", "compact", "tune")
_SHARES = ("threshold", "strength")  # what methods read of the tuned settings
_ANEW = "; build it anew from its examples-*.jsonl with `trueline build`"
_HASH = re.compile(r"[0-9a-f]{64}")


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
    content = parse_json(text)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"manifest.json does not say that this is a {FORMAT}")
    version = content.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        is_newer = isinstance(version, int) and version > FORMAT_VERSION
        advice = "; install a newer trueline" if is_newer else _ANEW
        found = short(version)
        raise ValueError(
            f"it has format {found}, this release reads format {FORMAT_VERSION}{advice}"
        )
    state = content.pop("sha256", None)
    if state != manifest_hash(content):
        raise ValueError("manifest.json was changed after it was written: its checksum differs")
    _check_fields(content, {*_SHARED, *_OTHERS}, "the manifest")
    check_tuned(tuned := content["tuned"])
    return Manifest(
        _recipe(content),
        tuple(_segment(record) for record in _list(content["segments"], "segments")),
        tuple(_commit(record) for record in _list(content["history"], "history")),
        tuned,
        state,
    )


def check_tuned(tuned: Any) -> None:
    """Refuse tuned settings that are no plain values, or that no method can go by."""
    names = tuned if isinstance(tuned, dict) else {0: None}
    if not all(type(name) is str and _is_plain(value) for name, value in names.items()):
        raise ValueError("tuned must be an object of plain values")
    for name in _SHARES:
        value = tuned.get(name, 0)
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise ValueError(f"tuned {name} must lie in [0, 1], got {short(value)}")


def _is_plain(value: Any) -> bool:
    is_known = type(value) in (bool, int, float, str, type(None))
    return is_known and (type(value) is not float or isfinite(value))


def manifest_hash(content: dict[str, Any]) -> str:
    """The hash of a manifest without this field."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


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


def _recipe(content: dict[str, Any]) -> Recipe:
    """How the space was made, every word and number of it known."""
    entries, prompt = content["entries"], content["prompt"]
    _check_record(Prompt, prompt)
    found = {name: content[name] for name in _SHARED} | {"prompt": Prompt(**prompt)}
    if found["prompt"].hash != content["prompt_hash"]:
        raise ValueError("prompt_hash is not that of the prompt")
    if entries is not None:
        names = {field.name for field in fields(Recipe)} - set(_SHARED)
        _check_fields(entries, names, "the recipe of the entries")
        _check_entries(entries)
        found |= entries
    check_values(Recipe, {name: found[name] for name in found if name != "prompt"})
    return Recipe(**found)


def _check_entries(entries: dict[str, Any]) -> None:
    for name, words in _WORDS.items():
        if entries[name] not in words:
            known = ", ".join(words)
            raise ValueError(f"{name} is {short(entries[name])}; known are {known}")
    if entries["values"] == "hidden" and entries["head"] == "opaque":
        raise ValueError("hidden states say nothing where the head is opaque")
    for name in ("context", "vocabulary"):
        number = entries[name]
        is_full = name == "context" and number == "full"
        if not is_full and (type(number) is not int or number < 1):
            raise ValueError(f"{name} must be a whole number from 1 on, got {short(number)}")


def _segment(record: Any) -> SegmentRecord:
    _check_fields(record, {field.name for field in fields(SegmentRecord)}, "a segment")
    files, counts = _files(record["files"]), record["counts"]
    if record["name"] != segment_name(files):
        raise ValueError(f"the segment {short(record['name'])} is not named by its files")
    removed = _list(record["removed"], "removed")
    if not isinstance(counts, dict) or any(type(n) is not int for n in counts.values()):
        raise ValueError("counts of a segment must be whole numbers")
    if any(type(id) is not str for id in removed) or len(set(removed)) != len(removed):
        raise ValueError("removed must be different ids")
    return SegmentRecord(record["name"], counts, files, tuple(removed))


def _files(given: Any) -> dict[str, FileRecord]:
    """The files of a segment by kind; their names follow from kind and hash."""
    kinds = set(given) if isinstance(given, dict) else set()
    if not set(KINDS) <= kinds <= set(_SUFFIXES):
        raise ValueError(f"a segment has the files {short(given)}")
    found = {}
    for kind, record in given.items():
        _check_record(FileRecord, record)
        file = found[kind] = FileRecord(**record)
        if not _HASH.fullmatch(file.sha256) or file.name != file_name(kind, file.sha256):
            raise ValueError(f"{short(file.name)} is no name of a file of ours")
    return found


def _commit(record: Any) -> Commit:
    _check_record(Commit, record)
    commit = Commit(**record)
    datetime.fromisoformat(commit.time)
    if commit.what not in _EDITS or min(commit.changed, commit.examples, commit.entries) < 0:
        raise ValueError(f"the history has an entry that nobody wrote: {short(record)}")
    return commit


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} must be a list")
    return value


def _check_record(cls: type, record: Any) -> None:
    """Refuse what does not have exactly the fields of a class, each of its type."""
    _check_fields(record, {field.name for field in fields(cls)}, f"a {cls.__name__}")
    check_values(cls, record)


def _check_fields(record: Any, names: set[str], what: str) -> None:
    if not isinstance(record, dict) or set(record) != names:
        found = sorted(record) if isinstance(record, dict) else record
        raise ValueError(
            f"{what} has the fields {short(found)}, not {', '.join(sorted(names))}"
        )
