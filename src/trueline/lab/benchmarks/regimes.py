"""Examples, and questions with a regime -> rows that probe a method.

A question means the examples that answer it; it may mean no example. Every example's own
question is a probe too. Questions that cannot probe are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from trueline.examples import LOCAL, ProbeQuestion, Regime, read_examples, shipped_questions
from trueline.lab.benchmarks.tables import (
    DataTable,
    Pools,
    Probe,
    Sample,
    distinct,
    find_table,
    read_table,
    row_of,
)
from trueline.lab.metrics import match_for
from trueline.text import words_of
from trueline.types import Example

_OF_EACH = 200  # unrelated questions of each table, evenly spaced


def _table(column: str, home: str, *files: tuple[str, int]) -> DataTable:
    return DataTable(files, None, {"question": (column, column)}, home)


UNRELATED = {  # general questions, which no example of a user answers
    "nq": _table(
        "question",
        "https://github.com/google-research-datasets/natural-questions (CC BY-SA 3.0)",
        ("nq_open/nq_open_dev", 3_610),
    ),
    "simpleqa": _table(
        "problem",
        "https://github.com/openai/simple-evals (MIT)",
        ("simpleqa/simpleqa", 4_326),
        ("simpleqa/simpleqa_every4", 1_082),
    ),
    "popqa": _table(
        "question",
        "https://github.com/AlexTMallen/adaptive-retrieval (MIT)",
        ("popqa/popqa", 14_267),
        ("popqa/popqa_1k", 1_000),
    ),
}
REGIMES: dict[str, Regime] = {  # of questions that the facts answer, by the benchmark's name
    "covered": "paraphrase",
    "covered-styled": "styled",
    "covered-double": "double",
    "covered-mid-text": "mid-text",
}


def read_unrelated(data: Path | None) -> list[ProbeQuestion]:
    """Questions of the public sets in a data folder, in turn; none without a folder."""
    found: list[list[ProbeQuestion]] = []
    for name, table in UNRELATED.items():
        if data is not None and find_table(table, data):
            lines = read_table(table, data)
            spaced = [lines[at * len(lines) // _OF_EACH] for at in range(_OF_EACH)]
            texts = distinct(line.text("question") for line in spaced)
            found.append([ProbeQuestion("unrelated", text, category=name) for text in texts])
    return [one for row in zip_longest(*found) for one in row if one is not None]


def probe_pools(
    examples: Sequence[Example],
    questions: Iterable[ProbeQuestion],
    *,
    exact: Collection[str] | None = None,  # ids whose own question is a probe; None: all
    counts: Mapping[str, int] | None = None,
) -> Pools:
    """Every example to ground, and every question that can probe, checked and counted."""
    by_id = {example.id: example for example in examples}
    ids = by_id if exact is None else exact
    own = [ProbeQuestion("exact", x.question, (x.id,)) for x in examples if x.id in ids]
    both = [*own, *questions]
    own_words = {words_of(example.question) for example in examples}
    covered = own_words | {words_of(one.question) for one in both if one.means}
    tally, numbers, seen = Counter(counts or {}), Counter[str](), set[tuple[object, ...]]()
    rows = []
    for one in both:
        words, meant = words_of(one.question), tuple(by_id[id] for id in one.means)
        key = (one.regime, words, one.means)
        if key in seen:
            tally["repeated question"] += 1
        elif one.regime in LOCAL and words in covered:
            tally["no example meant, but one answers"] += 1
        elif one.regime == "paraphrase" and words in own_words:
            tally["in the words of an example"] += 1
        else:
            about = one.about or one.means
            name = "-".join([*about, one.regime.replace(" ", "-")])
            numbers[name] += not one.id  # a question without an id gets a number
            rule = match_for(one.regime, meant)
            probe = Probe(one.regime, meant, about, rule, dict(one.check), one.polarity)
            id = one.id or f"{name}-{numbers[name]}"
            rows.append(_row(id, one.question, meant, one.category, probe))
        seen.add(key)
    return Pools([row_of(example) for example in examples], rows, dict(tally))


def _row(
    id: str, question: str, meant: Sequence[Example], category: str, probe: Probe | None = None
) -> Sample:
    """A question with the answers of the examples it means."""
    answers = distinct(answer for example in meant for answer in example.answers)
    wrong = distinct(answer for example in meant for answer in example.wrong_answers)
    return Sample(id, question, answers, wrong, category=category, probe=probe)


def read_regimes(data: Path | None) -> Pools:
    """Every shipped fact to ground, and questions of all regimes.

    Unrelated questions come from a data folder; without one there are none.
    """
    test = read_examples("facts:test")
    facts = [*test, *read_examples("facts:ground")]
    probes = [*shipped_questions("test"), *read_unrelated(data)]
    return probe_pools(facts, probes, exact={fact.id for fact in test})


def read_covered(_: Path | None, regime: Regime) -> Pools:
    """Every shipped fact to ground, and the questions of one regime."""
    facts = [*read_examples("facts:test"), *read_examples("facts:ground")]
    by_id = {fact.id: fact for fact in facts}
    return Pools(
        [row_of(fact) for fact in facts],
        [
            _row(one.id, one.question, [by_id[id] for id in one.means], regime)
            for one in shipped_questions("test")
            if one.regime == regime
        ],
    )
