"""A table of settings -> a checked plan: models, benchmarks, methods and their controls."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from trueline.engines import DEFAULT_EMBEDDER, DEFAULT_MODEL
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
from trueline.prompts import Layout
from trueline.settings import Between, check_value, plain
from trueline.text import shown
from trueline.types import Example, Sampling

# The mean of the picked tokens' probabilities. `raw` takes them from the fused logits as they
# are, not on the model's scale (RAD's `neutral`).
Confidence = Literal["geometric", "arithmetic", "arithmetic-raw"]
References = Literal["all", "first"]  # the best of them, or only the first
Mode = Literal["generate", "choose"]  # answers are generated, or candidates are scored
PAPER: Mapping[str, Any] = {  # `as = "paper"`: the defaults that it replaces
    "prompts": "one-line",
    "confidence": "arithmetic-raw",
    "references": "first",
    "stemmer": True,
    "max_new_tokens": 256,
    "rule": "all",
    "judge": {"questions": "paper"},
}
_PAPER_ENCODER = "microsoft/deberta-xlarge-mnli"  # of BERTScore, rescaled by its baseline
_MOST = 10**9  # the largest number of samples, tokens or a seed
_MOST_VARIANTS = 1_000

Count = Annotated[int, Meta(ge=1, le=_MOST)]
Seed = Annotated[int, Meta(ge=0, le=_MOST)]
Small = Annotated[int, Meta(ge=1, le=1024)]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"\A[^\0]+\Z")]
Names = tuple[Name, ...]
Texts = tuple[Text, ...]
Table = dict[str, Any]
Tables = Annotated[tuple[Table, ...], Meta(min_length=1)]
Values = Annotated[list[Any], Meta(min_length=1)]
Rule = Literal["answered", "all"]
EngineName = Literal["transformers", "llama.cpp"]
if TYPE_CHECKING:
    Limit = int | None  # a plan turns "all" into None
else:
    Limit = Count | Literal["all"] | None


def _help(text: str, least: int | None = None, **extra: str) -> Meta:
    """The help of a key's flag.

    `flag` is its name if that is not the key's, `env` a variable with its value, `split` what
    separates several values, `word` stands for its value in the help, and `unset` is what holds
    without it, if that is not its default.
    """
    return Meta(description=text, min_length=least, extra=extra)


class Control(StrEnum):
    """How a control changes the examples of a method, or which steps it leaves out."""

    SHUFFLED = "answers shuffled"  # over the questions
    WRONG = "wrong answers"  # change places with the truthful ones
    UNRELATED = "unrelated examples"
    BOUNDARY = "no boundary steps"  # steps whose window contains prompt tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How the grounding space of a variant is built; the names are those of `tl.build`."""

    # None: no entries, and no pass of the model.
    context: Annotated[
        Count | Literal["full"] | None, _help("Tokens in a window, or `full`.", unset="8")
    ] = None
    window: Literal["template", "text", "answer"] = "template"
    end: bool = False
    embedder: Annotated[Name, _help("Alias, hub id or folder.")] = DEFAULT_EMBEDDER
    values: Literal["auto", "hidden", "logits"] = "auto"
    dtype: Literal["auto", "float32", "float16"] = "auto"
    wrong: bool = False  # also keep the wrong answers; set if a variant needs them


