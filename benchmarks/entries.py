"""How many entries the paper's spaces would have here, by the tokenizer of its model.

    python benchmarks/entries.py --data DATA --gguf qwen.gguf      any .gguf of a Qwen2.5 model

An entry is a token of a truthful answer of the first 100 examples, the answers of an example
counted once each, and tokenised alone, as the authors' code does. No model is opened.
"""

import argparse
from pathlib import Path

from transformers import AutoTokenizer

from trueline.lab.benchmarks import BENCHMARKS
from trueline.lab.paper.recipes import paper

RULES = ("all", "answered")


def entries(tokenizer, rows, rule, examples=100):
    """Tokens of the answers of the first examples."""
    kept = [row.sample for row in rows if rule == "all" or row.sample.answers][:examples]
    texts = [answer for one in kept for answer in dict.fromkeys(one.answers)]
    return sum(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])


def print_sizes(data, gguf):
    """Print a line a benchmark."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    printed = {
        block.benchmark: block.rows["rad ground=100"][0]
        for block in paper().blocks
        if block.recipe == "sizes" and block.metrics == ("entries",)
    }
    for name, of_paper in printed.items():
        rows = BENCHMARKS[name].read(data).ground
        found = {rule: entries(tokenizer, rows, rule) for rule in RULES}
        counts = ", ".join(f"{rule} {count:,}" for rule, count in found.items())
        print(f"{name:>20}: paper {of_paper:,.0f}; {counts}")


def main():
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    given = parser.parse_args()
    print_sizes(given.data, given.gguf)


if __name__ == "__main__":
    main()
