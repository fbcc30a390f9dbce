"""Corrective decoding in every regime, beside what a user would do instead, with controls.

    python benchmarks/covered.py run                      answers, one JSON line each; resumes
    python benchmarks/covered.py --data DATA run          also unrelated questions and a real FAQ
    python benchmarks/covered.py verdicts sheet.jsonl     the answers to be read, methods hidden
    python benchmarks/covered.py report                   the tables, from the lines alone

The space holds all 168 shipped facts; the questions are about the 68 test facts, to which no weight
or threshold was fitted. Lines and verdicts are in docs/results/covered/.
"""

import argparse
import hashlib
import json
import random
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from fit_scope import read_faqs
from scipy.stats import beta

import trueline as tl
from trueline.corrective.scope import find_scope, threshold_for
from trueline.examples import read_examples, shipped_questions
from trueline.lab.metrics import rouge_l
from trueline.lab.plan import Control, controlled_examples
from trueline.lab.statistics import paired_difference
from trueline.methods import make_method
from trueline.types import Example

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "covered"
# Two paraphrases and two near misses of each test fact by another hand, written when weights and
# thresholds stood.
SECOND = Path(__file__).parent / "second_questions.jsonl"
FORMS = ("styled", "double", "mid-text")
EMBEDDER = "all-minilm-l6-v2"  # the default
METHODS = ("greedy", "in-prompt", "lookup", "corrective")
REST = "corrective, answering the rest"  # of two questions, where one is not covered
TOKENS = {"faq": 128, "unrelated": 24, "broken": 128}  # new tokens; 64 elsewhere
SEEDS = (0, 1, 2)  # of the regime `drawn`
UNRELATED = 500  # questions of NQ-open, drawn with seed 0
OTHERS_DATA = ("unrelated", "faq")  # whose texts are not ours to keep: figures alone are
FAQ_QUESTIONS = 100  # users' questions of the FAQ, drawn with seed 0
# A FAQ has no wrong answers: two controls are left.
FAQ_SPACES = {
    "faq": None,
    "faq, answers shuffled": Control.SHUFFLED,
    "faq, unrelated examples": Control.UNRELATED,
}


def facts():
    """All shipped facts, those that are asked for first."""
    return [*read_examples("facts:test"), *read_examples("facts:ground")]


def space_of(name, embedder, data=None):
    """The space of all facts or of a FAQ, or one of their controls."""
    if name in FAQ_SPACES:
        entries = [Example(row[0], [row[1]], id=str(at)) for at, row in faq(data)]
        control = FAQ_SPACES[name]
        return tl.build(None, controlled_examples(entries, control), embedder=embedder)
    every = facts()
    turned = [*every[1:], every[0]]
    kinds = {
        "all": every,
        "wrong answers": [  # both kinds change places, so that scope goes by the same weights
            replace(one, answers=one.wrong_answers, wrong_answers=one.answers) for one in every
        ],
        "shuffled answers": [
            Example(one.question, other.answers, other.wrong_answers, one.id, one.source)
            for one, other in zip(every, turned, strict=True)
        ],
        "unrelated examples": read_examples("facts:ground"),
    }
    return tl.build(None, kinds[name], embedder=embedder)


def questions(regime, limit, data):
    """(id, question) of a regime."""
    if regime in ("exact", "drawn", "broken"):
        found = [(fact.id, fact.question) for fact in read_examples("facts:test")]
    elif regime == "unrelated":
        lines = (data / "nq_open" / "nq_open_dev.jsonl").read_text("utf-8").splitlines()
        drawn = sorted(random.Random(0).sample(range(len(lines)), UNRELATED))
        found = [(f"nq-{at}", json.loads(lines[at])["question"]) for at in drawn]
    elif regime == "faq":
        rows = faq(data)
        every = [(f"{at}-{n}", text) for at, row in rows for n, text in enumerate(row[2])]
        drawn = sorted(random.Random(0).sample(range(len(every)), FAQ_QUESTIONS))
        found = [every[at] for at in drawn]
    else:
        found = [(q.id, q.question) for q in shipped_questions("test") if q.regime == regime]
    if limit and len(found) > limit:
        found = [found[at] for at in sorted(random.Random(0).sample(range(len(found)), limit))]
    return found


