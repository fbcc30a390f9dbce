"""What the negative space and the entropy gate do, on the shipped test facts.

    python benchmarks/beyond.py --out docs/results/beyond.md

Multiple choice: "best is true" is the share of questions whose most probable candidate is a
truthful one (MC1 would leave all but one of these out), MC2 the probability mass of the truthful
ones; differences from greedy come with a paired bootstrap.
Generation: how many steps retrieve, how many tokens change, and tokens a second, the methods
taking turns.
"""

import argparse
import json
import math
import platform
from itertools import zip_longest
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import numpy as np
import torch

import trueline as tl
from trueline.examples import read_examples

SEED, DRAWS, ROUNDS = 0, 2000, 2


def choices(lm, method, examples):
    """Whether the best candidate is true, and MC2, of every question: (questions, 2), in percent."""
    found = []
    for example in examples:
        candidates = [*example.answers, *example.wrong_answers]
        scores = np.array(tl.score(lm, method, example.question, candidates))
        mass = np.exp(scores - scores.max())
        true = len(example.answers)
        found.append((scores.argmax() < true, mass[:true].sum() / mass.sum()))
    return 100 * np.array(found, float)


def interval(differences):
    """The 95 % interval of a mean, by bootstrap over questions."""
    chance = np.random.default_rng(SEED)
    draws = chance.choice(differences, (DRAWS, len(differences))).mean(1)
    return np.percentile(draws, [2.5, 97.5])


def choice_table(lm, methods, examples):
    """Both shares of each method, with their differences from greedy."""
    plain = choices(lm, methods["greedy"], examples)
    rows = []
    for name, method in methods.items():
        own = plain if name == "greedy" else choices(lm, method, examples)
        row = [name]
        for column in (0, 1):
            low, high = interval(own[:, column] - plain[:, column])
            gain = own[:, column].mean() - plain[:, column].mean()
            told = "" if name == "greedy" else f" ({gain:+.1f}; {low:+.1f} to {high:+.1f})"
            row.append(f"{own[:, column].mean():.1f}{told}")
        rows.append(row)
    return [
        ["method", "best is true, % (against greedy; 95 %)", "MC2 % (against greedy; 95 %)"],
        *rows,
    ]


def speed_table(lm, methods, questions, length):
    """What each method retrieves and changes, and how fast it is."""
    seconds = {name: [] for name in methods}
    answers = {}
    for _ in range(ROUNDS):
        for name, method in methods.items():
            begun = perf_counter()
            answers[name] = tl.generate(lm, method, questions, max_new_tokens=length)
            seconds[name].append(perf_counter() - begun)
    rate = {
        name: sum(len(a.token_ids) for a in answers[name]) / median(seconds[name])
        for name in methods
    }
    rows = [
        ["method", "steps that retrieve", "tokens unlike greedy's", "tokens/s over greedy's"]
    ]
    for name, method in methods.items():
        traced = tl.generate(lm, method, questions, max_new_tokens=length, trace=True)
        steps = [step for answer in traced for step in answer.trace]
        pairs = zip(traced, answers["greedy"], strict=True)
        places = [zip_longest(one.token_ids, other.token_ids) for one, other in pairs]
        unlike = mean(a != b for place in places for a, b in place)
        grounded = mean(step.hits > 0 for step in steps)
        rows.append(
            [name, f"{grounded:.0%}", f"{unlike:.0%}", f"{rate[name] / rate['greedy']:.2f}"]
        )
    return rows


def markdown(rows):
    """Rows as a table."""
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main():
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a Markdown file to write")
    parser.add_argument("--limit", type=int, help="the first N test questions only")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lm = tl.load("smollm2-135m")
    space = tl.build(lm, "facts:ground", context=8, wrong=True)
    test = read_examples("facts:test", limit=options.limit)
    choosing = {
        "greedy": tl.Greedy(),
        "RAD": tl.RAD(space),
        "RAD, beta 0.5": tl.RAD(space, beta=0.5),
        "RAD, alpha 1, beta 1": tl.RAD(space, alpha=1.0, beta=1.0),
        "RAD, gate 2": tl.RAD(space, gate=2.0),
    }
    gates = {"greedy": tl.Greedy(), "RAD": tl.RAD(space)} | {
        f"RAD, gate {gate:g}": tl.RAD(space, gate=gate) for gate in (1.0, 2.5)
    }
    questions = [example.question for example in test][:16]
    parts = [
        f"# Negative space and entropy gate\n\n`python benchmarks/beyond.py`, SmolLM2-135M in "
        f"float32, {len(space.entries):,} entries and {len(space.wrong):,} wrong ones from the 100 "
        f"grounding facts, {len(test)} test facts, {options.threads} threads, seed {SEED}, "
        f"torch {torch.__version__}, Python {platform.python_version()}.",
        "## Multiple choice\n\n" + markdown(choice_table(lm, choosing, test)),
        f"## The gate, {len(questions)} questions, 32 tokens, batch 16, median of {ROUNDS}\n\n"
        f"The gate is in nats; log(vocabulary) is {math.log(lm.vocabulary):.1f}.\n\n"
        + markdown(speed_table(lm, gates, questions, 32)),
    ]
    print("\n\n".join(parts))
    print(
        json.dumps({"benchmark": "beyond", "threads": options.threads, "questions": len(test)})
    )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    main()
