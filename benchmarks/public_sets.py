"""Public sets of edited facts, FAQs and pairs of questions -> files that `trueline eval` reads.

    python benchmarks/public_sets.py zsre --data DATA --out sets
    trueline eval --benchmark sets/zsre.jsonl:sets/zsre-questions.jsonl --data DATA

An edited fact is one that a model cannot know: its answer is the new one, often untrue. Where a
set has questions without answers, each stands with an answer made up for it: whether a method
says that answer tells whether it took the question for another.
"""

import argparse
import json
from pathlib import Path

from trueline.examples import ProbeQuestion, to_lines
from trueline.lab.benchmarks.tables import DataTable, is_text, read_table
from trueline.text import words_of
from trueline.types import Example


def _table(files, columns, home):
    return DataTable(files, None, {name: (name, name) for name in columns.split()}, home)


ZSRE = _table(
    (("knowedit_zsre/zsre_test_all", 1_068),),
    "subject prompt target_new ground_truth rephrase_prompt locality",
    "https://github.com/zjunlp/EasyEdit (MIT; KnowEdit, ZsRE)",
)
COUNTERFACT = tuple(
    _table(
        ((f"counterfact_hard/cfh.part{part}", rows),),
        "id edit_scope edit_scope_true_ans unrelated",
        "https://github.com/thunlp/EREN (no licence stated; CounterFact is MIT)",
    )
    for part, rows in ((1, 675), (2, 349))
)
SITUATED = tuple(
    _table(
        ((f"situatedqa/{name}_dev", rows),),
        "id edited_question answer",
        "https://github.com/mikejqzhang/SituatedQA (no licence stated)",
    )
    for name, rows in (("geo", 1_398), ("temp", 856))
)
COVID = _table(
    (("covid_faq_chatbot/covid_faq", 67),),
    "faq_question answer user_queries",
    "https://github.com/ML-Recipes/BERT-FAQ (MIT; the texts Apache-2.0)",
)
QUEBEC = _table(
    (("quebec_covid_faq/quebec_covid_faq", 313),),
    "faq_question answer crowd_questions",
    "https://github.com/dialoguemd/covidfaq (MIT)",
)
CLINC = _table(
    (("clinc150/clinc150_oos_and_test", 2_700),),
    "split text intent",
    "https://github.com/clinc/oos-eval (CC BY 3.0)",
)
PAIRS = _table(
    (("mqp/mqp", 3_048), ("mqp/mqp_first_half", 1_524)),
    "question_1 question_2 label",
    "https://github.com/curai/medical-question-pair-dataset (no licence stated)",
)
NO_INTENT = "oos"  # a query that none of the intents answers


def read_zsre(data):
    """Edited facts of Wikidata, one rewording each, and other facts of the same subject."""
    lines = read_table(ZSRE, data)
    examples, questions, known = [], [], 0
    for number, line in enumerate(lines, start=1):
        new, old = line.text("target_new"), line.texts("ground_truth")
        others = _other_facts(line)
        if words_of(new) in map(words_of, old):
            known += 1  # nothing is edited
            continue
        id = f"zsre-{number}"
        question = line.text("prompt")
        examples.append(Example(question, [new], old, id, line.text("subject")))
        questions.append(ProbeQuestion("paraphrase", line.text("rephrase_prompt"), (id,)))
        questions += [ProbeQuestion("near miss", text, (), (id,)) for text in others]
    counts = {"rows": len(lines), "new answer is the old one": known}
    return examples, questions, counts


def _other_facts(line):
    """The prompts about other facts of the subject; some rows have none."""
    cell = line.cells["locality"]
    expected = 'a table whose "Relation_Specificity" is a list of tables with a "prompt"'
    if not isinstance(cell, dict) or not isinstance(cell.get("Relation_Specificity", []), list):
        raise line.problem("locality", expected)
    prompts = [
        one.get("prompt") if isinstance(one, dict) else None
        for one in cell.get("Relation_Specificity", [])
    ]
    if not all(is_text(text) and str(text).strip() for text in prompts):
        raise line.problem("locality", expected)
    return [str(text).strip() for text in prompts]


def read_counterfact(data):
    """Counterfactual edits, their rewordings, and about twenty near misses each."""
    lines = [line for table in COUNTERFACT for line in read_table(table, data)]
    examples, questions, empty = [], [], 0
    for line in lines:
        pairs = _pairs(line)
        if not pairs:
            empty += 1
            continue
        (question, answer), *others = pairs
        id = f"counterfact-{line.cells['id']}"
        examples.append(Example(question, [answer], line.texts("edit_scope_true_ans"), id))
        questions += [ProbeQuestion("paraphrase", text, (id,)) for text, _ in others]
        questions += [
            ProbeQuestion("near miss", text, (), (id,), category=kind)
            for kind, text in _neighbors(line)
        ]
    counts = {"rows": len(lines), "rows without a question": empty}
    return examples, questions, counts


def _pairs(line):
    """The wordings of an edit with their answer."""
    cell = line.cells["edit_scope"]
    is_sound = isinstance(cell, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(is_text, pair)) for pair in cell
    )
    if not is_sound or not all(text.strip() for pair in cell for text in pair):
        raise line.problem("edit_scope", "a list of pairs of a question and its answer")
    return [(question.strip(), answer.strip()) for question, answer in cell]


