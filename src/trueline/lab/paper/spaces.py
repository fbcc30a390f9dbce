"""Plans -> the entries, sizes and times of their grounding spaces, measured once a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from trueline.errors import SettingError
from trueline.files import reason, write_text
from trueline.lab.cells import benchmark_of, machine, model_of, space_hash, versions
from trueline.lab.paper.compare import model_note
from trueline.lab.paper.recipes import paper
from trueline.lab.plan import BuildOptions, Plan
from trueline.lab.report.tables import DASH, Grid, GridText, Section
from trueline.lab.run import OnLabelledProgress

if TYPE_CHECKING:
    from trueline.embed import Embedder
    from trueline.engines.base import Engine
    from trueline.lab.samples import Benchmark
    from trueline.space import GroundingSpace


MEASURED = "spaces.json"  # what was measured in a folder, by all that shapes it
_WINDOWS = 100  # retrievals that are timed; the median is kept
_HEAD = (
    "benchmark",
    "examples",
    "entries",
    "paper: entries",
    "size",
    "as 32-bit logits",
    "paper: size",
    "time to build",
    "time to retrieve",
)
_RULES = {  # how examples are taken, by the plan's rule
    "answered": "Rule `answered`: questions without an answer are left out before examples are "
    "taken, so their number is the wanted one if the benchmark holds as many.",
    "all": "Rule `all`, as in the paper: examples are taken among all questions, and those "
    "without an answer cannot ground, so there may be fewer than wanted.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceCosts:
    """One grounding space."""

    model: str
    benchmark: str
    wanted: int | None  # the number of examples in the plan; None: all
    ground: int  # examples in the space
    rule: str  # whether questions without an answer are among the wanted
    entries: int
    size: int  # bytes on disk
    as_logits: int  # bytes that 32-bit logits would take, which is what the paper keeps
    build_seconds: float  # with model and embedder open
    retrieval_ms: float  # embed one window, retrieve and add up the states; the median
    space_hash: str
    machine: dict[str, Any]
    versions: dict[str, str]

    @property
    def examples(self) -> str:
        is_all = self.wanted in (None, self.ground)
        return str(self.ground) if is_all else f"{self.ground} of {self.wanted} wanted"

    def of_the_paper(self, metric: str) -> float | None:
        """The paper's figure for the same benchmark and number of examples."""
        for block in paper().blocks:
            if (block.recipe, block.benchmark, block.metrics) == (
                "sizes",
                self.benchmark,
                (metric,),
            ):
                return next(iter(block.rows.get(f"rad ground={self.wanted}", ())), None)
        return None


def measure_spaces(
    plans: Sequence[Plan], folder: Path, progress: OnLabelledProgress | None = None
) -> list[SpaceCosts]:
    """Build the space of every benchmark of every plan in a folder, and measure it.

    A space that was measured there before is not built again. If plans want more examples than
    there are, their spaces are equal and only one of them is returned.
    """
    from trueline.embed import load_embedder

    open_model, open_embedder = cache(partial(model_of, plans[0])), cache(load_embedder)
    path = folder / MEASURED
    known, found = _read(path), dict[str, SpaceCosts]()
    for plan in plans:
        options = plan.variants[0].build or BuildOptions(context=8)
        for name, model in product(plan.benchmarks, plan.models):
            benchmark, lm = benchmark_of(plan, name), open_model(model)
            embedder = open_embedder(options.embedder, device=lm.device)
            key = _key(lm, embedder, benchmark, options)
            if key not in known:
                target = folder / "spaces" / f"measured-{key}.space"
                known[key] = _measure(lm, embedder, plan, benchmark, options, target, progress)
                try:
                    write_text(path, msgspec.json.encode(known).decode())
                except OSError as error:
                    raise SettingError(
                        f"{path} cannot be written ({reason(error)}); fix the cause, then run "
                        "the same command again"
                    ) from error
            found.setdefault(key, replace(known[key], wanted=plan.ground, rule=plan.rule))
    return list(found.values())


def _key(lm: Engine, embedder: Embedder, benchmark: Benchmark, options: BuildOptions) -> str:
    """A hash of everything that shapes a space and its figures."""
    from trueline.examples import digest

    names = [lm.fingerprint, embedder.hash, benchmark.name, digest(benchmark.ground)]
    content = [names, asdict(options), machine(), versions()]
    return sha256(json.dumps(content).encode()).hexdigest()[:12]


def _read(path: Path) -> dict[str, SpaceCosts]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, SpaceCosts])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SettingError(
            f"{path} cannot be read ({error}); move it away, or name another folder with --out"
        ) from error


