"""Transformers is quiet while we open models, and afterwards as it was."""

import threading

import pytest
from huggingface_hub.utils import are_progress_bars_disabled
from transformers.utils import logging

from trueline.engines.transformers.open import quiet


@pytest.fixture(autouse=True)
def settings():
    """A program's own settings, which are neither transformers' defaults nor ours."""
    level = logging.get_verbosity()
    logging.set_verbosity_info()
    hook = logging.set_tqdm_hook(bar)
    yield
    logging.set_verbosity(level)
    logging.set_tqdm_hook(hook)


def bar(factory, args, options):
    return "a program's own bar"


def is_restored():
    return logging.get_verbosity() == logging.INFO and logging.tqdm([1]) == bar(None, (), {})


def test_bars_and_remarks_are_hidden_inside_and_back_outside():
    with quiet():
        assert logging.get_verbosity() == logging.ERROR
        shown = logging.tqdm([1, 2])
        assert isinstance(shown, logging.EmptyTqdm)
        assert list(shown) == [1, 2]
        assert not are_progress_bars_disabled()  # the hub's own are not ours to change
    assert is_restored()


def test_an_error_inside_restores_everything():
    with pytest.raises(ZeroDivisionError), quiet(), quiet():
        raise ZeroDivisionError
    assert is_restored()


def test_another_thread_waits_and_its_bars_are_shown():
    entered, shown = threading.Event(), []

    def second():
        shown.append(logging.tqdm([1]))
        with quiet():
            entered.set()

    thread = threading.Thread(target=second)
    with quiet():
        thread.start()
        assert not entered.wait(0.2)
    thread.join()
    assert entered.is_set()
    assert shown == [bar(None, (), {})]
    assert is_restored()
