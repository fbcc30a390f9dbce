"""How often the offline judge agrees with people, on TruthfulQA's human labels.

    python benchmarks/agreement.py --data FOLDER

FOLDER holds truthfulqa/truthfulqa_v1.jsonl, human_truth.jsonl.gz and human_info.jsonl.gz.
Questions are split in two halves by a hash of their text. The judge's rules were set on the
train half alone; what is written is measured on the other. Rows whose answer is one of the
benchmark's own reference answers are left out: the judge holds these, and would be right by
looking them up.
"""

import argparse
import gzip
import hashlib
import json
import re
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from trueline.embedders.loading import load_embedder
from trueline.evaluation.judges.offline import OfflineJudge
from trueline.evaluation.metrics import auroc
from trueline.evaluation.samples import Sample

SEED, DRAWS = 0, 1000
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results" / "agreement.md"
NUMBERS = ROOT / "src" / "trueline" / "evaluation" / "judges" / "agreement.json"
STATISTICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "kappa": "Cohen's kappa",
    "auroc": "AUROC",
}
ASPECTS = {
    "truth": "truth",
    "references_only": "truth, wrong answers hidden",
    "info": "information",
}

NOTES = """
Intervals are 95 %, by bootstrap over questions. The answers are those of models that people
labelled for TruthfulQA; rows that repeat one of its reference answers are left out, because the
judge holds these. The rules and thresholds were set on the other half of the questions. `truth,
wrong answers hidden` is the rule for benchmarks without wrong answers (WikiQA, Alpaca).
Hallucination (HaluEval) has no human labels here: how well the judge does there is not known.

In plain words: this judge is free and fast, and weak. Use it to see whether a run works and to
compare methods on the same questions, never as the last word on a single answer.
"""


def half_of(question):
    """Which half a question belongs to, whatever is asked of it."""
    odd = int(hashlib.sha256(question.encode()).hexdigest(), 16) % 2
    return "held-out" if odd else "train"


def plain(text):
    """A text by its words alone."""
    return " ".join(re.findall(r"\w+", text.lower()))


def read_samples(folder):
    """Every question of the benchmark, with its reference answers."""
    samples = {}
    for line in (folder / "truthfulqa_v1.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        right = [row["Best Answer"], *row["Correct Answers"].split("; ")]
        wrong = row["Incorrect Answers"].split("; ")
        kept = [
            tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))
            for texts in (right, wrong)
        ]
        question = row["Question"].strip()
        samples[question] = Sample(question, question, *kept)
    return samples


def read_labels(path, samples, half):
    """(sample, answer, label) of one half, each answer once, reference answers left out."""
    rows = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            found = re.fullmatch(r"Q: (.*?)\nA: (.*)\n\w+:", row["prompt"], re.S)
            sample, answer = samples[found[1].strip()], found[2]
            known = {plain(text) for text in (*sample.answers, *sample.wrong_answers)}
            if half_of(sample.question) == half and plain(answer) not in known:
                rows.setdefault((sample.id, answer), row["completion"].strip() == "yes")
    return [(samples[id], answer, label) for (id, answer), label in rows.items()]


def draw(rows, count):
    """Some of the rows by chance, those of a question together: they share embeddings."""
    chosen = np.random.default_rng(SEED).permutation(len(rows))[:count]
    return sorted((rows[place] for place in chosen), key=lambda row: row[0].id)


def statistics(scores, labels):
    """What STATISTICS names, for verdicts `score > 0` against labels."""
    said = scores > 0
    accuracy = np.mean(said == labels)
    hits = [np.mean(said[labels == side] == side) for side in (True, False)]
    chance = sum(np.mean(said == side) * np.mean(labels == side) for side in (True, False))
    area = auroc(list(scores), list(labels))
    return np.array([accuracy, np.mean(hits), (accuracy - chance) / (1 - chance), area])