@dataclass(frozen=True, slots=True)
class Variant:
    """A method with the settings that were given for it."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    build: BuildOptions | None = None  # None: it needs no grounding space
    control: Control | None = None  # None: it is the method itself
    is_instead: bool = False  # whether it is a baseline that the plan does not name

    @property
    def needs_wrong(self) -> bool:
        """Whether it works only with wrong answers in its space."""
        return bool({**default_settings(self.method), **self.settings}.get("beta"))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does: its cells are models x benchmarks x variants x tasks x seeds.

    The only declaration of a plan's keys: files, the flags of `trueline eval` and all checks
    are made from it. The options of `Sampling` are keys too, declared there.
    """

    out: Annotated[Name | None, _help("The folder of the results.")] = None
    models: Annotated[Names, _help("One or more.", 1, flag="model")] = (DEFAULT_MODEL,)
    benchmarks: Annotated[Names, _help("A name or a file; see docs.", 1, flag="benchmark")]
    columns: Annotated[dict[str, Text], Meta(min_length=1)] | None = None  # by field of a file
    methods: Annotated[Texts, _help("Separated by commas, or `all`.", 1, split=",")] = ()
    tasks: Annotated[tuple[Mode, ...], _help("Separated by commas:", 1, split=",")] = (
        "generate",
    )
    judges: Annotated[Names, _help("One or more; see docs.", 1, flag="judge")] = ()
    judge: Table = {}  # Limits, max_tokens and questions of the judges
    settings: Annotated[
        dict[str, Table], _help("Such as rad.alpha=0.3.", flag="set", word="METHOD.NAME=VALUE")
    ] = {}
    sweep: Annotated[
        dict[str, Values], _help("Or build.OPTION=A,B: each in turn.", word="METHOD.NAME=A,B")
    ] = {}
    named: Tables = msgspec.field(default=(), name="variants")
    build: Table = {}  # BuildOptions, or a table of them by the name of a method
    ground: Annotated[Limit, _help("How many examples to use, or `all`.")] = 100
    ground_from: Annotated[Name | None, _help("Take examples from another benchmark.")] = None
    test: Annotated[Limit, _help("How many samples (a regime), or `all`.", unset="all")] = None
    questions: Annotated[Texts, _help("Test on this; one or more.", 1, flag="question")] = ()
    draw: Annotated[Seed | None, _help("Draw examples and samples with this seed.")] = None
    data: Annotated[Name | None, _help("A folder of benchmark files.", unset="the hub")] = None
    rule: Annotated[Rule, _help("answered: those with a truthful answer.")] = "answered"
    sampling: Sampling = Sampling()
    seeds: Annotated[tuple[Seed, ...], _help("One or more.", 1, flag="seed")] = (0,)
    batch_size: Annotated[Count, _help("Samples in a chunk.")] = 16
    engine: Annotated[EngineName, _help("", env="TRUELINE_ENGINE")] = "transformers"
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], _help("")] = "auto"
    device: Annotated[Name | None, _help("cpu, cuda, mps.", unset="the best there is")] = None
    threads: Annotated[Small | None, _help("For torch.")] = None
    trust_remote_code: Annotated[bool, _help("Run code that a model brings.")] = False
    bertscore: Annotated[Name | None, _help("The folder of an encoder: adds BERTScore.")] = None
    bertscore_layers: Annotated[Small | None, _help("Which layer of it is compared.")] = None
    controls: Annotated[bool, _help("Also run controls and baselines; see docs.")] = True
    like: Annotated[
        Literal["paper"] | None, _help("Prompts, limits and measures of its authors:")
    ] = msgspec.field(default=None, name="as")
    prompts: Annotated[Layout, _help("")] = "lines"
    confidence: Annotated[Confidence, _help("Mean of probabilities:")] = "geometric"
    references: Annotated[References, _help("For ROUGE-L and BERTScore:")] = "all"
    stemmer: Annotated[bool, _help("ROUGE-L by stems.")] = False
    bertscore_baseline: Annotated[Name | None, _help("The encoder that rescales it.")] = None

    @property
    def fidelity(self) -> dict[str, Any]:
        """How prompts are laid out and answers measured, where that is not the default."""
        given = {name: getattr(self, name) for name in _FIDELITY}
        return {name: value for name, value in given.items() if value != DEFAULTS[name]}

    @property
    def encoder(self) -> tuple[Path, int, str | None] | None:
        """Of BERTScore: the folder, the layer, and the encoder of the baseline."""
        if self.bertscore is None or self.bertscore_layers is None:
            return None
        return Path(self.bertscore), self.bertscore_layers, self.bertscore_baseline

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Methods with swept settings, named variants, their controls, and the baselines."""
        made = [one for name in self.methods for one in self._variants(name, {}, self.sweep)]
        for item in self.named:
            given = {name: value for name, value in item.items() if name != "method"}
            made += self._variants(item["method"], given, {})
        made = [one for index, one in enumerate(made) if one not in made[:index]]
        if self.controls and any(one.build is not None for one in made):
            known = [(one.method, one.settings) for one in made]
            made += [
                replace(next(self._variants(name, {}, {})), settings=settings, is_instead=True)
                for name in built_in_names()
                for settings in getattr(method_class(name), "baseline_settings", ())
                if (name, settings) not in known
            ]
        richer = {one.build for one in made if one.needs_wrong}  # shared by all with this one
        return tuple(
            replace(one, build=replace(one.build, wrong=True))
            if one.build is not None and one.build in richer
            else one
            for one in made
        )

    def _variants(self, method: str, given: Table, sweep: Table) -> Iterator[Variant]:
        """A method with its settings and these, for each combination of the swept values.

        Its controls follow it. A swept value has none: name it as a variant to have them.
        """
        keys, default = _swept_keys(method, sweep), default_build(method)
        read = build_options_read_by(method)
        shared = {name: value for name, value in self.build.items() if name in read}
        for values in product(*(sweep[key] for key in keys)):
            settings, options = {**self.settings.get(method, {}), **given}, {**shared}
            for key, value in zip(keys, values, strict=True):
                owner, _, name = key.partition(".")
                (options if owner == "build" else settings)[name] = value
            options |= self.build.get(method, {})
            settings = {name: plain(value) for name, value in settings.items()}
            build = default and replace(default, **options)
            made = Variant(method, settings, build)
            yield made
            if self.controls and build is not None and not keys:
                for control in (Control.SHUFFLED, Control.WRONG, Control.UNRELATED):
                    yield replace(made, control=control)
                if isinstance(build.context, int) and "from_step" in settings_fields(method):
                    settings = {**settings, "from_step": build.context}
                    yield replace(made, settings=settings, control=Control.BOUNDARY)


DEFAULTS: Table = {one.encode_name: one.default for one in msgspec.structs.fields(Plan)}
_FIDELITY = ("prompts", "confidence", "references", "stemmer", "bertscore_baseline")


def _types(cls: type, *without: str) -> Table:
    hints = get_type_hints(cls, include_extras=True)
    return {name: hint for name, hint in hints.items() if name not in without}


# A plan has its own `seeds`; a run sets the others.
SAMPLING = _types(Sampling, "seed", "stop_ids", "trace", "logprobs")
# Ranges that results can hold.
_HELD: Table = {"max_new_tokens": Count, "temperature": Annotated[float, Between(0, _MOST)]}
KEYS: Table = {  # with their types
    one.encode_name: one.type for one in msgspec.structs.fields(Plan) if one.name != "sampling"
} | SAMPLING
BUILD = _types(BuildOptions, "wrong")
JUDGE = _types(Limits) | {"max_tokens": Count, "questions": Literal["ours", "paper"]}


def default_build(method: str) -> BuildOptions | None:
    """The space of a method without options; None: it needs none."""
    needs = method_class(method).needs
    return BuildOptions(context=needs.context) if needs.space else None


def build_options_read_by(method: str) -> tuple[str, ...]:
    """The build options that change what a method does, and that a sweep varies for it.

    A method without entries reads the embedder alone. Windows of the full context stay so: they
    are not a number to vary with those of other methods.
    """
    needs = method_class(method).needs
    if not needs.space:
        return ()
    if needs.context is None:
        return ("embedder",)
    return tuple(name for name in BUILD if name != "context" or needs.context != "full")


def _swept_keys(method: str, sweep: Table) -> list[str]:
    options = build_options_read_by(method)
    return [
        x for x in sweep if x.startswith(f"{method}.") or x.removeprefix("build.") in options
    ]


def controlled_examples(
    ground: Sequence[Example], control: Control | None
) -> tuple[Example, ...]:
    """The examples of a control; empty if these give none.

    Wrong and truthful answers change places, so that no example loses its wrong answers: scope
    follows other rules for an example without them, and the control would differ in that too.
    """
    if control is Control.SHUFFLED:  # half the list away, since neighbors are alike
        apart = len(ground) // 2
        others = [*ground[apart:], *ground[:apart]] if apart else []
        return tuple(
            replace(example, answers=other.answers, wrong_answers=other.wrong_answers)
            for example, other in zip(ground, others, strict=False)
        )
    if control is Control.WRONG:
        return tuple(
            replace(example, answers=example.wrong_answers, wrong_answers=example.answers)
            for example in ground
            if example.wrong_answers
        )
    if control is Control.UNRELATED:  # sums of two numbers, which no benchmark here asks for
        made = []
        for number in range(len(ground)):
            a, b = 11 + 7 * number, 23 + 5 * number
            totals = (a + b, a + b + 3)
            right, wrong = (
                f"If you add {a} and {b}, the sum that you get is {x}." for x in totals
            )
            question = f"What do you get if you add {a} and {b}?"
            made.append(Example(question, right, wrong, f"unrelated-{number + 1}"))
        return tuple(made)
    return tuple(ground)


def read_plan_table(path: Path, *, trust_remote_code: bool = False) -> Table:
    """The table of a run.toml, not yet checked.

    A plan may come from somebody else: only its caller may allow code of a model to run.
    """
    try:
        table = tomllib.loads(read_text(path, "the plan"))
    except SettingError as error:
        raise SettingError(
            f"{error}; name the .toml file of a run, or give flags only: trueline eval "
            f"--benchmark facts --methods {PLAIN},{DEFAULT} --out results"
        ) from error
    except (RecursionError, ValueError) as error:  # also a number of thousands of digits
        raise SettingError(f"{path} is not readable TOML: {error}") from error
    if table.get("trust_remote_code") is True and not trust_remote_code:
        raise SettingError(
            f"{path} wants to run code that a model brings (trust_remote_code), which a plan "
            "alone may not; if you trust the models it names, add --trust-remote-code to the "
            "command"
        )
    return table


def plan_from(table: Mapping[str, Any], where: str = "the plan") -> Plan:
    """A plan from a table; all mistakes in it are listed in one error."""
    refused = _mistakes(table, KEYS)
    values = {key: value for key, value in table.items() if key not in refused}
    problems = [*refused.values(), *_missing(table), *_method_mistakes(values)]
    problems += _mistakes(values.get("judge", {}), JUDGE, "judge.").values()
    values |= {name: None for name in ("ground", "test") if values.get(name) == "all"}
    if values.get("as") == "paper":
        judge = {**PAPER["judge"], **values.get("judge", {})}
        baseline = {"bertscore_baseline": _PAPER_ENCODER} if "bertscore" in values else {}
        values = {**PAPER, **baseline, **values, "judge": judge}
    given = {key: plain(values.pop(key)) for key in SAMPLING if key in values}
    problems += _mistakes({n: x for n, x in given.items() if n in _HELD}, _HELD).values()
    try:
        Sampling(**given)
    except SettingError as error:
        problems.append(str(error))
    if not problems:
        plan = msgspec.convert({**values, "sampling": given}, Plan)
        if len(plan.seeds) > 1 and not plan.sampling.is_sampled:
            problems.append("seeds has several, which needs a temperature above 0")
        for variant in plan.variants:
            try:
                check_settings(variant.method, variant.settings)
            except TruelineError as error:
                problems.append(f"{variant.method}: {error}")
    if problems:
        problems = list(dict.fromkeys(problems))
        count = f"{len(problems)} mistakes" if len(problems) > 1 else "a mistake"
        raise SettingError("\n  - ".join([f"{where} has {count}:", *problems]))
    return plan


def _mistakes(table: Mapping[str, Any], types: Table, inside: str = "") -> dict[str, str]:
    """What is wrong, in one sentence, by the keys for which something is."""
    found = {}
    for key, value in table.items():
        try:
            if key not in types:
                keys = ", ".join(types)
                raise SettingError(f"{shown(inside + key)} is not a key; the keys are {keys}")
            check_value(inside + key, value, types[key])
            msgspec.json.encode(value)
        except SettingError as error:
            found[key] = str(error)
        except (ValueError, RecursionError) as error:
            found[key] = f"{inside + key} has a value that results cannot hold: {error}"
    return found


def _missing(table: Mapping[str, Any]) -> Iterator[str]:
    if "benchmarks" not in table:
        yield "benchmarks is missing (--benchmark); name one or more, such as facts"
    if "methods" not in table and "variants" not in table:
        yield f"methods is missing (--methods); name one or more, such as {PLAIN},{DEFAULT}"
    if ("bertscore" in table) != ("bertscore_layers" in table):
        yield "bertscore and bertscore_layers go together: a folder and a layer of it"
    if "bertscore_baseline" in table and "bertscore" not in table:
        yield "bertscore_baseline rescales BERTScore, and there is no bertscore"


def _method_mistakes(values: Table) -> Iterator[str]:
    methods, named = [*values.get("methods", ())], values.get("variants", ())
    if not all(isinstance(item.get("method"), str) for item in named):
        yield "variants must be a list, each a table with a method"
        return
    known, used = method_names(), {*methods, *(item["method"] for item in named)}
    for name in sorted(used.difference(known)):
        yield f"methods: there is no method {shown(name)}; there are {', '.join(known)}"
    for name in sorted(values.get("settings", {}).keys() - used):
        yield f"settings has {shown(name)}, which is none of the methods of the plan"
    for name, value in values.get("build", {}).items():
        has_own = name in known and build_options_read_by(name) and isinstance(value, dict)
        given, inside = (value, f"build.{name}.") if has_own else ({name: value}, "build.")
        yield from _mistakes(given, BUILD, inside).values()
    yield from _sweep_mistakes(values.get("sweep", {}), [x for x in methods if x in known])


def _sweep_mistakes(sweep: Table, methods: Sequence[str]) -> Iterator[str]:
    read = {option for method in methods for option in build_options_read_by(method)}
    for key, values in sweep.items():
        owner, _, name = key.partition(".")
        if owner == "build" and name in read:
            for value in values:
                yield from _mistakes({name: value}, BUILD, "build.").values()
        elif not name or owner not in methods:
            yield (
                f'sweep has {shown(key)}; write "METHOD.SETTING" of one of the methods '
                f'({", ".join(methods)}), or "build.OPTION" of an option that they read'
            )
    counts = (prod(len(sweep[key]) for key in _swept_keys(m, sweep)) for m in methods)
    if sum(counts) > _MOST_VARIANTS:
        yield f"sweep makes more than {_MOST_VARIANTS:,} variants of the methods"
