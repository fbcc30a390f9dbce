"""Searches: all keys exactly, or through an index."""

import sys

import numpy as np
import pytest
import tiny
import torch

import trueline as tl
from trueline.rad.retrieve import open_retriever
from trueline.search import LARGE, Exact, Index, open_search


@pytest.fixture(scope="module")
def many():
    """Keys in some clusters, more than are searched one by one, and queries among them."""
    chance = np.random.default_rng(0)
    centres = chance.standard_normal((300, 32))
    noise = 0.6 * chance.standard_normal((LARGE + 64, 32))
    made = centres[chance.integers(0, 300, LARGE + 64)] + noise
    made = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)
    return torch.from_numpy(made[:LARGE]), torch.from_numpy(made[LARGE:])


@pytest.fixture(scope="module")
def index(many):
    return open_search(many[0])


def test_a_large_space_is_searched_by_an_index_that_finds_almost_all_the_weight(many, index):
    keys, queries = many
    assert isinstance(index, Index)
    assert isinstance(open_search(keys[: LARGE - 1]), Exact)
    exact, near = Exact(keys).above(queries, 0.7), index.above(queries, 0.7)
    assert len(exact) > 1000
    assert near.similarities.sum() >= 0.99 * exact.similarities.sum()
    pairs = zip(exact.rows.tolist(), exact.entries.tolist())
    wanted = dict(zip(pairs, exact.similarities.tolist()))
    for *pair, similarity in zip(
        near.rows.tolist(), near.entries.tolist(), near.similarities.tolist()
    ):
        assert wanted[tuple(pair)] == pytest.approx(similarity, abs=1e-3)
    assert (near.rows.diff() >= 0).all()


def test_the_index_finds_the_nearest_first(many, index):
    keys, queries = many
    exact, near = Exact(keys).nearest(queries, 10), index.nearest(queries, 10)
    assert near.similarities.view(64, 10).diff(dim=1).max() <= 0
    assert (near.entries == exact.entries).float().mean() > 0.95


def test_the_index_keeps_the_bounds_of_an_exact_search(many, index):
    keys, queries = many
    assert len(index.above(keys[:8], 1.0)) == 0
    assert len(index.nearest(queries[:2], 20_000)) == 2 * 20_000


def test_a_large_space_without_faiss_is_slow_and_names_the_package(many, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.warns(UserWarning, match=r"pip install 'trueline\[large\]'"):
        assert isinstance(open_search(many[0]), Exact)


def test_blocks_of_keys_give_the_hits_of_all_keys_at_once(many):
    keys, queries = many
    similarities = queries @ keys.T
    for tau in (0.6, 0.9, 2.0):
        hits = Exact(keys).above(queries, tau)
        found = torch.stack([hits.rows, hits.entries], 1)
        assert torch.equal(found, (similarities > tau).nonzero())


@pytest.mark.parametrize("method", [tl.RAD, tl.KNNLM])
def test_tokens_are_the_same_through_an_index_of_which_all_is_searched(
    method, lm, examples, embedder, monkeypatch
):
    monkeypatch.setattr("trueline.search.LARGE", 30)
    space = tl.build(lm, examples, context=8, embedder=embedder)
    made = method(space, **({"tau": 0.5} if method is tl.RAD else {}))
    retriever = open_retriever(space, "cpu")
    retriever.search._index.nprobe = retriever.search._index.nlist
    fast = tl.generate(lm, made, tiny.QUESTIONS, max_new_tokens=6)
    retriever.search = Exact(torch.from_numpy(space.entries.truthful.keys))
    slow = tl.generate(lm, made, tiny.QUESTIONS, max_new_tokens=6)
    assert [a.token_ids for a in fast] == [a.token_ids for a in slow]
