"""What a run is made of: models, benchmarks, variants of methods, as frozen values."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import product
from math import isfinite, prod
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from trueline.engines import DEFAULT_EMBEDDER, DEFAULT_MODEL, ENGINES
from trueline.errors import SettingError, TruelineError
from trueline.files import read_text
from trueline.lab.judges.models import Limits
from trueline.methods import (
    DEFAULT,
    PLAIN,
    built_in_names,
    check_settings,
    default_settings,
    method_class,
    method_names,
    settings_fields,
)
from trueline.prompts import LAYOUTS, Layout
from trueline.settings import check_values, in_words
from trueline.text import has_half_character, shown
from trueline.types import Example

# Of the picked tokens' probabilities: their geometric or arithmetic mean; `raw` reads them from
# fused logits as they are, and not on the model's own scale (RAD's `neutral`).
Confidence = Literal["geometric", "arithmetic", "arithmetic-raw"]
References = Literal["all", "first"]  # the best of them, or the first alone
FIDELITY = ("prompts", "confidence", "references", "stemmer", "bertscore_baseline")
PAPER: Mapping[str, Any] = {  # `as = "paper"`: each holds where the plan says nothing else
    "prompts": "one-line",
    "confidence": "arithmetic-raw",
    "references": "first",
    "stemmer": True,
    "max_new_tokens": 256,
    "rule": "all",
    "judge": {"questions": "paper"},
}
PAPER_ENCODER = "microsoft/deberta-xlarge-mnli"  # of BERTScore, rescaled by its baseline
Mode = Literal["generate", "choose"]  # answers are generated, or candidates are scored
MODES: tuple[Mode, ...] = ("generate", "choose")


class Control(StrEnum):
    """What is taken out of a method's examples, or left out of its steps, in a control."""

    SHUFFLED = "answers shuffled"  # over the questions
    WRONG = "wrong answers"  # change places with the truthful ones
    UNRELATED = "unrelated examples"
    BOUNDARY = "no boundary steps"  # those whose window reaches over prompt and answer


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How the grounding space of a variant is built; the names are those of `tl.build`."""

    context: int | str | None = None  # None: no entries, and no pass of the model
    window: str = "all"
    end: bool = False
    embedder: str = DEFAULT_EMBEDDER
    values: str = "auto"
    dtype: str = "auto"
    wrong: bool = False  # also keep the wrong answers; set where a variant needs them


@dataclass(frozen=True, slots=True)
class Variant:
    """A method with the settings that were given for it."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    build: BuildOptions | None = None  # None: it needs no grounding space
    is_swept: bool = False  # whether it is one of the values of a sweep
    control: Control | None = None  # None: it is the method itself
    is_instead: bool = False  # whether it is there as what a user would do instead of a method

    @property
    def control_of_examples(self) -> Control | None:
        """Its control, if that changes the examples; else it shares its method's space."""
        return None if self.control is Control.BOUNDARY else self.control

    @property
    def needs_wrong(self) -> bool:
        """Whether it works only with wrong answers in its space."""
        settings = {**default_settings(self.method), **self.settings}
        return bool(settings.get("beta"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does: its cells are models x benchmarks x variants x tasks x seeds."""

    benchmarks: tuple[str, ...]
    variants: tuple[Variant, ...]
    models: tuple[str, ...] = (DEFAULT_MODEL,)
    tasks: tuple[Mode, ...] = ("generate",)
    judges: tuple[str, ...] = ()
    judge: Mapping[str, Any] = field(default_factory=dict)  # Limits and max_tokens of them
    ground: int | None = 100  # examples to ground with; None: all
    ground_from: str | None = None  # a benchmark to take them from, if not the tested one
    test: int | None = None  # samples; None: all
    draw: int | None = None  # the seed they are drawn with; None: the first ones
    data: Path | None = None
    columns: Mapping[str, str] | None = None  # which column of a file holds a field
    rule: Literal["answered", "all"] = "answered"  # whether unanswered questions are kept
    max_new_tokens: int = 64
    batch_size: int = 16
    temperature: float = 0.0
    seeds: tuple[int, ...] = (0,)  # they count only where there is sampling
    stop: tuple[str, ...] = ()
    engine: str = "transformers"
    dtype: str = "auto"
    device: str | None = None
    threads: int | None = None
    trust_remote_code: bool = False
    bertscore: str | None = None  # the encoder's folder; None: no BERTScore
    bertscore_layers: int | None = None
    controls: bool = True  # whether methods with a space run with their controls
    questions: tuple[str, ...] = ()  # those to test on; empty: as `test` says
    prompts: Layout = "lines"
    confidence: Confidence = "geometric"
    references: References = "all"
    stemmer: bool = False  # whether ROUGE-L takes words by their stem
    bertscore_baseline: str | None = None  # the encoder whose baseline rescales BERTScore

    @property
    def fidelity(self) -> dict[str, Any]:
        """How prompts are laid out and answers measured, where it is not as usual."""
        usual = {field.name: field.default for field in fields(self)}
        return {n: x for n in FIDELITY if (x := getattr(self, n)) != usual[n]}

    @property
    def shared_settings(self) -> dict[str, Any]:
        """What holds for every method that has such a setting and is given no other."""
        return {"neutral": False} if self.confidence == "arithmetic-raw" else {}


def default_build(method: str) -> BuildOptions | None:
    """The space a method has if nobody says anything; None: it needs none."""
    needs = method_class(method).needs
    if not needs.space:
        return None
    return BuildOptions(context=needs.context)


def build_options_read_by(method: str) -> tuple[str, ...]:
    """The build options that change what a method does, and that a sweep varies for it.

    A method without entries reads the embedder alone. One whose windows are the full context
    keeps them: they are no number to vary with those of the others.
    """
    needs = method_class(method).needs
    if not needs.space:
        return ()
    if needs.context is None:
        return ("embedder",)
    names = ("context", "window", "end", "embedder", "values", "dtype")
    return names if isinstance(needs.context, int) else names[1:]


def with_wrong_answers(variants: list[Variant]) -> tuple[Variant, ...]:
    """Let variants share one space: it has wrong answers if one of them needs these."""
    richer = {variant.build for variant in variants if variant.needs_wrong and variant.build}
    return tuple(
        replace(variant, build=replace(variant.build, wrong=True))
        if variant.build is not None and variant.build in richer
        else variant
        for variant in variants
    )


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


_OFF = 3  # by how much the wrong answers of sums are wrong


def with_controls(
    variants: Sequence[Variant], build_of: Callable[[str], BuildOptions | None]
) -> list[Variant]:
    """The variants, each with its controls behind it, then what a user would do instead.

    What is swept has no controls of its own: name a value as a variant to have them.
    `build_of` says how the space of a method is built.
    """
    found: list[Variant] = []
    for variant in variants:
        found += [variant, *(() if variant.is_swept else controls_of(variant))]
    if not any(variant.build is not None for variant in variants):
        return found
    known = [(variant.method, dict(variant.settings)) for variant in variants]
    for name in built_in_names():
        for settings in getattr(method_class(name), "baseline_settings", ()):
            if (name, dict(settings)) not in known:
                found.append(Variant(name, settings, build_of(name), is_instead=True))
    return found


def controls_of(variant: Variant) -> list[Variant]:
    """The controls of one variant; none for a method without a space."""
    if variant.build is None:
        return []
    of_examples = (Control.SHUFFLED, Control.WRONG, Control.UNRELATED)
    found = [replace(variant, control=control) for control in of_examples]
    if past := settings_past_boundary(variant.method, variant.build.context):
        settings = {**variant.settings, **past}
        found.append(replace(variant, settings=settings, control=Control.BOUNDARY))
    return found


def settings_past_boundary(method: str, context: int | str | None) -> dict[str, Any]:
    """Settings that leave alone every step whose window reaches into the prompt."""
    is_known = "from_step" in settings_fields(method) and isinstance(context, int)
    return {"from_step": context} if is_known else {}


def controlled_examples(
    ground: Sequence[Example], control: Control | None
) -> tuple[Example, ...]:
    """The examples a control is grounded in; empty where it cannot be had of these.

    Wrong answers change places with the truthful ones, which stand as the wrong ones: a method
    that goes by other rules where an example has no wrong answer, as scope does, then goes by
    the rules of the real run.
    """
    if control is Control.SHUFFLED:
        return _shuffled(ground) if len(ground) > 1 else ()
    if control is Control.WRONG:
        return tuple(
            replace(one, answers=one.wrong_answers, wrong_answers=one.answers)
            for one in ground
            if one.wrong_answers
        )
    if control is Control.UNRELATED:
        return tuple(unrelated_examples(len(ground)))
    return tuple(ground)


def _shuffled(ground: Sequence[Example]) -> tuple[Example, ...]:
    """Every question with the answers of another, half the list away: neighbors are alike."""
    apart = len(ground) // 2
    others = [*ground[apart:], *ground[:apart]]
    return tuple(
        replace(one, answers=other.answers, wrong_answers=other.wrong_answers)
        for one, other in zip(ground, others, strict=True)
    )


def unrelated_examples(count: int) -> Iterator[Example]:
    """True sentences on sums of two numbers, which no benchmark here asks about."""
    for number in range(count):
        a, b = 11 + 7 * number, 23 + 5 * number
        texts = [
            f"If you add {a} and {b}, the sum that you get is {total}."
            for total in (a + b, a + b + _OFF)
        ]
        question = f"What do you get if you add {a} and {b}?"
        yield Example(question, texts[0], texts[1], f"unrelated-{number + 1}")


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
