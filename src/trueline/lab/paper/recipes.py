"""The paper's figures, and a recipe's name -> the plans to run."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from trueline.errors import SettingError
from trueline.lab.plan import Plan, plan_from

PlanKeys = dict[str, Any]  # keys of a run.toml
EXAMPLES = 100  # examples the paper grounds with, if their number does not vary
# Minutes on two cores with the default model: enough to see that a recipe runs.
SMALL: PlanKeys = {"ground": 25, "test": 16, "controls": False}
FULL: PlanKeys = {"ground": EXAMPLES, "test": "all", "as": "paper"}
_ANSWER_SECONDS = 64 / 80.9  # 64 tokens at the rate of RAD, batch 16 (benchmarks/results.json)
_EXAMPLE_SECONDS = 72 / 138.7  # 72 entries, as of TruthfulQA, at the rate of `build` there


class PaperBlock(msgspec.Struct, frozen=True):
    """The figures of one benchmark in one of the paper's tables."""

    recipe: str
    model: str
    benchmark: str
    metrics: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]  # by method and what was varied, as in `rad tau=0.1`
    changes: dict[str, tuple[float, ...]] = {}  # from greedy
    judge: str = ""


class Misprint(msgspec.Struct, frozen=True):
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


class TextFigure(msgspec.Struct, frozen=True):
    """A figure in the paper's text, as it is written there."""

    recipe: str
    key: str
    what: str
    printed: str


class PaperCase(msgspec.Struct, frozen=True):
    """A question whose answers the paper prints; by method, in our words."""

    benchmark: str
    question: str
    answers: dict[str, str]
    truth: dict[str, bool]
    info: dict[str, bool] = {}  # known of one case only
    moved: str = ""  # the token that RAD changed
    # Of a token, as printed: the model's own logit, the retrieved one, the fused one.
    logits: dict[str, tuple[float, float, float]] = {}


class Paper(msgspec.Struct, frozen=True):
    """All figures of the paper."""

    models: dict[str, str]
    judges: dict[str, str]
    tests: dict[str, int]  # questions tested on, by benchmark
    blocks: tuple[PaperBlock, ...]
    text_figures: tuple[TextFigure, ...]
    misprints: tuple[Misprint, ...]
    cases: tuple[PaperCase, ...]


class PaperRecipe(msgspec.Struct, frozen=True):
    """How one table or figure of the paper is run."""

    about: str
    plan: PlanKeys
    name: str = ""
    small: PlanKeys = {}  # keys without --full
    each: tuple[PlanKeys, ...] = ()  # parts that differ, a run each
    grounds: tuple[int, ...] = ()  # numbers of examples, a run each
    show: str = ""  # what is computed besides the paper's figures; empty: nothing
    answers: int = 0  # how many are generated without --full
    examples: int = 0  # how many get entries, over all spaces

    @property
    def minutes(self) -> float:
        """An estimate: the default model on two cores, benchmarks already on disk."""
        return (self.answers * _ANSWER_SECONDS + self.examples * _EXAMPLE_SECONDS) / 60


@cache
def paper() -> Paper:
    return msgspec.toml.decode((files(__package__) / "paper.toml").read_bytes(), type=Paper)


@cache
def recipes() -> dict[str, PaperRecipe]:
    """Every recipe by name, in the order of the paper."""
    text = (files(__package__) / "recipes.toml").read_bytes()
    found = msgspec.toml.decode(text, type=dict[str, PaperRecipe])
    return {name: msgspec.structs.replace(one, name=name) for name, one in found.items()}


def recipe_named(name: str) -> PaperRecipe:
    if name not in recipes():
        raise SettingError(f"there is no recipe {name!r}; there are {', '.join(recipes())}")
    return recipes()[name]


def plans_of(recipe: PaperRecipe, given: PlanKeys, *, is_full: bool = False) -> list[Plan]:
    """The plans of a recipe, which run into one folder; `given` wins over the recipe."""
    if is_full and recipe.show == "judges" and len(given.get("judges", ())) < 2:
        raise SettingError(
            f"{recipe.name} --full compares two judges: name both with --judge; the paper's "
            "are " + " and ".join(f"{kind}:{model}" for kind, model in paper().judges.items())
        )
    table = {"judges": ["offline"], **recipe.plan}
    table |= FULL if is_full else SMALL | recipe.small
    if recipe.show == "cases" and "benchmarks" not in given:  # others lack these questions
        table["questions"] = [case.question for case in paper().cases]
    table |= given
    # What is given wins over a part as well.
    parts = [{key: x for key, x in one.items() if key not in given} for one in recipe.each]
    if recipe.grounds:
        most = given.get("ground", max(recipe.grounds) if is_full else EXAMPLES)
        is_number = isinstance(most, int)
        counts = [count for count in recipe.grounds if is_number and count < most]
        table["ground"] = min(EXAMPLES, most) if is_number else most
        parts += [{"ground": count} for count in (*counts, most)]
    tables: list[PlanKeys] = []
    for part in parts or [{}]:
        if table | part not in tables:
            tables.append(table | part)
    where = f"the recipe {recipe.name} with the given options"
    return [plan_from(one, where) for one in tables]
