"""Public FAQs with their users' questions, and pairs of questions that mean the same or not.

Where a set has questions without answers, each stands with an answer made up for it: whether a
method says that answer tells whether it took the question for another.
"""

from __future__ import annotations

from pathlib import Path

from trueline.evaluation.benchmarks.data_files import DataTable, Line, is_text, read_table
from trueline.evaluation.benchmarks.pools import Pools
from trueline.evaluation.benchmarks.probes import ProbeQuestion, probe_pools, read_unrelated
from trueline.evaluation.metrics import words_of
from trueline.records import Example


def _table(files: tuple[tuple[str, int], ...], columns: str, home: str) -> DataTable:
    return DataTable(files, None, {name: (name, name) for name in columns.split()}, home)


_COVID = _table(
    (("covid_faq_chatbot/covid_faq", 67),),
    "faq_question answer user_queries",
    "https://github.com/ML-Recipes/BERT-FAQ (MIT; the texts Apache-2.0)",
)
_QUEBEC = _table(
    (("quebec_covid_faq/quebec_covid_faq", 313),),
    "faq_question answer crowd_questions",
    "https://github.com/dialoguemd/covidfaq (MIT)",
)
_CLINC = _table(
    (("clinc150/clinc150_oos_and_test", 2_700),),
    "split text intent",
    "https://github.com/clinc/oos-eval (CC BY 3.0)",
)
_PAIRS = _table(
    (("mqp/mqp", 3_048), ("mqp/mqp_first_half", 1_524)),
    "question_1 question_2 label",
    "https://github.com/curai/medical-question-pair-dataset (no licence stated)",
)
_NO_INTENT = "oos"  # a query that none of the intents answers


def read_covid_faq(data: Path | None) -> Pools:
    """Entries of a FAQ, and what users typed to a chatbot that answers from it."""
    return _entries(_COVID, data, "covid", "user_queries")


def read_quebec_faq(data: Path | None) -> Pools:
    """Entries of a government's FAQ, and how crowd workers asked for them."""
    return _entries(_QUEBEC, data, "quebec", "crowd_questions")


def _entries(table: DataTable, data: Path | None, name: str, column: str) -> Pools:
    lines = read_table(table, data)
    examples: dict[tuple[str, ...], Example] = {}
    questions, twice = list[ProbeQuestion](), 0
    for number, line in enumerate(lines, start=1):
        entry = line.text("faq_question")
        twice += words_of(entry) in examples
        made = Example(entry, [line.text("answer")], id=f"{name}-{number}")
        example = examples.setdefault(words_of(entry), made)
        asked = _users_questions(line, column)
        questions += [ProbeQuestion("paraphrase", text, (example.id,)) for text in asked]
    counts = {"rows": len(lines), "entries of the same name": twice}
    unrelated = read_unrelated(data)
    return probe_pools(
        list(examples.values()), [*questions, *unrelated], match="entry", counts=counts
    )


def _users_questions(line: Line, column: str) -> list[str]:
    """The questions in a cell: texts, or tables that have one."""
    cell = line.cells[column]
    found = cell if isinstance(cell, list) else [None]
    texts = [one.get("text") if isinstance(one, dict) else one for one in found]
    if not all(map(is_text, texts)):
        raise line.problem(column, 'a list of texts, or of tables with a "text"')
    return [str(text).strip() for text in texts if words_of(str(text))]


def read_clinc(data: Path | None) -> Pools:
    """Commands to an assistant by intent; those of no intent are unrelated to all of them."""
    lines = read_table(_CLINC, data)
    examples: dict[str, Example] = {}
    questions = []
    for line in lines:
        text, intent = line.text("text"), line.text("intent")
        if intent == _NO_INTENT:
            questions.append(ProbeQuestion("unrelated", text, category="clinc150"))
        elif intent in examples:
            questions.append(ProbeQuestion("paraphrase", text, (intent,)))
        else:
            told = f"This is the verified answer about {intent.replace('_', ' ')}."
            examples[intent] = Example(text, [told], id=intent)
    return probe_pools(
        list(examples.values()), questions, match="target", counts={"rows": len(lines)}
    )


def read_pairs(data: Path | None) -> Pools:
    """Patients' questions: one rewording and one near miss each, both written by doctors."""
    lines = read_table(_PAIRS, data)
    examples: dict[str, Example] = {}
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
    unrelated = read_unrelated(data)
    return probe_pools(
        list(examples.values()), [*questions, *unrelated], match="target", counts=counts
    )
