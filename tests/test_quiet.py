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


def test_blocks_that_overlap_in_threads_restore_what_the_first_found():
    entered, left = threading.Event(), threading.Event()

    def second():
        with quiet():
            entered.set()
            left.wait()

    thread = threading.Thread(target=second)
    with quiet():
        thread.start()
        entered.wait()
    assert logging.get_verbosity() == logging.ERROR  # the second block still runs
    assert logging.tqdm([1]) == bar(None, (), {})  # and we are not in it
    left.set()
    thread.join()
    assert is_restored()