def faq(data):
    """(number, (question, answer, users' questions)) of a FAQ with its users' own questions."""
    lines = (data / "covid_faq_chatbot" / "covid_faq.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        (at, (row["faq_question"].strip(), row["answer"].strip(), row["user_queries"]))
        for at, row in enumerate(rows)
    ]


def method_of(name, space):
    """A method by the name it has in the tables."""
    if name == "in-prompt":
        return make_method("kate", space=space, settings={"k": 1})
    if name == "greedy":
        return make_method("greedy", prompt=space.prompt)
    if name == REST:
        return make_method("corrective", space=space, settings={"answer_rest": True})
    return make_method(name, space=space)


def read_lines(path):
    """The lines of a file of JSON; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def lines_path(model, embedder=EMBEDDER):
    """Where the answers of a model are kept: a file for each embedder of scope."""
    return FOLDER / f"{model if embedder == EMBEDDER else f'{model}+{embedder}'}.jsonl"


def read_plain(model):
    """The answers of the model alone, which no embedder changes, by (regime, id)."""
    lines = read_lines(lines_path(model.split("+")[0]))
    return {(one["regime"], one["id"]): one for one in lines if one["method"] == "greedy"}


def run(given):
    """Answer what is not answered yet, a batch at a time."""
    torch.set_num_threads(given.threads)
    path = lines_path(given.model, given.embedder)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {
        (one["regime"], one["method"], one["space"], one["id"], one["seed"])
        for one in read_lines(path)
    }
    print_lookups(given, path, done)
    lm = tl.load(given.model, dtype=given.dtype, engine=given.engine)
    made = {}
    entries = {} if given.data is None else dict(faq(given.data))
    for regime, method, name, seeds in cells(given):
        asked = questions(regime, given.limit, given.data)
        for seed in seeds:
            left = [one for one in asked if (regime, method, name, one[0], seed) not in done]
            if not left:
                continue
            if name not in made:
                made[name] = space_of(name, given.embedder, given.data)
            decoder = method_of(method, made[name])
            for start in range(0, len(left), 64):
                batch, begun = left[start : start + 64], perf_counter()
                drawn = {} if seed is None else {"temperature": 1.0, "seed": seed}
                answers = tl.generate(
                    lm,
                    decoder,
                    [text for _, text in batch],
                    max_new_tokens=TOKENS.get(regime, 64),
                    batch_size=given.batch,
                    **drawn,
                )
                with path.open("a", encoding="utf-8") as file:
                    for (id, text), answer in zip(batch, answers, strict=True):
                        line = {
                            "regime": regime,
                            "method": method,
                            "space": name,
                            "id": id,
                            "seed": seed,
                            "question": "" if regime in OTHERS_DATA else text,
                            "text": "" if regime in OTHERS_DATA else answer.text,
                            "tokens": hashlib.sha256(
                                str(answer.token_ids).encode()
                            ).hexdigest()[:16],
                            "covered": answer.is_covered,
                            "finish": answer.finish,
                            "sources": [[s.example, round(s.share, 3)] for s in answer.sources],
                        }
                        if regime == "faq":
                            line["precision"] = round(
                                faq_precision(answer.text, id, entries), 3
                            )
                        file.write(json.dumps(line, ensure_ascii=False) + "\n")
                print(
                    f"{regime}, {method}, {name}: {start + len(batch)} of {len(left)}, "
                    f"{perf_counter() - begun:.0f} s",
                    flush=True,
                )


def print_lookups(given, path, done):
    """What `lookup` prints: the first answer of the first example in scope, else greedy's text."""
    space, plain = space_of("all", given.embedder), read_plain(given.model)
    with path.open("a", encoding="utf-8") as file:
        for regime in ("exact", "paraphrase", *FORMS):
            for id, text in questions(regime, given.limit, given.data):
                key = (regime, "lookup", "all", id, None)
                if key in done or (regime, id) not in plain:
                    continue
                best = find_scope(space, text)[0]
                is_heard = best.probability > threshold_for(space, best.example, text)
                line = {**plain[regime, id], "method": "lookup", "covered": is_heard}
                if is_heard:
                    line |= {"text": best.example.answers[0], "finish": "stop", "tokens": ""}
                    line["sources"] = [[best.example.id, 1.0]]
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def cells(given):
    """What is answered: (regime, method, space, seeds)."""
    found = [
        (regime, method, "all", (None,))
        for regime in ("exact", "paraphrase", *FORMS)
        for method in METHODS
        if method != "lookup"
    ]
    found += [("double", REST, "all", (None,))]
    found += [("near miss", method, "all", (None,)) for method in ("greedy", "corrective")]
    found += [("drawn", method, "all", SEEDS) for method in ("corrective", "greedy")]
    controls = ("wrong answers", "shuffled answers", "unrelated examples")
    found += [("paraphrase", "corrective", control, (None,)) for control in controls]
    found += [("broken", "corrective", "all", (None,))]
    if given.data is not None:
        found += [("unrelated", method, "all", (None,)) for method in ("greedy", "corrective")]
        found += [
            ("faq", method, "faq", (None,)) for method in ("corrective", "greedy", "in-prompt")
        ]
        found += [("faq", "corrective", name, (None,)) for name in FAQ_SPACES if name != "faq"]
    return [
        one
        for one in found
        if (not given.regimes or one[0] in given.regimes)
        and (not given.methods or one[1] in given.methods)
    ]


