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
from trueline.files import reason, write_text
from trueline.lab.cells import benchmark_of, machine, model_of, space_hash, versions
from trueline.lab.paper.recipes import paper
from trueline.lab.plan import BuildOptions, Plan
from trueline.lab.report.tables import Grid, GridText
from trueline.lab.run import OnLabelledProgress

if TYPE_CHECKING:
    from trueline.embed import Embedder
    from trueline.engines.base import Engine
    from trueline.lab.samples import Benchmark
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
    from trueline.embed import load_embedder

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

    from trueline.methods.base import Rows
    from trueline.rad.method import RAD

    rad = RAD(space, **benchmark.settings)
    times = []
    with torch.no_grad():
        for window in _windows(lm, space, benchmark):
            begun = perf_counter()
            rows = Rows(lm, [window], [0])
            for found in rad.weighed(rows, rad.prefetch(rows)()):
                found.aggregated(is_state=True)  # (1, d)
            times.append(perf_counter() - begun)
    return times[len(times) // 10 :]  # the first few only warm up


def _windows(lm: Engine, space: GroundingSpace, benchmark: Benchmark) -> list[tuple[int, ...]]:
    """Stretches of the examples' text, as long as a window and all different."""
    texts = [text for one in benchmark.ground for text in (one.question, *one.answers)]
    tokens = lm.encode(" ".join(texts))
    context = space.recipe.context if isinstance(space.recipe.context, int) else 64
    places = range(max(1, len(tokens) - context))
    return list(dict.fromkeys(tuple(tokens[n : n + context]) for n in places))[:_WINDOWS]


_HEAD = tuple(
    "benchmark, examples, entries, paper: entries, size, as 32-bit logits, paper: size, "
    "time to build, time to retrieve".split(", ")
)


def space_figure(one: SpaceCosts) -> dict[str, Any]:
    """A space as JSON, with what the paper says of the same benchmark and examples."""
    return {
        **asdict(one),
        "paper_entries": _paper(one, "entries"),
        "paper_gigabytes": _paper(one, "gigabytes"),
    }


def space_grid(measured: Sequence[SpaceCosts]) -> Grid:
    """A row a space."""
    rows = []
    for one in measured:
        entries, size = _paper(one, "entries"), _paper(one, "gigabytes")
        texts = (
            one.benchmark,
            _examples(one),
            f"{one.entries:,}",
            "\N{EN DASH}" if entries is None else f"{entries:,.0f}",
            f"{one.size / 1e6:,.1f} MB",
            f"{one.as_logits / 1e6:,.0f} MB",
            "\N{EN DASH}" if size is None else f"{size:g} GB",
            f"{one.build_seconds:,.1f} s",
            f"{one.retrieval_ms:.2f} ms",
        )
        rows.append(tuple(GridText(text) for text in texts))
    models = ", ".join(dict.fromkeys(one.model for one in measured))
    return Grid(f"Spaces of {models}, the paper's of Qwen2.5-7B", _HEAD, tuple(rows))


def space_facts(measured: Sequence[SpaceCosts]) -> tuple[tuple[str, str], ...]:
    """What is needed to measure the same again."""
    facts = {}
    for name in ("machine", "versions"):
        each = (
            ", ".join(f"{k} {v}" for k, v in getattr(one, name).items()) for one in measured
        )
        facts[name] = "; ".join(dict.fromkeys(each))
    for one in measured:
        name = f"{one.benchmark}, {one.model}, {_examples(one)} examples"
        facts[name] = f"space {one.space_hash}, rule {one.rule}"
    return tuple(facts.items())


def _examples(one: SpaceCosts) -> str:
    is_all = one.wanted in (None, one.ground)
    return str(one.ground) if is_all else f"{one.ground} of {one.wanted} asked for"


def our_times(measured: Sequence[SpaceCosts]) -> dict[str, str]:
    """The times the paper gives in its text, as we measured them."""
    retrievals = [one.retrieval_ms for one in measured]
    minutes = [one.build_seconds / 60 for one in measured]
    grounds = ", ".join(map(str, sorted({one.ground for one in measured})))
    built = f"{min(minutes):.2f} to {max(minutes):.2f}"
    return {
        "retrieval_ms": f"{min(retrievals):.2f} to {max(retrievals):.2f}",
        "construction_minutes": f"{built} ({grounds} examples)",
    }


def _paper(one: SpaceCosts, metric: str) -> float | None:
    for block in paper().blocks:
        if (block.recipe, block.benchmark) == ("sizes", one.benchmark) and (
            metric in block.metrics
        ):
            row = block.rows.get(f"rad ground={one.wanted}")
            return None if row is None else row[block.metrics.index(metric)]
    return None
