"""Fit the weights of scope on the questions shipped for the grounding facts, and say how well.

    python benchmarks/fit_scope.py            writes src/trueline/scope.json
    python benchmarks/fit_scope.py --check    only prints

Only the facts of ground.jsonl and their questions are read. What is printed is measured on facts
that the weights were not fitted to: ten folds, split by fact. The facts of test.jsonl are left
for benchmarks/covered.py, which reports on them.
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from trueline.examples import read_examples
from trueline.examples.shipped import ShippedQuestion, read_questions
from trueline.scope import SIGNALS, ScopeModel, example_signals
from trueline.space.build import build

OUT = Path(__file__).parents[1] / "src" / "trueline" / "scope.json"
EMBEDDERS = ("all-minilm-l6-v2", "all-mpnet-base-v2")
LIGHT = "light"  # the regime of a fact's own question and of light edits of it
LIGHT_WEIGHT = 0.3  # of such a question: there are six for each fact
GRID = [*(round(0.05 * n, 2) for n in range(20)), 0.98, 0.99, 0.995]  # thresholds measured
FALSE_SCOPE = 0.04  # share of near misses that come into scope at the threshold


@dataclass(frozen=True)
class Pair:
    """A question and an example near to it."""

    question: ShippedQuestion
    is_answer: bool
    signals: np.ndarray  # (texts of the turn, signals), the whole turn first


def light_edits(fact):
    """A fact's own question as it is, and changed a little, as people type it."""
    text, words = fact.question, fact.question.rstrip("?").split()
    half, middle = len(text) // 2, len(words) // 2
    edits = (
        text,
        text.rstrip("?").lower(),
        text.rstrip("?") + ", please?",
        f"Hey, {text[0].lower()}{text[1:]}",
        " ".join(words[:middle] + words[middle + 1 :]) + "?",
        text[:half] + text[half + 1 :],
    )
    return [
        ShippedQuestion(f"{fact.id}-light{n}", LIGHT, edit, (fact.id,), (fact.id,), "", {}, "")
        for n, edit in enumerate(edits)
    ]


def pairs_of(space):
    """Every shipped question about the grounding facts with the examples near to it.

    The facts' own questions and light edits of them are among them. Paraphrases avoid the words
    of the question and near misses keep them, so that without such edits sharing words would
    count against an example.
    """
    asked = [
        one for one in read_questions("ground") if one.regime in ("paraphrase", "near miss")
    ]
    asked += [edit for fact in space.examples for edit in light_edits(fact)]
    return [
        Pair(one, example.id in one.means, np.array([[*each.values()] for each in signals]))
        for one in asked
        for example, signals in example_signals(space, one.question)
    ]


def fit(pairs, columns):
    """The bias and the weights that tell answers from others by the whole turn."""
    values = np.array([pair.signals[0, columns] for pair in pairs])
    mean, deviation = values.mean(0), values.std(0) + 1e-9
    labels = [pair.is_answer for pair in pairs]
    counts = [LIGHT_WEIGHT if pair.question.regime == LIGHT else 1.0 for pair in pairs]
    scaled = (values - mean) / deviation
    made = LogisticRegression(C=1.0, max_iter=5_000).fit(scaled, labels, sample_weight=counts)
    weights = made.coef_[0] / deviation
    names = [[*SIGNALS][column] for column in columns]
    bias = float(made.intercept_[0] - weights @ mean)
    return ScopeModel(bias, dict(zip(names, map(float, weights), strict=True)), 0.0)


def probability(model, pair):
    """What scope says: the most probable of the texts of the turn."""
    rows = [dict(zip(SIGNALS, row, strict=True)) for row in pair.signals]
    return max(model.probability(row) for row in rows)


def out_of_fold(pairs, columns):
    """The probability of every pair by weights that never saw its fact."""
    groups = [pair.question.about[0] for pair in pairs]
    found = np.zeros(len(pairs))
    for train, test in GroupKFold(10).split(groups, groups=groups):
        model = fit([pairs[at] for at in train], columns)
        for at in test:
            found[at] = probability(model, pairs[at])
    return found


def best_of(pairs, probabilities):
    """The highest probability for each question, and that of the example it means."""
    best, right = {}, {}
    for pair, found in zip(pairs, probabilities, strict=True):
        best[pair.question.id] = max(best.get(pair.question.id, 0.0), found)
        if pair.is_answer:
            right[pair.question.id] = found
    return best, right


def shares(pairs, best, right, threshold):
    """Share of near misses in scope; of paraphrases and of light edits rightly in scope."""
    regimes = {pair.question.id: pair.question.regime for pair in pairs}

    def share(regime):
        rows = [id for id in best if regimes[id] == regime]
        if regime == "near miss":
            return float(np.mean([best[id] > threshold for id in rows]))
        return float(np.mean([best[id] == right.get(id, -1.0) > threshold for id in rows]))

    return share("near miss"), share("paraphrase"), share(LIGHT)


def fitted(embedder, pairs, kind):
    """The weights of one kind of examples, with their threshold, and how well they do."""
    columns = [at for at, name in enumerate(SIGNALS) if kind == "full" or name != "wrong"]
    best, right = best_of(pairs, out_of_fold(pairs, columns))
    misses = {pair.question.id for pair in pairs if pair.question.regime == "near miss"}
    near = sorted((best[id] for id in misses), reverse=True)
    threshold = float(round(near[int(FALSE_SCOPE * len(near))], 3))
    print(f"{embedder}, {kind}: threshold {threshold:.3f}")
    for share in (0.01, 0.02, 0.03, FALSE_SCOPE, 0.05, 0.10):
        at = near[int(share * len(near))]
        false, true, light = shares(pairs, best, right, at)
        print(
            f"  above {at:.3f}: near misses {false:6.1%}, paraphrases {true:6.1%}, "
            f"light edits {light:6.1%}"
        )
    model = fit(pairs, columns)
    _, recall, _ = shares(pairs, best, right, threshold)
    values = np.array([pair.signals[0, columns] for pair in pairs])
    return {
        "bias": model.bias,
        "weights": model.weights,
        "threshold": threshold,
        "recall": round(recall, 3),
        "mean": dict(zip(model.weights, map(float, values.mean(0).round(4)), strict=True)),
        "measured": [
            [at, *(round(one, 4) for one in shares(pairs, best, right, at)[:2])] for at in GRID
        ],
    }


def main():
    """Fit for every embedder asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--embedders", nargs="+", default=EMBEDDERS)
    given = parser.parse_args()
    made = json.loads(OUT.read_text("utf-8")) if OUT.exists() else {}
    for embedder in given.embedders:
        pairs = pairs_of(build(None, read_examples("facts:ground"), embedder=embedder))
        made[embedder] = {kind: fitted(embedder, pairs, kind) for kind in ("full", "bare")}
    if not given.check:
        text = json.dumps(made, indent=1)
        flat = re.compile(r"\[\s+([\d.]+),\s+([\d.]+),\s+([\d.]+)\s+\]")  # a row on one line
        OUT.write_text(flat.sub(r"[\1, \2, \3]", text) + "\n", "utf-8")


if __name__ == "__main__":
    main()
