"""Plans -> the entries, sizes and times of their grounding spaces, measured once a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache, partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from trueline.errors import SettingError
from trueline.files import write_text
from trueline.lab.cells import benchmark_of, machine, model_of, space_hash, versions
from trueline.lab.paper.compare import model_note
from trueline.lab.paper.recipes import paper
from trueline.lab.plan import BuildOptions, Plan
from trueline.lab.report.tables import DASH, Grid, GridText, Section
from trueline.lab.run import OnLabelledProgress

if TYPE_CHECKING:
    from trueline.engines.base import Engine
    from trueline.lab.benchmarks.tables import Benchmark
    from trueline.space import GroundingSpace


MEASURED = "spaces.json"  # what was measured in a folder, by all that shapes it
_WINDOWS = 100  # retrievals that are timed; the median is kept
_RULES = {  # how examples are taken, by the plan's rule
    "answered": "Rule `answered`: questions without an answer are left out before examples are "
    "taken, so their number is the wanted one if the benchmark holds as many.",
    "all": "Rule `all`, as in the paper: examples are taken among all questions, and those "
    "without an answer cannot ground, so there may be fewer than wanted.",
}


class SpaceCosts(msgspec.Struct, frozen=True, kw_only=True):
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
        row, key = f"rad ground={self.wanted}", ("sizes", self.benchmark, (metric,))
        for block in paper().blocks:
            if (block.recipe, block.benchmark, block.metrics) == key and row in block.rows:
                return block.rows[row][0]
        return None

    def plain(self) -> dict[str, Any]:
        """As JSON, with the paper's figures for the same benchmark and examples."""
        theirs = {f"paper_{name}": self.of_the_paper(name) for name in ("entries", "gigabytes")}
        return {**msgspec.structs.asdict(self), **theirs}


def measure_spaces(
    plans: Sequence[Plan], folder: Path, progress: OnLabelledProgress | None = None
) -> list[SpaceCosts]:
    """Build the space of every benchmark of every plan in a folder, and measure it.

    A space that was measured there before is not built again. If plans want more examples than
    there are, their spaces are equal and only one of them is returned.
    """
    from trueline.embed import load_embedder
    from trueline.examples import digest
    from trueline.space import build

    open_model, open_embedder = cache(partial(model_of, plans[0])), cache(load_embedder)
    path, known, found = folder / MEASURED, dict[str, SpaceCosts](), dict[str, SpaceCosts]()
    try:
        if path.exists():
            known = msgspec.json.decode(path.read_bytes(), type=dict[str, SpaceCosts])
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise SettingError(
            f"{path} cannot be read ({error}); move it away, or name another folder with --out"
        ) from error
    for plan in plans:
        options = plan.variants[0].build or BuildOptions(context=8)
        for name, model in product(plan.benchmarks, plan.models):
            benchmark, lm = benchmark_of(plan, name), open_model(model)
            ground, prompt = benchmark.ground, benchmark.prompt
            embedder = open_embedder(options.embedder, device=lm.device)
            hashes = [lm.fingerprint, embedder.hash, benchmark.name, digest(ground)]
            parts = json.dumps([hashes, asdict(options), machine(), versions()])
            key = sha256(parts.encode()).hexdigest()[:12]
            if key not in known:
                label = f"building {benchmark.name}, {len(ground)} examples"
                report = None if progress is None else partial(progress, label)
                embedder.embed(["warm"])  # the first call opens files: not part of a build
                made = {**asdict(options), "embedder": embedder}
                begun = perf_counter()
                space = build(lm, ground, prompt=prompt, progress=report, **made)
                seconds = perf_counter() - begun
                target = folder / "spaces" / f"measured-{key}.space"
                space.save(target)
                known[key] = SpaceCosts(
                    model=lm.id,
                    benchmark=benchmark.name,
                    wanted=plan.ground,
                    ground=len(ground),
                    rule=plan.rule,
                    entries=(entries := space.info()["entries"]),
                    size=sum(x.stat().st_size for x in target.rglob("*") if x.is_file()),
                    as_logits=entries * lm.vocabulary * 4,
                    build_seconds=round(seconds, 2),
                    retrieval_ms=round(1000 * retrieval_seconds(lm, space, benchmark), 3),
                    space_hash=space_hash(space, with_wrong=False),
                    machine=machine(),
                    versions=versions(),
                )
                write_text(path, msgspec.json.encode(known).decode())
            one = msgspec.structs.replace(known[key], wanted=plan.ground, rule=plan.rule)
            found.setdefault(key, one)
    return list(found.values())


