"""Transformers without progress bars, log lines and questions, while weights are opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)
_lock = Lock()  # guards the two below
_blocks = 0  # how many quiet blocks run now, in all threads
_restore: Callable[[], None]  # puts back what the first of them found


@contextmanager
def quiet() -> Iterator[None]:
    """Show errors only, ask nothing, and leave transformers' own settings as they were.

    The first block to begin changes the settings and the last to end restores them, so that
    threads may open models at once. Bars that others show meanwhile are shown.
    """
    global _blocks, _restore
    with _lock:
        if not _blocks:
            _restore = _silence()
        _blocks += 1
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)
        with _lock:
            _blocks -= 1
            if not _blocks:
                _restore()


def _silence() -> Callable[[], None]:
    """Let transformers log errors only and ask us about its bars; return the way back.

    Where a library opens a folder without saying whether to run its code, transformers asks on
    stdin and waits for an answer; with no time to wait it refuses.
    """
    from transformers import dynamic_module_utils as foreign_code
    from transformers.utils import logging

    def make_bar(
        factory: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if _is_quiet.get():
            return logging.EmptyTqdm(*args, **options)
        return hook(factory, args, options) if hook else factory(*args, **options)

    def restore() -> None:
        logging.set_verbosity(level)
        logging.set_tqdm_hook(hook)
        foreign_code.TIME_OUT_REMOTE_CODE = patience

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    hook = logging.set_tqdm_hook(make_bar)
    patience, foreign_code.TIME_OUT_REMOTE_CODE = foreign_code.TIME_OUT_REMOTE_CODE, 0
    return restore
