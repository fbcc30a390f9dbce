"""Rows read together, their keys in place: what each is alone, by transformers itself."""

import pytest
import tiny
import torch
from transformers.cache_utils import DynamicLayer

from trueline.engines.base import shared_length
from trueline.engines.transformers.cache import BatchCache, Cache, GrowingLayer, share_heads


def counted(function, used):
    def call(*given, **options):
        used.append("call")
        return function(*given, **options)

    return call


def test_a_cache_in_place_holds_what_a_joined_one_holds(lm):
    contexts = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    readings = [BatchCache(lm, states=True), BatchCache(lm, states=True)]
    readings[1]._cache.layers = [DynamicLayer() for _ in range(lm.depth)]  # transformers' own
    for reading in readings:
        reading.join(contexts)
    for step in range(80):  # more than the room of a first buffer
        for reading in readings:
            if step == 3:
                reading.keep([0, 2, 2, 1])
            reading.extend([20 + step] * reading.rows)
    ours, theirs = (reading._cache.layers[0] for reading in readings)
    assert type(ours) is not type(theirs)
    assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)
    assert torch.allclose(ours.values, theirs.values, atol=1e-5)
    assert ours.get_seq_length() == theirs.get_seq_length() == 84


def test_sliding_layers_keep_their_own_cache_and_read_no_prefix_apart(monkeypatch):
    contexts = [[5] * 12 + [6], [5] * 12 + [7, 8]]
    passes = {}
    for name in ("mistral", "llama", "gpt2"):
        lm = tiny.language_model(name)
        with monkeypatch.context() as patch:
            patch.setattr(lm, "forward", counted(lm.forward, passes.setdefault(name, [])))
            lm.start(states=True).join(contexts)
    assert {name: len(made) for name, made in passes.items()} == {
        "mistral": 1, "llama": 2, "gpt2": 1
    }  # fmt: skip
    layers = {name: Cache(tiny.language_model(name).model).layers for name in passes}
    assert {type(layer) for layer in layers["llama"]} == {GrowingLayer}
    assert GrowingLayer not in map(type, layers["mistral"])


@pytest.mark.parametrize(
    ("rows", "shared"),
    [
        ([[1] * 20], 0),  # alone
        ([[1] * 20, [1] * 12 + [2]], 12),
        ([[1] * 20, [1] * 20], 19),  # one is left to be read
        ([[1] * 20, [1] * 5 + [2]], 0),  # too few to pay
        ([[1] * 9 + [3], [1] * 9 + [2], [1] * 8 + [2]], 8),
    ],
)
def test_what_all_prompts_begin_with_is_counted(rows, shared):
    assert shared_length(rows) == shared


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_rows_that_begin_alike_are_read_as_each_is_alone(architecture):
    lm = tiny.language_model(architecture)
    rows = [[5] * 12 + [6], [5] * 12 + [7, 8]]
    together = lm.start(states=True).join(rows)
    for number, row in enumerate(rows):
        alone = lm.start(states=True).join([row])
        assert torch.allclose(together.hidden[number], alone.hidden[0], atol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_heads_that_share_keys_read_them_as_transformers_does(architecture):
    lm = tiny.language_model(architecture)
    share_heads(lm.model)
    reading = lm.start(states=True)
    reading.join([[5, 6, 7, 8], [9, 10]])
    states = reading.extend([11, 12])
    for number, row in enumerate([[5, 6, 7, 8, 11], [9, 10, 12]]):
        own = lm.model(torch.tensor([row])).logits[0, -1]
        assert torch.allclose(lm.head(states.hidden[number]), own, atol=1e-5)
