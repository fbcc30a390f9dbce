"""Bytes an entry, entries a second, and how retrieval grows with the number of entries."""

import sys
import tempfile
from itertools import zip_longest
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from measure import SEED, interleaved, model, rate, rss, space, with_entries

import trueline as tl
from trueline import search
from trueline.embed import load_embedder
from trueline.examples import read_examples
from trueline.methods.base import Rows
from trueline.prompts import Prompt
from trueline.rad.retrieve import open_retriever

TAU = 0.7


def size(quick):
    """Bytes an entry in each precision, and how many steps half precision changes.

    Also where exact matches are left out, which cosines of 1 tell.
    """
    ground = read_examples("facts:ground", limit=10 if quick else None)
    full = tl.build(model(), ground, context=8, dtype="float32")
    arrays = full.entries.truthful.arrays()
    halves = {name: arrays[name].astype(np.float16) for name in ("keys", "values")}
    half = with_entries(full, arrays | halves, dtype="float16")
    test = [example.question for example in read_examples("facts:test")]
    asked = test[: 8 if quick else None]
    options = {"max_new_tokens": 8 if quick else 32}
    pairs = []
    for matches in ("all", "without"):
        answers = [
            tl.generate(model(), tl.RAD(made, matches=matches), asked, **options)
            for made in (full, half)
        ]
        for one, other in zip(*answers, strict=True):
            pairs += zip_longest(one.token_ids, other.token_ids)
        asked = asked[:16]
    with tempfile.TemporaryDirectory() as folder:
        half.save(folder)
        on_disk = sum(path.stat().st_size for path in Path(folder).glob("g-*/rad/*"))
    return {
        "entries": len(full.entries),
        "float32_bytes_per_entry": full.info()["bytes_per_entry"],
        "float16_bytes_per_entry": half.info()["bytes_per_entry"],
        "float16_bytes_per_entry_on_disk": round(on_disk / len(half.entries)),
        "logits_would_be": full.info()["logits_would_be"],
        "steps": len(pairs),
        "steps_that_differ": sum(one != other for one, other in pairs),
    }


def build(quick):
    """Entries a second: our build, and one forward pass for each answer; medians of rounds.

    The slow side then embeds the windows of the answer one at a time, as the paper's procedure
    does, or, as a stricter measure, together.
    """
    examples = read_examples("facts:ground", limit=2 if quick else 16)
    embedder = load_embedder("all-minilm-l6-v2")
    made = tl.build(model(), examples, context=8, embedder=embedder)
    sides = {
        "trueline": lambda: tl.build(model(), examples, context=8, embedder=embedder),
        "one pass an answer": lambda: _one_by_one(examples, embedder, len),
        "and one a window": lambda: _one_by_one(examples, embedder, lambda windows: 1),
    }
    times = interleaved(sides, 1 if quick else 2)
    return {
        "entries": len(made.entries),
        "entries_per_second": {
            name: round(len(made.entries) / median(taken), 1) for name, taken in times.items()
        },
        "times_as_fast": rate(times, "trueline", "one pass an answer"),
        "times_as_fast_as_window_by_window": rate(times, "trueline", "and one a window"),
    }


@torch.no_grad()
def _one_by_one(examples, embedder, at_once):
    """Every answer by itself: a pass over prompt and answer, all logits kept, then its windows."""
    lm, prompt = model(), Prompt()
    for example in examples:
        for answer in example.answers:
            asked = prompt.encode(example.question, lm.tokenizer)
            tokens = asked + prompt.encode_answer(example.question, answer, lm.tokenizer)
            lm.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].clone()
            ends = range(len(asked), len(tokens) + 1)
            windows = lm.decode_all([tokens[end - 8 : end] for end in ends])
            for start in range(0, len(windows), at_once(windows)):
                rows = embedder.tokenize(windows[start : start + at_once(windows)])
                embedder.embed_by_torch(rows)  # by torch, as the paper has it


