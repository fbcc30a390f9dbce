"""paper.toml -> the paper's figures, by recipe, model, benchmark and row."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from msgspec import convert


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
    """A figure that stands in the paper's text, as it is written there."""

    recipe: str
    key: str
    what: str
    printed: str


@dataclass(frozen=True, slots=True)
class PaperCase:
    """A question the paper shows the answers to; by method, in our words."""

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


@cache
def paper() -> Paper:
    """Read the figures."""
    text = files("trueline.paper").joinpath("paper.toml").read_text("utf-8")
    return convert(tomllib.loads(text), Paper)
