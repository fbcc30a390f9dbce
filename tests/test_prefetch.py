"""Work in parallel to a pass of the model: the same tokens, and the threads come back."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny
import torch
from conftest import EXAMPLES

import trueline as tl
from trueline.decode.loop import Alongside, _worker
from trueline.engines.transformers.cache import leave_a_core

CPU = torch.device("cpu")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("method", ["rad", "knn-lm"])
def test_tokens_are_the_same_with_windows_embedded_during_the_pass(
    architecture, method, embedder, two_threads, monkeypatch
):
    lm = tiny.language_model(architecture)
    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder)
    used = []
    monkeypatch.setattr("trueline.decode.loop._worker", lambda: used.append(1) or _worker())

    def decoded(method):
        used.clear()
        answers = tl.generate(lm, method, tiny.QUESTIONS[:2], max_new_tokens=4)
        return [answer.token_ids for answer in answers], bool(used)

    with_space = tl.RAD(space, tau=0.5) if method == "rad" else tl.KNNLM(space)
    tokens, has_worker = decoded(with_space)
    assert has_worker
    assert not decoded(tl.Greedy())[1]  # nothing to look up, so no thread either
    torch.set_num_threads(1)  # no core to spare
    assert decoded(with_space) == (tokens, False)


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


def test_parallel_work_takes_a_thread_from_the_model_until_it_is_done(two_threads):
    gate, layer = threading.Event(), torch.nn.Identity()
    work = Alongside([lambda: gate.wait(300) and "found", None], CPU)
    with leave_a_core([layer], work.done, CPU):
        layer(torch.zeros(1))
        assert torch.get_num_threads() == 1
        gate.set()
        assert work.results() == ["found", None]
        layer(torch.zeros(1))
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 2
    assert not layer._forward_pre_hooks  # the model is as it was


def test_work_that_begins_work_of_its_own_does_not_wait_for_itself(two_threads):
    inner = [lambda: "inner"]
    outer = Alongside([lambda: Alongside(inner, CPU).results()], CPU)
    assert outer.results() == [["inner"]]
