"""The shipped audits: every method that claims truth, and a stranger's processor, on 68 facts.

    python benchmarks/audits.py --out work/audits            runs them, or goes on
    python benchmarks/audits.py --out work/audits --write    also writes docs/results/audits.md

About eight minutes each on two cores for a method with examples, two for one without.
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

DASH = "\N{EN DASH}"
PAGE = Path(__file__).parent.parent / "docs" / "results" / "audits.md"
PENALTY = "transformers:RepetitionPenaltyLogitsProcessor"
AUDITS = {
    "RAD, window = template": ["rad", "--build", "window=template"],
    "RAD, window = text": ["rad", "--build", "window=text"],
    "RAD, window = answer": ["rad", "--build", "window=answer"],
    "kNN-LM": ["knn-lm"],
    "KATE": ["kate"],
    "DoLa": ["dola"],
    "CAD": ["cad"],
    "corrective": ["corrective"],
    "repetition penalty 1.2 (transformers)": [PENALTY, "--set", "penalty=1.2"],
}
HEAD = """# Audits: what decoding methods change, and why

SmolLM2-135M, the 68 test facts, 100 grounding facts, at most 32 new tokens, judged by the offline judge, by
`python benchmarks/audits.py --out work/audits --write` (version {version}, {machine}). T*I is truth times information, in percent; after the
difference from greedy stands its 95 % interval. "First four" is the share of a method's changes that fall on the first four tokens of an answer.
[audit.md](../audit.md) says what the verdicts mean; no question here is one of the grounding facts.

| method | verdict | T*I against greedy | with wrong / shuffled / unrelated examples | answers changed | first four | tokens with evidence | speed / greedy |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
CONTROLS = ("wrong answers", "answers shuffled", "unrelated examples")
WORDS = {
    "nothing": "does nothing",
    "unmeasured": "not measured",
    "worse": "does harm",
    "none": "no effect beyond chance",
    "no controls": "a gain; nothing to exchange",
    "shared": "not an effect of the examples",
    "unclear": "not clearly better than its controls",
    "effect": "better than every control",
}


def share(part, whole):
    return f"{100 * part / whole:.0f} %" if whole else DASH


def row(name, found):
    """One line of the table from an audit's JSON."""
    (one,) = found["audits"]
    own, column = one["changes"][one["label"]], one["column"]
    gains = {label.rpartition("control: ")[2]: each for label, each in one["gains"].items()}
    controls = [gains.get(control, {}).get(column) for control in CONTROLS]
    known = " / ".join(DASH if x is None else f"{100 * x:+.1f}" for x in controls)
    numbers = one["sentence"].partition("greedy: ")[2].partition(" on ")[0] or DASH
    speed = DASH if own["speed"] is None else f"{own['speed']:.2f}"
    cells = [
        name,
        WORDS[one["finding"]],
        numbers,
        known if any(x is not None for x in controls) else DASH,
        share(own["changed"], own["answers"]),
        share(own["flipped_first"], own["flipped"]),
        share(own["with_hits"], own["tokens"]),
        speed,
    ]
    return f"| {' | '.join(cells)} |\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = []
    for name, command in AUDITS.items():
        folder = given.out / "-".join(word.strip("-").replace(":", ".") for word in command)
        options = ["--max-new-tokens", "32", "--out", str(folder)]
        subprocess.run(
            [sys.executable, "-m", "trueline", "audit", *command, *options], check=True
        )
        rows.append(row(name, json.loads((folder / "audit.json").read_text("utf-8"))))
    if given.write:
        from trueline import __version__

        head = HEAD.format(version=__version__, machine=f"{platform.machine()}, two cores")
        PAGE.write_text(head + "".join(rows), "utf-8")


if __name__ == "__main__":
    main()
