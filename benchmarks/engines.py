"""llama.cpp in our loop: against its own loop, with corrective decoding, against transformers.

    python benchmarks/engines.py [--model smollm2-135m] [--threads 2]

prints the figures of one model alone, as one line of JSON at the end.
"""

import argparse
import ctypes
import json
import os
import sys
from functools import cache
from statistics import median
from time import perf_counter, process_time

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as the command does

import measure
import numpy as np
import torch
from measure import MODEL, interleaved, questions, rate, rate_interval
from rates import _steps

import trueline as tl
from trueline.engines.llama_cpp.cache import Entry, _Arrays
from trueline.examples import read_examples

TOKENS = 18  # of an answer: so long are the verified ones that are asked for
BATCHES = (4, 16)
PROMPT = 500  # tokens of a long prompt


def engines(quick):
    """llama.cpp in our loop, batch 1: over its own loop, and corrective over greedy on it.

    All sides take turns token by token; prompts are read before the clock runs. `own loop` calls
    llama_decode and takes the largest logit, through the same library, with llama.cpp's own
    parameters. The ratios are medians over answers, with the interval of the median.
    """
    return measured(MODEL, 2 if quick else 12, with_transformers=True)


def measured(name, answers, *, with_transformers=False):
    """Every side on some answers: tokens a second, and the ratios between the sides.

    `processor_time` has the ratios of the time the processor worked, which holds on a busy
    machine too; with more than one thread it counts those that only wait.
    """
    lm = tl.load(name, engine="llama.cpp")
    lm.stop_ids = frozenset()  # every side makes as many tokens
    taken, worked = {}, {}
    for number, (covered, other) in enumerate(_asked(lm, answers + 1)):
        sides = {
            "own loop": _own_loop(lm, _prompts(lm, [covered]), TOKENS),
            "greedy": _steps(lm, tl.Greedy(), [covered], TOKENS),
            "corrective, in scope": _steps(lm, _corrective(), [covered], TOKENS),
            "corrective, nothing in scope": _steps(lm, _corrective(), [other], TOKENS),
        }
        if with_transformers:
            sides["transformers"] = _steps(measure.model(), tl.Greedy(), [covered], TOKENS)
        times = _by_turns(sides)
        if number:  # the first answer opens what is needed
            for side, own in times.items():
                taken.setdefault(side, []).append(sum(wall for wall, _ in own))
                worked.setdefault(side, []).append(sum(busy for _, busy in own))
            print(f"engines: {number} of {answers}", file=sys.stderr)
    return {
        "answers": answers,
        "new_tokens": TOKENS - 1,
        "tokens_per_second": {
            side: round((TOKENS - 1) / median(own), 1) for side, own in taken.items()
        },
        **_ratios(taken, rate),
        "intervals": _ratios(taken, rate_interval),
        "processor_time": _ratios(worked, rate),
    }


def _ratios(times, ratio):
    found = {
        "greedy_over_own_loop": ratio(times, "greedy", "own loop"),
        "corrective_over_greedy_in_scope": ratio(times, "corrective, in scope", "greedy"),
        "corrective_over_greedy_out_of_scope": ratio(
            times, "corrective, nothing in scope", "greedy"
        ),
    }
    if "transformers" in times:
        found["greedy_over_transformers_engine"] = ratio(times, "greedy", "transformers")
    return found


def batched(name, batch, rounds):
    """Our greedy loop and llama.cpp's own on a batch of questions, by turns."""
    lm = tl.load(name, engine="llama.cpp")
    lm.stop_ids = frozenset()
    asked, taken = questions(batch), {}
    for number in range(rounds + 1):
        sides = {
            "own loop": _own_loop(lm, _prompts(lm, asked), TOKENS),
            "greedy": _steps(lm, tl.Greedy(), asked, TOKENS),
        }
        for side, own in _by_turns(sides).items():
            if number:
                taken.setdefault(side, []).append(sum(wall for wall, _ in own))
        print(f"engines, batch {batch}: {number} of {rounds}", file=sys.stderr)
    return {
        "tokens_per_second": {
            side: round(batch * (TOKENS - 1) / median(own), 1) for side, own in taken.items()
        },
        "greedy_over_own_loop": rate(taken, "greedy", "own loop"),
        "interval": rate_interval(taken, "greedy", "own loop"),
    }


