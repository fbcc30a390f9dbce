"""A run.toml, or the same table from flags -> a checked Plan, or all its mistakes at once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

from trueline.decoders import DEFAULT, PLAIN, check_settings, method_class, method_names
from trueline.errors import SettingError, TruelineError
from trueline.evaluation.plan import (
    BuildOptions,
    Plan,
    Variant,
    build_options_read_by,
    default_build,
    with_wrong_answers,
)
from trueline.evaluation.plan_keys import BUILD, JUDGE, KEYS, non_finite, wrong_keys


def read_plan_table(path: Path) -> dict[str, Any]:
    """The table of a run.toml, not yet checked."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read ({error.strerror}); name the .toml file of a run, or give "
            f"flags only: trueline eval --benchmark facts --methods {PLAIN},{DEFAULT} --out "
            "results"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is no readable TOML: {error}") from error


def plan_from(table: Mapping[str, Any], where: str = "the plan") -> Plan:
    """A plan from a table; every mistake in it is listed at once."""
    mistakes = wrong_keys(table, KEYS, "")
    for name in ("settings", "sweep", "variants"):
        mistakes += non_finite(table.get(name), name)
    if isinstance(judge := table.get("judge"), dict):
        mistakes += wrong_keys(judge, JUDGE, "judge.")
    sound = {
        name: value for name, value in table.items() if name in KEYS and KEYS[name].fits(value)
    }
    variants = _variants(sound, mistakes)
    mistakes += _missing(table, sound)
    if mistakes:
        count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
        verb = "have" if where.endswith("flags") else "has"
        raise SettingError("\n  - ".join([f"{where} {verb} {count}:", *mistakes]))
    known = {field.name for field in fields(Plan)} - {"variants"}
    values = {name: _frozen(value) for name, value in sound.items() if name in known}
    for name in ("ground", "test"):
        if values.get(name) == "all":
            values[name] = None
    if "data" in values:
        values["data"] = Path(values["data"])
    return Plan(**values, variants=variants)


def _missing(table: Mapping[str, Any], sound: Mapping[str, Any]) -> list[str]:
    """What belongs to the keys that are there, and is not."""
    found = []
    if "benchmarks" not in table:
        found.append("benchmarks is missing; name one or more, such as facts")
    if "methods" not in table and "variants" not in table:
        found.append(f"methods is missing; name one or more, such as {PLAIN} and {DEFAULT}")
    if ("bertscore" in table) != ("bertscore_layers" in table):
        found.append("bertscore and bertscore_layers go together: a folder and a layer of it")
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
        f"there is no method {name!r}; there are {', '.join(method_names())}"
        for name in unknown
    ]
    found += [
        f"settings.{name} is given, but {name} is none of the methods asked for"
        if isinstance(value, dict)
        else f"settings.{name} must be the table of a method, such as [settings.{DEFAULT}]"
        for name, value in settings.items()
        if name not in used or not isinstance(value, dict)
    ]
    found += _build_mistakes(build)
    found += _sweep_mistakes(sweep, [name for name in methods if name not in unknown])
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
    return () if refused else with_wrong_answers(distinct)


def _swept(
    method: str, given: Mapping[str, Any], sweep: Mapping[str, Any], build: Mapping[str, Any]
) -> list[Variant]:
    """One method with every combination of what is swept for it."""
    options = build_options_read_by(method)
    keys = {  # of the sweep -> the name of a setting or of a build option
        key: name
        for key in sweep
        for owner, _, name in (key.partition("."),)
        if owner == method or (owner == "build" and name in options)
    }
    found = []
    for values in product(*(sweep[key] for key in keys)):
        settings, swept = dict(given), dict[str, Any]()
        for key, value in zip(keys, values, strict=True):
            (swept if key.startswith("build.") else settings)[keys[key]] = value
        frozen = {name: _frozen(value) for name, value in settings.items()}
        found.append(Variant(method, frozen, _build_options(method, build, swept)))
    return found


def _build_options(
    method: str, build: Mapping[str, Any], swept: Mapping[str, Any]
) -> BuildOptions | None:
    """How a method's space is built: [build], what is swept, then [build.METHOD]."""
    default = default_build(method)
    if default is None:
        return None
    is_fixed = method_class(method).needs.context == "full"
    shared = {
        name: value
        for name, value in build.items()
        if name in BUILD and not (is_fixed and name == "context")
    }
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
            found.append(f"build.{name} must be a table; got {options!r}")
    return found


def _sweep_mistakes(sweep: Mapping[str, Any], methods: list[str]) -> list[str]:
    found = []
    read = {name for method in methods for name in build_options_read_by(method)}
    for key, values in sweep.items():
        owner, _, name = key.partition(".")
        if owner not in (*methods, "build") or not name:
            found.append(
                f'sweep has {key!r}; write "METHOD.SETTING" of one of the methods '
                f'({", ".join(methods)}), or "build.OPTION"'
            )
        elif not isinstance(values, list) or not values:
            found.append(f"sweep {key!r} must be a list of values; got {values!r}")
        elif owner == "build":
            for value in values:
                found += wrong_keys({name: value}, BUILD, "build.")
            if name in BUILD and name not in read:
                found.append(f"sweep has {key!r}, which changes none of {', '.join(methods)}")
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