def is_right(text, truthful, wrong):
    """ROUGE-L to a truthful answer of at least 0.5, and nearer than any wrong one."""
    best = rouge_l(text, truthful)
    return best >= 0.5 and (not wrong or best > rouge_l(text, wrong))


def is_nearer(text, truthful, wrong):
    """Whether an answer is nearer to a truthful answer than to a wrong one, by ROUGE-L."""
    return rouge_l(text, truthful) > rouge_l(text, wrong)


def is_told(text, fact):
    """Whether most of a truthful answer's words are said in order, and more than of a wrong one's."""
    true, false = (
        max(_recall(text, one) for one in kind) for kind in (fact.answers, fact.wrong_answers)
    )
    return true >= 0.5 and true > false


def _recall(text, reference):
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"]).score(reference, text)["rougeL"].recall


def faq_precision(text, id, entries):
    """The ROUGE-L precision of an answer against the entry its question was asked for."""
    from rouge_score.rouge_scorer import RougeScorer

    entry = entries[int(id.split("-")[0])]
    return RougeScorer(["rougeL"]).score(entry[1], text)["rougeL"].precision


def is_broken(text):
    """Whether four words in a row come twice."""
    words = re.findall(r"\w+", text.lower())
    grams = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return len(set(grams)) < len(grams)


def is_kept(check, text):
    """Whether an answer has the form that a program can check; None: there is no such check."""
    if not check:
        return None
    said = text.strip()
    bare = said.strip("\"' ").lower()
    sentences = len([one for one in re.split(r"(?<=[.?!])[\"']*\s+", said) if one.strip()])
    tests = {
        "starts_with": lambda wanted: any(
            said.lower().startswith(one.lower()) or bare.startswith(one.lower())
            for one in wanted
        ),
        "ends_with": lambda wanted: any(said.lower().endswith(one.lower()) for one in wanted),
        "contains": lambda wanted: all(one.lower() in said.lower() for one in wanted),
        "max_words": lambda most: len(said.split()) <= most,
        "min_sentences": lambda least: sentences >= least,
        "max_sentences": lambda most: sentences <= most,
        "uppercase": lambda _: said == said.upper(),
    }
    return all(tests[name](value) for name, value in check.items())


def says_wrong_polarity(question, text):
    """Whether a question of yes or no is answered with the wrong one."""
    first = re.match(r"\W*(yes|no)\b", text.lower())
    return bool(question.polarity and first and first[1] != question.polarity)


def share(flags, digits=1):
    """A share with its Clopper-Pearson interval, in percent."""
    flags = [bool(flag) for flag in flags]
    k, n = sum(flags), len(flags)
    if not n:
        return "-"
    low = beta.ppf(0.025, k, n - k + 1) if k else 0.0
    high = beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
    return f"{100 * k / n:.{digits}f} ({100 * low:.0f} to {100 * high:.0f}; {k} of {n})"


