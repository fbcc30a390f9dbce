"""Types and ranges of settings, checked in one place; numbers of NumPy; `alpha=0.3` read.

The annotations of a class say what its settings may be:

    alpha: Annotated[float, Between(0, 1)] = 0.5
    fusion: Literal["add", "mix"] = "add"
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from functools import cache
from math import inf, isfinite
from numbers import Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, ValidationError, convert

from trueline.errors import SettingError
from trueline.text import shown


def Between(
    low: float, high: float = inf, *, above: bool = False, help: str | None = None
) -> Meta:
    """A number from `low` to `high`; with `above`, `low` itself is excluded."""
    bounds = {"gt" if above else "ge": low} | ({} if high == inf else {"le": high})
    # Whole bounds become int, since msgspec takes no others for an int.
    whole: dict[str, Any] = {name: int(x) if x == int(x) else x for name, x in bounds.items()}
    mark: Meta = Meta(**whole, description=help)
    return mark


def check_values(cls: type, values: Mapping[str, Any]) -> None:
    """Refuse the first value that does not fit the annotation of its name in a class."""
    hints = _hints(cls)
    for name, value in values.items():
        check_value(name, value, hints[name])


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that does not fit a type; no setting is infinite."""
    try:
        convert(value, hint)
        is_fit, is_range = not isinstance(value, float) or isfinite(value), True
    except (ValidationError, ValueError) as error:
        is_fit, is_range = False, ", got" not in str(error)
    if not is_fit:
        rule = is_range and _range_in_words(hint)
        choice = "one of " if get_origin(hint) is Literal else ""
        needed = rule or f"be {choice}{in_words(hint)}"
        raise SettingError(f"{name} must {needed}, got {shown(value)}")


def plain(value: Any) -> Any:
    """A number of another library, such as NumPy's, as Python's own; a list as a tuple."""
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, bool | int) or type(value) is float:
        return value
    try:
        return operator.index(value)
    except TypeError:
        return float(value) if isinstance(value, Real) else value


def whole_number(value: object, name: str, low: int = 1) -> int:
    """A whole number from `low` on, of any library; anything else is refused by its name."""
    number = plain(value)
    check_value(name, number, Annotated[int, Between(low)])
    return int(number)


_WORDS = {"true": True, "false": False, "none": None}


def read_settings(texts: Sequence[str]) -> dict[str, object]:
    """Settings by name from texts such as `alpha=0.3`.

    A value is a number, true, false, none, a JSON list or a quoted text; any other word is
    read as a text.
    """
    settings: dict[str, object] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise SettingError(f"a setting is NAME=VALUE, such as alpha=0.3; got {shown(text)}")
        settings[name.strip()] = _read_value(value.strip())
    return settings


def _read_value(text: str) -> object:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for read in (int, float, json.loads):
        try:
            value: object = read(text)
            return value
        except (ValueError, RecursionError):
            continue
    return text


def in_words(hint: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return in_words(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(in_words(option) for option in inner)
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin is tuple:
        return f"a list, each {in_words(inner[0])}"
    words = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    return words.get(hint, "none")


def _range_in_words(hint: Any) -> str:
    """The range of a type in words; empty if it has none."""
    options = [one for one in (hint, *get_args(hint)) if get_origin(one) is Annotated]
    for mark in (mark for one in options for mark in one.__metadata__):
        low = mark.ge if mark.gt is None else mark.gt
        if mark.le is not None:
            return f"lie in {'[' if mark.gt is None else '('}{low:g}, {mark.le:g}]"
        if low is not None:
            return f"be {low:g} or more" if mark.gt is None else f"be above {low:g}"
    return ""


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)
