"""Searches: all keys exactly, or through an index that is kept and never trusted unchecked."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from forged import sha256
from test_store import STANDINS, within

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
    whole, blocks = Exact(keys[:5000], block=5000), Exact(keys[:5000], block=700)
    for tau in (0.6, 0.9, 2.0):
        one, other = whole.above(queries, tau), blocks.above(queries, tau)
        assert torch.equal(one.rows, other.rows)
        assert torch.equal(one.entries, other.entries)


@pytest.mark.parametrize("method", [tl.RAD, tl.KNNLM])
def test_tokens_are_the_same_through_an_index_of_which_all_is_searched(
    method, lm, examples, embedder, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path / "home"))
    space = tl.build(lm, examples, context=8, embedder=embedder, out=tmp_path / "space")
    made = method(space, **({"tau": 0.5} if method is tl.RAD else {}))
    slow = tl.generate(lm, made, tiny.QUESTIONS, max_new_tokens=6)
    retriever, name = open_retriever(space, "cpu"), "rad/truthful.safetensors"
    keys = torch.from_numpy(space.entries.truthful.keys)
    retriever.search = open_search(keys, space.file_hash(name), large=30)
    retriever.search._index.nprobe = retriever.search._index.nlist
    fast = tl.generate(lm, made, tiny.QUESTIONS, max_new_tokens=6)
    assert [a.token_ids for a in fast] == [a.token_ids for a in slow]
    kept = [path.name for path in (tmp_path / "home" / "indexes").iterdir()]
    assert len(kept) == 2
    assert all(x.startswith(space.file_hash(name)[:32]) for x in kept)
    space.remove("fact-2")  # the index holds its keys
    assert not list((tmp_path / "home" / "indexes").iterdir())


# The kept index


def unit(seed, count=64, width=8):
    chance = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, width, generator=chance), dim=1)


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Keys with a kept index, and that of another space; what FAISS reads is noted."""
    faiss = pytest.importorskip("faiss")
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path))
    keys = unit(0)
    open_search(keys, "a" * 64, large=30)
    open_search(unit(1), "b" * 64, large=30)
    (mine,), (theirs,) = (sorted((tmp_path / "indexes").glob(f"{x}*.faiss")) for x in "ab")
    read, real = [], faiss.read_index
    monkeypatch.setattr(
        faiss,
        "read_index",
        lambda path, *how: read.append(sha256(Path(path).read_bytes())) or real(path, *how),
    )
    return keys, mine, theirs, read


def odd_header(position, number):
    def changed(mine, theirs):
        data = bytearray(mine.read_bytes())
        data[position : position + 8] = number.to_bytes(8, "little")
        mine.write_bytes(data)

    return changed


def swapped(mine, theirs):
    shutil.copy(theirs, mine)
    shutil.copy(theirs.with_suffix(".seal"), mine.with_suffix(".seal"))


def sealed(seal):
    return lambda mine, theirs: mine.with_suffix(".seal").write_bytes(seal)


def stand_in(suffix, standin):
    def changed(mine, theirs):
        path = mine.with_suffix(suffix)
        path.rename(path.with_name("elsewhere"))
        STANDINS[standin](path, path.with_name("elsewhere"))

    return changed


INDEXES = {
    "cut": lambda mine, theirs: mine.write_bytes(mine.read_bytes()[:-9]),
    "flipped": lambda mine, theirs: mine.write_bytes(mine.read_bytes()[:-1] + b"\x77"),
    "another number of vectors": odd_header(8, 2**40),
    "another number of lists": odd_header(37, 2**62),
    "of another space": lambda mine, theirs: shutil.copy(theirs, mine),
    "of another space, with its seal": swapped,
    "a seal of another file": sealed(b"a" * 64 + b" " + b"0" * 64 + b"\n"),
    "a seal of no text": sealed(b"\xff"),
    **{f"the index is {x}": stand_in(".faiss", x) for x in STANDINS},
    **{f"the seal is {x}": stand_in(".seal", x) for x in STANDINS},
}


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_that_is_not_what_was_kept_is_not_even_read(kind, kept):
    keys, mine, theirs, read = kept
    good = sha256(mine.read_bytes())
    open_search(keys, "a" * 64, large=30)
    assert read == [good]  # it is made once
    INDEXES[kind](mine, theirs)
    with within(60):
        found = open_search(keys, "a" * 64, large=30).nearest(keys, 1)
    assert found.entries.tolist() == list(range(len(keys)))
    assert set(read) <= {good}  # FAISS read what we wrote, or nothing


def test_an_index_that_cannot_be_kept_is_used(monkeypatch, tmp_path):
    (tmp_path / "indexes").write_text("a file")
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path))
    found = open_search(unit(0), "a" * 64, large=30).nearest(unit(0), 1)
    assert found.entries.tolist() == list(range(64))
