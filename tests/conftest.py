"""Tiny parts for the quick tests, and the real model and embedder for the marked ones."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import tiny
import torch

from trueline.models.embedder import load_embedder
from trueline.records import Example

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))

EXAMPLES = [
    Example(question, answers, wrong, id=f"fact-{number}", source="made up for the tests")
    for number, ((question, answers), wrong) in enumerate(
        zip(tiny.FACTS, tiny.WRONG, strict=True), 1
    )
]


@pytest.fixture(scope="session")
def embedder_folder(tmp_path_factory):
    return tiny.write_embedder(tmp_path_factory.mktemp("embedder") / "tiny-bert")


@pytest.fixture(scope="session")
def embedder(embedder_folder):
    return load_embedder(embedder_folder)


@pytest.fixture(scope="session")
def sentence_transformer(embedder_folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(embedder_folder), device="cpu")


@pytest.fixture
def lm():
    return tiny.language_model("llama")


@pytest.fixture
def examples():
    return EXAMPLES