def difference(ours, base):
    """The mean difference of paired flags with its interval, in percent."""
    found = paired_difference([float(x) for x in ours], [float(x) for x in base])
    return f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def verdict_sheet(given):
    """Answers in the regimes of form, shuffled, without their methods; equal ones once."""
    rows = defaultdict(set)
    for one in read_lines(lines_path(given.model)):
        if one["regime"] in FORMS and one["space"] == "all":
            rows[one["id"]].add(one["text"])
    by_id = {fact.id: fact for fact in facts()}
    asked = {q.id: q for q in shipped_questions("test")}
    sheet = [
        {
            "key": hashlib.sha256(f"{id}\0{text}".encode()).hexdigest()[:12],
            "question": asked[id].question,
            "instruction": asked[id].instruction,
            "facts": [list(by_id[fact].answers) for fact in asked[id].means],
            "answer": text,
        }
        for id, texts in rows.items()
        for text in texts
    ]
    random.Random(1).shuffle(sheet)
    given.sheet.write_text(
        "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in sheet), "utf-8"
    )
    print(f"{len(sheet)} answers to be read")


def report(given):
    """Print the tables as Markdown."""
    for model in given.models:
        lines = read_lines(lines_path(model))
        cells = defaultdict(dict)
        for one in lines:
            cells[one["regime"], one["method"], one["space"], one["seed"]][one["id"]] = one
        print(f"\n### {model}\n")
        for table in (_main_table, _form_table, _other_table, _faq_table):
            table(cells, given, model)
        _quoted(cells)


def _rows(cells, regime, method, space="all", seed=None):
    return cells.get((regime, method, space, seed), {})


def _main_table(cells, given, model):
    by_id = {fact.id: fact for fact in facts()}
    asked = {q.id: q for q in shipped_questions("test")}
    print("| regime | method | right | nearer to a truthful answer | in scope |")
    print("| --- | --- | --- | --- | --- |")
    for regime in ("exact", "paraphrase"):
        names = [(method, "all") for method in METHODS]
        if regime == "paraphrase":
            names += [
                ("corrective", s)
                for s in ("wrong answers", "shuffled answers", "unrelated examples")
            ]
        for method, space in names:
            rows = _rows(cells, regime, method, space)
            if not rows:
                continue
            fact = {id: by_id[id if regime == "exact" else asked[id].means[0]] for id in rows}
            right = [
                is_right(r["text"], fact[id].answers, fact[id].wrong_answers)
                for id, r in rows.items()
            ]
            near = [
                is_nearer(r["text"], fact[id].answers, fact[id].wrong_answers)
                for id, r in rows.items()
            ]
            covered = [r["covered"] for r in rows.values()]
            label = method if space == "all" else f"control: {space}"
            scope = share(covered) if covered[0] is not None else ""
            print(f"| {regime} | {label} | {share(right)} | {share(near)} | {scope} |")
            if method == "corrective" and space == "all":
                inside = [at for at, flag in enumerate(covered) if flag]
                print(
                    f"| {regime}, in scope | {label} | {share([right[at] for at in inside])} | "
                    f"{share([near[at] for at in inside])} | |"
                )
    _drawn_rows(cells, by_id)


def _drawn_rows(cells, by_id):
    for method in ("greedy", "corrective"):
        found = []
        for seed in SEEDS:
            found += [
                is_right(r["text"], by_id[id].answers, by_id[id].wrong_answers)
                for id, r in _rows(cells, "drawn", method, seed=seed).items()
            ]
        if found:
            print(f"| drawn, {len(SEEDS)} seeds | {method} | {share(found)} | | |")


