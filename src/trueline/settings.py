"""Settings -> nothing, or one error that names the setting: types and ranges, in one place.

A frozen dataclass says in its annotations what its settings may be:

    alpha: Annotated[float, Between(0, 1)] = 0.5
    fusion: Literal["add", "mix"] = "add"
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from numbers import Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from trueline.errors import SettingError
from trueline.text import shown

_ENDLESS = 1 << 1023  # a whole number from here on is no float


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`; `above` leaves `low` itself out."""

    low: float
    high: float = inf
    above: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a value lies in the range; what is no number does not."""
        try:
            return bool(self.low < value if self.above else self.low <= value) and bool(
                value <= self.high if self.high < inf else value < inf
            )
        except TypeError:
            return False

    def __str__(self) -> str:
        if self.high == inf:
            return f"be above {self.low:g}" if self.above else f"be {self.low:g} or more"
        return f"lie in {'(' if self.above else '['}{self.low:g}, {self.high:g}]"


def check_values(cls: type, values: Mapping[str, Any]) -> None:
    """Refuse the first value that a dataclass does not take under its name."""
    hints = _hints(cls)
    for name, value in values.items():
        hint = hints[name]
        ranges = [mark for mark in _marks(hint) if isinstance(mark, Between)]
        if not fits(value, hint):
            choice = "one of " if get_origin(hint) is Literal else ""
            raise SettingError(f"{name} must be {choice}{in_words(hint)}; got {shown(value)}")
        if value is not None and not all(mark.holds(value) for mark in ranges):
            raise SettingError(f"{name} must {ranges[0]}, got {shown(value)}")


def plain(value: Any) -> Any:
    """A number of another library, such as NumPy's, as Python's own; the rest as it is."""
    if isinstance(value, tuple):
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
    if type(number) is not int:
        raise SettingError(f"{name} must be a whole number, got {shown(value)}")
    if number < low:
        raise SettingError(f"{name} must be {low} or more, got {shown(value)}")
    return number


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type; a whole number is also a float, and true is no number."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(value, inner[0])
    if origin in (Union, UnionType):
        return any(fits(value, option) for option in inner)
    if origin is Literal:
        return type(value) in map(type, inner) and value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(item, inner[0]) for item in value)
    if hint is float:
        return type(value) is float or (type(value) is int and abs(value) < _ENDLESS)
    return value is None if hint in (None, type(None)) else type(value) is hint


def in_words(hint: Any) -> str:
    """A type as a person says it."""
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


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _marks(hint: Any) -> tuple[Any, ...]:
    """The marks of an Annotated type; of a union, the marks of all its members."""
    if get_origin(hint) is Annotated:
        return tuple(get_args(hint)[1:])
    return tuple(mark for option in get_args(hint) for mark in _marks(option))
