"""A model, a benchmark and a variant in; the cells of a run out, each with its own id."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueline.errors import SettingError
from trueline.evaluation.plan import BuildOptions, Plan, Task, Variant
from trueline.evaluation.results import Line
from trueline.evaluation.samples import Benchmark, Sample
from trueline.inputs import FilledPrompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from trueline.decoders.base import Decoder
    from trueline.engines.transformers.language import LanguageModel
    from trueline.space.space import GroundingSpace

_PACKAGES = ("trueline", "torch", "transformers", "tokenizers", "numpy")
_BUILT = ("end", "values", "dtype")  # of a space; its hash stands for them
_PROMPTS = ("prompt", "bare")  # settings that are prompts; their hashes are told apart
_TOLD_ONLY = (  # what the id of a cell does not hang on: the hash of the data stands for some
    *("kind", "cell", "model", "label", "embedder", "counts", "ground_from", "draw", "rule"),
    *("built", "versions"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One method with its settings on the samples of one benchmark."""

    lm: LanguageModel
    benchmark: Benchmark
    decoder: Decoder
    samples: tuple[tuple[int, Sample], ...]  # with their places in the benchmark
    line: Line  # what stands ahead of its results, without machine and time

    @property
    def id(self) -> str:
        """A short hash of everything that shapes the results."""
        return str(self.line["cell"])

    @property
    def task(self) -> Task:
        """Whether answers are generated or candidates scored."""
        task: Task = self.line["task"]
        return task


def cells_of(
    plan: Plan,
    lm: LanguageModel,
    benchmark: Benchmark,
    variant: Variant,
    space: GroundingSpace | None,
) -> list[Cell]:
    """The cells of one variant: a task each, and where there is sampling a seed each."""
    decoder = _decoder(variant, benchmark, space)
    found = []
    for task in plan.tasks:
        samples = tuple(
            (place, sample)
            for place, sample in enumerate(benchmark.test)
            if task == "generate" or sample.single or sample.multiple
        )
        is_sampled = task == "generate" and plan.temperature > 0
        for seed in plan.seeds if is_sampled else (None,):
            line = {
                "task": task,
                "samples": len(samples),
                "batch_size": plan.batch_size,
                **_generation(plan, lm, task),
                "seed": seed,
                **_about_method(variant, decoder, benchmark, space),
                **_about_model(lm),
                **_about_data(plan, benchmark),
                "versions": versions(),
            }
            head = {"kind": "cell", "cell": _id(line)}
            found.append(Cell(lm, benchmark, decoder, samples, {**head, **line}))
    return [cell for cell in found if cell.samples]


def grounding_space(
    lm: LanguageModel,
    benchmark: Benchmark,
    options: BuildOptions,
    folder: Path,
    progress: Callable[[int, int], None] | None,
) -> GroundingSpace:
    """The space of a benchmark, built once in a folder named by all that shapes it."""
    from trueline.examples import digest
    from trueline.space.build import build

    has_wrong = any(example.wrong_answers for example in benchmark.ground)
    options = replace(options, wrong=options.wrong and has_wrong)
    content = [
        lm.fingerprint,
        lm.tokenizer_hash,
        str(lm.dtype),
        digest(benchmark.ground),
        benchmark.prompt.hash,
        asdict(options),
    ]
    name = "".join(sign if sign.isalnum() else "-" for sign in Path(benchmark.name).name)
    return build(
        lm,
        benchmark.ground,
        prompt=benchmark.prompt,
        out=folder / f"{name}-{_hash(content)}.space",
        progress=progress,
        **asdict(options),
    )


def space_hash(space: GroundingSpace, with_wrong: bool) -> str:
    """A hash of what a method sees of its space: wrong answers count only where they are read.

    The names of model and embedder do not count either; their weights do.
    """
    from trueline.examples import digest

    recipe = asdict(space.recipe) | {"model": "", "embedder": "", "wrong": with_wrong}
    return _hash([recipe, digest(space.examples)])


def versions() -> dict[str, str]:
    """The versions of everything that computes."""
    return {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}


def machine() -> dict[str, Any]:
    """What the run stands on, without the name of the host."""
    import torch

    return {
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _decoder(variant: Variant, benchmark: Benchmark, space: GroundingSpace | None) -> Decoder:
    from trueline.decoders import make_method

    settings: dict[str, Any] = dict(variant.settings)
    if variant.method == "rad":
        settings.setdefault("tau", benchmark.tau)
    return make_method(variant.method, space=space, prompt=benchmark.prompt, settings=settings)


def _about_method(
    variant: Variant, decoder: Decoder, benchmark: Benchmark, space: GroundingSpace | None
) -> Line:
    own = fields(decoder)[1:]  # type: ignore[arg-type]  # the first is the space or the prompt
    settings = {one.name: getattr(decoder, one.name) for one in own if one.name not in _PROMPTS}
    defaults = {one.name: one.default for one in own if one.default is not MISSING}
    if variant.method == "rad":
        defaults["tau"] = benchmark.tau
    recipe = None if space is None else space.recipe
    return {
        "method": variant.method,
        "settings": settings,
        "label": variant.label(defaults),
        "prompt_hashes": _prompt_hashes(decoder, benchmark),
        "space_hash": None if space is None else space_hash(space, variant.needs_wrong),
        "entries": None if space is None else space.counts()["entries"],
        "embedder": None if recipe is None else recipe.embedder,
        "context": None if recipe is None else recipe.context,
        "window": None if recipe is None else recipe.window,
        "built": None if recipe is None else {n: getattr(recipe, n) for n in _BUILT},
    }


def _about_model(lm: LanguageModel) -> Line:
    return {
        "model": lm.id,
        "fingerprint": lm.fingerprint,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "device": lm.device.type,
    }


def _about_data(plan: Plan, benchmark: Benchmark) -> Line:
    scoring = [plan.bertscore and Path(plan.bertscore).name, plan.bertscore_layers]
    return {
        "benchmark": benchmark.name,
        "data_hash": benchmark.hash,
        "counts": dict(benchmark.counts),
        "ground_from": plan.ground_from,
        "ground": len(benchmark.ground),
        "test": len(benchmark.test),
        "draw": plan.draw,
        "rule": plan.rule,
        "bertscore": scoring if plan.bertscore else None,
    }


def _generation(plan: Plan, lm: LanguageModel, task: Task) -> Line:
    """How answers are generated, which is nothing to the scoring of candidates."""
    if task == "choose":
        return {"max_new_tokens": None, "temperature": 0.0, "stop": None}
    return {
        "max_new_tokens": plan.max_new_tokens,
        "temperature": float(plan.temperature),
        "stop": {"strings": list(plan.stop), "ids": sorted(lm.stop_ids)},
    }


def _prompt_hashes(decoder: Decoder, benchmark: Benchmark) -> list[str]:
    if decoder.needs.own_prompt:  # what stands ahead differs from question to question
        return [benchmark.prompt.hash]
    given = FilledPrompt(decoder.question_prompt, benchmark.test[0].question)
    return [one.hash for one in decoder.inputs(given)]


def _id(line: Line) -> str:
    shaping: Mapping[str, Any] = {n: v for n, v in line.items() if n not in _TOLD_ONLY}
    computed = {name: line["versions"][name] for name in _PACKAGES}
    return _hash([shaping, computed])


def _hash(content: object) -> str:
    try:
        text = json.dumps(content, sort_keys=True)
    except TypeError as error:
        raise SettingError(f"a setting is no plain value ({error})") from error
    return hashlib.sha256(text.encode()).hexdigest()[:12]
