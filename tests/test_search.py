"""Searches: all keys exactly, or through an index that is kept and never believed blindly."""

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
from trueline import search
from trueline.rad.retrieve import open_retriever
from trueline.search import LARGE, Exact, Index, open_search


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


def test_the_index_is_made_once_and_only_where_there_are_many(many, index, tmp_path):
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


@pytest.mark.parametrize("method", [tl.RAD, tl.KNNLM])
def test_tokens_are_the_same_through_an_index_of_which_all_is_searched(
    method, lm, examples, embedder, monkeypatch, tmp_path
):
    space = tl.build(lm, examples, context=8, embedder=embedder)
    settings = {"tau": 0.5} if method is tl.RAD else {}
    slow = tl.generate(lm, method(space, **settings), tiny.QUESTIONS, max_new_tokens=6)
    monkeypatch.setattr("trueline.search.home", lambda: tmp_path)
    monkeypatch.setattr("trueline.search.LARGE", 30)
    monkeypatch.setattr("trueline.search.PROBE_FACTOR", 9)  # every list: nothing is missed
    space.save(tmp_path / "space")
    again = tl.open(tmp_path / "space", embedder=embedder)
    indexed = method(again, **settings)
    fast = tl.generate(lm, indexed, tiny.QUESTIONS, max_new_tokens=6)
    assert isinstance(open_retriever(again, "cpu").search, Index)
    assert [a.token_ids for a in fast] == [a.token_ids for a in slow]
    (kept,) = (tmp_path / "indexes").glob("*.faiss")
    assert kept.name.startswith(again.file_hash("rad/truthful.safetensors")[:32])
    again.remove("fact-2")  # the index holds its keys
    assert not list((tmp_path / "indexes").iterdir())


# The kept index


def unit(seed, count=64, width=8):
    chance = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, width, generator=chance), dim=1)


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Keys with a kept index, and the same of another space; what FAISS reads is noted."""
    faiss = pytest.importorskip("faiss")
    monkeypatch.setattr(search, "LARGE", 30)
    monkeypatch.setattr(search, "home", lambda: tmp_path)
    keys, other = unit(0), unit(1)
    search.open_search(keys, "a" * 64)
    search.open_search(other, "b" * 64)
    (mine,), (theirs,) = (sorted((tmp_path / "indexes").glob(f"{x}*.faiss")) for x in "ab")
    good, read, real = sha256(mine.read_bytes()), [], faiss.read_index
    monkeypatch.setattr(
        faiss,
        "read_index",
        lambda path, *how: read.append(sha256(Path(path).read_bytes())) or real(path, *how),
    )
    return keys, mine, theirs, good, read


def resealed(path, seal):
    path.with_suffix(".seal").write_bytes(seal)


def odd_header(position, number):
    def changed(mine, theirs):
        data = bytearray(mine.read_bytes())
        data[position : position + 8] = number.to_bytes(8, "little")
        mine.write_bytes(data)

    return changed


def swapped(mine, theirs):
    shutil.copy(theirs, mine)
    shutil.copy(theirs.with_suffix(".seal"), mine.with_suffix(".seal"))


def stand_in(which, standin):
    def changed(mine, theirs):
        path = mine if which == "index" else mine.with_suffix(".seal")
        path.rename(path.with_name("elsewhere"))
        STANDINS[standin](path, path.with_name("elsewhere"))

    return changed


INDEXES = {
    "cut": lambda mine, theirs: mine.write_bytes(mine.read_bytes()[:-9]),
    "emptied": lambda mine, theirs: mine.write_bytes(b""),
    "flipped": lambda mine, theirs: mine.write_bytes(mine.read_bytes()[:-1] + b"\x77"),
    "noise": lambda mine, theirs: mine.write_bytes(bytes(range(256)) * 9),
    "another number of vectors": odd_header(8, 2**40),
    "another number of lists": odd_header(37, 2**62),
    "of another space": lambda mine, theirs: shutil.copy(theirs, mine),
    "of another space, with its seal": swapped,
    "a seal of another file": lambda mine, theirs: resealed(
        mine, b"a" * 64 + b" " + b"0" * 64 + b"\n"
    ),
    "a seal of no text": lambda mine, theirs: resealed(mine, b"\xff"),
    "a seal with more in it": lambda mine, theirs: resealed(
        mine, mine.with_suffix(".seal").read_bytes() + b"x"
    ),
    **{
        f"the {which} is {standin}": stand_in(which, standin)
        for which in ("index", "seal")
        for standin in STANDINS
    },
}


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_that_is_not_what_was_kept_is_not_even_read(kind, kept, caplog):
    keys, mine, theirs, good, read = kept
    INDEXES[kind](mine, theirs)
    with within(60):
        found = search.open_search(keys, "a" * 64).nearest(keys, 1)
    assert found.entries.tolist() == list(range(len(keys)))
    assert set(read) <= {good}  # FAISS read what we wrote, or nothing
