"""The regimes by method, from the answers that are kept in docs/results/covered; no model runs.

    python benchmarks/regimes.py [MODEL]

The measures are those of `trueline eval --benchmark regimes`, which answers anew.
"""

import json
import sys
from pathlib import Path

from trueline.evaluation.benchmarks import read_benchmark
from trueline.evaluation.measures import MEASURES
from trueline.evaluation.regimes import probe_scores
from trueline.evaluation.statistics import share_interval

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "covered"
METHODS = ("greedy", "in-prompt", "lookup", "corrective")
GROUPS = ("Regimes", "Fluency and form")


def kept_answers(model):
    """{method: {sample id: line}} of the answers from the space of all facts."""
    text = (FOLDER / f"{model}.jsonl").read_text("utf-8")
    found = {}
    for line in map(json.loads, text.splitlines()):
        if line["space"] == "all" and line["seed"] is None and line["regime"] != "broken":
            is_exact = line["regime"] == "exact"
            id = f"{line['id']}-exact-1" if is_exact else line["id"]
            found.setdefault(line["method"], {})[id] = line
    return found


def shares(model):
    """{(measure, method): (how many, of how many)}."""
    samples = {sample.id: sample for sample in read_benchmark("regimes", ground=None).test}
    answers = kept_answers(model)
    plain = answers["greedy"]
    found = {}
    for method, lines in answers.items():
        scores = {
            id: probe_scores(samples[id].probe, line["text"], line["finish"] == "length")
            | {"same": float(line["tokens"] == plain[id]["tokens"])}
            for id, line in lines.items()
            if id in samples
        }
        for key, measure in MEASURES.items():
            values = [
                one[measure.score]
                for id, one in scores.items()
                if samples[id].probe.regime in measure.regimes and measure.score in one
            ]
            if values:
                found[key, method] = (int(sum(values)), len(values))
        far = [id for id, line in lines.items() if line["regime"] == "unrelated"]
        if far:  # questions of NQ-open, which are not shipped
            same = sum(lines[id]["tokens"] == plain[id]["tokens"] for id in far)
            found["unrelated", method] = (same, len(far))
    return found


def cell(counts):
    """A share with Wilson's interval, in percent."""
    if counts is None:
        return ""
    interval = share_interval(*counts)
    low, high = 100 * interval.low, 100 * interval.high
    return f"{100 * interval.mean:.1f} ({low:.0f} to {high:.0f}; {counts[0]} of {counts[1]})"


def main():
    """Print a table a group of measures: a row a method."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    found = shares(model)
    for group in GROUPS:
        columns = [one for one in MEASURES.values() if one.group == group]
        print(f"| method | {' | '.join(one.title for one in columns)} |")
        print(f"|{' --- |' * (1 + len(columns))}")
        for method in METHODS:
            cells = [cell(found.get((one.key, method))) for one in columns]
            print(f"| {method} | {' | '.join(cells)} |")
        print()
    told = {f"{key}, {method}": counts for (key, method), counts in found.items()}
    print(json.dumps({"benchmark": "regimes", "model": model, "counts": told}))


if __name__ == "__main__":
    main()