def _neighbors(line):
    """Questions about the same relation of other subjects, and others of the same subject."""
    cell = line.cells["unrelated"]
    for kind in ("neighbor_subj", "same_subj"):
        texts = cell.get(kind) if isinstance(cell, dict) else None
        if not isinstance(texts, list) or not all(is_text(x) and x.strip() for x in texts):
            raise line.problem("unrelated", f"a table with a list of questions {kind!r}")
        for text in texts:
            yield kind, text.strip()


def read_situatedqa(data):
    """One question for several places or dates: the first grounds, the others are near misses.

    A place or date whose answer is the same is left out: to answer it alike is no mistake.
    """
    lines = [line for table in SITUATED for line in read_table(table, data)]
    groups = {}
    for line in lines:
        groups.setdefault(str(line.cells["id"]), []).append(line)
    examples, questions, same = [], [], 0
    for group, (first, *others) in groups.items():
        id, answers = f"situatedqa-{group}", first.texts("answer")
        examples.append(Example(first.text("edited_question"), answers, id=id))
        for line in others:
            if {*map(words_of, answers)} & {*map(words_of, line.texts("answer"))}:
                same += 1
            else:
                near = ProbeQuestion("near miss", line.text("edited_question"), (), (id,))
                questions.append(near)
    counts = {"rows": len(lines), "another place or date, same answer": same}
    return examples, questions, counts


def read_covid_faq(data):
    """Entries of a FAQ, and what users typed to a chatbot that answers from it."""
    return _entries(COVID, data, "covid", "user_queries")


def read_quebec_faq(data):
    """Entries of a government's FAQ, and how crowd workers asked for them."""
    return _entries(QUEBEC, data, "quebec", "crowd_questions")


def _entries(table, data, name, column):
    lines = read_table(table, data)
    examples = {}
    questions, twice = [], 0
    for number, line in enumerate(lines, start=1):
        entry = line.text("faq_question")
        twice += words_of(entry) in examples
        made = Example(entry, [line.text("answer")], id=f"{name}-{number}")
        example = examples.setdefault(words_of(entry), made)
        asked = _users_questions(line, column)
        questions += [ProbeQuestion("paraphrase", text, (example.id,)) for text in asked]
    counts = {"rows": len(lines), "entries of the same name": twice}
    return list(examples.values()), questions, counts


def _users_questions(line, column):
    """The questions in a cell: texts, or tables that have one."""
    cell = line.cells[column]
    found = cell if isinstance(cell, list) else [None]
    texts = [one.get("text") if isinstance(one, dict) else one for one in found]
    if not all(map(is_text, texts)):
        raise line.problem(column, 'a list of texts, or of tables with a "text"')
    return [str(text).strip() for text in texts if words_of(str(text))]


def read_clinc(data):
    """Commands to an assistant by intent; those of no intent are unrelated to all of them."""
    lines = read_table(CLINC, data)
    examples = {}
    questions = []
    for line in lines:
        text, intent = line.text("text"), line.text("intent")
        if intent == NO_INTENT:
            questions.append(ProbeQuestion("unrelated", text, category="clinc150"))
        elif intent in examples:
            questions.append(ProbeQuestion("paraphrase", text, (intent,)))
        else:
            told = f"This is the verified answer about {intent.replace('_', ' ')}."
            examples[intent] = Example(text, [told], id=intent)
    return list(examples.values()), questions, {"rows": len(lines)}


def read_pairs(data):
    """Patients' questions: one rewording and one near miss each, both written by doctors."""
    lines = read_table(PAIRS, data)
    examples = {}
    questions = []
    for line in lines:
        first, second = line.text("question_1"), line.text("question_2")
        if first not in examples:
            number = len(examples) + 1
            told = f"This is the verified answer to medical question {number}."
            examples[first] = Example(first, [told], id=f"mqp-{number}")
        id = examples[first].id
        if (label := line.cells["label"]) not in (0, 1):
            raise line.problem("label", "0 or 1")
        questions.append(
            ProbeQuestion("paraphrase", second, (id,))
            if label
            else ProbeQuestion("near miss", second, (), (id,))
        )
    counts = {"rows": len(lines)}
    return list(examples.values()), questions, counts


SETS = {
    "zsre": read_zsre,
    "counterfact": read_counterfact,
    "situatedqa": read_situatedqa,
    "covid-faq": read_covid_faq,
    "quebec-faq": read_quebec_faq,
    "medical-pairs": read_pairs,
    "clinc150": read_clinc,
}


def write_set(name, data, out):
    """Write the examples and the questions of a set; what was read and left out, counted."""
    examples, questions, counts = SETS[name](data)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.jsonl").write_text("".join(to_lines(examples)), "utf-8")
    rows = [
        {"question": one.question, "id": "".join(one.means), "regime": one.regime}
        for one in questions
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (out / f"{name}-questions.jsonl").write_text(lines, "utf-8")
    return {"examples": len(examples), "questions": len(questions), **counts}


def main():
    """Write the sets that are named, and print what each holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=SETS, metavar="NAME", help=", ".join(SETS))
    parser.add_argument("--data", type=Path, required=True, help="a folder of benchmark files")
    parser.add_argument("--out", type=Path, default=Path("sets"), help="where the files go")
    options = parser.parse_args()
    for name in options.names:
        print(json.dumps({"set": name, **write_set(name, options.data, options.out)}))


if __name__ == "__main__":
    main()
