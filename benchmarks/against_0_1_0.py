"""What version 0.1.0 did where the evaluation was mended: the same checks of both versions.

    git worktree add ../trueline-0.1.0 52206a1
    python benchmarks/against_0_1_0.py --old ../trueline-0.1.0

52206a1 is the first commit whose changelog sets 0.1.0 apart. Every check below does what a test
of today asserts, by calls and commands that both versions have, once with the source of the old
checkout and once with this one, and prints a row: the point that was mended, and what either
version did. A check that passes on 0.1.0, or fails today, ends it with 1.
SmolLM2-135M and all-MiniLM-L6-v2 are
opened; it takes two minutes.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
SENTENCES = 20_360, 6_165  # of WikiQA's two files, which are refused if they hold others
CHECKS = {}


def check(point):
    """Register a check: it returns whether what a test of today asserts holds, and what was seen."""

    def register(function):
        CHECKS[function.__name__] = (point, function)
        return function

    return register


@check("1 controls")
def controls(folder, root):
    """A method with a space has controls."""
    from trueline.lab.plan import plan_from

    plan = plan_from({"benchmarks": ["facts"], "methods": ["greedy", "rad"]})
    found = [getattr(one, "control", None) for one in plan.variants if one.method == "rad"]
    names = ", ".join(filter(None, found))
    return bool(names), f"RAD with {names}" if names else f"RAD {len(found)} time, no control"


@check("2 WikiQA")
def wikiqa(folder, root):
    """A sentence labelled 0 is nobody's wrong answer."""
    from trueline.lab.benchmarks import read_benchmark

    (folder / "wikiqa").mkdir()
    for split, count in zip(("train", "test"), SENTENCES, strict=True):
        rows = [
            {
                "QuestionID": f"Q{at // 5}",
                "Question": f"What is {at // 5}?",
                "DocumentTitle": "Numbers",
                "Sentence": f"Sentence {at}.",
                "Label": int(at % 5 == 0),
            }
            for at in range(count)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "wikiqa" / f"wikiqa_{split}.jsonl").write_text(text, "utf-8")
    first = read_benchmark("wikiqa", data=folder, ground=1, test=1).test[0]
    count = len(first.wrong_answers)
    return not count, f"{count} of 4 sentences labelled 0 are wrong answers"


@check("3 DoLa")
def dola(folder, root):
    """The layer is that of the authors' code, where the textbook takes another."""
    import torch

    import trueline as tl

    early = [[0.0, 0.0, 0.0, -40.0], [0.0, -3.0, -3.0, -3.0]]
    step = SimpleNamespace(
        lm=SimpleNamespace(head=lambda states: states),
        logits=torch.zeros(1, 4),
        states=SimpleNamespace(layers=[torch.tensor([layer]) for layer in early]),
        contexts=[[]],
        is_probability=False,
    )
    found = tl.DoLa(candidates=(0, 1), repetition_penalty=1.0).adjust(step).logits[0]
    layer = 0 if found[3] > 30 else 1
    return layer == 0, f"picks layer {layer} where the authors' code picks 0, the textbook 1"


@check("3 KATE")
def kate(folder, root):
    """The nearest example comes first."""
    import torch

    import trueline as tl

    class Letters:
        """Texts as how often they hold a, b and c."""

        def embed(self, texts):
            counts = torch.tensor([[float(text.count(x)) for x in "abc"] for text in texts])
            return torch.nn.functional.normalize(counts, dim=1)

    examples = [tl.Example("ab?", "2."), tl.Example("c?", "3."), tl.Example("a?", "1.")]
    space = SimpleNamespace(
        examples=examples,
        open_embedder=lambda device: Letters(),
        question_vectors=lambda device: Letters().embed([one.question for one in examples]),
    )
    method = tl.KATE(space, k=3)
    if not hasattr(tl.KATE, "question_prompt"):  # 0.1.0 keeps what it opened in the method
        method.__dict__["_embedder"] = Letters()
    shown = [one.question for one in method.nearest("aaa")]
    return shown[0] == "a?", f"asked 'aaa', it shows {' '.join(shown)}"


@check("4 as the paper")
def as_paper(folder, root):
    """The settings that follow the paper are there."""
    from trueline.errors import TruelineError
    from trueline.lab.plan import plan_from

    try:
        plan = plan_from({"benchmarks": ["facts"], "methods": ["greedy"], "as": "paper"})
    except TruelineError as error:
        return False, " ".join(str(error).split(";")[0].split())
    return plan.max_new_tokens == 256, f"{plan.max_new_tokens} tokens, prompts {plan.prompts}"


@check("5 comparability")
def comparability(folder, root):
    """Every part that differs from the paper's is named."""
    sizes = ["--ground", "3", "--test", "1", "--max-new-tokens", "4"]
    command("reproduce", "alpha", "--benchmark", "facts", *sizes, "--out", folder / "alpha")
    (page,) = (folder / "alpha").glob("**/reproduce.md")
    notes = page.read_text("utf-8")
    parts = ["token limit", "generation prompt", "the judge's question", "questions judged"]
    named = [part for part in parts if part in notes]
    return (
        named == parts,
        f"names {', '.join(named) or 'none'} of {len(parts)} parts that differ",
    )


@check("6 cut answers")
def cut_answers(folder, root):
    """An answer that the limit cut off is told."""
    found = re.search(r"1 of 1 answers are cut off after 8 tokens", evaluated(folder))
    return bool(found), found[0] if found else "no word about answers cut off after 8 tokens"


