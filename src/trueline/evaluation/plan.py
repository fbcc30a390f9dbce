"""What a run is made of: models, benchmarks, variants of methods, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from trueline.decoders import default_settings, method_class
from trueline.engines import DEFAULT_EMBEDDER, DEFAULT_MODEL
from trueline.prompts import Layout

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
        return method_class(self.method).needs_wrong(settings)


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
