"""Plans -> what their grounding spaces hold, weigh and cost, measured once a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from trueline.errors import SettingError
from trueline.evaluation.cells import machine, space_hash, versions
from trueline.evaluation.parts import benchmark_of, model_of
from trueline.evaluation.plan import BuildOptions, Plan
from trueline.evaluation.run import OnLabelledProgress
from trueline.files import reason, write_text

if TYPE_CHECKING:
    from trueline.embedders.base import Embedder
    from trueline.engines.base import Engine
    from trueline.evaluation.samples import Benchmark
    from trueline.space.space import GroundingSpace

MEASURED = "spaces.json"  # what was measured in a folder, by all that shapes it
_WINDOWS = 100  # retrievals that are timed; the median is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceCosts:
    """One grounding space."""

    model: str
    benchmark: str
    wanted: int | None  # examples that were asked for; None: all
    ground: int  # examples that could be had
    rule: str  # whether questions without an answer are among those asked for
    entries: int
    size: int  # bytes on disk
    as_logits: int  # bytes that 32-bit logits would take, which is what the paper keeps
    build_seconds: float  # with model and embedder open
    retrieval_ms: float  # embed one window, retrieve and add up the states; the median
    space_hash: str
    machine: dict[str, Any]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class _SpaceToMeasure:
    """A space, and what it is built with."""

    lm: Engine
    embedder: Embedder
    plan: Plan
    benchmark: Benchmark
    options: BuildOptions

    @property
    def key(self) -> str:
        """A hash of all that shapes the space and its figures."""
        from trueline.examples import digest

        examples = digest(self.benchmark.ground)
        names = [self.lm.fingerprint, self.embedder.hash, self.benchmark.name, examples]
        content = [names, asdict(self.options), machine(), versions()]
        return sha256(json.dumps(content).encode()).hexdigest()[:12]


def measure_spaces(
    plans: Sequence[Plan], folder: Path, progress: OnLabelledProgress | None = None
) -> list[SpaceCosts]:
    """Build and weigh the space of every benchmark of every plan, in a folder.

    A space that was measured there before is not built again. Where more examples are asked for
    than there are, spaces would be equal: there is one of them.
    """
    from trueline.embedders.loading import load_embedder

    models: dict[str, Engine] = {}
    embedders: dict[str, Embedder] = {}
    known, found = _known(folder), dict[str, SpaceCosts]()
    for plan in plans:
        options = plan.variants[0].build or BuildOptions(context=8)
        for name in plan.benchmarks:
            benchmark = benchmark_of(plan, name)
            for model in plan.models:
                if model not in models:
                    models[model] = model_of(plan, model)
                lm = models[model]
                if options.embedder not in embedders:
                    opened = load_embedder(options.embedder, device=lm.device)
                    embedders[options.embedder] = opened
                task = _SpaceToMeasure(
                    lm, embedders[options.embedder], plan, benchmark, options
                )
                if (key := task.key) not in known:
                    known[key] = _measure(task, folder, progress)
                    _keep(folder / MEASURED, known)
                measured = replace(known[key], wanted=plan.ground, rule=plan.rule)
                found.setdefault(key, measured)
    return list(found.values())


def _known(folder: Path) -> dict[str, SpaceCosts]:
    path = folder / MEASURED
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, SpaceCosts])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SettingError(
            f"{path} cannot be read ({error}); move it away, or name another folder with --out"
        ) from error
    return found


def _keep(path: Path, known: dict[str, SpaceCosts]) -> None:
    try:
        write_text(path, msgspec.json.encode(known).decode())
    except OSError as error:
        raise SettingError(
            f"{path} cannot be written ({reason(error)}); mend that and run the same again"
        ) from error


def _measure(
    task: _SpaceToMeasure, folder: Path, progress: OnLabelledProgress | None
) -> SpaceCosts:
    from trueline.space.build import build

    lm, benchmark = task.lm, task.benchmark
    label = f"building {benchmark.name}, {len(benchmark.ground)} examples"
    tell = None if progress is None else lambda done, total: progress(label, done, total)
    task.embedder.embed(["warm"])  # what the first call opens is no part of a build
    options = {**asdict(task.options), "embedder": task.embedder}
    begun = perf_counter()
    space = build(lm, benchmark.ground, prompt=benchmark.prompt, progress=tell, **options)
    seconds = perf_counter() - begun
    entries = space.info()["entries"]
    target = folder / "spaces" / f"measured-{task.key}.space"
    space.save(target)
    return SpaceCosts(
        model=lm.id,
        benchmark=benchmark.name,
        wanted=task.plan.ground,
        ground=len(benchmark.ground),
        rule=task.plan.rule,
        entries=entries,
        size=sum(path.stat().st_size for path in target.rglob("*") if path.is_file()),
        as_logits=entries * lm.vocabulary * 4,
        build_seconds=round(seconds, 2),
        retrieval_ms=round(1000 * median(retrieval_seconds(lm, space, benchmark)), 3),
        space_hash=space_hash(space, with_wrong=False),
        machine=machine(),
        versions=versions(),
    )


def retrieval_seconds(lm: Engine, space: GroundingSpace, benchmark: Benchmark) -> list[float]:
    """What our loop pays at a step beside the model's own: windows of real text, one by one.

    The head is left out: it is applied once to the sum of both, as it is without retrieval.
    """
    import torch

    from trueline.decoders.base import Rows
    from trueline.decoders.rad import RAD
    from trueline.fusion import aggregate

    rad = RAD(space, **benchmark.settings)
    times = []
    with torch.no_grad():
        for window in _windows(lm, space, benchmark):
            begun = perf_counter()
            lookup = rad.look_up(Rows(lm, [window], [0]))
            for found in rad.retrieve(lm, lookup):
                values = found.retriever.values(found.hits.entries)  # (hits, d)
                aggregate(found.weights, found.hits.rows, values, 1)  # (1, d)
            times.append(perf_counter() - begun)
    return times[len(times) // 10 :]  # the first few only warm up


def _windows(lm: Engine, space: GroundingSpace, benchmark: Benchmark) -> list[tuple[int, ...]]:
    """Stretches of the examples' text, as long as a window and all different."""
    texts = [text for one in benchmark.ground for text in (one.question, *one.answers)]
    tokens = lm.encode(" ".join(texts))
    context = space.recipe.context if isinstance(space.recipe.context, int) else 64
    places = range(max(1, len(tokens) - context))
    return list(dict.fromkeys(tuple(tokens[n : n + context]) for n in places))[:_WINDOWS]
