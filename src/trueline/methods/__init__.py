"""Decoding methods by name: the built-in ones, and those of other packages.

Nothing heavy is imported before a method is needed. A package adds methods through the
entry-point group `trueline.methods`: name = "module:Class" (docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trueline.errors import SettingError
from trueline.settings import plain
from trueline.types import PLAIN as PLAIN

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from trueline.methods.base import Method
    from trueline.prompts import Prompt
    from trueline.space import GroundingSpace


GROUP = "trueline.methods"
DEFAULT = "corrective"  # for a space, if no method is named
_BUILT_IN = {
    "greedy": "trueline.methods.prompting:Greedy",
    "corrective": "trueline.corrective.method:Corrective",
    "rad": "trueline.rad.method:RAD",
    "knn-lm": "trueline.rad.method:KNNLM",
    "cad": "trueline.methods.contrast:CAD",
    "adacad": "trueline.methods.contrast:AdaCAD",
    "id": "trueline.methods.contrast:Instructive",
    "dola": "trueline.methods.layers:DoLa",
    "sled": "trueline.methods.layers:SLED",
    "kate": "trueline.methods.prompting:KATE",
    "lookup": "trueline.corrective.method:Lookup",
}
_ADDED: dict[str, type[Method]] = {}  # processors that this process may run, by path


def built_in_names() -> list[str]:
    return [*_BUILT_IN]


def method_names() -> list[str]:
    """The names of all methods, the built-in ones first."""
    plugged_in = (name for name in _plugged_in() if name not in _BUILT_IN)
    return [*_BUILT_IN, *plugged_in, *_ADDED]


@contextmanager
def processor_added(path: str) -> Iterator[None]:
    """Within it, the transformers LogitsProcessor at `module:Name` is a method of that name.

    Its module is imported: only what a user typed may come here, never a plan or a request.
    """
    from trueline.methods.processor import processor_method

    _ADDED[path] = processor_method(path)
    try:
        yield
    finally:
        del _ADDED[path]


def check_method_name(name: str) -> None:
    """Refuse an unknown name, without importing a method; the error lists all names."""
    if name not in (*_BUILT_IN, *_ADDED) and name not in _plugged_in():
        near = get_close_matches(name, method_names(), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SettingError(
            f"there is no method {name!r}; {meant}there are {', '.join(method_names())}"
        )


def method_class(name: str) -> type[Method]:
    check_method_name(name)
    if name in _ADDED:
        return _ADDED[name]
    if name not in _BUILT_IN:
        return _load(_plugged_in()[name])
    module, attribute = _BUILT_IN[name].split(":")
    found: type[Method] = getattr(import_module(module), attribute)
    return found


def settings_fields(name: str) -> dict[str, Field[Any]]:
    """The settings of a method: every field but the space and the prompt."""
    own = fields(method_class(name))  # type: ignore[arg-type]
    return {field.name: field for field in own if field.name not in ("space", "prompt")}


def default_settings(name: str) -> dict[str, Any]:
    found = settings_fields(name)
    return {key: field.default for key, field in found.items() if field.default is not MISSING}


def make_method(
    name: str,
    *,
    space: GroundingSpace | None = None,
    prompt: Prompt | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Method:
    cls, given = method_class(name), dict(settings or {})
    check_settings(name, given)
    if cls.needs.space:
        if space is None:
            raise SettingError(f"{name} needs a grounding space, and there is none")
        return cls(space, **given)  # type: ignore[call-arg]
    prompt = prompt or (space.prompt if space is not None else None)
    return cls(**({"prompt": prompt} if prompt is not None else {}), **given)


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse an unknown method, an unknown setting, or a value that it cannot have."""
    known = settings_fields(name)
    for setting in settings:
        if setting not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise SettingError(f"{name} has no setting {setting!r}; {has}")
    given = {key: plain(value) for key, value in settings.items()}
    method_class(name).check_settings({**default_settings(name), **given})


@cache
def _plugged_in() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def _load(point: EntryPoint) -> type[Method]:
    from trueline.methods.base import Method

    try:
        found = point.load()
    except Exception as error:  # whatever the import of another package raises
        raise SettingError(
            f"the method {point.name!r} of {point.value} cannot be imported "
            f"({type(error).__name__}: {error}); repair or remove the package that adds it"
        ) from error
    is_method = isinstance(found, type) and issubclass(found, Method) and is_dataclass(found)
    if is_method and found.name == point.name:
        return found  # type: ignore[no-any-return]
    raise SettingError(
        f"the method {point.name!r} is {point.value}, which must be a dataclass and subclass "
        f"of trueline.methods.base.Method with the name {point.name!r}"
    )


def names_in_words() -> str:
    *first, last = built_in_names()
    return f"{', '.join(first)} or {last}"
