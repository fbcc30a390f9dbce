"""A pass of the model on a CPU, with one core left to work that runs alongside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident

import torch

from trueline.engines.base import IsDone

_turn = Lock()  # the number of torch's threads is one for the whole process


@contextmanager
def leave_a_core(
    layers: Sequence[torch.nn.Module], done: IsDone | None, device: torch.device
) -> Iterator[None]:
    """Run a pass with one thread less until the work is done, then between two layers with all.

    Threads that wait for each other at every operation, as torch's do, lose more than a core
    where another thread takes one from them. The number of threads is restored in any case.
    """
    threads = torch.get_num_threads()
    is_shared = done is not None and device.type == "cpu" and threads > 1
    if done is None or not is_shared or not _turn.acquire(blocking=False):
        yield
        return

    owner = get_ident()  # the layers may be shared with a pass in another thread

    def before_layer(*_: object) -> None:
        if get_ident() == owner and torch.get_num_threads() < threads and done():
            torch.set_num_threads(threads)

    hooks = [layer.register_forward_pre_hook(before_layer) for layer in layers]
    try:
        torch.set_num_threads(threads - 1)
        yield
    finally:
        torch.set_num_threads(threads)
        for hook in hooks:
            hook.remove()
        _turn.release()
