"""Work that does not need the model in; done in a thread of its own while the model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from trueline.shortcuts import is_on

Found = TypeVar("Found")


@dataclass
class Job(Generic[Found]):
    """One piece of work, and how many threads the model may use while it lasts."""

    result: Callable[[], Found]
    is_done: Callable[[], bool]
    threads: int  # of the model, once the work is done

    def at_layer(self) -> None:
        """Give the model its threads back as soon as the work is done."""
        if self.threads > torch.get_num_threads() and self.is_done():
            torch.set_num_threads(self.threads)


@contextmanager
def beside(work: Callable[[], Found], device: torch.device) -> Iterator[Job[Found]]:
    """Begin the work, and let the block run the model meanwhile.

    On a CPU the model leaves the work one core: threads that wait for each other at every
    operation, as torch's do, lose more than a core where another thread takes one from them.
    """
    threads = torch.get_num_threads()
    if not is_on("overlap") or (device.type == "cpu" and threads == 1):
        yield Job(work, lambda: True, threads)
        return
    with ThreadPoolExecutor(1) as pool:
        future: Future[Found] = pool.submit(work)
        if device.type == "cpu":
            torch.set_num_threads(threads - 1)
        try:
            yield Job(future.result, future.done, threads)
        finally:
            torch.set_num_threads(threads)
