"""A table in; what is wrong with its keys and values out, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from trueline.evaluation.plan import TASKS


class Kind(NamedTuple):
    """What a key takes: in words, and as a check."""

    words: str
    fits: Callable[[Any], bool]


def _whole(least: int) -> Kind:
    return Kind(
        f"a whole number from {least}", lambda value: type(value) is int and value >= least
    )


def _one_of(*names: str) -> Kind:
    return Kind(f"one of {', '.join(names)}", lambda value: value in names)


def _list(each: Kind) -> Kind:
    return Kind(
        f"a list, each {each.words}",
        lambda value: isinstance(value, list) and bool(value) and all(map(each.fits, value)),
    )


_TEXT = Kind("a text", lambda value: isinstance(value, str) and bool(value))
_FLAG = Kind("true or false", lambda value: type(value) is bool)
_TABLE = Kind("a table", lambda value: isinstance(value, dict))
_OWN = Kind(
    "a table with a method",
    lambda value: isinstance(value, dict) and isinstance(value.get("method"), str),
)
_COUNT = Kind(
    'a whole number from 1, or "all"',
    lambda value: value == "all" or (type(value) is int and value >= 1),
)
_POSITIVE = Kind(
    "a number above 0",
    lambda value: type(value) in (int, float) and 0 < value < float("inf"),
)
_TEMPERATURE = Kind(
    "0, or a number from 0.001",
    lambda value: type(value) in (int, float) and (value == 0 or 1e-3 <= value < float("inf")),
)
KEYS: dict[str, Kind] = {
    "out": _TEXT,
    "models": _list(_TEXT),
    "benchmarks": _list(_TEXT),
    "methods": _list(_TEXT),
    "tasks": _list(_one_of(*TASKS)),
    "judges": _list(_TEXT),
    "judge": _TABLE,
    "ground": _COUNT,
    "ground_from": _TEXT,
    "test": _COUNT,
    "draw": _whole(0),
    "data": _TEXT,
    "rule": _one_of("answered", "all"),
    "max_new_tokens": _whole(1),
    "batch_size": _whole(1),
    "temperature": _TEMPERATURE,
    "seeds": _list(_whole(0)),
    "stop": _list(_TEXT),
    "dtype": _one_of("auto", "float32", "bfloat16", "float16"),
    "device": _TEXT,
    "threads": _whole(1),
    "trust_remote_code": _FLAG,
    "bertscore": _TEXT,
    "bertscore_layers": _whole(1),
    "settings": _TABLE,
    "sweep": _TABLE,
    "variants": _list(_OWN),
    "build": _TABLE,
}
BUILD: dict[str, Kind] = {
    "context": Kind(
        'a number of tokens from 1, or "full"',
        lambda value: value == "full" or (type(value) is int and value >= 1),
    ),
    "window": _one_of("all", "answer"),
    "end": _FLAG,
    "embedder": _TEXT,
    "values": _one_of("auto", "hidden", "logits"),
    "dtype": _one_of("auto", "float32", "float16"),
}
JUDGE: dict[str, Kind] = {  # the names are those of Limits and of open_judge
    "concurrency": _whole(1),
    "per_minute": _POSITIVE,
    "tries": _whole(1),
    "timeout": _POSITIVE,
    "max_tokens": _whole(1),
}


def misfits(table: Mapping[str, Any], kinds: Mapping[str, Kind], inside: str) -> list[str]:
    """What is wrong with the keys and values of a table, in words."""
    found = []
    for name, value in table.items():
        if name not in kinds:
            found.append(f"{inside}{name} is no key; there are {', '.join(kinds)}")
        elif not kinds[name].fits(value):
            found.append(f"{inside}{name} must be {kinds[name].words}; got {value!r}")
    return found


def endless(value: object, name: str) -> list[str]:
    """Numbers no line of results can hold, wherever they stand."""
    if isinstance(value, float) and not isfinite(value):
        return [f"{name} must be a finite number; got {value}"]
    named = value.items() if isinstance(value, dict) else ()
    listed = (("", item) for item in value) if isinstance(value, list) else ()
    return [
        problem
        for key, item in (*named, *listed)
        for problem in endless(item, f"{name}.{key}" if key else name)
    ]
