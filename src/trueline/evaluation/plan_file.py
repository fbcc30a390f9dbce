"""A run.toml, or the same table from flags -> a checked Plan, or all its mistakes at once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, cast

from trueline.decoders import DEFAULT, PLAIN, check_settings, method_names
from trueline.errors import SettingError, TruelineError
from trueline.evaluation.controls import with_controls
from trueline.evaluation.plan import (
    PAPER,
    PAPER_ENCODER,
    BuildOptions,
    Plan,
    Variant,
    build_options_read_by,
    default_build,
    with_wrong_answers,
)
from trueline.evaluation.plan_keys import (
    BUILD,
    JUDGE,
    KEYS,
    spelled,
    unwritable,
    wrong_keys,
)
from trueline.files import read_text
from trueline.visible import shown

_LARGEST_FILE = 1_000_000  # bytes of a plan; those of the paper have 2,000
_DEEPEST = 8  # tables and lists within each other
_FREE = ("settings", "sweep", "variants")  # tables whose values a method checks
_MOST_VARIANTS = 1_000
_MOST_MISTAKES = 40  # that are listed


def read_plan_table(path: Path, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """The table of a run.toml, not yet checked.

    A plan may come from somebody else: that code of a model may run must be said by the caller
    as well.
    """
    try:
        text = read_text(path, "the plan", most=_LARGEST_FILE)
    except SettingError as error:
        raise SettingError(
            f"{error}; name the .toml file of a run, or give flags only: trueline eval "
            f"--benchmark facts --methods {PLAIN},{DEFAULT} --out results"
        ) from error
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise SettingError(f"{path} is no readable TOML: it is nested too deep") from error
    except ValueError as error:  # no TOML, or a number of thousands of digits
        raise SettingError(f"{path} is no readable TOML: {error}") from error
    if table.get("trust_remote_code") is True and not trust_remote_code:
        raise SettingError(
            f"{path} asks to run code that a model brings (trust_remote_code), which a plan "
            "alone may not; if you trust the models it names, add --trust-remote-code to the "
            "command"
        )
    return table


def plan_from(table: Mapping[str, Any], where: str = "the plan") -> Plan:
    """A plan from a table; every mistake in it is listed at once."""
    _check_form(table, where)
    table = _as_paper(table) if table.get("as") == "paper" else table
    mistakes = wrong_keys(table, KEYS, "")
    unfit = {name: unwritable(table.get(name), name) for name in _FREE}
    mistakes += [problem for problems in unfit.values() for problem in problems]
    if isinstance(judge := table.get("judge"), dict):
        mistakes += wrong_keys(judge, JUDGE, "judge.")
    sound = {
        name: value
        for name, value in table.items()
        if name in KEYS and KEYS[name].fits(value) and not unfit.get(name)
    }
    variants = _variants(sound, mistakes)
    mistakes += _missing(table, sound)
    if mistakes:
        raise SettingError(_listed(where, mistakes))
    known = {field.name for field in fields(Plan)} - {"variants"}
    values = {name: _frozen(value) for name, value in sound.items() if name in known}
    for name in ("ground", "test"):
        if values.get(name) == "all":
            values[name] = None
    if "data" in values:
        values["data"] = Path(values["data"])
    return Plan(**values, variants=variants)


def _as_paper(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table of a plan with the paper's way of doing things where it says nothing."""
    judge = table.get("judge", {})
    merged = {**PAPER, **table}
    if isinstance(judge, Mapping):  # else the check of the plan names it
        merged["judge"] = {**PAPER["judge"], **judge}
    if "bertscore" in table:
        merged.setdefault("bertscore_baseline", PAPER_ENCODER)
    return merged


def _check_form(table: Mapping[str, Any], where: str) -> None:
    """Refuse what is no table, or nested so deep that to read it would exhaust the stack."""
    if not isinstance(table, Mapping):
        raise SettingError(f"{where} must be a table; got {shown(table)}")
    level: list[Any] = [table]
    for _ in range(_DEEPEST):
        inner = [x.values() if isinstance(x, Mapping) else x for x in level]
        level = [y for x in inner for y in x if isinstance(y, dict | list)]
    if level:
        raise SettingError(f"{where} has tables or lists more than {_DEEPEST} levels deep")


def _listed(where: str, mistakes: list[str]) -> str:
    count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
    verb = "have" if where.endswith("flags") else "has"
    told, more = mistakes[:_MOST_MISTAKES], len(mistakes) - _MOST_MISTAKES
    told += [f"and {more} more"] if more > 0 else []
    return "\n  - ".join([f"{where} {verb} {count}:", *told])


def _missing(table: Mapping[str, Any], sound: Mapping[str, Any]) -> list[str]:
    """What belongs to the keys that are there, and is not."""
    found = []
    if "benchmarks" not in table:
        found.append("benchmarks is missing; name one or more, such as facts")
    if "methods" not in table and "variants" not in table:
        found.append(f"methods is missing; name one or more, such as {PLAIN} and {DEFAULT}")
    if ("bertscore" in table) != ("bertscore_layers" in table):
        found.append("bertscore and bertscore_layers go together: a folder and a layer of it")
    if "bertscore_baseline" in table and "bertscore" not in table:
        found.append("bertscore_baseline rescales BERTScore, and there is no bertscore")
    if len(sound.get("seeds", ())) > 1 and not sound.get("temperature"):
        found.append("seeds has several, which needs a temperature above 0")
    return found


