"""Does the truth move a model's yes or no? The rule of `trueline.corrective.method`, measured.

    python benchmarks/polarity.py --model qwen2.5-coder-1.5b             the grounding facts
    python benchmarks/polarity.py --model qwen2.5-coder-1.5b --facts test

As many questions answered by yes as by no are drawn with seed 0. What is printed: how often the
word is right, and how often one is said at all, at rising least effects.
"""

import argparse
import json
import random

import torch
from covered import share

import trueline as tl
from trueline.corrective.method import LEAST_EFFECT, effect_of_truth
from trueline.examples import read_examples, shipped_questions

LEAST = (0.0, 0.1, 0.2, 0.3, 0.4, LEAST_EFFECT, 0.6, 0.8, 1.0)


def labelled(part, most):
    """Questions whose right word is known, half of them yes."""
    random.seed(0)
    found = [one for one in shipped_questions(part) if one.polarity and len(one.means) == 1]
    kinds = [[one for one in found if one.polarity == word] for word in ("yes", "no")]
    few = min(most, *map(len, kinds))
    return [one for kind in kinds for one in random.sample(kind, few)]


def main():
    """Ask, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--engine", default="llama.cpp")
    parser.add_argument("--facts", choices=("ground", "test"), default="ground")
    parser.add_argument("--questions", type=int, default=30, help="of each word, at most")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    facts = {fact.id: fact for fact in read_examples(f"facts:{given.facts}")}
    lm = tl.load(given.model, engine=given.engine)
    prompt = tl.Greedy().prompt
    effects = []
    for question in labelled(given.facts, given.questions):
        fact = facts[question.means[0]]
        effect = effect_of_truth(lm, prompt, question.question, fact) or 0.0
        effects.append((effect, question.polarity == "yes"))
        print(json.dumps({"id": question.id, "effect": round(effect, 3)}), flush=True)
    print("\n| least effect | a word is said | it is right |\n| --- | --- | --- |")
    for least in LEAST:
        said = [(effect > 0) == is_yes for effect, is_yes in effects if abs(effect) > least]
        spoken = [abs(effect) > least for effect, _ in effects]
        print(f"| {least:g} | {share(spoken)} | {share(said)} |")


if __name__ == "__main__":
    main()
