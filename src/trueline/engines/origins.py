"""A model or embedder that was opened by name -> what opens the same in another process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from trueline.errors import SettingError

Origin = Callable[[], Any]
_ORIGINS: WeakKeyDictionary[object, Origin] = WeakKeyDictionary()


def remember(opened: object, origin: Origin) -> None:
    """Keep how something was opened for as long as it is held."""
    _ORIGINS[opened] = origin


def origin_of(opened: Any) -> Origin:
    """What opens the same in another process; refused where it has no name."""
    if opened not in _ORIGINS:
        raise SettingError(
            f"{opened.id} was not opened by name, so no other process can open it; take one "
            "that tl.load or the name of an embedder gives, or work on this machine"
        )
    return _ORIGINS[opened]


def lasting_name(name: str | Path) -> str:
    """A name that means the same from any folder: a path becomes an absolute one."""
    path = Path(name)
    try:
        return str(path.resolve()) if path.exists() else str(name)
    except OSError:  # too long for a path
        return str(name)
