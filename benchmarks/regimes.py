"""The regimes by method, from answers that are kept; no model runs.

    python benchmarks/regimes.py [MODEL]       those in docs/results/covered, which covered.py wrote
    python benchmarks/regimes.py --run FOLDER  a run of a plan in docs/results/plans, controls below

The measures are those of `trueline eval --benchmark regimes`.
"""

import json
import sys
from pathlib import Path

from trueline.lab.benchmarks import read_benchmark
from trueline.lab.findings import effect_of
from trueline.lab.measures import MEASURES, average, columns_of
from trueline.lab.metrics import probe_scores
from trueline.lab.results import read_results
from trueline.lab.statistics import share_interval

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
                one[measure.score or measure.key]
                for id, one in scores.items()
                if samples[id].probe.regime in measure.regimes
                and (measure.score or measure.key) in one
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


def print_run(folder):
    """A table a group of measures: a row a method, its controls below it; all that is done."""
    cells = [cell for cell in read_results(folder).cells if cell.done is not None]
    (plain,) = [cell for cell in cells if cell.head.is_plain]
    own = [cell for cell in cells if cell.head.control is None]
    for group in (*GROUPS, "Judged"):
        columns = [one for one in columns_of(cells) if one.measure.group == group]
        if not columns:
            continue
        print(f"| method | {' | '.join(one.measure.title for one in columns)} |")
        print(f"|{' --- |' * (1 + len(columns))}")
        for cell in own:
            controls = {
                one.head.control: [one]
                for one in cells
                if one.head.control and one.head.label == cell.head.label
            }
            for row in (cell, *(one for (one,) in controls.values())):
                texts = [run_cell(row, column, plain, controls) for column in columns]
                print(f"| {row_name(row)} | {' | '.join(texts)} |")
        print()
    seconds = sum(line.seconds for cell in cells for line in cell.answers)
    count = sum(len(cell.answers) for cell in cells)
    told = {"cells": len(cells), "answers": count, "seconds": round(seconds)}
    print(json.dumps({"benchmark": plain.head.benchmark, **told}))


def row_name(cell):
    """The method with its settings, or the control below it."""
    return f"- {cell.head.control}" if cell.head.control else cell.head.label


def run_cell(cell, column, plain, controls):
    """A share in percent with its interval, and what the controls say of a gain."""
    found = average([cell], column, [plain])
    if found is None:
        return ""
    text = f"{100 * found.mean:.0f} ({100 * found.low:.0f} to {100 * found.high:.0f})"
    if cell.head.control is None and controls:
        effect = effect_of([cell], [plain], controls, column)
        text += "" if effect is None else MARKS[effect.finding]
    return text


MARKS = {"effect": " **\\***", "shared": " (c)", "unclear": " (?)"}


def main():
    """Print a table a group of measures: a row a method."""
    if sys.argv[1:2] == ["--run"]:
        print_run(Path(sys.argv[2]))
        return
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
