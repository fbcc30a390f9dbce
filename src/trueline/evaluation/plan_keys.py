"""The keys of a plan, what each takes, and what is wrong with a table of them, in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from trueline.engines import ENGINES
from trueline.errors import SettingError
from trueline.evaluation.judges.models import Limits
from trueline.evaluation.plan import MODES, Confidence, References
from trueline.prompts import LAYOUTS
from trueline.settings import check_values, in_words
from trueline.visible import has_half_character, shown

_MOST = 2**31 - 1  # no count of a plan is larger, and every library takes it
_LARGEST = 2**63  # a whole number that a line of results can hold lies below it
_PLAIN = re.compile(r"[\w.-]{1,60}")  # a key that a message shows as it is


class Takes(NamedTuple):
    """What a key takes: in words, and as a check."""

    words: str
    fits: Callable[[Any], bool]


def _whole(least: int, most: int = _MOST) -> Takes:
    return Takes(
        f"a whole number from {least} to {most:,}",
        lambda value: type(value) is int and least <= value <= most,
    )


def _one_of(*names: str) -> Takes:
    return Takes(f"one of {', '.join(names)}", lambda value: value in names)


def _list(each: Takes) -> Takes:
    return Takes(
        f"a list, each {each.words}",
        lambda value: isinstance(value, list) and bool(value) and all(map(each.fits, value)),
    )


def _is_text(value: object) -> bool:
    """Whether a value is a text with something in it that UTF-8 can hold."""
    return isinstance(value, str) and value != "" and not has_half_character(value)


def _is_number(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high


_TEXT = Takes("a text", _is_text)
_NAME = Takes(  # of a file, a folder, a model or a judge
    "a text without NUL", lambda value: _is_text(value) and "\0" not in value
)
_FLAG = Takes("true or false", lambda value: type(value) is bool)
_TABLE = Takes("a table", lambda value: isinstance(value, dict))
_COLUMNS = Takes(
    'a table of columns by field, such as {question = "Customer asks"}',
    lambda value: (
        isinstance(value, dict) and bool(value) and all(map(_is_text, value.values()))
    ),
)
_VARIANT = Takes(
    "a table with a method",
    lambda value: isinstance(value, dict) and isinstance(value.get("method"), str),
)
_COUNT = Takes(
    'a whole number from 1, or "all"',
    lambda value: value == "all" or (type(value) is int and 1 <= value <= _MOST),
)
_TEMPERATURE = Takes(
    "0, or a number from 0.001 to 1,000",
    lambda value: _is_number(value, 0, 0) or _is_number(value, 1e-3, 1e3),
)
KEYS: dict[str, Takes] = {
    "out": _NAME,
    "models": _list(_NAME),
    "benchmarks": _list(_NAME),
    "methods": _list(_TEXT),
    "tasks": _list(_one_of(*MODES)),
    "judges": _list(_NAME),
    "judge": _TABLE,
    "ground": _COUNT,
    "ground_from": _NAME,
    "test": _COUNT,
    "draw": _whole(0),
    "data": _NAME,
    "columns": _COLUMNS,
    "rule": _one_of("answered", "all"),
    "max_new_tokens": _whole(1),
    "batch_size": _whole(1),
    "temperature": _TEMPERATURE,
    "seeds": _list(_whole(0)),
    "stop": _list(_TEXT),
    "engine": _one_of(*ENGINES),
    "dtype": _one_of("auto", "float32", "bfloat16", "float16"),
    "device": _NAME,
    "threads": _whole(1, 1024),
    "trust_remote_code": _FLAG,
    "bertscore": _NAME,
    "bertscore_layers": _whole(1, 1024),
    "settings": _TABLE,
    "sweep": _TABLE,
    "variants": _list(_VARIANT),
    "build": _TABLE,
    "controls": _FLAG,
    "questions": _list(_TEXT),
    "as": _one_of("paper"),
    "prompts": _one_of(*LAYOUTS),
    "confidence": _one_of(*get_args(Confidence)),
    "references": _one_of(*get_args(References)),
    "stemmer": _FLAG,
    "bertscore_baseline": _NAME,
}
BUILD: dict[str, Takes] = {
    "context": Takes(
        'a number of tokens from 1, or "full"',
        lambda value: value == "full" or (type(value) is int and 1 <= value <= _MOST),
    ),
    "window": _one_of("all", "answer"),
    "end": _FLAG,
    "embedder": _NAME,
    "values": _one_of("auto", "hidden", "logits"),
    "dtype": _one_of("auto", "float32", "float16"),
}


def _limit(name: str, hint: Any) -> Takes:
    """What a plan takes for one of the Limits: what it is annotated with, except for None."""
    kind, bounds = next(get_args(one) for one in (hint, *get_args(hint)) if _is_bounded(one))
    most = f"{bounds.high:,g}"
    reach = (
        f"above {bounds.low:g}, at most {most}"
        if bounds.above
        else f"from {bounds.low:g} to {most}"
    )

    def fits(value: Any) -> bool:
        try:
            check_values(Limits, {name: value})
        except SettingError:
            return False
        return value is not None

    return Takes(f"{in_words(kind)} {reach}", fits)


def _is_bounded(hint: Any) -> bool:
    return get_origin(hint) is Annotated


JUDGE: dict[str, Takes] = {
    **{
        name: _limit(name, hint)
        for name, hint in get_type_hints(Limits, include_extras=True).items()
    },
    "max_tokens": _whole(1),
    "questions": _one_of("ours", "paper"),
}


def wrong_keys(table: Mapping[str, Any], keys: Mapping[str, Takes], inside: str) -> list[str]:
    """What is wrong with the keys and values of a table, in words."""
    found = []
    for name, value in table.items():
        if name not in keys:
            there = ", ".join(keys)
            found.append(f"{inside}{spelled(name)} is no key; there are {there}")
        elif not keys[name].fits(value):
            found.append(f"{inside}{name} must be {keys[name].words}; got {shown(value)}")
    return found


def unwritable(value: object, name: str) -> list[str]:
    """Values no line of results can hold, wherever they stand."""
    if isinstance(value, float) and not isfinite(value):
        return [f"{name} must be a finite number; got {value}"]
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        return [f"{name} must be a number of at most 64 bits; got {shown(value)}"]
    if isinstance(value, str) and value and not _is_text(value):
        return [f"{name} must be a text that UTF-8 can hold; got {shown(value)}"]
    named = value.items() if isinstance(value, dict) else ()
    listed = (("", item) for item in value) if isinstance(value, list) else ()
    return [
        problem
        for key, item in (*named, *listed)
        for problem in unwritable(item, f"{name}.{spelled(key)}" if key else name)
    ]


def spelled(key: object) -> str:
    """A key as a message shows it: quoted where it is not plain."""
    return str(key) if _PLAIN.fullmatch(str(key)) else shown(key)
