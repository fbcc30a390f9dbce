"""Work that does not need the model in; done in a thread of its own while the model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Generic, TypeVar

import torch

from trueline.shortcuts import is_on

Found = TypeVar("Found")

_turn = Lock()  # one pass at a time gives a core away


@dataclass
class Job(Generic[Found]):
    """One piece of work, and how many threads the model may use once it is done."""

    result: Callable[[], Found]
    is_done: Callable[[], bool]
    threads: int

    def at_layer(self) -> None:
        """Give the model its threads back as soon as the work is done."""
        if self.threads > torch.get_num_threads() and self.is_done():
            torch.set_num_threads(self.threads)


@contextmanager
def beside(work: Callable[[], Found], device: torch.device) -> Iterator[Job[Found]]:
    """Begin the work, and let the block run the model meanwhile.

    On a CPU the model leaves the work one core: threads that wait for each other at every
    operation, as torch's do, lose more than a core where another thread takes one from them.
    Where another thread's model has left a core already, the work waits for `result`.
    """
    threads = torch.get_num_threads()
    is_alone = is_on("overlap") and (device.type != "cpu" or threads > 1)
    if not is_alone or not _turn.acquire(blocking=False):
        yield Job(work, lambda: True, threads)
        return
    try:
        future: Future[Found] = _worker().submit(copy_context().run, work)
        if device.type == "cpu":
            torch.set_num_threads(threads - 1)
        yield Job(future.result, future.done, threads)
    finally:
        torch.set_num_threads(threads)
        _turn.release()


@cache
def _worker() -> ThreadPoolExecutor:
    """The one thread, kept: a new one would make torch set up its threads at every step."""
    return ThreadPoolExecutor(1, "trueline", initializer=torch.set_num_threads, initargs=(1,))
