"""The nearest entries, compared one by one or through an index that misses almost nothing."""

import sys

import numpy as np
import pytest
import tiny
import torch
from conftest import EXAMPLES

import trueline as tl
from trueline.search import LARGE, Exact, Index, open_search

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", [tl.RAD, tl.KNNLM])
def test_tokens_are_the_same_through_an_index_of_which_all_is_searched(
    method, lm, embedder, monkeypatch, tmp_path
):
    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder)
    settings = {"tau": 0.5} if method is tl.RAD else {}
    plain = method(space, **settings)
    slow = tl.generate(lm, plain, tiny.QUESTIONS, max_new_tokens=6)
    monkeypatch.setattr("trueline.search.home", lambda: tmp_path)
    monkeypatch.setattr("trueline.search.LARGE", 30)
    monkeypatch.setattr("trueline.search.PROBE_FACTOR", 9)  # every list: nothing is missed
    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder)
    indexed = method(space, **settings)
    fast = tl.generate(lm, indexed, tiny.QUESTIONS, max_new_tokens=6)
    assert isinstance(space.retriever(CPU).blocks[0].search, Index)
    assert [a.token_ids for a in fast] == [a.token_ids for a in slow]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Keys in some clusters, more than are searched one by one, and queries among them."""
    chance = np.random.default_rng(0)
    centres = chance.standard_normal((300, 32))
    made = centres[chance.integers(0, 300, LARGE + 64)] + 0.6 * chance.standard_normal(
        (LARGE + 64, 32)
    )
    made = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)
    return torch.from_numpy(made[:LARGE]), torch.from_numpy(made[LARGE:])


@pytest.fixture
def index(many, monkeypatch, tmp_path):
    monkeypatch.setattr("trueline.search.home", lambda: tmp_path)
    return open_search(many[0], "a-name")


def test_a_large_space_is_searched_by_an_index_that_finds_almost_all_the_weight(many, index):
    keys, queries = many
    assert isinstance(index, Index)
    exact, near = Exact(keys).above(queries, 0.7), index.above(queries, 0.7)
    assert len(exact) > 1000
    assert near.similarities.sum() >= 0.99 * exact.similarities.sum()
    wanted = {
        (int(r), int(e)): float(s)
        for r, e, s in zip(exact.rows, exact.entries, exact.similarities)
    }
    for row, entry, similarity in zip(near.rows, near.entries, near.similarities):
        assert wanted[int(row), int(entry)] == pytest.approx(float(similarity), abs=1e-3)
    assert (near.rows.diff() >= 0).all()


def test_the_index_finds_the_nearest_first(many, index):
    keys, queries = many
    exact, near = Exact(keys).nearest(queries, 10), index.nearest(queries, 10)
    assert near.similarities.view(64, 10).diff(dim=1).max() <= 0
    assert (near.entries == exact.entries).float().mean() > 0.95


def test_the_index_is_made_once(many, index, tmp_path):
    keys, _ = many
    (path,) = (tmp_path / "indexes").glob("*.faiss")
    made = path.stat().st_mtime_ns
    assert isinstance(open_search(keys, "a-name"), Index)
    assert path.stat().st_mtime_ns == made
    assert isinstance(open_search(keys[: LARGE - 1]), Exact)


def test_a_damaged_index_is_made_anew_and_one_that_cannot_be_kept_is_used(
    many, index, monkeypatch, tmp_path
):
    keys, queries = many
    (path,) = (tmp_path / "indexes").glob("*.faiss")
    wanted = index.nearest(queries, 3).entries
    path.rename(tmp_path / "whole")
    path.write_bytes((tmp_path / "whole").read_bytes()[:1000])
    assert torch.equal(open_search(keys, "a-name").nearest(queries, 3).entries, wanted)
    foreign = bytearray((tmp_path / "whole").read_bytes())
    foreign[-500] ^= 1  # FAISS opens it, and finds other keys
    path.write_bytes(foreign)
    assert torch.equal(open_search(keys, "a-name").nearest(queries, 3).entries, wanted)
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    monkeypatch.setattr("trueline.search.home", lambda: path)  # a file, not a folder
    assert torch.equal(open_search(keys, "a-name").nearest(queries, 3).entries, wanted)


def test_the_index_skips_what_is_not_left(many, index):
    keys, queries = many
    live = torch.rand(len(keys), generator=torch.Generator().manual_seed(0)) > 0.5
    near, exact = index.nearest(queries, 10, live), Exact(keys).nearest(queries, 10, live)
    assert live[near.entries].all()
    assert live[exact.entries].all()
    assert (near.entries == exact.entries).float().mean() > 0.95
    few = torch.zeros(len(keys), dtype=torch.bool)
    few[:3] = True
    assert len(index.nearest(queries[:2], 10, few)) == 2 * 3


def test_the_index_keeps_the_bounds_of_an_exact_search(many, index):
    keys, queries = many
    assert len(index.above(keys[:8], 1.0)) == 0
    assert len(index.nearest(queries[:2], 20_000)) == 2 * 20_000


def test_a_large_space_without_faiss_is_slow_and_says_how_to_mend_it(many, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.warns(UserWarning, match=r"pip install 'trueline\[large\]'"):
        assert isinstance(open_search(many[0], "a-name"), Exact)


def test_blocks_of_keys_give_the_hits_of_all_keys_at_once(many, monkeypatch):
    keys, queries = many
    whole = Exact(keys[:5000])
    monkeypatch.setattr("trueline.search._BLOCK", 700)
    for tau in (0.6, 0.9):
        one = Exact(keys[:5000]).above(queries, tau)
        similarities = queries @ keys[:5000].T
        rows, entries = (similarities > tau).nonzero(as_tuple=True)
        assert torch.equal(one.rows, rows)
        assert torch.equal(one.entries, entries)
    assert len(whole.above(queries, 2.0)) == 0
