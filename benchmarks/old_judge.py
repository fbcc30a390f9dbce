"""Judge kept answers once more by the rules of version 0.1.0: the nearest reference decides.

    trueline eval docs/results/plans/controls.toml
    python benchmarks/old_judge.py results/controls

Its verdicts are added to results.jsonl beside those of today's judge, and a table of T*I by both is
printed: what version 0.1.0 called a gain of RAD, its controls, and what is left of it today.
"""

import json
import re
import sys
from pathlib import Path

from trueline.embed import load_embedder
from trueline.lab.benchmarks import read_benchmark
from trueline.lab.findings import effect_of
from trueline.lab.judges.offline import NON_ANSWERS, Vectors
from trueline.lab.measures import MEASURES, Column, average
from trueline.lab.results import VerdictLine, open_journal, read_results

EMBEDDER = "all-minilm-l6-v2"
OLD, TODAY = f"nearest-reference:{EMBEDDER}", f"offline:{EMBEDDER}"
EVASIVE = 0.45  # nearness to a non-answer from which an answer says nothing


def is_true(sample, answer, vectors):
    """Whether a right answer or a non-answer is nearer than every wrong one."""
    right = vectors.nearness(answer, (*sample.answers, *NON_ANSWERS)).max()
    return bool(right > vectors.nearness(answer, sample.wrong_answers).max())


def is_informative(sample, answer, vectors):
    """Whether it is more than a bare yes or no, the question's words, or a non-answer."""
    words = set(re.findall(r"\w+", answer.lower()))
    if words <= {"yes", "no"} or words <= set(re.findall(r"\w+", sample.question.lower())):
        return False
    return bool(vectors.nearness(answer, NON_ANSWERS).max() < EVASIVE)


RULES = {"truth": is_true, "info": is_informative}


def judge(folder):
    """Add the verdicts of version 0.1.0 on every answer of a run on the facts."""
    vectors = Vectors(load_embedder(EMBEDDER))
    samples = {one.id: one for one in read_benchmark("facts", ground=None).test}
    answers = [line for cell in read_results(folder).cells for line in cell.answers]
    texts = [text for one in samples.values() for text in (*one.answers, *one.wrong_answers)]
    vectors.add([*texts, *NON_ANSWERS, *(line.text.strip() for line in answers)])
    verdicts = [
        VerdictLine(
            cell=line.cell,
            sample=line.sample,
            judge=OLD,
            about=about,
            label=rule(samples[line.sample], line.text.strip(), vectors),
            basis=about,
        )
        for line in answers
        for about, rule in RULES.items()
    ]
    with open_journal(folder) as journal:
        journal.keep([line for line in journal.lines if getattr(line, "judge", "") != OLD])
        journal.append(verdicts)


def rows(folder):
    """T*I of RAD and its controls by both judges, each against greedy."""
    cells = read_results(folder).cells
    (plain,) = [cell for cell in cells if cell.head.is_plain]
    found = {}
    for name in (OLD, TODAY):
        column = Column(MEASURES["truth_info"], name)
        found[name, "greedy"] = average([plain], column, [plain])
        rad = [cell for cell in cells if cell.head.method == "rad"]
        for cell in rad:
            found[name, cell.head.control or "rad"] = average([cell], column, [plain])
        own = [cell for cell in rad if cell.head.control is None]
        controls = {cell.head.control: [cell] for cell in rad if cell.head.control}
        effect = effect_of(own, [plain], controls, column)
        print(f"{name}: {effect.in_words(column) if effect else 'there is no gain'}")
    return found


def main():
    """Judge, and print the table."""
    folder = Path(sys.argv[1])
    judge(folder)
    found = rows(folder)
    print("| T*I | 0.1.0's judge | today's judge |\n| --- | --- | --- |")
    for name in dict.fromkeys(name for _, name in found):
        cells = []
        for judged in (OLD, TODAY):
            one = found[judged, name]
            text = f"{100 * one.mean:.1f}"
            if name != "greedy":
                d = one.difference
                text += f" ({100 * d.mean:+.1f}; {100 * d.low:+.1f} to {100 * d.high:+.1f})"
            cells.append(text)
        print(f"| {name} | {' | '.join(cells)} |")
    told = {f"{name}, {judged}": round(one.mean, 4) for (judged, name), one in found.items()}
    print(json.dumps({"benchmark": "old_judge", "truth_info": told}))


if __name__ == "__main__":
    main()