def _form_table(cells, given, model):
    verdicts = {one["key"]: one for one in read_lines(FOLDER / f"{model}-verdicts.jsonl")}
    asked = {q.id: q for q in shipped_questions("test")}
    by_id = {fact.id: fact for fact in facts()}
    for regime in FORMS:
        if not _rows(cells, regime, "corrective"):
            continue
        print(f"\n**{regime}**\n")
        print(
            "| method | true (read) | form kept (read) | facts told (ROUGE-L) | form kept (checked) | wrong yes or no |"
        )
        print("| --- | --- | --- | --- | --- | --- |")
        read = {}
        for method in (*METHODS, REST):
            rows = _rows(cells, regime, method)
            if not rows:
                continue
            keys = {
                id: hashlib.sha256(f"{id}\0{r['text']}".encode()).hexdigest()[:12]
                for id, r in rows.items()
            }
            true = [verdicts[k]["true"] for k in keys.values() if k in verdicts]
            kept = [verdicts[k]["kept"] for k in keys.values() if k in verdicts]
            read[method] = (true, kept)
            told = [
                all(is_told(r["text"], by_id[f]) for f in asked[id].means)
                for id, r in rows.items()
            ]
            checks = [is_kept(asked[id].check, r["text"]) for id, r in rows.items()]
            yes_no = [
                says_wrong_polarity(asked[id], r["text"])
                for id, r in rows.items()
                if asked[id].polarity
            ]
            print(
                f"| {method} | {share(true)} | {share(kept)} | {share(told)} | "
                f"{share([c for c in checks if c is not None])} | {share(yes_no)} |"
            )
        _print_differences(read)


def _print_differences(read):
    """Our methods less the others, on truth and on form: {method: (true, kept)}."""
    pairs = [
        (own, name)
        for name in ("in-prompt", "lookup")
        for own in ("corrective", REST)
        if name in read and own in read and read[own][0]
    ]
    if pairs:
        print()
    for own, name in pairs:
        true, form = (difference(*both) for both in zip(read[own], read[name], strict=True))
        print(f"{own.capitalize()} less {name}: true {true}, form {form}.")


def _other_table(cells, given, model):
    print("\n| regime | measure | measured |")
    print("| --- | --- | --- |")
    for regime, what in (
        ("near miss", "answers changed"),
        ("unrelated", "token sequences changed"),
    ):
        plain, ours = read_plain(model), _rows(cells, regime, "corrective")
        if ours:
            changed = [
                plain[regime, id]["tokens"] != r["tokens"]
                for id, r in ours.items()
                if (regime, id) in plain
            ]
            print(f"| {regime} | {what} | {share(changed)} |")
            inside = [id for id, r in ours.items() if r["covered"]]
            print(f"| {regime} | in scope | {share([r['covered'] for r in ours.values()])} |")
            if regime == "unrelated" and inside:
                print(f"| unrelated | those in scope | {', '.join(inside)} |")
    rows = _rows(cells, "broken", "corrective")
    if rows:
        broken = [is_broken(r["text"]) for r in rows.values() if r["covered"]]
        print(f"| exact, limit 128 | a repeated 4-gram | {share(broken)} |")
    rows = _rows(cells, "paraphrase", "corrective")
    if rows:
        broken = [is_broken(r["text"]) for r in rows.values() if r["covered"]]
        cut = [r["finish"] == "length" for r in rows.values()]
        print(f"| paraphrase, in scope | a repeated 4-gram | {share(broken)} |")
        print(f"| paraphrase | cut off at the limit | {share(cut)} |")


def _faq_table(cells, given, model):
    if not _rows(cells, "faq", "corrective", "faq"):
        return
    print(
        "\n| real FAQ, users' own questions | right (ROUGE-L precision of at least 0.8 to the entry) | in scope |"
    )
    print("| --- | --- | --- |")
    for method in ("greedy", "in-prompt", "corrective"):
        found = _rows(cells, "faq", method, "faq")
        if found:
            right = [r["precision"] >= 0.8 for r in found.values()]
            covered = (
                share([r["covered"] for r in found.values()]) if method == "corrective" else ""
            )
            print(f"| {method} | {share(right)} | {covered} |")
            if method == "corrective":
                inside = [
                    flag for flag, r in zip(right, found.values(), strict=True) if r["covered"]
                ]
                print(f"| {method}, in scope | {share(inside)} | |")
    for name in FAQ_SPACES:
        found = _rows(cells, "faq", "corrective", name)
        if name != "faq" and found:
            right = [r["precision"] >= 0.8 for r in found.values()]
            covered = share([r["covered"] for r in found.values()])
            print(f"| control: {name} | {share(right)} | {covered} |")