@check("6 cut keys")
def cut_keys(folder, root):
    """Of a key that is too long the end counts."""
    texts = [f"{'the long beginning of it ' * 200} {end}" for end in ("bats see", "gold")]
    try:
        from trueline.embed import embed_distinct, load_embedder
    except ImportError:  # 0.1.0 has one way to embed
        from trueline.embedders.embedder import load_embedder

        vectors = load_embedder("all-minilm-l6-v2").embed(texts)
    else:
        vectors = embed_distinct(load_embedder("all-minilm-l6-v2"), texts, tails=True)
    cosine = float(vectors[0] @ vectors[1])
    return cosine < 0.9999, f"long keys with other ends have a cosine of {cosine:.4f}"


@check("7 cases")
def cases(folder, root):
    """The recipe asks the paper's own questions."""
    try:
        from trueline.lab.paper.recipes import plans_of, recipe_named
    except ImportError:
        from trueline.report.recipes import plans_of, recipe_named

    (plan,) = plans_of(recipe_named("cases"), {})
    count = len(getattr(plan, "questions", ()))
    return count == 6, f"asks {count} of the paper's six questions by name"


@check("7 titles")
def titles(folder, root):
    """What is kept of small runs is called what it is."""
    pages = sorted((root / "docs" / "results" / "recipes").glob("*/*.md"))
    heads = [page.read_text("utf-8").partition("\n")[0] for page in pages]
    said = [bool(re.search(r"smoke test", head)) for head in heads]
    return all(
        said
    ), f"{sum(said)} of {len(said)} kept pages are called smoke tests in their title"


@check("7 rates")
def rates(folder, root):
    """A share of one answer is not certain."""
    row = reported(folder)["greedy", "truth"]
    width = float(row["high"]) - float(row["low"])
    return width > 0, f"one answer judged: an interval {width:.0f} points wide"


@check("7 ECE, AUROC")
def paired(folder, root):
    """ECE is compared with that of greedy decoding."""
    found = reported(folder)["rad", "ece"]["difference"]
    return bool(found), f"RAD's ECE less greedy's: {found or 'not told'}"


@check("7 families")
def families(folder, root):
    """A family of comparisons is corrected."""
    columns = [name for name in reported(folder)["rad", "ece"] if re.match(r"p($|_)", name)]
    return "p_holm" in columns, f"report.csv has {', '.join(columns)}"


@check("8 what a step offers")
def step_names(folder, root):
    """What the page says of a step is there."""
    from dataclasses import fields

    from trueline.methods.base import Step

    page = (root / "docs" / "methods.md").read_text("utf-8")
    named = re.findall(r"^\| `step\.(\w+)", page, re.M)
    offered = {*dir(Step), *(field.name for field in fields(Step))}
    missing = [f"step.{name}" for name in named if name not in offered]
    return bool(
        named
    ) and not missing, f"of {len(named)} names not there: {', '.join(missing) or 'none'}"


@check("8 numbers")
def numbers(folder, root):
    """The page has the number of the code."""
    import torch

    from trueline.rad.retrieve import ROUNDING

    page = (root / "docs" / "retrieval.md").read_text("utf-8")
    told = float(re.search(r"at least (0\.\d+) with keys in half precision", page)[1])
    code = 1 - ROUNDING[torch.float16]
    return told == round(code, 4), f"the page says {told}, the code {code:.4f}"


def command(*words):
    """What a command of the version that is imported prints, notes included."""
    line = [sys.executable, "-m", "trueline", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def evaluated(folder):
    """What `trueline eval` says of one question, answered with 8 tokens; it is run once."""
    said, out = folder / "said.txt", folder / "run"
    if not said.exists():
        sizes = ["--ground", "5", "--test", "1", "--max-new-tokens", "8"]
        words = ["--benchmark", "facts", "--methods", "greedy,rad", "--judge", "offline"]
        said.write_text(command("eval", *words, *sizes, "--out", out), "utf-8")
    return said.read_text("utf-8")


def reported(folder):
    """The rows of its report.csv by method and measure, controls left out."""
    evaluated(folder)
    out = folder / "report"
    if not out.exists():
        command("report", folder / "run", "--out", out)
    (path,) = out.glob("**/report.csv")
    rows = csv.DictReader(path.read_text("utf-8").splitlines())
    return {(x["method"], x["measure"]): x for x in rows if not x.get("control")}


def answers(root):
    """{check: [whether it holds, what was seen]} of the source of a checkout."""
    line = [sys.executable, __file__, "--answer", str(root)]
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def answer(root):
    """Do every check with the version that is imported, which is that of a checkout."""
    import trueline

    assert Path(trueline.__file__).is_relative_to(root), trueline.__file__
    with TemporaryDirectory() as folder:
        found = {name: function(Path(folder), root) for name, (_, function) in CHECKS.items()}
    print(json.dumps(found))


def main():
    """Print a row a check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path, help="a checkout of 0.1.0")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        answer(given.answer)
        return
    if given.old is None or not (given.old / "src" / "trueline").is_dir():
        parser.error("--old must name a checkout of version 0.1.0; see above")
    old, new = answers(given.old.resolve()), answers(ROOT)
    print("| point | 0.1.0 | today |\n| --- | --- | --- |")
    for name, (point, _) in CHECKS.items():
        print(f"| {point} | {old[name][1]} | {new[name][1]} |")
    as_claimed = [not old[name][0] and new[name][0] for name in CHECKS]
    print(f"\n{sum(as_claimed)} of {len(as_claimed)} fail on 0.1.0 and hold today")
    sys.exit(not all(as_claimed))


if __name__ == "__main__":
    main()