def long_prompt(name, rounds):
    """Reading a prompt of 500 tokens: our way of attention, and llama.cpp's own choice."""
    lm = tl.load(name, engine="llama.cpp")
    tokens = lm.encode(
        " ".join(example.answers[0] for example in read_examples("facts:ground"))
    )
    tokens = tokens[:PROMPT]
    sides = {
        "own parameters": lambda: next(_own_loop(lm, [tokens], 1)),
        "ours": lambda: lm.start().join([tokens]),
    }
    taken = interleaved(sides, rounds)
    return {
        "tokens": len(tokens),
        "tokens_per_second": {
            side: round(len(tokens) / median(own), 1) for side, own in taken.items()
        },
        "ours_over_own_parameters": rate(taken, "ours", "own parameters"),
        "interval": rate_interval(taken, "ours", "own parameters"),
    }


@cache
def _corrective():
    return tl.Corrective(tl.build(None, "facts"))


def _asked(lm, count):
    """Questions whose verified answer is long enough, each with one that nothing covers."""
    corrector, found = _corrective().corrector(lm), []
    for example in read_examples("facts:ground"):
        shortest = min(len(lm.encode(answer)) for answer in example.answers)
        if shortest >= TOKENS and corrector.begin(question=example.question) is not None:
            found.append(example.question)
    others = [one for one in questions(60) if corrector.begin(question=one) is None]
    assert min(len(found), len(others)) >= count
    return list(zip(found, others, strict=False))[:count]


def _by_turns(sides):
    """Seconds by the clock and of the processor, of every token but the first of each side."""
    times = {name: [] for name in sides}
    for loop in sides.values():
        next(loop)
    for turn in range(TOKENS - 1):
        for name in sides if turn % 2 else reversed(sides):
            begun = perf_counter(), process_time()
            next(sides[name])
            times[name].append((perf_counter() - begun[0], process_time() - begun[1]))
    return times


def _prompts(lm, asked):
    return [tl.Prompt().encode(question, lm.tokenizer) for question in asked]


def _own_loop(lm, prompts, length):
    """llama.cpp's own greedy loop: decode, take the largest logit of each row, and again."""
    weights = lm.weights
    library, threads = weights.library, torch.get_num_threads()
    own = {"n_ctx": 512 * len(prompts), "n_seq_max": len(prompts), "kv_unified": 1}
    params = library.params("context", **own, n_threads=threads, n_threads_batch=threads)
    context = ctypes.c_void_p(library.call("llama_init_from_model", weights.pointer, params))
    arrays = _Arrays()

    def read(entries):
        assert library.call("llama_decode", context, arrays.filled(entries)) == 0
        rows = sum(entry.is_output for entry in entries)
        row = ctypes.c_float * (rows * weights.vocabulary)
        found = np.frombuffer(
            row.from_address(library.call("llama_get_logits", context)), np.float32
        )
        return found.reshape(rows, -1).argmax(1).tolist()

    try:
        picked = []
        for row, tokens in enumerate(prompts):
            ends = [False] * (len(tokens) - 1) + [True]
            places = enumerate(zip(tokens, ends, strict=True))
            picked += read([Entry(token, at, row, end) for at, (token, end) in places])
        yield picked
        for step in range(length - 1):
            rows = enumerate(zip(picked, prompts, strict=True))
            picked = read([Entry(one, len(own) + step, row, True) for row, (one, own) in rows])
            yield picked
    finally:
        library.call("llama_free", context)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--transformers", action="store_true", help="also that engine")
    parser.add_argument(
        "--batches", action="store_true", help="also batches of 4 and 16, and a long prompt"
    )
    options = parser.parse_args()
    measure.pin(options.threads)
    begun = perf_counter()
    found = measured(options.model, options.answers, with_transformers=options.transformers)
    if options.batches:
        found["batches"] = {
            batch: batched(options.model, batch, options.answers // 2) for batch in BATCHES
        }
        found["long_prompt"] = long_prompt(options.model, options.answers // 2)
    print(
        json.dumps(
            {
                "benchmark": "engines",
                "model": options.model,
                **found,
                "took_seconds": round(perf_counter() - begun, 1),
                "where": measure.where(options.threads),
            }
        )
    )
