"""Embedders: the vectors of their own libraries, and refusals that say what would work."""

import json
import shutil

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from trueline.embed import embed_distinct, load_embedder, prepare_texts
from trueline.errors import ModelError

TEXTS = ["", " sky", "No, bats see well in the dark.", "unknown wörds 北京 🙂", "rust " * 200]


def test_vectors_are_those_of_sentence_transformers(embedder, sentence_transformer):
    theirs = torch.tensor(sentence_transformer.encode(TEXTS, show_progress_bar=False))
    assert torch.allclose(embedder.embed(TEXTS), theirs, atol=1e-5)


def test_vectors_have_unit_length_and_the_order_of_their_texts(embedder):
    texts = [*TEXTS, *(f"bats {n}" for n in range(150))]  # more than a pass holds
    vectors = embedder.embed(texts)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(len(texts)), atol=1e-5)
    for place in (0, 2, 4, 70, 154):
        assert torch.allclose(embedder.embed([texts[place]])[0], vectors[place], atol=1e-5)


def test_first_token_pooling_is_not_mean_pooling_and_others_are_refused(tmp_path, embedder):
    folder = tiny.write_embedder(tmp_path / "first")
    path = folder / "1_Pooling" / "config.json"
    size = {"word_embedding_dimension": 32}
    path.write_text(json.dumps({**size, "pooling_mode_cls_token": True}))
    first = load_embedder(folder)
    assert first.hash != embedder.hash
    assert not torch.allclose(first.embed(TEXTS), embedder.embed(TEXTS), atol=1e-2)
    path.write_text(json.dumps({**size, "pooling_mode_max_tokens": True}))
    with pytest.raises(ModelError, match="pooling_mode_max_tokens; trueline runs"):
        load_embedder(folder)


def test_another_weight_makes_another_embedder(tmp_path, embedder, embedder_folder):
    copy = shutil.copytree(embedder_folder, tmp_path / "copy")
    assert load_embedder(copy).hash == embedder.hash
    weights = load_file(copy / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][7, 7] += 0.1
    save_file(weights, copy / "model.safetensors")
    assert load_embedder(copy).hash != embedder.hash


class Letters:
    """An embedder of a user's own, with `embed` alone; it keeps what it was given."""

    id, hash, dimension = "letters", "1", 2

    def __init__(self):
        self.calls = []

    def embed(self, texts):
        self.calls.append(list(texts))
        return torch.tensor([[float("a" in text), float("b" in text)] for text in texts])


def test_equal_texts_are_embedded_once_and_come_back_in_every_place():
    letters = Letters()
    found = embed_distinct(letters, ["a", "b", "a", "a"])
    assert letters.calls == [["a", "b"]]
    assert found.tolist() == [[1, 0], [0, 1], [1, 0], [1, 0]]


def test_no_texts_are_no_vectors(embedder, words):
    for each in (embedder, words, Letters()):
        assert embed_distinct(each, []).shape == (0, each.dimension)
    assert words.embed([]).shape == (0, 2)
    assert embedder.embed([]).shape == (0, 32)


def test_the_first_phase_does_the_tokens_and_the_second_the_model(embedder, words, monkeypatch):
    texts = [*TEXTS, TEXTS[2]]
    wanted = [embed_distinct(embedder, texts), embed_distinct(words, texts)]
    prepared = [prepare_texts(embedder, texts), prepare_texts(words, texts)]
    for each in (embedder, words):
        monkeypatch.setattr(each, "tokenizer", None)
    found = [embed() for embed in prepared]
    assert all(map(torch.equal, found, wanted))
    assert found[0].shape == (len(texts), 32)


@pytest.fixture
def words(tmp_path):
    """Word vectors of three words: 0 unknown, 1 sky, 2 sea."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    core = Tokenizer(models.WordLevel({"[UNK]": 0, "sky": 1, "sea": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "words"
    folder.mkdir()
    core.save(str(folder / "tokenizer.json"))
    save_file(
        {"vectors": torch.tensor([[9.0, 9.0], [3.0, 0.0], [0.0, 4.0]])},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    return load_embedder(folder)


def test_a_static_vector_is_the_mean_of_its_known_words(words):  # (1.5, 2) / 2.5
    found = words.embed(["sky sea", "sky other", "sea"])
    assert torch.allclose(found, torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]]))
    assert words.embed(["", "other"]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.real
def test_wordllama_256_gives_the_vectors_of_its_own_library():
    from pathlib import Path

    import wordllama

    library = wordllama.WordLlama.load(
        cache_dir=Path(wordllama.__file__).parent, disable_download=True
    )
    texts = ["No, bats see well in the dark.", "naïve café", "What happens if you swallow gum?"]
    theirs = torch.tensor(library.embed(texts, norm=True))
    ours = load_embedder("wordllama-256").embed(texts)
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_of_a_window_that_is_too_long_the_end_is_embedded(embedder):
    long = "bats see well . " * 40  # of 160 words, where the embedder reads 64 tokens
    same, other = f"{long} gold does rust .", f"{long} fish rest ."
    first = embed_distinct(embedder, [same, other])
    assert torch.equal(first[0], first[1])  # truncated on the right, both are the same
    last = embed_distinct(embedder, [same, other], tails=True)
    assert not torch.allclose(last[0], last[1])
    short = embed_distinct(embedder, ["gold does rust ."], tails=True)
    assert torch.equal(short, embed_distinct(embedder, ["gold does rust ."]))
