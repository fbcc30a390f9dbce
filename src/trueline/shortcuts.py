"""Names of the shortcuts in; out: whether one is on. All but `index` are exact.

Every one can be switched off by name, to be held against the slow way: for a block with
`without`, for a process with TRUELINE_WITHOUT=overlap,runtime.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from trueline.errors import SettingError

SHORTCUTS = {
    "attention": "heads that share keys read them where they are, no copy for each head",
    "cache": "keys and values of new tokens are written in place, not joined anew every step",
    "fusion": "the retrieved states are added before the head, not their logits after it",
    "index": "a large space is searched through an index, not entry by entry",
    "overlap": "windows are embedded while the model reads the last token",
    "prefix": "what all prompts of a batch begin with is read once",
    "runtime": "the embedder runs on ONNX Runtime",
}
_off: ContextVar[frozenset[str] | None] = ContextVar("off", default=None)


def is_on(name: str) -> bool:
    """Whether a shortcut may be taken here."""
    assert name in SHORTCUTS
    off = _off.get()
    return name not in (_from_environment() if off is None else off)


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Do a block the slow way: without these shortcuts, or without any if none is named."""
    _check(names, "without")
    token = _off.set((_off.get() or _from_environment()) | frozenset(names or SHORTCUTS))
    try:
        yield
    finally:
        _off.reset(token)


def _from_environment() -> frozenset[str]:
    names = [name for name in os.environ.get("TRUELINE_WITHOUT", "").split(",") if name]
    return _check(names, "TRUELINE_WITHOUT")


def _check(names: tuple[str, ...] | list[str], where: str) -> frozenset[str]:
    for name in names:
        if name not in SHORTCUTS:
            known = ", ".join(SHORTCUTS)
            raise SettingError(f"{where}: there is no shortcut {name!r}, only {known}")
    return frozenset(names)
