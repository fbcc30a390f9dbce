"""What every benchmark shares: sides that take turns, medians, and where it all ran."""

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch

import trueline as tl
from trueline.examples import read_examples
from trueline.rad.entries import Entries, RadEntries
from trueline.store import Commit

SEED = 0
ENTRIES = 5_000  # the size of space the budgets are stated for
MODEL, EMBEDDER = "smollm2-135m", "all-minilm-l6-v2"


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    begun = perf_counter()
    work()
    return perf_counter() - begun


def interleaved(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each side in every round; the sides take turns, the first round is lost."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, work in sides.items():
            taken = seconds(work)
            if turn:
                times[name].append(round(taken, 4))
            print(f"  {name}: {taken:.2f} s", file=sys.stderr)
    return times


def rate(times: dict[str, list[float]], faster: str, slower: str) -> float:
    """How many times as fast one side is as another: the median of the ratios of each round.

    The two sides of a round ran one after the other, so a machine that slows down and speeds
    up for minutes at a time cancels out.
    """
    rounds = zip(times[slower], times[faster], strict=True)
    return round(median(slow / fast for slow, fast in rounds), 3)


def rate_interval(times: dict[str, list[float]], faster: str, slower: str) -> list[float]:
    """The 95 % interval of `rate`, by drawing rounds anew."""
    ratios = np.array(times[slower]) / np.array(times[faster])
    drawn = np.random.default_rng(SEED).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return [round(float(low), 3), round(float(high), 3)]


def where(threads: int) -> dict[str, object]:
    """The machine and the versions a number was measured with."""
    packages = (
        "trueline",
        "torch",
        "transformers",
        "tokenizers",
        "onnxruntime",
        "faiss-cpu",
        "xllamacpp",
    )
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "seed": SEED,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{named[0] if named else platform.machine()} ({', '.join(known)})"


@cache
def model(dtype: str = "float32") -> tl.LanguageModel:
    """The model, which here never ends an answer by itself: every side makes as many tokens."""
    lm = tl.load(MODEL, dtype=dtype)
    lm.stop_ids = frozenset()
    return lm


@cache
def space() -> tl.GroundingSpace:
    """The first entries of a space of the shipped facts."""
    examples = [*read_examples("facts:ground"), *read_examples("facts:test")]
    built = tl.build(model(), examples[: ENTRIES // 30], context=8)  # each makes more than 30
    assert len(built.entries) >= ENTRIES
    cut = {name: array[:ENTRIES] for name, array in built.entries.truthful.arrays().items()}
    return with_entries(built, cut)


def with_entries(space: tl.GroundingSpace, arrays: dict, **settings: str) -> tl.GroundingSpace:
    """A space with other arrays of entries, and settings that fit them."""
    made = RadEntries(replace(space.entries.settings, **settings), Entries(**arrays))
    commit = Commit("build", "2026-01-01T00:00:00Z", len(space), len(space), len(made))
    return replace(space, entries=made, commits=(commit,), folder=None, state=None)


def questions(count: int) -> list[str]:
    """The last test facts, which are not among those entries."""
    return [example.question for example in read_examples("facts:test")][-count:]


def rss() -> int:
    """Bytes of memory in use now."""
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def pin(threads: int) -> None:
    """Hold torch to some threads, here and in what is started from here."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