def retrieval_seconds(lm: Engine, space: GroundingSpace, benchmark: Benchmark) -> float:
    """The median cost of retrieval at a step, for windows of real text, one by one.

    The head is left out: it is applied once to the sum of both, as without retrieval.
    """
    import torch

    from trueline.methods.base import Rows
    from trueline.rad.method import RAD

    rad, context, times = RAD(space, **benchmark.settings), space.info()["context"], []
    texts = [text for one in benchmark.ground for text in (one.question, *one.answers)]
    tokens = lm.encode(" ".join(texts))
    length = context if isinstance(context, int) else 64
    starts = range(max(1, len(tokens) - length))
    windows = dict.fromkeys(tuple(tokens[n : n + length]) for n in starts)
    with torch.no_grad():
        for window in [*windows][:_WINDOWS]:
            begun = perf_counter()
            rows = Rows(lm, [window], [0])
            for found in rad.weighed(rows, rad.prefetch(rows)()):
                found.aggregated(is_state=True)  # (1, d)
            times.append(perf_counter() - begun)
    return median(times[len(times) // 10 :])  # the first few only warm up


def space_section(measured: Sequence[SpaceCosts]) -> Section:
    """A row a space, and what is needed to measure the same again."""
    rows, facts = [], dict[str, str]()
    for one in measured:
        entries, size = one.of_the_paper("entries"), one.of_the_paper("gigabytes")
        columns = {
            "benchmark": one.benchmark,
            "examples": one.examples,
            "entries": f"{one.entries:,}",
            "paper: entries": DASH if entries is None else f"{entries:,.0f}",
            "size": f"{one.size / 1e6:,.1f} MB",
            "as 32-bit logits": f"{one.as_logits / 1e6:,.0f} MB",
            "paper: size": DASH if size is None else f"{size:g} GB",
            "time to build": f"{one.build_seconds:,.1f} s",
            "time to retrieve": f"{one.retrieval_ms:.2f} ms",
        }
        rows.append(tuple(map(GridText, columns.values())))
        name = f"{one.benchmark}, {one.model}, {one.examples} examples"
        facts[name] = f"space {one.space_hash}, rule {one.rule}"
    for name in ("machine", "versions"):
        each = (getattr(one, name).items() for one in measured)
        words = (", ".join(f"{key} {value}" for key, value in items) for items in each)
        facts[name] = "; ".join(dict.fromkeys(words))
    models = ", ".join(dict.fromkeys(one.model for one in measured))
    title = f"Spaces of {models}, the paper's of Qwen2.5-7B"
    grid = Grid(title, tuple(columns), tuple(rows))
    return Section("Spaces", grids=(grid,), facts=tuple(facts.items()))


def space_caveats(measured: Sequence[SpaceCosts]) -> list[str]:
    """What to know before sizes and times are compared."""
    note = model_note(one.model for one in measured)
    return [
        *([note] if note else []),
        *dict.fromkeys(_RULES[one.rule] for one in measured),
        "The paper keeps logits and ran on an H100; ours keeps hidden states, from which those "
        "logits follow, so only the numbers of entries can be compared.",
        "The paper's sizes do not follow from its entries: 3,755 entries of Qwen2.5-7B are "
        "2.3 GB as 32-bit logits of 152,064 tokens, and it gives 12.",
    ]


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
