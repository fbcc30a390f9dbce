"""Prefetches in, their results out: run in a thread of its own while the model reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Any

import torch

from trueline.decoders.base import Prefetch
from trueline.shortcuts import is_on


class Alongside:
    """Work that has begun, and is asked for behind the pass of the model it runs alongside.

    The loop begins it, then has the engine read, handing it `done` so that a CPU keeps a core
    free as long as needed; then it asks for `results`. Where there is no second core the work
    is done when its results are asked for.
    """

    def __init__(self, work: Sequence[Prefetch | None], device: torch.device) -> None:
        self._work = work
        has_core = device.type != "cpu" or torch.get_num_threads() > 1
        self._future: Future[list[Any]] | None = None
        if any(work) and has_core and is_on("overlap"):
            self._future = _worker().submit(copy_context().run, self._run)

    @property
    def done(self) -> Callable[[], bool] | None:
        """Tells whether its thread is done; None: there is no thread."""
        return None if self._future is None else self._future.done

    def results(self) -> list[Any]:
        """What each piece of work came to, in their order; None where there was none."""
        return self._run() if self._future is None else self._future.result()

    def _run(self) -> list[Any]:
        return [None if one is None else one.run() for one in self._work]


@cache
def _worker() -> ThreadPoolExecutor:
    """The one thread, kept: a new one would make torch set up its threads at every step."""
    return ThreadPoolExecutor(1, "trueline", initializer=torch.set_num_threads, initargs=(1,))
