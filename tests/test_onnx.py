"""An embedder on ONNX Runtime: the vectors of torch, or torch and a line with the reason."""

import json
import logging
import subprocess
import sys

import pytest
import tiny
import torch
import transformers

from trueline import onnx
from trueline.embed import load_embedder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def fresh(home, embedder_folder):
    """An embedder whose runtime is not in the cache."""
    return load_embedder(embedder_folder)


@pytest.fixture
def warnings(caplog):
    """What trueline has logged as a warning."""
    onnx._warn_once.cache_clear()
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("trueline") and record.levelno >= logging.WARNING
    ]


def by_torch(embedder, texts):
    return embedder.embed_by_torch(embedder.tokenize(texts))


def test_the_runtime_gives_the_vectors_of_torch(embedder):
    texts = ["", "bats see well", "gold does not rust in air or water, no matter what"] * 10
    assert embedder._runtime is not None
    assert torch.allclose(embedder.embed(texts), by_torch(embedder, texts), atol=1e-6)
    table = embedder._model.encoder.get_input_embeddings().weight
    assert torch.equal(embedder.word_vectors, table)


OPENED = """
import sys
from trueline.embed import load_embedder
embedder = load_embedder(sys.argv[1])
print(embedder.embed(["bats see well"]).shape, embedder.word_vectors.shape)
print("transformers" in sys.modules)
"""


def test_an_exported_embedder_is_opened_without_transformers(embedder, embedder_folder):
    embedder.open()
    done = subprocess.run(
        [sys.executable, "-c", OPENED, str(embedder_folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    words = len(embedder.word_vectors)
    shapes = f"torch.Size([1, 32]) torch.Size([{words}, 32])"
    assert done.stdout.split("\n") == [shapes, "False", ""]


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("architecture", "pooling"), [("Roberta", "mean"), ("MPNet", "cls")])
def test_encoders_that_count_from_their_pad_have_a_runtime_too(architecture, pooling, tmp_path):
    folder = tiny.write_embedder(tmp_path / "tiny")
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    sizes |= dict(intermediate_size=32, max_position_embeddings=70, pad_token_id=1)
    config = getattr(transformers, f"{architecture}Config")(vocab_size=500, **sizes)
    getattr(transformers, f"{architecture}Model")(config).save_pretrained(folder)
    mode = f"pooling_mode_{pooling}_token{'s' if pooling == 'mean' else ''}"
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, mode: True})
    )
    made = load_embedder(folder)
    texts = ["bats see well", "gold", "fish rest with open eyes"]
    assert made._runtime is not None
    assert torch.allclose(made.embed(texts), by_torch(made, texts), atol=1e-6)


def test_a_damaged_runtime_is_made_anew_quietly(fresh, warnings, capfd):
    path = onnx.runtime_path(fresh.hash)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a graph")
    fresh.open()
    assert fresh._runtime is not None
    assert (capfd.readouterr(), warnings()) == (("", ""), [])
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("reason", ["AssertionError", "UnsupportedOperatorError"])
def test_a_runtime_with_other_vectors_or_none_is_not_used(
    reason, fresh, home, warnings, monkeypatch
):
    def fail(*given, **options):
        raise torch.onnx.errors.UnsupportedOperatorError("aten::odd", 18, None)

    run = onnx.Runtime.run
    if reason == "AssertionError":
        monkeypatch.setattr(onnx.Runtime, "run", lambda *given: -run(*given))
    else:
        monkeypatch.setattr(torch.onnx, "export", fail)
    assert fresh._runtime is None
    [line] = warnings()
    assert reason in line
    assert "\n" not in line
    assert list((home / "runtimes").iterdir()) == []


def test_without_the_packages_torch_embeds_and_one_line_names_the_extra(
    fresh, warnings, monkeypatch
):
    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    assert fresh._runtime is None
    assert warnings() == [
        "the embedder runs on torch, without onnxruntime, onnx, onnxscript; for a faster one: "
        "pip install 'trueline[fast]'"
    ]
