"""Tokens a second of vLLM with corrective decoding over vLLM without, 16 requests at once.

    python benchmarks/vllm_rate.py --python .venv-vllm/bin/python

Two servers that differ in the one flag take turns, round by round. Every request makes as many
tokens: its end is ignored. A verified answer is then told first, and the model goes on; each of
those tokens still asks whether an answer is on its track again.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from measure import interleaved, rate, where

sys.path.append(str(Path(__file__).parents[1] / "tests" / "in_vllm"))

from served import FLAG, served

import trueline as tl
from trueline.engines.models import resolve
from trueline.examples import read_examples

BATCH, TOKENS, MUST = 16, 64, 0.90
UNRELATED = "Which {} would you take to an island, and what would you do with it there?"
THINGS = (
    "book film song tool lamp boat tent hat rope knife radio map shoe coat cup game"
).split()


def main():
    """Print a table, then one line of JSON."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--python", default=sys.executable, help="that of vLLM's environment")
    reader.add_argument("--rounds", type=int, default=7)
    given = reader.parse_args()
    model = resolve("smollm2-135m", "language").folder
    covered = [example.question for example in read_examples("facts:ground")][:BATCH]
    unrelated = [UNRELATED.format(thing) for thing in THINGS]
    with TemporaryDirectory() as folder:
        space = Path(folder, "facts.space")
        tl.build(None, "facts:ground").save(space)
        method = tl.Corrective(tl.open(space))
        scopes = [method.scope(None, question)[0][1] for question in [*covered, *unrelated]]
        assert min(scopes[:BATCH]) > 0.5 > max(scopes[BATCH:])
        python = {"python": given.python}
        named = {"facts": space}
        with (
            served(model, spaces={}, **python) as plain,
            served(model, *FLAG, spaces=named, **python) as corrected,
        ):
            sides = {
                "plain, covered questions": _asking(plain, covered),
                "corrective, in scope": _asking(corrected, covered),
                "plain, other questions": _asking(plain, unrelated),
                "corrective, nothing in scope": _asking(corrected, unrelated),
            }
            times = interleaved(sides, given.rounds)
    found = {
        "in scope": rate(times, "corrective, in scope", "plain, covered questions"),
        "nothing in scope": rate(
            times, "corrective, nothing in scope", "plain, other questions"
        ),
    }
    for name, taken in times.items():
        print(f"{name:<30} {BATCH * TOKENS / median(taken):>8.1f} tokens/s")
    for name, ratio in found.items():
        print(f"corrective over plain, {name:<18} {ratio:.3f}  (must {MUST})")
    print(json.dumps({"benchmark": "vllm_rate", **where(0), "ratios": found, "seconds": times}))


def _asking(server, questions):
    asked = [(question, None) for question in questions]
    options = {"max_tokens": TOKENS, "ignore_eos": True}
    return lambda: server.ask_all(asked, **options)


if __name__ == "__main__":
    main()
