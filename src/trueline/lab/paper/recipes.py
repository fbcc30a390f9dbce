"""The paper's figures, and a recipe's name -> the plans to run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from trueline.errors import SettingError
from trueline.lab.plan import Plan, plan_from

T = TypeVar("T")
PlanKeys = Mapping[str, Any]  # keys of a run.toml
EXAMPLES = 100  # examples the paper grounds with, if their number does not vary
# Minutes on two cores with the default model: enough to see that a recipe runs.
SMALL: PlanKeys = {"ground": 25, "test": 16, "controls": False}
FULL: PlanKeys = {"ground": EXAMPLES, "test": "all", "as": "paper"}
_ANSWER_SECONDS = 64 / 80.9  # 64 tokens at the rate of RAD, batch 16 (benchmarks/results.json)
_EXAMPLE_SECONDS = 72 / 138.7  # 72 entries, as of TruthfulQA, at the rate of `build` there


@dataclass(frozen=True, slots=True)
class PaperBlock:
    """The figures of one benchmark in one of the paper's tables."""

    recipe: str
    model: str
    benchmark: str
    metrics: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]  # by method and what was varied, as in `rad tau=0.1`
    changes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # from greedy
    judge: str = ""


@dataclass(frozen=True, slots=True)
class Misprint:
    """A figure of the paper that does not follow from its others."""

    recipe: str
    model: str
    benchmark: str
    row: str
    metric: str
    kind: str  # change: the difference in brackets; product: T*I; sum: of logits
    printed: float
    worked: float
    about: str


@dataclass(frozen=True, slots=True)
class TextFigure:
    """A figure in the paper's text, as it is written there."""

    recipe: str
    key: str
    what: str
    printed: str


@dataclass(frozen=True, slots=True)
class PaperCase:
    """A question whose answers the paper prints; by method, in our words."""

    benchmark: str
    question: str
    answers: Mapping[str, str]
    truth: Mapping[str, bool]
    info: Mapping[str, bool] = field(default_factory=dict)  # known of one case only
    moved: str = ""  # the token that RAD changed
    # Of a token, as printed: the model's own logit, the retrieved one, the fused one.
    logits: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Paper:
    """All figures of the paper."""

    models: Mapping[str, str]
    judges: Mapping[str, str]
    tests: Mapping[str, int]  # questions tested on, by benchmark
    blocks: tuple[PaperBlock, ...]
    text_figures: tuple[TextFigure, ...]
    misprints: tuple[Misprint, ...]
    cases: tuple[PaperCase, ...]


@dataclass(frozen=True, slots=True)
class PaperRecipe:
    """How one table or figure of the paper is run."""

    about: str
    plan: PlanKeys
    name: str = ""
    small: PlanKeys = field(default_factory=dict)  # keys without --full
    each: tuple[PlanKeys, ...] = ()  # parts that differ, a run each
    grounds: tuple[int, ...] = ()  # numbers of examples, a run each
    show: str = ""  # what is computed besides the paper's figures; empty: nothing
    answers: int = 0  # how many are generated without --full
    examples: int = 0  # how many get entries, over all spaces

    @property
    def minutes(self) -> float:
        """An estimate: the default model on two cores, benchmarks already on disk."""
        return (self.answers * _ANSWER_SECONDS + self.examples * _EXAMPLE_SECONDS) / 60


def _read(name: str, kind: type[T]) -> T:
    text = files("trueline.lab.paper").joinpath(name).read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), kind)


@cache
def paper() -> Paper:
    return _read("paper.toml", Paper)


@cache
def recipes() -> dict[str, PaperRecipe]:
    """Every recipe by name, in the order of the paper."""
    found = _read("recipes.toml", dict[str, dict[str, Any]])
    tables = {name: {**table, "name": name} for name, table in found.items()}
    return msgspec.convert(tables, dict[str, PaperRecipe])


def recipe_named(name: str) -> PaperRecipe:
    if name not in recipes():
        raise SettingError(f"there is no recipe {name!r}; there are {', '.join(recipes())}")
    return recipes()[name]


def plans_of(recipe: PaperRecipe, given: PlanKeys, *, is_full: bool = False) -> list[Plan]:
    """The plans of a recipe, which run into one folder; `given` wins over the recipe."""
    size = FULL if is_full else {**SMALL, **recipe.small}
    table: dict[str, Any] = {"judges": ["offline"], **recipe.plan, **size}
    if recipe.show == "cases" and "benchmarks" not in given:  # others lack these questions
        table["questions"] = [case.question for case in paper().cases]
    table |= given
    parts: list[PlanKeys] = list(recipe.each or [{}])
    if recipe.grounds:
        most = given.get("ground", max(recipe.grounds) if is_full else EXAMPLES)
        is_number = isinstance(most, int)
        fewer = [count for count in recipe.grounds if is_number and count < most]
        table["ground"] = min(EXAMPLES, most) if is_number else most
        parts = [*recipe.each, *({"ground": count} for count in (*fewer, most))]
    if "benchmarks" in given:  # replaces those of a part
        parts = [{k: x for k, x in part.items() if k != "benchmarks"} for part in parts]
    tables = [{**table, **part} for part in parts]
    distinct = [one for index, one in enumerate(tables) if one not in tables[:index]]
    return [
        plan_from(one, f"the recipe {recipe.name} with the given options") for one in distinct
    ]
