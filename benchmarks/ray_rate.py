"""A build with RAD's entries on Ray: 2 workers of one thread over 1 such worker, on 2 cores.

    python benchmarks/ray_rate.py [--rounds 2] [--examples 168]
    python benchmarks/ray_rate.py --plan

The sides take turns on one local cluster. `start` is from the call to the first finished batch:
processes, model and embedder, and that batch. `passes` is from there to the last batch. The
same build without Ray runs once with one thread and once with two. Every folder is compared with
the first, byte by byte. `--plan` measures what one thread makes in a second of a core, counted as
the time of the processor, and computes from it what a large space costs.
"""

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
from measure import EMBEDDER, MODEL, where

import trueline as tl
from trueline.cluster import Cluster
from trueline.embedders.loading import load_embedder
from trueline.examples import read_examples

CPU_HOUR = 0.04  # US dollars for a virtual CPU, an assumption; two of them are one core
GB_MONTH = 0.023  # US dollars for a gigabyte of object storage, an assumption
MACHINES, CORES = 10, 16  # of a cluster
NOW = datetime(2026, 1, 1, tzinfo=UTC)  # the same in every folder


def build(lm, examples, folder, *, threads=1, workers=None):
    """Seconds of the start and of the passes, and entries a second of the passes."""
    torch.set_num_threads(threads)
    marks = []
    begun = perf_counter()
    tl.build(
        lm,
        examples,
        context=8,
        embedder=EMBEDDER,
        out=folder,
        on=None if workers is None else Cluster(workers=workers),
        progress=lambda done, total: marks.append((perf_counter(), done)),
        now=lambda: NOW,
    )
    whole = perf_counter() - begun
    (first, before), (last, total) = next(mark for mark in marks if mark[1]), marks[-1]
    return {
        "start": round(first - begun, 2),
        "passes": round(last - first, 2),
        "whole": round(whole, 2),
        "entries_per_second": round((total - before) / (last - first), 1),
    }


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


def measured(rounds, count):
    """All sides in turn."""
    lm = tl.load(MODEL)
    examples = facts()[:count]
    plain = {"plain, 1 thread": {"threads": 1}, "plain, 2 threads": {"threads": 2}}
    spread = {"ray, 1 worker": {"workers": 1}, "ray, 2 workers": {"workers": 2}}
    found, same = {name: [] for name in plain | spread}, {}
    with tempfile.TemporaryDirectory() as root:
        build(lm, examples[:40], Path(root) / "warm", workers=2)  # the cluster starts
        for turn in range(rounds):
            for name, options in (plain | spread if turn == 0 else spread).items():
                folder = Path(root) / f"{name} {turn}"
                found[name].append(build(lm, examples, folder, **options))
                same[f"{name} {turn}"] = files(folder) == files(
                    Path(root) / "plain, 1 thread 0"
                )
                print(f"  {name}: {found[name][-1]} {same[f'{name} {turn}']}", file=sys.stderr)
    return found, same


def ratio(found, name, side="passes"):
    """The median over rounds of one worker's seconds over those of another side."""
    pairs = zip(found["ray, 1 worker"], found[name], strict=False)
    return round(median(one[side] / other[side] for one, other in pairs), 2)


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
    parser.add_argument("--examples", type=int, default=168)
    parser.add_argument("--plan", action="store_true", help="costs of a large space alone")
    options = parser.parse_args()
    if options.plan:
        return plan()
    found, same = measured(options.rounds, options.examples)
    print(
        "| side | start, s | passes, s | entries/s | passes over 1 worker | whole over 1 worker |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for name, rows in found.items():
        middle = {key: round(median(row[key] for row in rows), 1) for key in rows[0]}
        print(
            f"| {name} | {middle['start']} | {middle['passes']} | {middle['entries_per_second']} "
            f"| {ratio(found, name)} | {ratio(found, name, 'whole')} |"
        )
    print(
        f"folders equal to that of the plain build with 1 thread: {sum(same.values())} of {len(same)}"
    )
    others = [name for name, is_same in same.items() if not is_same]
    print(f"others: {', '.join(others) or 'none'}")
    print(json.dumps({"ray": found, "same": same, "where": where(1)}))


if __name__ == "__main__":
    main()
