"""The transformers engine: rows of a batch are what each is alone; opening models is quiet."""

from contextlib import suppress

import pytest
import tiny
import torch
from transformers.cache_utils import DynamicLayer
from transformers.utils import logging

from trueline.engines.transformers.cache import BatchCache, share_heads
from trueline.engines.transformers.open import quiet


def test_a_cache_in_place_holds_what_a_joined_one_holds(lm):
    contexts = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    caches = [BatchCache(lm, states=True), BatchCache(lm, states=True)]
    caches[1]._cache.layers = [DynamicLayer() for _ in range(lm.depth)]  # transformers' own
    for cache in caches:
        cache.join(contexts)
    for step in range(80):  # more than the room of a first buffer
        for cache in caches:
            if step == 3:
                cache.keep([0, 2, 2, 1])
            cache.extend([20 + step] * cache.rows)
    ours, theirs = (cache._cache.layers[0] for cache in caches)
    assert type(ours) is not type(theirs)
    assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)
    assert torch.allclose(ours.values, theirs.values, atol=1e-5)
    assert ours.get_seq_length() == theirs.get_seq_length() == 84


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2", "mistral"])
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
    cache = lm.start(states=True)
    cache.join([[5, 6, 7, 8], [9, 10]])
    states = cache.extend([11, 12])
    for number, row in enumerate([[5, 6, 7, 8, 11], [9, 10, 12]]):
        own = lm.model(torch.tensor([row])).logits[0, -1]
        assert torch.allclose(lm.head(states.hidden[number]), own, atol=1e-5)


def test_models_are_opened_quietly_and_the_settings_of_a_program_come_back():
    own = object()
    level, hook = logging.get_verbosity(), logging.set_tqdm_hook(lambda *_: own)
    logging.set_verbosity_info()
    try:
        with suppress(ZeroDivisionError), quiet(), quiet():
            assert logging.get_verbosity() == logging.ERROR
            assert isinstance(logging.tqdm([1, 2]), logging.EmptyTqdm)
            raise ZeroDivisionError
        assert (logging.get_verbosity(), logging.tqdm([1])) == (logging.INFO, own)
    finally:
        logging.set_verbosity(level)
        logging.set_tqdm_hook(hook)
