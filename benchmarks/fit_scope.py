"""Fit the weights of scope on the questions shipped for the grounding facts, and say how well.

    python benchmarks/fit_scope.py            writes src/trueline/scope.json
    python benchmarks/fit_scope.py --check    only prints

Only facts of ground.jsonl and their questions are read. What is printed is measured on facts that
the weights were not fitted to: ten folds, split by fact. The facts of test.jsonl are left for
benchmarks/covered.py, which reports on them.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from trueline.examples import read_examples
from trueline.examples.shipped import read_questions
from trueline.scope import SIGNALS, ScopeModel, example_signals
from trueline.space.build import build

OUT = Path(__file__).parents[1] / "src" / "trueline" / "scope.json"
EMBEDDERS = ("all-minilm-l6-v2", "all-mpnet-base-v2")
GRID = [*(round(0.05 * n, 2) for n in range(20)), 0.98, 0.99, 0.995]  # thresholds measured
FALSE_SCOPE = 0.02  # share of near misses that may come into scope, which sets the threshold


def rows_of(space, questions):
    """Signals, whether the example answers the question, the fact it is about, the question."""
    found = []
    for question in questions:
        for example, signals in example_signals(space, question.question):
            is_answer = example.id in question.means
            found.append(([*signals.values()], is_answer, question.about[0], question))
    return found


def fit(values, labels, names):
    mean, deviation = values.mean(0), values.std(0) + 1e-9
    made = LogisticRegression(C=1.0, max_iter=5_000).fit((values - mean) / deviation, labels)
    weights = made.coef_[0] / deviation
    bias = float(made.intercept_[0] - weights @ mean)
    return bias, dict(zip(names, map(float, weights), strict=True))


def out_of_fold(values, labels, groups, names):
    """The probability of every row by weights that never saw its fact."""
    found = np.zeros(len(labels))
    for train, test in GroupKFold(10).split(values, labels, groups):
        bias, weights = fit(values[train], labels[train], names)
        model = ScopeModel(bias, weights, 0.0)
        for row in test:
            found[row] = model.probability(dict(zip(names, values[row], strict=True)))
    return found


def kept(rows, probabilities, threshold):
    """Share of near misses in scope; of paraphrases in scope with the right example ahead."""
    best, right = {}, {}
    for (_, is_answer, _, question), p in zip(rows, probabilities, strict=True):
        best[question.id] = max(best.get(question.id, 0.0), p)
        if is_answer:
            right[question.id] = p
    regimes = {question.id: question.regime for *_, question in rows}
    near = [best[id] > threshold for id in best if regimes[id] == "near miss"]
    same = [
        right.get(id, 0.0) > threshold and right[id] == best[id]
        for id in best
        if regimes[id] == "paraphrase"
    ]
    return float(np.mean(near)), float(np.mean(same))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--embedders", nargs="+", default=EMBEDDERS)
    given = parser.parse_args()
    made = json.loads(OUT.read_text("utf-8")) if OUT.exists() else {}
    for embedder in given.embedders:
        space = build(None, read_examples("facts:ground"), embedder=embedder)
        questions = [
            q for q in read_questions("ground") if q.regime in ("paraphrase", "near miss")
        ]
        rows = rows_of(space, questions)
        groups = np.array([group for _, _, group, _ in rows])
        labels = np.array([is_answer for _, is_answer, _, _ in rows])
        fitted = {}
        for kind in ("full", "bare"):
            names = [name for name in SIGNALS if kind == "full" or name != "wrong"]
            columns = [[*SIGNALS].index(name) for name in names]
            values = np.array([signals for signals, *_ in rows])[:, columns]
            held = out_of_fold(values, labels, groups, names)
            near = sorted(
                (
                    max(p for p, (*_, q) in zip(held, rows, strict=True) if q.id == one.id)
                    for one in questions
                    if one.regime == "near miss"
                ),
                reverse=True,
            )
            threshold = float(round(near[int(FALSE_SCOPE * len(near))], 3))
            bias, weights = fit(values, labels, names)
            mean = dict(zip(names, map(float, values.mean(0).round(4)), strict=True))
            measured = [[at, *(round(one, 4) for one in kept(rows, held, at))] for at in GRID]
            fitted[kind] = {
                "bias": bias,
                "weights": weights,
                "threshold": threshold,
                "mean": mean,
                "measured": measured,
            }
            print(
                f"{embedder}, {kind}: threshold {threshold:.3f} at {FALSE_SCOPE:.0%} false scope"
            )
            for share in (0.01, 0.02, 0.03, 0.05, 0.10):
                at = near[int(share * len(near))]
                false, true = kept(rows, held, at)
                print(f"  above {at:.3f}: near misses {false:6.1%}, paraphrases {true:6.1%}")
        made[embedder] = fitted
    if not given.check:
        text = json.dumps(made, indent=1)
        flat = re.compile(r"\[\s+([\d.]+),\s+([\d.]+),\s+([\d.]+)\s+\]")  # a row on one line
        OUT.write_text(flat.sub(r"[\1, \2, \3]", text) + "\n", "utf-8")


if __name__ == "__main__":
    main()