def growth(quick):
    """Milliseconds to retrieve and fuse for one row, by entries; recall of the index; memory.

    Medians of 32 queries that were seen before; the sizes take turns. The index is made anew.
    Recall is of the weight above tau (RAD) and of the 1,024 nearest (kNN-LM).
    """
    counts = (1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    queries = torch.from_numpy(_mixed(np.random.default_rng(SEED + 1), 32).astype(np.float32))
    found, opened, times = {}, {}, {count: [] for count in counts}
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            opened[count], told = _grown(count, Path(folder) / f"{count}.space", queries)
            found[count] = {"milliseconds": None, **told}
        for query in queries:
            for count, rad in opened.items():
                times[count].append(_taken(rad, query))
    for count in counts:
        found[count]["milliseconds"] = round(1000 * median(times[count]), 2)
        print(f"growth: {count:,} {found[count]}", file=sys.stderr)
    return found


def _grown(count, folder, queries):
    """RAD on a space of so many entries, and what it is like."""
    large = enlarged(count)
    large.save(folder)
    del large
    begun, before = perf_counter(), rss()
    opened = tl.open(folder)
    opening = perf_counter() - begun
    rad, lm = tl.RAD(opened), model()
    begun = perf_counter()
    rad.retrieve(lm, queries[:1])
    first = perf_counter() - begun
    used = rss() - before
    retriever = open_retriever(opened, lm.device)
    every = search.Exact(torch.from_numpy(opened.entries.truthful.keys))
    caught, wanted, hits, nearest = 0.0, 0.0, [], []
    for query in queries:
        near, close = _found(retriever, query)
        exact, closest = _found(every, query)
        caught += float(near.similarities.sum())
        wanted += float(exact.similarities.sum())
        hits.append(len(exact))
        nearest.append(len(np.intersect1d(close.entries, closest.entries)) / len(closest))
    return rad, {
        "recall_of_weight": round(caught / max(wanted, 1e-9), 4),
        "recall_of_nearest": round(float(np.mean(nearest)), 4),
        "median_hits": median(hits),
        "open_seconds": round(opening, 3),
        "first_use_seconds": round(first, 2),
        "memory_mb": round(used / 1e6),
    }


def _found(keys, query):
    """Everything above tau, and the nearest."""
    return keys.above(query[None], tau=TAU), keys.nearest(query[None], 1024)


def _taken(rad, query):
    """The seconds to retrieve and fuse for one row."""
    lm, begun = model(), perf_counter()
    (found,) = rad.weighed(Rows(lm, [[]], [0]), rad.retrieve(lm, query[None]))
    found.aggregated(is_state=True)
    return perf_counter() - begun


def _mixed(chance, count):
    """Unit vectors about real keys: two of them mixed, and noise (count, dimension)."""
    keys = np.asarray(space().entries.truthful.keys, np.float32)
    one, other = chance.integers(0, len(keys), (2, count))
    noise = chance.standard_normal((count, keys.shape[1]), np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    near, far = chance.uniform(0, 0.7, (count, 1)), chance.uniform(0, 0.6, (count, 1))
    made = keys[one] + near * keys[other] + far * noise
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float16)


def enlarged(count):
    """A space of as many entries, keys about the real ones and values among the real ones."""
    chance, real = np.random.default_rng(SEED), space()
    keys = np.concatenate(
        [_mixed(chance, min(50_000, count - n)) for n in range(0, count, 50_000)]
    )
    rows = chance.integers(0, len(real.entries), count)
    arrays = {name: array[rows] for name, array in real.entries.truthful.arrays().items()}
    arrays |= {"keys": keys, "values": arrays["values"].astype(np.float16)}
    arrays |= {name: np.zeros(count, np.int32) for name in ("examples", "answers")}
    arrays["steps"] = np.arange(count, dtype=np.int32)  # as if one answer were as long
    return with_entries(real, arrays, dtype="float16")
