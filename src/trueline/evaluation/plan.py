"""What a run is made of: models, benchmarks, variants of methods, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Task = Literal["generate", "choose"]
TASKS: tuple[Task, ...] = ("generate", "choose")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How the grounding space of a variant is built; the names are those of `tl.build`."""

    context: int | str = 8
    window: str = "all"
    end: bool = False
    embedder: str = "all-minilm-l6-v2"
    values: str = "auto"
    dtype: str = "auto"
    wrong: bool = False  # also keep the wrong answers; set where a variant has a beta


@dataclass(frozen=True, slots=True)
class Variant:
    """A method with the settings that were given for it."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    build: BuildOptions | None = None  # None: it needs no grounding space

    @property
    def needs_wrong(self) -> bool:
        """Whether it works only with wrong answers in its space."""
        return bool(self.settings.get("beta"))

    def label(self, defaults: Mapping[str, Any]) -> str:
        """Its name and what differs from the defaults, as in `rad alpha=0.3 window=answer`.

        Context and embedder are left out: a cell holds them in fields of their own.
        """
        told = {
            name: value
            for name, value in self.settings.items()
            if name not in defaults or value != defaults[name]
        }
        if self.build is not None:
            plain = asdict(default_build(self.method))
            told |= {
                name: value
                for name, value in asdict(self.build).items()
                if name not in ("wrong", "context", "embedder") and value != plain[name]
            }
        return " ".join([self.method, *(f"{name}={_told(told[name])}" for name in told)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All a run is told: its cells are models x benchmarks x variants x tasks x seeds."""

    benchmarks: tuple[str, ...]
    variants: tuple[Variant, ...]
    models: tuple[str, ...] = ("smollm2-135m",)
    tasks: tuple[Task, ...] = ("generate",)
    judges: tuple[str, ...] = ()
    judge: Mapping[str, Any] = field(default_factory=dict)  # Limits and max_tokens of them
    ground: int | None = 100  # examples to ground with; None: all
    ground_from: str | None = None  # a benchmark to take them from, if not the tested one
    test: int | None = None  # samples; None: all
    draw: int | None = None  # the seed they are drawn with; None: the first ones
    data: Path | None = None
    rule: Literal["answered", "all"] = "answered"  # whether unanswered questions are kept
    max_new_tokens: int = 64
    batch_size: int = 16
    temperature: float = 0.0
    seeds: tuple[int, ...] = (0,)  # they count only where there is sampling
    stop: tuple[str, ...] = ()
    dtype: str = "auto"
    device: str | None = None
    threads: int | None = None
    trust_remote_code: bool = False
    bertscore: str | None = None  # the encoder's folder; None: no BERTScore
    bertscore_layers: int | None = None


def default_build(method: str) -> BuildOptions:
    """The paper's space for a method: kNN-LM has keys over the full context."""
    return BuildOptions(context="full") if method == "knn-lm" else BuildOptions()


def with_wrong_answers(variants: list[Variant]) -> tuple[Variant, ...]:
    """Let variants share one space: where one has a beta, the others' space is the same."""
    richer = {
        variant.build for variant in variants if variant.needs_wrong and variant.build
    }  # still without the mark
    return tuple(
        replace(variant, build=replace(variant.build, wrong=True))
        if variant.build is not None and variant.build in richer
        else variant
        for variant in variants
    )


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
