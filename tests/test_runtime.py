"""The embedder on ONNX Runtime: torch's vectors or none, and a line that says why."""

import logging

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from trueline import onnx as runtime
from trueline.embed import SentenceEmbedder, Tokenized
from trueline.engines.transformers.open import TransformersEncoder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setattr(runtime, "home", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def said(caplog):
    """What trueline logs from here on, as if it had said nothing yet."""
    runtime._say_once.cache_clear()
    return lambda: [record.getMessage() for record in caplog.records if is_ours(record)]


def is_ours(record):
    return record.name.startswith("trueline") and record.levelno >= logging.WARNING


def open_for(embedder):
    return runtime.open_runtime(embedder.encoder, embedder.hash, embedder._embed_padded)


def by_torch(embedder, texts):
    return embedder.embed_tokenized(Tokenized(embedder.tokenize(texts).rows))


def tiny_embedder(architecture, pooling="mean", **settings):
    torch.manual_seed(0)
    sizes = dict(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    config = getattr(transformers, f"{architecture}Config")(**sizes, **settings)
    model = getattr(transformers, f"{architecture}Model")(config).eval()
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(60)}, "w0"))
    words.pre_tokenizer = WhitespaceSplit()
    return SentenceEmbedder(
        "tiny", TransformersEncoder(model), words, pooling=pooling, limit=32
    )


def test_the_runtime_gives_the_vectors_of_torch(embedder):
    texts = ["", "bats see well", "gold does not rust in air or water, no matter what"] * 10
    assert embedder._runtime is not None
    assert torch.allclose(embedder.embed(texts), by_torch(embedder, texts), atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("architecture", "pooling"), [("Roberta", "mean"), ("MPNet", "first")])
def test_encoders_that_count_from_their_pad_have_a_runtime_too(architecture, pooling):
    made = tiny_embedder(
        architecture, pooling, intermediate_size=32, max_position_embeddings=40, pad_token_id=1
    )
    texts = ["w7 w8 w9", "w10", "w11 w12 w13 w14 w15"]
    assert made._runtime is not None
    assert torch.allclose(made.embed(texts), by_torch(made, texts), atol=1e-6)


def test_a_damaged_runtime_that_cannot_be_made_anew_leaves_torch(
    embedder, home, said, monkeypatch
):
    path = home / "runtimes" / f"{embedder.hash[:32]}.onnx"
    path.parent.mkdir()
    path.write_bytes(b"not a graph")
    monkeypatch.setattr(runtime, "_export", lambda *_: None)
    assert open_for(embedder) is None
    assert [line[:60] for line in said()] == [
        "the embedder runs on torch, since ONNX Runtime cannot take i"
    ]


def test_without_the_packages_torch_embeds_and_one_line_names_the_extra(
    embedder, home, said, monkeypatch
):
    monkeypatch.setattr(runtime, "find_spec", lambda name: None)
    assert open_for(embedder) is None
    assert open_for(embedder) is None
    assert said() == [
        "the embedder runs on torch, without onnxruntime, onnx, onnxscript; for a faster one: "
        "pip install 'trueline[fast]'"
    ]


def test_an_exporter_that_fails_is_told_in_one_line_and_leaves_no_file(
    embedder, home, said, monkeypatch
):
    def export(*given, **options):
        raise torch.onnx.errors.UnsupportedOperatorError("aten::odd", 18, None)

    monkeypatch.setattr(torch.onnx, "export", export)
    assert open_for(embedder) is None
    assert open_for(embedder) is None
    [line] = said()
    assert "UnsupportedOperatorError" in line
    assert "\n" not in line
    assert list((home / "runtimes").iterdir()) == []


@pytest.mark.usefixtures("home")
def test_a_bug_is_not_taken_for_a_runtime_that_cannot_be_had(embedder, monkeypatch):
    def export(*given, **options):
        raise ZeroDivisionError

    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(ZeroDivisionError):
        open_for(embedder)
