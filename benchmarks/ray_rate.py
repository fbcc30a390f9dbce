"""A build with RAD's entries on Ray: 2 workers of one thread over 1 such worker, on 2 cores.

    python benchmarks/ray_rate.py [--rounds 2] [--sizes 40 160]
    python benchmarks/ray_rate.py --plan

Whole builds are timed, of two sizes, on one local cluster; in each round the sides take turns.
`an example` is the slope: the seconds that the larger build takes longer, for each example that it
has more. `start` is what the larger build takes beside that: processes, model and embedder.
Without Ray both sizes are built once with one thread, and every folder is compared with that,
byte by byte. `--plan` measures what one thread makes in a second of a core, counted as the time
of the processor, and computes from it what a large space costs.
"""

import argparse
import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

# Ray's workers would run behind everything else, at niceness 15, and those without Ray would not.
os.environ.setdefault("RAY_worker_niceness", "0")

import torch
from measure import EMBEDDER, MODEL, where

import trueline as tl
from trueline.cluster import Cluster
from trueline.embed import load_embedder
from trueline.examples import read_examples

CPU_HOUR = 0.04  # US dollars for a virtual CPU, an assumption; two of them are one core
GB_MONTH = 0.023  # US dollars for a gigabyte of object storage, an assumption
MACHINES, CORES = 10, 16  # of a cluster
PLAIN = "without Ray"
SIDES = {PLAIN: None, "ray, 1 worker": 1, "ray, 2 workers": 2}  # and their workers
NOW = datetime(2026, 1, 1, tzinfo=UTC)  # the same in every folder


def build(lm, examples, folder, *, workers=None):
    """The seconds of a whole build, on so many workers of Ray or, with None, here."""
    torch.set_num_threads(1)
    begun = perf_counter()
    tl.build(
        lm,
        examples,
        context=8,
        embedder=EMBEDDER,
        out=folder,
        on=None if workers is None else Cluster(workers=workers),
        now=lambda: NOW,
    )
    return perf_counter() - begun


def core_rates():
    """What one thread makes in a second of a core, and the bytes of each beside texts."""
    torch.set_num_threads(1)
    lm, embedder = tl.load(MODEL), load_embedder(EMBEDDER)
    options = {"context": 8, "embedder": embedder}
    tl.build(lm, facts()[:2], **options)  # opens what is needed
    begun = process_time()
    with_entries = tl.build(lm, facts()[:12], **options)
    between = process_time()
    alone = tl.build(None, facts(), embedder=embedder)
    ended = process_time()
    entries = with_entries.info()["entries"]
    return {
        "entries_per_second": round(entries / (between - begun), 1),
        "examples_per_second": round(len(alone) / (ended - between), 1),
        "bytes_per_entry": with_entries.info()["bytes_per_entry"],
        "bytes_per_example": alone.info()["bytes_per_example"],
    }


def files(folder):
    """Every file of a space, as bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def facts():
    """All examples that come with trueline."""
    return [*read_examples("facts:ground"), *read_examples("facts:test")]


def measured(rounds, sizes):
    """Seconds of every side by size, and which folders are those of the build without Ray."""
    lm, examples = tl.load(MODEL), facts()
    found = {side: {size: [] for size in sizes} for side in SIDES}
    same = {}
    with tempfile.TemporaryDirectory() as root:
        build(lm, examples[: sizes[0]], Path(root) / "warm", workers=2)  # the cluster starts
        for turn in range(rounds):
            sides = list(SIDES) if turn == 0 else list(SIDES)[1:]
            for size in sizes:
                for side in sides if turn % 2 == 0 else reversed(sides):
                    folder = Path(root) / f"{side}, {size} examples, round {turn + 1}"
                    taken = build(lm, examples[:size], folder, workers=SIDES[side])
                    found[side][size].append(round(taken, 2))
                    plain = Path(root) / f"{PLAIN}, {size} examples, round 1"
                    same[folder.name] = files(folder) == files(plain)
                    print(f"  {folder.name}: {taken:.1f} s", file=sys.stderr)
    return found, same


def slopes(times, sizes):
    """Seconds for each example past the start, in every round."""
    small, large = sizes
    pairs = zip(times[small], times[large], strict=True)
    return [(more - less) / (large - small) for less, more in pairs]


def ratio(slow, fast):
    """How many times as fast one side is: the median over the rounds."""
    return round(median(a / b for a, b in zip(slow, fast, strict=False)), 2)


def plan():
    """What a million examples and a hundred million entries cost, by the rates of one core."""
    rates = core_rates()
    print(f"one core: {rates}\n")
    print("| what | size | core hours | minutes on 160 cores | computing | a month on disk |")
    print("| --- | --- | --- | --- | --- | --- |")
    for what, count in (("example", 10**6), ("entry", 10**8)):
        many = {"example": "examples", "entry": "entries"}[what]
        hours = count / rates[f"{many}_per_second"] / 3600
        gigabytes = count * rates[f"bytes_per_{what}"] / 1e9
        print(
            f"| {count:,} {many} | {gigabytes:,.1f} GB | {hours:,.1f} "
            f"| {60 * hours / MACHINES / CORES:,.1f} | ${2 * hours * CPU_HOUR:,.2f} "
            f"| ${gigabytes * GB_MONTH:,.2f} |"
        )


def main():
    """Measure and print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs=2, default=(40, 160), help="examples")
    parser.add_argument("--plan", action="store_true", help="costs of a large space alone")
    options = parser.parse_args()
    if options.plan:
        return plan()
    sizes = tuple(options.sizes)
    found, same = measured(options.rounds, sizes)
    one = found["ray, 1 worker"]
    print(
        f"| side | {sizes[0]} examples, s | {sizes[1]} examples, s | an example, s | start, s "
        f"| an example, over 1 worker | whole of {sizes[1]}, over 1 worker |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for side, times in found.items():
        small, large = (median(times[size]) for size in sizes)
        slope = median(slopes(times, sizes))
        print(
            f"| {side} | {small:.1f} | {large:.1f} | {slope:.3f} | {large - slope * sizes[1]:.1f} "
            f"| {ratio(slopes(one, sizes), slopes(times, sizes))} "
            f"| {ratio(one[sizes[1]], times[sizes[1]])} |"
        )
    print(f"load of the machine over the last minutes: {os.getloadavg()[1]:.1f}")
    print(f"folders equal to those built without Ray: {sum(same.values())} of {len(same)}")
    others = [name for name, is_same in same.items() if not is_same]
    print(f"others: {'; '.join(others) or 'none'}")
    print(json.dumps({"ray": found, "same": same, "where": where(1)}))


if __name__ == "__main__":
    main()
