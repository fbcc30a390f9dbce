"""JSON text in, plain values out that mean one thing to every reader; all else is refused."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

_DEEPEST = 32  # lists and objects inside each other; a manifest has five


def parse_json(text: str) -> Any:
    """What a JSON text says; a ValueError says why it is not taken.

    Taken by many readers and refused here: a key given twice, numbers that are none or do not
    fit, nesting without end, halves of characters.
    """
    try:
        content = _STRICT.decode(text)
        if text.count("[") + text.count("{") > _DEEPEST:  # else: it cannot be too deep
            _check_depth(content, _DEEPEST)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if "\\u" in text:  # only an escape can hide half of a character
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    return content


def _check_depth(value: Any, left: int) -> None:
    if not left:
        raise RecursionError
    inner = value.values() if isinstance(value, dict) else value
    for each in inner if isinstance(value, dict | list) else ():
        if isinstance(each, dict | list):
            _check_depth(each, left - 1)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its JSON has a key twice")
    return found


def _number(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError(f"its JSON has the number {text[:20]}, which no computer holds")
    return number


def _constant(text: str) -> None:
    raise ValueError(f"its JSON has {text}, which is no number")


_STRICT = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_constant=_constant
)
