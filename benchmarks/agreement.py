"""How often judges agree with people, on TruthfulQA's human labels; and the offline judge's fit.

    python benchmarks/agreement.py --data FOLDER --keep KEEP signals            resumes
    python benchmarks/agreement.py --data FOLDER --keep KEEP ask --model MODEL  resumes
    python benchmarks/agreement.py --data FOLDER --keep KEEP fit
    python benchmarks/agreement.py --data FOLDER --keep KEEP report
    python benchmarks/agreement.py --data FOLDER --keep KEEP compare

FOLDER holds truthfulqa/truthfulqa_v1.jsonl, human_truth.jsonl.gz and human_info.jsonl.gz; KEEP is a
folder for what was worked out so far. `signals` embeds labelled answers, `ask` puts them to a
language model, `fit` writes the weights of the offline judge, `report` the page and the numbers;
`compare` measures the language models alone, beside the figures of the shipped judge that are kept.

Questions are split in two halves by a hash of their text. Everything is set and fitted on the
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
from time import monotonic

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

import trueline as tl
from trueline.decode.generate import Continuation, score_continuations
from trueline.embed import load_embedder
from trueline.examples import read_examples
from trueline.lab.benchmarks.tables import Sample
from trueline.lab.judges.offline import (
    OF_RIGHT,
    SIGNALS,
    OfflineJudge,
    Vectors,
    broken,
    expand,
    signals_of,
    texts_for,
)
from trueline.lab.judges.questions import prompt_for
from trueline.lab.metrics import auroc
from trueline.prompts import Prompt, chat_turn

SEED, DRAWS = 0, 1000
PROMPT = Prompt(template="{question}")  # what a judge is asked is the whole prompt
STRENGTH = 0.02  # inverse of the penalty of the regressions; picked on the train half
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results" / "agreement.md"
JUDGES = ROOT / "src" / "trueline" / "lab" / "judges"
NUMBERS, WEIGHTS = JUDGES / "agreement.json", JUDGES / "regressions.json"
REPORTED = 1500  # answers of the held-out half that the shipped judge is measured on
FEWEST = 10  # answers of each half below which a language model is not reported
EACH = 3  # answers of a question that a language model is asked about
REFERENCES = 3  # right and wrong answers of a question whose likelihood is compared
EMBEDDER = "all-minilm-l6-v2"
STATISTICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "kappa": "Cohen's kappa",
    "auroc": "AUROC",
}
ASPECTS = {
    "truth_signals": "truth",
    "references_signals": "truth, wrong answers hidden",
    "info_signals": "information",
    "info_alone": "information, known answers hidden",
}

NOTES = """
Intervals are 95 %, by bootstrap over questions. The answers are those of models that people
labelled for TruthfulQA; rows that repeat one of its reference answers are left out, because the
judge holds these. Weights and thresholds were set on the other half of the questions. `wrong
answers hidden` is the rule for benchmarks without wrong answers (WikiQA, Alpaca). Hallucination
(HaluEval) has no human labels here: how well the judge does there is not known.

*The shipped facts*: one right and one wrong answer of each are known, the other right and the other
wrong one are judged. People wrote these four to differ from each other, and no judge that goes by
likeness can tell them: it is near chance there. What it judges well are a model's answers, which
share words with what is known.

*Language models.* SmolLM2-135M, asked or by likelihood, is no better than a coin. Qwen2.5-Coder-1.5B
(4 bits), asked, is a little better than one, and well behind the offline judge on the same answers;
by likelihood it is no better than a coin. No combination is ahead of the offline judge alone beyond
chance: the answers are few, and the intervals overlap. The offline judge alone is shipped. Larger
models are not measured.

*Informative alone* is balanced accuracy on truth among the answers that people called informative:
the others are mostly "I have no comment.", true by saying nothing and easy to tell. It is the
figure to keep in mind where every method answers.

A text that goes in circles, or says of a thing that it is itself, counts as neither true nor
informative, which is our rule and not people's: of the {broken} such answers among the {all} they
called {informative} informative and {true} true. Its cost in agreement is in the figures.

