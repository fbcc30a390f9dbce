"""Prefetches in, their results out: run in a thread of its own while the model reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from threading import local
from typing import Any

import torch

from trueline.decoders.base import Prefetch

_local = local()  # whether a thread is the worker's


class Alongside:
    """Prefetches that run in a thread while the model reads; `results` waits for them.

    The loop begins it, then has the engine read, handing it `done` so that a CPU keeps a core
    free as long as needed; then it asks for `results`. Where there is no second core the work
    is done when its results are asked for.
    """

    def __init__(self, work: Sequence[Prefetch | None], device: torch.device) -> None:
        self._work = work
        self._future: Future[list[Any]] | None = None
        if any(work) and _has_core(device):
            self._future = _worker().submit(copy_context().run, self._run)

    @property
    def done(self) -> Callable[[], bool] | None:
        """Tells whether its thread is done; None: there is no thread."""
        return None if self._future is None else self._future.done

    def results(self) -> list[Any]:
        """What each piece of work came to, in their order: None where there was none.

        For work that failed it is the error: the others go on without it.
        """
        return self._run() if self._future is None else self._future.result()

    def _run(self) -> list[Any]:
        return [None if one is None else _result(one) for one in self._work]


def _has_core(device: torch.device) -> bool:
    """Whether there is a second core for the work."""
    is_nested = getattr(_local, "is_worker", False)  # it would wait for its own thread
    is_free = device.type != "cpu" or torch.get_num_threads() > 1
    return is_free and not is_nested


def _result(work: Prefetch) -> Any:
    try:
        return work.run()
    except Exception as error:  # it is raised, or ends the rows it was meant for
        return error


@cache
def _worker() -> ThreadPoolExecutor:
    """The one thread, kept: a new one would make torch set up its threads at every step."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(1, "trueline", initializer=_begin_worker)
    pool.submit(int).result()  # the thread has begun
    torch.set_num_threads(threads)  # what the worker sets holds for threads yet to come, too
    return pool


def _begin_worker() -> None:
    torch.get_num_threads()  # torch reads its default at first use, and would do so later
    torch.set_num_threads(1)
    _local.is_worker = True


# A forked process has no such thread, so it makes one of its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_worker.cache_clear)
