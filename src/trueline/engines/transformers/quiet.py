"""Transformers without its bars and chatter, while weights are opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Show errors only, and leave transformers' own settings as they were."""
    from transformers.utils import logging

    was_shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if was_shown:
            logging.enable_progress_bar()
