"""What the negative space does, on the shipped test facts.

    python benchmarks/beyond.py --out docs/results/beyond.md

Multiple choice: "best is true" is the share of questions whose most probable candidate is a
truthful one (MC1 would leave all but one of these out), MC2 the probability mass of the truthful
ones; differences from greedy come with a paired bootstrap.
"""

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import torch

import trueline as tl
from trueline.examples import read_examples

SEED, DRAWS = 0, 2000


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
    }
    parts = [
        f"# Negative space\n\n`python benchmarks/beyond.py`, SmolLM2-135M in "
        f"float32, {len(space.entries):,} entries and {len(space.entries.wrong):,} wrong ones from the 100 "
        f"grounding facts, {len(test)} test facts, {options.threads} threads, seed {SEED}, "
        f"torch {torch.__version__}, Python {platform.python_version()}.",
        "## Multiple choice\n\n" + markdown(choice_table(lm, choosing, test)),
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