def _quoted(cells):
    """Twenty answers to paraphrases, picked by seed, with the plain model's and one in the prompt."""
    ours = _rows(cells, "paraphrase", "corrective")
    asked = {q.id: q for q in shipped_questions("test")}
    by_id = {fact.id: fact for fact in facts()}
    if len(ours) < 20 or not _rows(cells, "paraphrase", "greedy"):
        return
    print("\nTwenty paraphrases, picked with seed 0:\n")
    for id in random.Random(0).sample(sorted(ours), 20):
        fact = by_id[asked[id].means[0]]
        print(f"- **{asked[id].question}**")
        for method in ("greedy", "in-prompt", "corrective"):
            row = _rows(cells, "paraphrase", method).get(id)
            if row:
                mark = (
                    ""
                    if is_right(row["text"], fact.answers, fact.wrong_answers)
                    else " *(wrong)*"
                )
                scope = "" if method != "corrective" or row["covered"] else " *(not in scope)*"
                said = " ".join(row["text"].split())
                print(
                    f"  - {method}: {said[:220]}{'...' if len(said) > 220 else ''}{mark}{scope}"
                )


def heard_by(space, question, found=None):
    """The ids of the examples in scope, the most probable first."""
    return [
        one.example.id
        for one in found or find_scope(space, question)
        if one.probability > threshold_for(space, one.example, question)
    ]


def faq_flags(embedder, unrelated):
    """What comes into scope in the FAQs that were not fitted to."""
    flags = defaultdict(list)
    for examples, asked in read_faqs(tested=True).values():
        space = tl.build(None, examples, embedder=embedder)
        for _, regime, text, means in asked:
            heard = heard_by(space, text)
            if regime == "near miss":
                flags["FAQs, near misses in scope"].append(bool(heard))
            else:
                flags["FAQs, paraphrase: right entry first"].append(heard[:1] == [means])
        flags["FAQs, unrelated in scope"] += [bool(heard_by(space, one)) for one in unrelated]
    return flags


def scope_only(given):
    """Scope alone with another embedder: shares of questions in scope."""
    space = space_of("all", given.embedder)
    print(f"| {given.embedder} | measured |\n| --- | --- |")
    flags, times = defaultdict(list), []
    for question in shipped_questions("test"):
        begun = perf_counter()
        found = find_scope(space, question.question)
        times.append(1000 * (perf_counter() - begun))
        heard = heard_by(space, question.question, found)
        if question.regime == "near miss":
            flags["near misses in scope"].append(bool(heard))
        elif question.regime != "double":
            flags[f"{question.regime}: right example first"].append(
                heard[:1] == [question.means[0]]
            )
        else:
            flags["double: both in scope"].append(set(question.means) <= set(heard))
    for question in read_lines(SECOND):
        heard = heard_by(space, question["question"])
        if question["regime"] == "near miss":
            flags["second set: near misses in scope"].append(bool(heard))
        else:
            flags["second set: paraphrase, right example first"].append(
                heard[:1] == [question["fact"]]
            )
    unrelated = [] if given.data is None else questions("unrelated", None, given.data)
    flags["unrelated in scope"] = [bool(heard_by(space, text)) for _, text in unrelated]
    flags |= faq_flags(given.embedder, [text for _, text in unrelated[::11]])
    for name, found in flags.items():
        if found:
            print(f"| {name} | {share(found)} |")
    print(f"| milliseconds a question, median | {np.median(times):.1f} |")


def main():
    """Run, or report what was run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs = verbs.add_parser("run")
    runs.add_argument("--model", default="smollm2-135m")
    runs.add_argument("--engine", default="transformers")
    runs.add_argument("--dtype", default="auto")
    runs.add_argument("--embedder", default=EMBEDDER)
    runs.add_argument("--regimes", nargs="*")
    runs.add_argument("--methods", nargs="*")
    runs.add_argument("--limit", type=int)
    runs.add_argument("--batch", type=int, default=16)
    runs.add_argument("--threads", type=int, default=2)
    sheets = verbs.add_parser("verdicts")
    sheets.add_argument("sheet", type=Path)
    sheets.add_argument("--model", default="smollm2-135m")
    reports = verbs.add_parser("report")
    reports.add_argument("--models", nargs="+", default=["smollm2-135m"])
    scopes = verbs.add_parser("scope")
    scopes.add_argument("--embedder", default=EMBEDDER)
    given = parser.parse_args()
    {"run": run, "verdicts": verdict_sheet, "report": report, "scope": scope_only}[given.verb](
        given
    )


if __name__ == "__main__":
    main()