In plain words: this judge is free and fast; it is right about three times in four. Use it to see
whether a run works and to compare methods on the same questions, never as the last word on one answer.
"""


def half_of(question):
    """Which half a question belongs to, whatever is asked of it."""
    odd = int(hashlib.sha256(question.encode()).hexdigest(), 16) % 2
    return "held-out" if odd else "train"


def key_of(sample, answer):
    """A name of a labelled answer."""
    return hashlib.sha256(f"{sample.id}\0{answer}".encode()).hexdigest()[:16]


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


def labelled(folder, half):
    """(sample, answer, {truth, info}) of one half, in an order drawn by chance."""
    samples = read_samples(folder)
    truth, info = (
        read_labels(folder / f"human_{name}.jsonl.gz", samples, half)
        for name in ("truth", "info")
    )
    informs = {(sample.id, answer): label for sample, answer, label in info}
    rows = [
        (sample, answer, {"truth": label, "info": informs[sample.id, answer]})
        for sample, answer, label in truth
        if answer.strip() and (sample.id, answer) in informs
    ]
    order = np.random.default_rng(SEED).permutation(len(rows))
    return [rows[place] for place in order]


def read_lines(path):
    """The lines of a file of JSON by their key; none where there is no file."""
    if not path.exists():
        return {}
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {line["key"]: line for line in found}


def add_lines(path, rows, minutes, work, chunk):
    """Do the rows that are not in a file yet, a chunk at a time, until the time is up."""
    done, deadline = read_lines(path), monotonic() + 60 * minutes
    left = [row for row in rows if key_of(*row[1:3]) not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(left), chunk):
            if monotonic() > deadline:
                break
            for line in work(left[start : start + chunk]):
                file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{path.name}: {start + chunk} of {len(left)}", flush=True)


def save_signals(given, folder):
    """The signals of answers: those that are reported on first, then those to fit on."""
    vectors = Vectors(load_embedder(EMBEDDER))
    rows = [("held-out", *row) for row in labelled(folder, "held-out")[:REPORTED]]
    rows += [("train", *row) for row in labelled(folder, "train")]

    def work(chunk):
        vectors.add(
            text for _, sample, answer, _ in chunk for text in texts_for(sample, answer.strip())
        )
        for half, sample, answer, labels in chunk:
            found = signals_of(sample, answer.strip(), vectors)
            yield {
                "key": key_of(sample, answer),
                "half": half,
                "question": sample.id,
                **labels,
                "broken": bool(broken(sample, answer)),
                "signals": [round(found[name], 5) for name in SIGNALS],
            }

    add_lines(given.keep / "signals.jsonl", rows, given.minutes, work, 128)


def ask(given, folder):
    """What a language model says of answers: asked the paper's question, and by likelihood.

    Asked: the log-probability of Correct less that of Wrong. By likelihood: how much the answer
    raises the log-probability of the best right answer, a token, less that of the best wrong
    one. Questions come in an order drawn by chance, one of the train half to two of the other.
    """
    lm = tl.load(given.model, engine="llama.cpp")
    groups = {half: by_question(folder, half) for half in ("held-out", "train")}
    order = ["held-out", "train", "held-out"] * len(groups["train"])
    rows = []
    for half in order:
        if groups[half]:
            rows += [(half, *row) for row in groups[half].pop(0)]

    def work(chunk):
        halves, samples, answers, labels = zip(*chunk, strict=True)
        sample = samples[0]
        prompts = [prompt_for("question", "truth", sample, answer) for answer in answers]
        said = log_likelihoods(lm, prompts, ["Correct", "Wrong"])
        right, wrong = sample.answers[:REFERENCES], sample.wrong_answers[:REFERENCES]
        bare = f"Question: {sample.question}\nAnswer the question in one sentence."
        texts = [
            f"Question: {sample.question}\nAnswer: {answer.strip()}\n"
            "Say the same answer once more, in other words."
            for answer in answers
        ]
        references = [*right, *wrong]
        before, *after = log_likelihoods(lm, [bare, *texts], references)
        sizes = np.array([len(lm.encode(one)) for one in references])
        for half, answer, label, (correct, false), own in zip(
            halves, answers, labels, said, after, strict=True
        ):
            gains = (np.array(own) - np.array(before)) / sizes
            likelihood = gains[: len(right)].max() - gains[len(right) :].max()
            yield {
                "key": key_of(sample, answer),
                "half": half,
                "question": sample.id,
                **label,
                "asked": round(correct - false, 4),
                "likelihood": round(float(likelihood), 4),
            }

    path = given.keep / f"asked-{Path(given.model).name.removesuffix('.gguf')}.jsonl"
    add_lines(path, rows[: given.rows], given.minutes, work, EACH)


def by_question(folder, half):
    """The labelled answers of a half, EACH of one question together, questions by chance.

    A question with fewer answers is left out. Of the held-out half they are among those that the
    shipped judge is measured on, so that the two can be compared on the same answers.
    """
    groups = {}
    for row in labelled(folder, half)[:REPORTED]:
        groups.setdefault(row[0].id, []).append(row)
    return [group[:EACH] for group in groups.values() if len(group) >= EACH]


def log_likelihoods(lm, texts, candidates):
    """The log-probability of each candidate behind each text; what texts share is read once."""
    rows = []
    for text in texts:
        filled = chat_turn(PROMPT, text)
        context = tuple(filled.encode(lm.tokenizer))
        for candidate in candidates:
            tokens = tuple(filled.encode_answer(candidate, lm.tokenizer))
            rows.append(Continuation(filled, (context,), tokens))
    totals = [total for total, _ in score_continuations(lm, tl.Greedy(prompt=PROMPT), rows)]
    width = len(candidates)
    return [totals[start : start + width] for start in range(0, len(totals), width)]


def columns(lines, about):
    """The signals and labels of lines, and their questions."""
    table = np.array([line["signals"] for line in lines])
    labels = np.array([line[about] for line in lines])
    return table, labels, np.array([line["question"] for line in lines])


def fitted(table, labels):
    """A regression on standardised signals and their products."""
    mean, scale = table.mean(axis=0), table.std(axis=0)
    model = LogisticRegression(C=STRENGTH, max_iter=5000, class_weight="balanced")
    model.fit(expand((table - mean) / scale), labels)
    return mean, scale, model.coef_[0], float(model.intercept_[0])


def applied(fit, table):
    """The log-odds that a fitted regression gives."""
    mean, scale, weights, bias = fit
    return expand((table - mean) / scale) @ weights + bias


def fit(given, folder):
    """Fit the three regressions to the train half, and say how they do in five folds of it."""
    lines = [x for x in read_lines(given.keep / "signals.jsonl").values() if not x["broken"]]
    train = [line for line in lines if line["half"] == "train"]
    rules = {
        "truth_signals": ("truth", SIGNALS),
        "references_signals": ("truth", OF_RIGHT),
        "info_signals": ("info", SIGNALS),
    }
    written = {}
    for rule, (about, names) in rules.items():
        table, labels, questions = columns(train, about)
        table = table[:, [SIGNALS.index(name) for name in names]]
        scores = np.zeros(len(labels))
        for inside, outside in GroupKFold(5).split(table, labels, questions):
            scores[outside] = applied(fitted(table[inside], labels[inside]), table[outside])
        balanced = statistics(scores, labels)[1]
        print(f"{rule}: {balanced:.3f} in five folds of {len(labels)} answers")
        mean, scale, weights, bias = fitted(table, labels)
        written[rule] = {
            "names": names,
            **{
                name: [round(float(x), 5) for x in values]
                for name, values in (("mean", mean), ("scale", scale), ("weights", weights))
            },
            "bias": round(bias, 5),
        }
    WEIGHTS.write_text(json.dumps(written) + "\n", "utf-8")


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
        if len({*labels[rows].tolist()}) == 2:  # of few answers a draw may hold one kind alone
            draws.append(statistics(scores[rows], labels[rows]))
    lows, highs = np.percentile(draws, [2.5, 97.5], axis=0)
    bounds = zip(STATISTICS, statistics(scores, labels), lows, highs, strict=True)
    found = {name: [round(float(v), 3) for v in values] for name, *values in bounds}
    share = float(labels.mean())
    always = round(max(share, 1 - share), 3)  # accuracy of saying the commoner label always
    return {"n": len(labels), "questions": len(names), "always": always, **found}


def hidden(sample, aspect):
    """A sample as a rule sees it."""
    if aspect == "references_signals":
        return Sample(sample.id, sample.question, sample.answers)
    return Sample(sample.id, sample.question) if aspect == "info_alone" else sample


def shipped(rows):
    """The shipped judge on labelled answers, rule by rule."""
    judge = OfflineJudge(load_embedder(EMBEDDER))
    questions = np.array([sample.id for sample, _, _ in rows])
    informs = np.array([labels["info"] for *_, labels in rows])
    found = {"judge": judge.id, "half": "held-out", "seed": SEED, "draws": DRAWS}
    for aspect in ASPECTS:
        about = "info" if aspect.startswith("info") else "truth"
        items = [(hidden(sample, aspect), answer) for sample, answer, _ in rows]
        scores = np.array([rating.score for rating in judge.ratings(about, items)])
        labels = np.array([labels[about] for *_, labels in rows])
        found[aspect] = measure(scores, labels, questions)
        if about == "truth":
            inner = measure(scores[informs], labels[informs], questions[informs])
            found[aspect]["informative_alone"] = inner["balanced_accuracy"]
    return found


def others(given):
    """What the shipped judge was picked from, on truth: (name, measured, informative alone)."""
    signals = read_lines(given.keep / "signals.jsonl")
    held = [line for line in signals.values() if line["half"] == "held-out"]
    table, labels, _ = columns(held, "truth")
    right, wrong, evasive = (
        table[:, SIGNALS.index(name)] for name in ("right", "wrong", "evasive")
    )
    found = [_row("nearest reference", np.maximum(right, evasive) - wrong, labels, held)]
    for path in sorted(given.keep.glob("asked-*.jsonl")):
        name, lines = path.stem.removeprefix("asked-"), [*read_lines(path).values()]
        train = [x for x in lines if x["half"] == "train" and x["key"] in signals]
        tested = [x for x in lines if x["half"] == "held-out" and x["key"] in signals]
        if min(len(train), len(tested)) < FEWEST:
            continue
        truths = np.array([line["truth"] for line in tested])
        asked = np.array([line["asked"] for line in tested])
        found.append(_row(f"{name}, asked", asked, truths, tested))
        for kind in ("asked", "likelihood"):
            scores = np.array([line[kind] for line in tested]) - _threshold(train, kind)
            found.append(_row(f"{name}, {kind}, threshold fitted", scores, truths, tested))
        offline = _log_odds(tested, signals)
        found.append(_row("the offline judge on the same answers", offline, truths, tested))
        for kinds in (("asked",), ("likelihood",), ("asked", "likelihood")):
            mixed = _combined(train, tested, signals, kinds)
            label = f"the offline judge with {name}, {' and '.join(kinds)}"
            found.append(_row(label, mixed, truths, tested))
    return found


def _row(name, scores, labels, lines):
    questions = np.array([line["question"] for line in lines])
    informs = np.array([line["info"] for line in lines])
    inner = measure(scores[informs], labels[informs], questions[informs])
    return name, measure(scores, labels, questions), inner["balanced_accuracy"]


def _threshold(lines, kind):
    """The threshold that is best on the train half."""
    values = np.array([line[kind] for line in lines])
    labels = np.array([line["truth"] for line in lines])
    return max(np.unique(values), key=lambda cut: statistics(values - cut, labels)[1])


def _log_odds(lines, signals):
    """What the shipped regression says of answers."""
    weights = json.loads(WEIGHTS.read_text("utf-8"))["truth_signals"]
    fit = [np.array(weights[name]) for name in ("mean", "scale", "weights")] + [weights["bias"]]
    return applied(fit, np.array([signals[line["key"]]["signals"] for line in lines]))


def _combined(train, tested, signals, kinds):
    """Log-odds of the shipped regression together with what a language model says."""

    def table(lines):
        said = [[line[kind] for kind in kinds] for line in lines]
        return np.column_stack([_log_odds(lines, signals), said])

    inside, outside = table(train), table(tested)
    mean, scale = inside.mean(axis=0), inside.std(axis=0)
    model = LogisticRegression(class_weight="balanced")
    model.fit((inside - mean) / scale, [line["truth"] for line in train])
    return model.decision_function((outside - mean) / scale)


def on_facts():
    """The shipped facts: one right and one wrong answer are known, another of either is judged."""
    judge = OfflineJudge(load_embedder(EMBEDDER))
    items, labels = [], []
    for fact in [*read_examples("facts:test"), *read_examples("facts:ground")]:
        (right, other_right), (wrong, other_wrong) = fact.answers, fact.wrong_answers
        known = Sample(fact.id, fact.question, (right,), (wrong,))
        items += [(known, other_right), (known, other_wrong)]
        known = Sample(fact.id, fact.question, (other_right,), (other_wrong,))
        items += [(known, right), (known, wrong)]
        labels += 2 * [True, False]
    scores = np.array([rating.score for rating in judge.ratings("truth", items)])
    return measure(scores, np.array(labels), [sample.id for sample, _ in items])


def sentence(found):
    """What a report prints wherever this judge is used."""
    parts = []
    for aspect in ("truth_signals", "info_signals"):
        m = found[aspect]
        accuracy, balanced = m["accuracy"], m["balanced_accuracy"]
        parts.append(
            f"on {ASPECTS[aspect]} in {accuracy[0]:.1%} of cases ({accuracy[1]:.1%} to "
            f"{accuracy[2]:.1%}; balanced {balanced[0]:.1%}; kappa {m['kappa'][0]:.2f}; always "
            f"saying the commoner label: {m['always']:.1%}; n = {m['n']})"
        )
    return f"The offline judge agrees with human labels {' and '.join(parts)}."


def interval(values):
    """A statistic with its interval."""
    return f"{values[0]:.3f} ({values[1]:.3f} to {values[2]:.3f})"


def broken_counts(given):
    """How people labelled the answers of the held-out half that are no text to our rule."""
    lines = read_lines(given.keep / "signals.jsonl").values()
    held = [line for line in lines if line["half"] == "held-out"]
    rows = [line for line in held if line["broken"]]
    informative, true = (sum(row[about] for row in rows) for about in ("info", "truth"))
    counts = {"broken": len(rows), "informative": informative, "true": true}
    return {"all": f"{len(held):,}", **counts}


def page(found, picked, counts):
    """docs/results/agreement.md."""
    rule = f"|{' --- |' * (5 + len(STATISTICS))}"
    head = (
        f"| answers | questions | always the commoner label | {' | '.join(STATISTICS.values())} "
        "| informative alone |"
    )

    def line(name, m, inner):
        counts = [name, str(m["n"]), str(m["questions"]), f"{m['always']:.3f}"]
        cells = [*(interval(m[s]) for s in STATISTICS), interval(inner) if inner else ""]
        return f"| {' | '.join([*counts, *cells])} |"

    lines = [
        "# The offline judge against people",
        "",
        "`python benchmarks/agreement.py --data FOLDER --keep KEEP report`, after `signals`, `ask` "
        f"and `fit`; {found['judge']}, the {found['half']} half of the questions, seed {SEED}.",
        "",
        found["sentence"],
        "",
        f"| asked about {head}",
        rule,
        *(
            line(name, found[x], found[x].get("informative_alone"))
            for x, name in ASPECTS.items()
        ),
        line("truth, the shipped facts", found["facts"], None),
        "",
        "What it was picked from, on truth. *Asked*: the model's reply to the paper's question, Correct or "
        "Wrong, whichever it finds likelier. *Likelihood*: whether the answer makes right references "
        "likelier than wrong ones. Fitted thresholds and combinations (a logistic regression) were set on "
        f"answers to other questions, half as many; {EACH} answers to each question, by llama.cpp:",
        "",
        f"| judge {head}",
        rule,
        *(line(*row) for row in picked),
    ]
    return "\n".join(lines) + "\n" + NOTES.format(**counts)


def report(given, folder):
    """Measure, and write the page and the numbers."""
    rows = labelled(folder, "held-out")[: given.rows or REPORTED]
    found = shipped(sorted(rows, key=lambda row: row[0].id))
    found["facts"] = on_facts()
    found["sentence"] = sentence(found)
    write_page(given, found)


def compare(given, folder):
    """The same, with the figures of the shipped judge as they were written last."""
    write_page(given, json.loads(NUMBERS.read_text("utf-8")))


def write_page(given, found):
    """Measure what the shipped judge was picked from, and write the page and the numbers."""
    picked = others(given)
    # What the rules of version 0.1 reached: results that were judged by them can still be read.
    before = json.loads(NUMBERS.read_text("utf-8"))
    found |= {name: before[name] for name in ("truth", "references_only", "info")}
    found["others"] = {
        f"local:{name.removesuffix(', asked')}": {"truth": m}
        for name, m, _ in picked
        if name.endswith(", asked") and " with " not in name
    }
    old = {about: before[about] for about in ("truth", "info")}
    found["others"][f"nearest-reference:{EMBEDDER}"] = old
    text = page(found, picked, broken_counts(given))
    print(text)
    print(json.dumps({"benchmark": "agreement", **found}))
    PAGE.write_text(text, "utf-8")
    NUMBERS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def main():
    """Do what the verb says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("verb", choices=["signals", "ask", "fit", "report", "compare"])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument(
        "--rows", type=int, help="answers of each half to ask about, or to report on"
    )
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    verbs = {
        "signals": save_signals,
        "ask": ask,
        "fit": fit,
        "report": report,
        "compare": compare,
    }
    verbs[given.verb](given, given.data / "truthfulqa")


if __name__ == "__main__":
    main()