def _measure(
    lm: Engine,
    embedder: Embedder,
    plan: Plan,
    benchmark: Benchmark,
    options: BuildOptions,
    target: Path,
    progress: OnLabelledProgress | None,
) -> SpaceCosts:
    from trueline.space import build

    label = f"building {benchmark.name}, {len(benchmark.ground)} examples"
    report = None if progress is None else lambda done, total: progress(label, done, total)
    embedder.embed(["warm"])  # the first call opens files, which is not part of a build
    made = {**asdict(options), "embedder": embedder}
    begun = perf_counter()
    space = build(lm, benchmark.ground, prompt=benchmark.prompt, progress=report, **made)
    seconds = perf_counter() - begun
    entries = space.info()["entries"]
    space.save(target)
    return SpaceCosts(
        model=lm.id,
        benchmark=benchmark.name,
        wanted=plan.ground,
        ground=len(benchmark.ground),
        rule=plan.rule,
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
    """The cost of retrieval at a step, for windows of real text, one by one.

    The head is left out: it is applied once to the sum of both, as without retrieval.
    """
    import torch

    from trueline.methods.base import Rows
    from trueline.rad.method import RAD

    rad = RAD(space, **benchmark.settings)
    texts = [text for one in benchmark.ground for text in (one.question, *one.answers)]
    tokens = lm.encode(" ".join(texts))
    context = space.info()["context"]
    length = context if isinstance(context, int) else 64
    starts = range(max(1, len(tokens) - length))
    windows = list(dict.fromkeys(tuple(tokens[n : n + length]) for n in starts))[:_WINDOWS]
    times = []
    with torch.no_grad():
        for window in windows:
            begun = perf_counter()
            rows = Rows(lm, [window], [0])
            for found in rad.weighed(rows, rad.prefetch(rows)()):
                found.aggregated(is_state=True)  # (1, d)
            times.append(perf_counter() - begun)
    return times[len(times) // 10 :]  # without the first few, which only warm up


def space_figure(one: SpaceCosts) -> dict[str, Any]:
    """A space as JSON, with the paper's figures for the same benchmark and examples."""
    theirs = {f"paper_{name}": one.of_the_paper(name) for name in ("entries", "gigabytes")}
    return {**asdict(one), **theirs}


def space_section(measured: Sequence[SpaceCosts]) -> Section:
    """A row a space, and what is needed to measure the same again."""
    rows = []
    for one in measured:
        entries, size = one.of_the_paper("entries"), one.of_the_paper("gigabytes")
        texts = (
            one.benchmark,
            one.examples,
            f"{one.entries:,}",
            DASH if entries is None else f"{entries:,.0f}",
            f"{one.size / 1e6:,.1f} MB",
            f"{one.as_logits / 1e6:,.0f} MB",
            DASH if size is None else f"{size:g} GB",
            f"{one.build_seconds:,.1f} s",
            f"{one.retrieval_ms:.2f} ms",
        )
        rows.append(tuple(GridText(text) for text in texts))
    models = ", ".join(dict.fromkeys(one.model for one in measured))
    grid = Grid(f"Spaces of {models}, the paper's of Qwen2.5-7B", _HEAD, tuple(rows))
    facts = {}
    for name in ("machine", "versions"):
        each = [getattr(one, name).items() for one in measured]
        words = [", ".join(f"{key} {value}" for key, value in items) for items in each]
        facts[name] = "; ".join(dict.fromkeys(words))
    for one in measured:
        name = f"{one.benchmark}, {one.model}, {one.examples} examples"
        facts[name] = f"space {one.space_hash}, rule {one.rule}"
    return Section("Spaces", grids=(grid,), facts=tuple(facts.items()))


def space_caveats(measured: Sequence[SpaceCosts]) -> tuple[str, ...]:
    """What to know before sizes and times are compared."""
    notes = [
        model_note(one.model for one in measured),
        *dict.fromkeys(_RULES[one.rule] for one in measured),
        "The paper keeps logits and ran on an H100; ours keeps hidden states, from which those "
        "logits follow, so only the numbers of entries can be compared.",
        "The paper's sizes do not follow from its entries: 3,755 entries of Qwen2.5-7B are "
        "2.3 GB as 32-bit logits of 152,064 tokens, and it gives 12.",
    ]
    return tuple(filter(None, notes))


def our_times(measured: Sequence[SpaceCosts]) -> dict[str, str]:
    """The times that the paper gives in its text, measured here."""
    retrievals = [one.retrieval_ms for one in measured]
    minutes = [one.build_seconds / 60 for one in measured]
    grounds = ", ".join(map(str, sorted({one.ground for one in measured})))
    built = f"{min(minutes):.2f} to {max(minutes):.2f}"
    return {
        "retrieval_ms": f"{min(retrievals):.2f} to {max(retrievals):.2f}",
        "construction_minutes": f"{built} ({grounds} examples)",
    }