def measure(scores, labels, questions):
    """Every statistic with its 95 % interval, drawing whole questions."""
    chance = np.random.default_rng(SEED)
    names, group = np.unique(questions, return_inverse=True)
    places = [np.flatnonzero(group == number) for number in range(len(names))]
    draws = []
    for _ in range(DRAWS):
        drawn = chance.integers(len(names), size=len(names))
        rows = np.concatenate([places[number] for number in drawn])
        draws.append(statistics(scores[rows], labels[rows]))
    lows, highs = np.percentile(draws, [2.5, 97.5], axis=0)
    bounds = zip(STATISTICS, statistics(scores, labels), lows, highs, strict=True)
    found = {name: [round(float(v), 3) for v in values] for name, *values in bounds}
    share = float(labels.mean())
    always = round(max(share, 1 - share), 3)  # accuracy of saying the commoner label always
    return {"n": len(labels), "questions": len(names), "always": always, **found}


def run(judge, rows, about, hide_wrong=False):
    """Judge some labelled answers and measure."""
    items = [
        (Sample(s.id, s.question, s.answers) if hide_wrong else s, answer)
        for s, answer, _ in rows
    ]
    scores = np.array([rating.score for rating in judge.ratings(about, items)])
    labels = np.array([label for _, _, label in rows])
    return measure(scores, labels, [s.id for s, _, _ in rows])


def sentence(found):
    """What a report prints wherever this judge is used."""
    parts = []
    for aspect in ("truth", "info"):
        m = found[aspect]
        accuracy, kappa = m["accuracy"], m["kappa"]
        parts.append(
            f"on {ASPECTS[aspect]} in {accuracy[0]:.1%} of cases ({accuracy[1]:.1%} to "
            f"{accuracy[2]:.1%}; kappa {kappa[0]:.2f}; always saying the commoner label: "
            f"{m['always']:.1%}; n = {m['n']})"
        )
    return f"The offline judge agrees with human labels {' and '.join(parts)}."


def page(found, settings):
    """docs/results/agreement.md."""
    lines = [
        "# The offline judge against people",
        "",
        f"`python benchmarks/agreement.py --data FOLDER`, {settings}.",
        "",
        found["sentence"],
        "",
        f"| asked about | answers | questions | always the commoner label | "
        f"{' | '.join(STATISTICS.values())} |",
        f"|{' --- |' * (4 + len(STATISTICS))}",
    ]
    for aspect, name in ASPECTS.items():
        m = found[aspect]
        cells = [f"{m[s][0]:.3f} ({m[s][1]:.3f} to {m[s][2]:.3f})" for s in STATISTICS]
        head = [name, str(m["n"]), str(m["questions"]), f"{m['always']:.3f}"]
        lines.append(f"| {' | '.join([*head, *cells])} |")
    return "\n".join(lines) + "\n" + NOTES


def main():
    """Measure, and write the page and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder of benchmark files"
    )
    parser.add_argument("--rows", type=int, default=1500, help="answers to judge, of each file")
    parser.add_argument("--half", choices=["train", "held-out"], default="held-out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun, folder = perf_counter(), options.data / "truthfulqa"
    embedder = load_embedder("all-minilm-l6-v2")
    judge, samples = OfflineJudge(embedder), read_samples(folder)
    truth, info = (
        draw(
            read_labels(folder / f"human_{name}.jsonl.gz", samples, options.half), options.rows
        )
        for name in ("truth", "info")
    )
    found = {"judge": judge.id, "half": options.half, "seed": SEED, "draws": DRAWS}
    found["truth"] = run(judge, truth, "truth")
    found["references_only"] = run(judge, truth, "truth", hide_wrong=True)
    found["info"] = run(judge, info, "info")
    found["sentence"] = sentence(found)
    settings = f"{judge.id}, the {options.half} half of the questions, seed {SEED}"
    print(page(found, settings))
    print(json.dumps({"benchmark": "agreement", **found, "seconds": perf_counter() - begun}))
    if options.half == "held-out":
        PAGE.write_text(page(found, settings), "utf-8")
        NUMBERS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
