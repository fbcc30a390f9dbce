"""Every shortcut against the slow way: the same tokens, and each can be switched off."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny
import torch
from conftest import EXAMPLES

import trueline as tl
from trueline.embedders.runtime import Runtime
from trueline.engines.transformers.attention import Cache, GrowingLayer
from trueline.engines.transformers.reading import BatchReading, shared_length
from trueline.engines.transformers.threads import leave_a_core
from trueline.prefetch import Alongside, _worker
from trueline.search import LARGE, Exact, Index, open_search
from trueline.shortcuts import SHORTCUTS, is_on, without

CPU = torch.device("cpu")
ARCHITECTURES = ("llama", "gemma2", "gemma3", "mistral", "gpt2")


def test_a_shortcut_is_on_until_it_is_named(monkeypatch):
    assert all(is_on(name) for name in SHORTCUTS)
    with without("overlap", "cache"):
        assert {name for name in SHORTCUTS if not is_on(name)} == {"overlap", "cache"}
        with without("fusion"):
            assert not is_on("overlap")
            assert not is_on("fusion")
    with without():
        assert not any(is_on(name) for name in SHORTCUTS)
    monkeypatch.setenv("TRUELINE_WITHOUT", "prefix")
    assert not is_on("prefix")
    assert is_on("cache")


def test_a_shortcut_that_is_none_is_refused_with_those_there_are(monkeypatch):
    with pytest.raises(tl.TruelineError, match="no shortcut 'speed', only attention, cache"):
        with without("speed"):
            pass
    monkeypatch.setenv("TRUELINE_WITHOUT", "sped")
    with pytest.raises(tl.TruelineError, match="TRUELINE_WITHOUT: there is no shortcut 'sped'"):
        is_on("cache")


@pytest.mark.parametrize("architecture", tiny.mostly_slow(ARCHITECTURES))
@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_tokens_are_the_same_without_any_one_shortcut_and_without_all(
    architecture, chat, embedder
):
    lm = tiny.language_model(architecture, chat=chat)
    rad = tl.RAD(tl.build(lm, EXAMPLES, context=8, embedder=embedder), tau=0.5)

    def tokens():
        answers = tl.generate(lm, rad, tiny.QUESTIONS, max_new_tokens=8, batch_size=3)
        return [answer.token_ids for answer in answers]

    wanted = tokens()
    assert wanted != [
        answer.token_ids
        for answer in tl.generate(lm, tl.Greedy(), tiny.QUESTIONS, max_new_tokens=8)
    ]
    for names in [*((name,) for name in SHORTCUTS), ()]:
        with without(*names):
            assert tokens() == wanted, names or "all"


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_tokens_are_the_same_with_windows_embedded_beside_the_model(
    architecture, embedder, two_threads, monkeypatch
):
    lm = tiny.language_model(architecture)
    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder)
    used = []
    monkeypatch.setattr(Runtime, "run", counted(Runtime.run, used, "runtime"))
    monkeypatch.setattr("trueline.prefetch._worker", counted(_worker, used, "beside"))

    def asked(method, *names):
        used.clear()
        with without(*names, "index"):
            answers = tl.generate(lm, method, tiny.QUESTIONS[:2], max_new_tokens=4)
        return [answer.token_ids for answer in answers], set(used)

    for method in (tl.RAD(space, tau=0.5), tl.KNNLM(space)):
        wanted, both = asked(method)
        assert both == {"beside", "runtime"}
        assert asked(method, "runtime") == (wanted, {"beside"})
        assert asked(method, "overlap") == (wanted, {"runtime"})
    assert asked(tl.Greedy())[1] == set()  # nothing to look up, so no thread either


def counted(function, used, name="call"):
    def call(*given, **options):
        used.append(name)
        return function(*given, **options)

    return call


@pytest.mark.parametrize("method", [tl.RAD, tl.KNNLM])
def test_tokens_are_the_same_through_an_index_of_which_all_is_searched(
    method, lm, embedder, monkeypatch, tmp_path
):
    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder)
    monkeypatch.setattr("trueline.search.home", lambda: tmp_path)
    monkeypatch.setattr("trueline.search.LARGE", 30)
    monkeypatch.setattr("trueline.search.PROBE_FACTOR", 9)  # every list: nothing is missed
    settings = {"tau": 0.5} if method is tl.RAD else {}
    indexed = method(space, **settings)
    fast = tl.generate(lm, indexed, tiny.QUESTIONS, max_new_tokens=6)
    assert isinstance(space.retriever(CPU).blocks[0].search, Index)
    with without("index"):
        slow = tl.generate(lm, indexed, tiny.QUESTIONS, max_new_tokens=6)
    assert [a.token_ids for a in fast] == [a.token_ids for a in slow]


def test_two_threads_that_decode_at_once_keep_their_tokens_and_their_threads(
    lm, embedder, two_threads
):
    rad = tl.RAD(tl.build(lm, EXAMPLES, context=8, embedder=embedder), tau=0.5)

    def tokens(question):
        return tl.generate(lm, rad, question, max_new_tokens=6).token_ids

    wanted = [tokens(question) for question in tiny.QUESTIONS]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(tokens, [*tiny.QUESTIONS] * 3)) == wanted * 3
    assert torch.get_num_threads() == 2


def test_a_space_built_without_shortcuts_is_the_same_up_to_rounding(lm, embedder):
    fast = tl.build(lm, EXAMPLES, context=8, embedder=embedder, dtype="float32")
    with without():
        slow = tl.build(lm, EXAMPLES, context=8, embedder=embedder, dtype="float32")
    assert np.allclose(fast.entries.keys, slow.entries.keys, atol=1e-5)
    assert np.allclose(fast.entries.values, slow.entries.values, atol=1e-4)
    assert np.array_equal(fast.entries.tokens, slow.entries.tokens)


def test_a_cache_in_place_holds_what_a_joined_one_holds(lm):
    contexts = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    readings = [BatchReading(lm)]
    with without("cache"):
        readings.append(BatchReading(lm))
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
            lm.start().join(contexts)
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


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Work:
    """A prefetch that calls a function."""

    def __init__(self, run):
        self.run = run


def test_work_beside_the_model_leaves_it_a_thread_less_until_it_is_done(two_threads):
    gate, layer = threading.Event(), torch.nn.Identity()
    work = Alongside([Work(lambda: gate.wait(300) and "found"), None], CPU)
    with leave_a_core([layer], work.done, CPU):
        layer(torch.zeros(1))
        assert torch.get_num_threads() == 1
        gate.set()
        assert work.results() == ["found", None]
        layer(torch.zeros(1))
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 2
    assert not layer._forward_pre_hooks  # the model is as it was


def test_the_worker_has_one_thread_and_others_keep_theirs(two_threads):
    seen = []
    Alongside([Work(lambda: seen.append(torch.get_num_threads()))], CPU).results()
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert (seen, torch.get_num_threads()) == ([1, 2], 2)


def test_work_that_begins_work_of_its_own_does_not_wait_for_itself(two_threads):
    inner = Work(lambda: "inner")
    outer = Alongside([Work(lambda: Alongside([inner], CPU).results())], CPU)
    assert outer.results() == [["inner"]]


def test_threads_come_back_when_the_model_or_the_work_fails(two_threads):
    with pytest.raises(ZeroDivisionError), leave_a_core([], lambda: False, CPU):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
    failing = Alongside([Work(lambda: {}["no"]), Work(lambda: "found")], CPU)
    error, found = failing.results()
    assert (type(error), found) == (KeyError, "found")
    assert torch.get_num_threads() == 2


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


def test_the_index_is_made_once_and_switched_off_by_name(many, index, tmp_path):
    keys, _ = many
    (path,) = (tmp_path / "indexes").glob("*.faiss")
    made = path.stat().st_mtime_ns
    assert isinstance(open_search(keys, "a-name"), Index)
    assert path.stat().st_mtime_ns == made
    with without("index"):
        assert isinstance(open_search(keys, "a-name"), Exact)
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
