"""A run.toml, or the same table from flags, in; a checked Plan out, or all its mistakes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

from trueline.errors import SettingError, TruelineError
from trueline.evaluation.plan import (
    BuildOptions,
    Plan,
    Variant,
    default_build,
    with_wrong_answers,
)
from trueline.evaluation.plan_keys import BUILD, JUDGE, KEYS, endless, misfits

_SHAPED_BY = {  # the options a sweep of `build.` changes a method by
    "rad": tuple(BUILD),
    "knn-lm": tuple(name for name in BUILD if name != "context"),  # it has a context of its own
    "kate": ("embedder",),
}


def read_plan_table(path: Path) -> dict[str, Any]:
    """The table of a run.toml, not yet checked."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read ({error.strerror}); name the .toml file of a run, or give "
            "flags only: trueline eval --benchmark facts --methods greedy,rad --out results"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is no readable TOML: {error}") from error


def plan_from(table: Mapping[str, Any], where: str = "the plan") -> Plan:
    """A plan from a table; every mistake in it is listed at once."""
    mistakes = misfits(table, KEYS, "")
    for name in ("settings", "sweep", "variants"):
        mistakes += endless(table.get(name), name)
    if isinstance(judge := table.get("judge"), dict):
        mistakes += misfits(judge, JUDGE, "judge.")
    sound = {
        name: value for name, value in table.items() if name in KEYS and KEYS[name].fits(value)
    }
    variants = _variants(sound, mistakes)
    mistakes += _missing(table, sound)
    if mistakes:
        count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
        raise SettingError("\n  - ".join([f"{where} has {count}:", *mistakes]))
    own = {field.name for field in fields(Plan)} - {"variants"}
    values = {name: _frozen(value) for name, value in sound.items() if name in own}
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
        found.append("methods is missing; name one or more, such as greedy and rad")
    if ("bertscore" in table) != ("bertscore_layers" in table):
        found.append("bertscore and bertscore_layers go together: a folder and a layer of it")
    if len(sound.get("seeds", ())) > 1 and not sound.get("temperature"):
        found.append("seeds has several, which needs a temperature above 0")
    return found


def _variants(table: Mapping[str, Any], mistakes: list[str]) -> tuple[Variant, ...]:
    """Every method with every combination of its swept settings, then the named variants."""
    from trueline.decoders import method_names

    known = len(mistakes)
    settings, sweep = table.get("settings", {}), table.get("sweep", {})
    asked = [*table.get("methods", ()), *(item["method"] for item in _own(table))]
    mistakes += [
        f"there is no method {name!r}; there are {', '.join(method_names())}"
        for name in dict.fromkeys(asked)
        if name not in method_names()
    ]
    mistakes += [
        f"settings.{name} is given, but {name} is none of the methods asked for"
        if isinstance(value, dict)
        else f"settings.{name} must be the table of a method, such as [settings.rad]"
        for name, value in settings.items()
        if name not in asked or not isinstance(value, dict)
    ]
    mistakes += _build_mistakes(table.get("build", {}))
    mistakes += _sweep_mistakes(sweep, table.get("methods", ()))
    if len(mistakes) > known:
        return ()
    found: list[Variant] = []
    for name in table.get("methods", ()):
        found += _swept(name, settings.get(name, {}), sweep, table.get("build", {}))
    for item in _own(table):
        own = {name: value for name, value in item.items() if name != "method"}
        given = {**settings.get(item["method"], {}), **own}
        found += _swept(item["method"], given, {}, table.get("build", {}))
    distinct = [one for place, one in enumerate(found) if one not in found[:place]]
    mistakes += [problem for variant in distinct for problem in _refused(variant)]
    return with_wrong_answers(distinct)


def _own(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", table.get("variants", []))


def _swept(
    method: str, given: Mapping[str, Any], sweep: Mapping[str, Any], build: Mapping[str, Any]
) -> list[Variant]:
    """One method with every combination of what is swept for it."""
    own = [key for key in sweep if key.startswith(f"{method}.")]
    shaping = [f"build.{name}" for name in _SHAPED_BY.get(method, ())]
    keys = [*own, *(key for key in sweep if key in shaping)]
    found = []
    for values in product(*(sweep[key] for key in keys)):
        chosen = dict(zip(keys, values, strict=True))
        settings = {key.partition(".")[2]: chosen[key] for key in own}
        options = {
            key.partition(".")[2]: value for key, value in chosen.items() if key not in own
        }
        told = {name: _frozen(value) for name, value in {**given, **settings}.items()}
        found.append(Variant(method, told, _build_options(method, build, options)))
    return found


def _build_options(
    method: str, build: Mapping[str, Any], swept: Mapping[str, Any]
) -> BuildOptions | None:
    """How a method's space is built: [build], what is swept, then [build.METHOD]."""
    if method not in _SHAPED_BY:
        return None
    shared = {
        name: value
        for name, value in build.items()
        if name in BUILD and not (method == "knn-lm" and name == "context")
    }
    return replace(default_build(method), **{**shared, **swept, **build.get(method, {})})


def _build_mistakes(build: Mapping[str, Any]) -> list[str]:
    own = {name: build[name] for name in build if name in _SHAPED_BY}
    found = misfits(
        {name: value for name, value in build.items() if name not in own}, BUILD, "build."
    )
    for name, options in own.items():
        if isinstance(options, dict):
            found += misfits(options, BUILD, f"build.{name}.")
        else:
            found.append(f"build.{name} must be a table; got {options!r}")
    return found


def _sweep_mistakes(sweep: Mapping[str, Any], methods: list[str]) -> list[str]:
    found = []
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
            found += [
                problem
                for value in values
                for problem in misfits({name: value}, BUILD, key[:6])
            ]
            if name in BUILD and not any(name in _SHAPED_BY.get(m, ()) for m in methods):
                found.append(f"sweep has {key!r}, which changes none of {', '.join(methods)}")
    return found


def _refused(variant: Variant) -> list[str]:
    """What the method itself says against its settings, before there is any space."""
    from trueline.decoders import check_settings

    try:
        check_settings(variant.method, variant.settings)
    except TruelineError as error:
        return [f"{variant.method}: {error}"]
    return []


def _frozen(value: Any) -> Any:
    """Lists as tuples, which is how settings and plans hold them."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
