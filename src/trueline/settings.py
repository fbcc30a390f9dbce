"""Types and ranges of settings, checked in one place; numbers of NumPy; `alpha=0.3` read.

The annotations of a class are the types and ranges of its settings:

    alpha: Annotated[float, Between(0, 1)] = 0.5
    fusion: Literal["add", "mix"] = "add"
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import inf, isfinite
from numbers import Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, ValidationError, convert

from trueline.errors import SettingError
from trueline.text import shown

_WORDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
_WORDS |= {list: "a list", tuple: "a list", dict: "a table"}
_hints = cache(get_type_hints)


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
    hints = _hints(cls, include_extras=True)
    for name, value in values.items():
        check_value(name, value, hints[name])


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that does not fit a type; no setting is infinite."""
    try:
        convert(value, hint)
        is_fit, is_range = not isinstance(value, float) or isfinite(value), True
    except (ValidationError, ValueError) as error:
        is_fit, is_range = False, ", got" not in str(error) and isinstance(value, int | float)
    if not is_fit:
        needed = (is_range and _range_in_words(hint)) or f"be {_in_words(hint)}"
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
    words = {"true": True, "false": False, "none": None}
    for read in (lambda text: words[text.lower()], int, float, json.loads):
        with suppress(LookupError, ValueError, RecursionError):
            value: object = read(text)
            return value
    return text


def _in_words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _in_words(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_in_words, inner))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}" if len(inner) > 1 else f'"{inner[0]}"'
    if origin in (tuple, list) and inner[0] is not Any:
        return f"a list, each {_in_words(inner[0])}"
    if origin is dict and inner[1] is not Any:
        return f"a table, each value {_in_words(inner[1])}"
    return _WORDS.get(origin or hint, "none")


def _range_in_words(hint: Any) -> str:
    for part in (hint, *get_args(hint)):
        low, high = getattr(part, "ge", None), getattr(part, "le", None)
        above = getattr(part, "gt", None)
        if high is not None:
            return f"lie in {'[' if above is None else '('}{low or above or 0:g}, {high:g}]"
        if low is not None or above is not None:
            return f"be {low:g} or more" if above is None else f"be above {above:g}"
        if part is not hint and (words := _range_in_words(part)):
            return words
    return ""
