"""The keys of a plan, what each takes, and what is wrong with a table of them, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from trueline.evaluation.plan import MODES


class Takes(NamedTuple):
    """What a key takes: in words, and as a check."""

    words: str
    fits: Callable[[Any], bool]


def _whole(least: int) -> Takes:
    return Takes(
        f"a whole number from {least}", lambda value: type(value) is int and value >= least
    )


def _one_of(*names: str) -> Takes:
    return Takes(f"one of {', '.join(names)}", lambda value: value in names)


def _list(each: Takes) -> Takes:
    return Takes(
        f"a list, each {each.words}",
        lambda value: isinstance(value, list) and bool(value) and all(map(each.fits, value)),
    )


_TEXT = Takes("a text", lambda value: isinstance(value, str) and bool(value))
_FLAG = Takes("true or false", lambda value: type(value) is bool)
_TABLE = Takes("a table", lambda value: isinstance(value, dict))
_VARIANT = Takes(
    "a table with a method",
    lambda value: isinstance(value, dict) and isinstance(value.get("method"), str),
)
_COUNT = Takes(
    'a whole number from 1, or "all"',
    lambda value: value == "all" or (type(value) is int and value >= 1),
)
_POSITIVE = Takes(
    "a number above 0",
    lambda value: type(value) in (int, float) and 0 < value < float("inf"),
)
_TEMPERATURE = Takes(
    "0, or a number from 0.001",
    lambda value: type(value) in (int, float) and (value == 0 or 1e-3 <= value < float("inf")),
)
KEYS: dict[str, Takes] = {
    "out": _TEXT,
    "models": _list(_TEXT),
    "benchmarks": _list(_TEXT),
    "methods": _list(_TEXT),
    "tasks": _list(_one_of(*MODES)),
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
    "variants": _list(_VARIANT),
    "build": _TABLE,
}
BUILD: dict[str, Takes] = {
    "context": Takes(
        'a number of tokens from 1, or "full"',
        lambda value: value == "full" or (type(value) is int and value >= 1),
    ),
    "window": _one_of("all", "answer"),
    "end": _FLAG,
    "embedder": _TEXT,
    "values": _one_of("auto", "hidden", "logits"),
    "dtype": _one_of("auto", "float32", "float16"),
}
JUDGE: dict[str, Takes] = {  # the names are those of Limits and of open_judge
    "concurrency": _whole(1),
    "per_minute": _POSITIVE,
    "tries": _whole(1),
    "timeout": _POSITIVE,
    "max_tokens": _whole(1),
}


def wrong_keys(table: Mapping[str, Any], keys: Mapping[str, Takes], inside: str) -> list[str]:
    """What is wrong with the keys and values of a table, in words."""
    found = []
    for name, value in table.items():
        if name not in keys:
            found.append(f"{inside}{name} is no key; there are {', '.join(keys)}")
        elif not keys[name].fits(value):
            found.append(f"{inside}{name} must be {keys[name].words}; got {value!r}")
    return found


def non_finite(value: object, name: str) -> list[str]:
    """Numbers no line of results can hold, wherever they stand."""
    if isinstance(value, float) and not isfinite(value):
        return [f"{name} must be a finite number; got {value}"]
    named = value.items() if isinstance(value, dict) else ()
    listed = (("", item) for item in value) if isinstance(value, list) else ()
    return [
        problem
        for key, item in (*named, *listed)
        for problem in non_finite(item, f"{name}.{key}" if key else name)
    ]