def _variants(table: Mapping[str, Any], mistakes: list[str]) -> tuple[Variant, ...]:
    """Every method with every combination of its swept settings, then the named variants."""
    settings, sweep, build = (table.get(name, {}) for name in ("settings", "sweep", "build"))
    methods: list[str] = table.get("methods", [])
    extra = cast("list[dict[str, Any]]", table.get("variants", []))
    used = list(dict.fromkeys([*methods, *(item["method"] for item in extra)]))
    unknown = [name for name in used if name not in method_names()]
    found = [
        f"{'methods' if name in methods else 'variants'}: there is no method {shown(name)}; "
        f"there are {', '.join(method_names())}"
        for name in unknown
    ]
    found += _settings_mistakes(settings, used)
    found += _build_mistakes(build)
    found += _sweep_mistakes(sweep, [name for name in methods if name not in unknown])
    if not found and sum(_count(name, sweep) for name in methods) > _MOST_VARIANTS:
        found.append(f"sweep makes more than {_MOST_VARIANTS:,} variants of the methods")
    mistakes += found
    if found:
        return ()
    variants: list[Variant] = []
    for name in methods:
        variants += _swept(name, settings.get(name, {}), sweep, build)
    for item in extra:
        given = {name: value for name, value in item.items() if name != "method"}
        given = {**settings.get(item["method"], {}), **given}
        variants += _swept(item["method"], given, {}, build)
    distinct = [one for index, one in enumerate(variants) if one not in variants[:index]]
    refused = [problem for variant in distinct for problem in _refused(variant)]
    mistakes += refused
    if refused:
        return ()
    if table.get("controls", True):
        distinct = with_controls(distinct, lambda method: _build_options(method, build, {}))
    return with_wrong_answers(distinct)


def _settings_mistakes(settings: Mapping[str, Any], used: list[str]) -> list[str]:
    found = []
    for key, value in settings.items():
        name = spelled(key)
        if not isinstance(value, dict):
            found.append(
                f"settings.{name} must be the table of a method, such as [settings.{DEFAULT}]"
            )
        elif key not in used:
            found.append(
                f"settings.{name} is given, but {name} is none of the methods asked for"
            )
    return found


def _swept(
    method: str, given: Mapping[str, Any], sweep: Mapping[str, Any], build: Mapping[str, Any]
) -> list[Variant]:
    """One method with every combination of what is swept for it."""
    keys = _swept_keys(method, sweep)
    found = []
    for values in product(*(sweep[key] for key in keys)):
        settings, swept = dict(given), dict[str, Any]()
        for key, value in zip(keys, values, strict=True):
            (swept if key.startswith("build.") else settings)[keys[key]] = value
        frozen = {name: _frozen(value) for name, value in settings.items()}
        options = _build_options(method, build, swept)
        found.append(Variant(method, frozen, options, is_swept=bool(keys)))
    return found


def _swept_keys(method: str, sweep: Mapping[str, Any]) -> dict[str, str]:
    """The keys of the sweep that a method has -> the name of its setting or build option."""
    options = build_options_read_by(method)
    return {
        key: name
        for key in sweep
        for owner, _, name in (key.partition("."),)
        if owner == method or (owner == "build" and name in options)
    }


def _count(method: str, sweep: Mapping[str, Any]) -> int:
    """How many combinations a sweep makes of a method."""
    return prod(len(sweep[key]) for key in _swept_keys(method, sweep))


def _build_options(
    method: str, build: Mapping[str, Any], swept: Mapping[str, Any]
) -> BuildOptions | None:
    """How a method's space is built: [build], what is swept, then [build.METHOD]."""
    default = default_build(method)
    if default is None:
        return None
    read = build_options_read_by(method)
    shared = {name: value for name, value in build.items() if name in read}
    return replace(default, **{**shared, **swept, **build.get(method, {})})


def _build_mistakes(build: Mapping[str, Any]) -> list[str]:
    by_method = {
        name: value
        for name, value in build.items()
        if name in method_names() and build_options_read_by(name)
    }
    shared = {name: value for name, value in build.items() if name not in by_method}
    found = wrong_keys(shared, BUILD, "build.")
    for name, options in by_method.items():
        if isinstance(options, dict):
            found += wrong_keys(options, BUILD, f"build.{name}.")
        else:
            found.append(f"build.{name} must be a table; got {shown(options)}")
    return found


def _sweep_mistakes(sweep: Mapping[str, Any], methods: list[str]) -> list[str]:
    found = []
    read = {name for method in methods for name in build_options_read_by(method)}
    for key, values in sweep.items():
        owner, _, name = key.partition(".")
        if owner not in (*methods, "build") or not name:
            found.append(
                f'sweep has {shown(key)}; write "METHOD.SETTING" of one of the methods '
                f'({", ".join(methods)}), or "build.OPTION"'
            )
        elif not isinstance(values, list) or not values:
            found.append(f"sweep {shown(key)} must be a list of values; got {shown(values)}")
        elif owner == "build":
            for value in values:
                found += wrong_keys({name: value}, BUILD, "build.")
            if name in BUILD and name not in read:
                found.append(
                    f"sweep has {shown(key)}, which changes none of {', '.join(methods)}"
                )
    return found


def _refused(variant: Variant) -> list[str]:
    """What the method itself says against its settings, before there is any space."""
    try:
        check_settings(variant.method, variant.settings)
    except TruelineError as error:
        return [f"{variant.method}: {error}"]
    return []


def _frozen(value: Any) -> Any:
    """Lists as tuples, which is how settings and plans hold them."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
