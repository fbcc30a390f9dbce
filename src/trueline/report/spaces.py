"""Plans in; what their grounding spaces hold, weigh and cost out, measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from trueline.evaluation.plan import BuildOptions, Plan

if TYPE_CHECKING:
    from trueline.evaluation.samples import Benchmark
    from trueline.models.language import LanguageModel
    from trueline.space.space import GroundingSpace

Progress = Callable[[str, int, int], None]
_WINDOWS = 100  # retrievals that are timed; the median is told


@dataclass(frozen=True, slots=True)
class SpaceMeasured:
    """One grounding space."""

    model: str
    benchmark: str
    ground: int  # examples
    entries: int
    size: int  # bytes on disk
    as_logits: int  # bytes that 32-bit logits would take, which is what the paper keeps
    build_seconds: float
    retrieval_ms: float  # embed one window, retrieve and aggregate; the median


def measure_spaces(
    plans: Sequence[Plan], folder: Path, progress: Progress | None = None
) -> list[SpaceMeasured]:
    """Build and weigh the space of every benchmark of every plan, in a folder."""
    from trueline.evaluation.benchmarks import read_benchmark
    from trueline.models.language import load

    models: dict[str, LanguageModel] = {}
    found = []
    for plan in plans:
        for name in plan.benchmarks:
            benchmark = read_benchmark(
                name, data=plan.data, ground=plan.ground, test=1, seed=plan.draw
            )
            for model in plan.models:
                if model not in models:
                    models[model] = load(
                        model,
                        dtype=plan.dtype,
                        device=plan.device,
                        trust_remote_code=plan.trust_remote_code,
                    )
                options = plan.variants[0].build or BuildOptions()
                found.append(_measure(models[model], benchmark, options, folder, progress))
    return found


def _measure(
    lm: LanguageModel,
    benchmark: Benchmark,
    options: BuildOptions,
    folder: Path,
    progress: Progress | None,
) -> SpaceMeasured:
    from trueline.space.build import build

    label = f"building {benchmark.name}, {len(benchmark.ground)} examples"
    tell = None if progress is None else lambda done, total: progress(label, done, total)
    begun = perf_counter()
    space = build(
        lm, benchmark.ground, prompt=benchmark.prompt, progress=tell, **asdict(options)
    )
    seconds = perf_counter() - begun
    content = json.dumps([lm.fingerprint, benchmark.hash, asdict(options)])
    target = folder / "spaces" / f"measured-{sha256(content.encode()).hexdigest()[:12]}.space"
    space.save(target)
    return SpaceMeasured(
        lm.id,
        benchmark.name,
        len(benchmark.ground),
        len(space),
        sum(path.stat().st_size for path in target.rglob("*") if path.is_file()),
        len(space) * lm.vocabulary * 4,
        round(seconds, 2),
        round(_retrieval_ms(lm, space, benchmark), 3),
    )


def _retrieval_ms(lm: LanguageModel, space: GroundingSpace, benchmark: Benchmark) -> float:
    """The median time for one window of real text; the first few only warm up."""
    import torch

    from trueline.decoders.processor import RadProcessor
    from trueline.decoders.rad import RAD

    processor = RadProcessor(RAD(space, tau=benchmark.tau), lm)
    texts = [text for one in benchmark.ground for text in (one.question, *one.answers)]
    tokens = lm.tokenizer(" ".join(texts), add_special_tokens=False)["input_ids"]
    context = space.recipe.context if isinstance(space.recipe.context, int) else 64
    base = torch.zeros(1, lm.vocabulary, device=lm.device, dtype=lm.dtype)  # (1, vocabulary)
    times = []
    for place in range(min(_WINDOWS, len(tokens) - context)):
        window = torch.tensor([tokens[place : place + context]], device=lm.device)
        begun = perf_counter()
        processor(window, base)  # type: ignore[no-untyped-call, unused-ignore]
        times.append(perf_counter() - begun)
    return 1000 * median(times[len(times) // 10 :])
