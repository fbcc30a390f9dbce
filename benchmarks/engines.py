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
from measure import MODEL, questions, rate
from rates import _steps

import trueline as tl
from trueline.engines.llama_cpp.library import Batch
from trueline.examples import read_examples

TOKENS = 18  # of an answer: so long are the verified ones that are asked for


def engines(quick):
    """llama.cpp in our loop, batch 1: over its own loop, and corrective over greedy on it.

    All sides take turns token by token; prompts are read before the clock runs. `own loop` calls
    llama_decode and takes the largest logit, through the same library. The ratios are medians
    over answers.
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
            "own loop": _own_loop(lm, covered, TOKENS),
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
        **_ratios(taken),
        "processor_time": _ratios(worked),
    }


def _ratios(times):
    found = {
        "greedy_over_own_loop": rate(times, "greedy", "own loop"),
        "corrective_over_greedy_in_scope": rate(times, "corrective, in scope", "greedy"),
        "corrective_over_greedy_out_of_scope": rate(
            times, "corrective, nothing in scope", "greedy"
        ),
    }
    if "transformers" in times:
        found["greedy_over_transformers_engine"] = rate(times, "greedy", "transformers")
    return found


@cache
def _corrective():
    return tl.Corrective(tl.build(None, "facts"))


def _asked(lm, count):
    """Questions whose verified answer is long enough, each with one that nothing covers."""
    method, found = _corrective(), []
    for example in read_examples("facts:ground"):
        shortest = min(len(lm.encode(answer)) for answer in example.answers)
        if shortest >= TOKENS and method.plan_for(lm, example.question) is not None:
            found.append(example.question)
    others = [one for one in questions(60) if method.plan_for(lm, one) is None]
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


def _own_loop(lm, question, length):
    """llama.cpp's own greedy loop: decode, take the largest logit, and again."""
    weights = lm.weights
    library = weights.library
    context = lm.pool.take(512, 1)
    decode, logits = library.function("llama_decode"), library.function("llama_get_logits")
    tokens = tl.Prompt().encode(question, lm.tokenizer)
    one = library.function("llama_batch_get_one")
    row = ctypes.c_float * weights.vocabulary

    def read(tokens):
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        batch = Batch.from_buffer(one(ids, len(tokens)))
        assert decode(context.pointer, batch) == 0
        found = np.frombuffer(row.from_address(logits(context.pointer)), np.float32)
        return int(found.argmax())

    token = read(tokens)
    yield token
    for _ in range(length - 1):
        token = read([token])
        yield token
    lm.pool.give_back(context)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--transformers", action="store_true", help="also that engine")
    options = parser.parse_args()
    measure.pin(options.threads)
    begun = perf_counter()
    found = measured(options.model, options.answers, with_transformers=options.transformers)
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
