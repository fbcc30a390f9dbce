"""Examples, and questions that mean one of them or none -> rows that probe a method.

Every example's own question is asked too. What cannot probe is left out and counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trueline.examples import LOCAL, Regime, read_examples, shipped_questions
from trueline.lab.benchmarks.tables import (
    DataTable,
    Item,
    Pools,
    distinct,
    holds_table,
    read_table,
)
from trueline.lab.metrics import match_for, words_of
from trueline.lab.samples import Probe, Sample
from trueline.types import Example

_OF_EACH = 200  # unrelated questions of each table, evenly spaced


def _questions(file: tuple[tuple[str, int], ...], column: str, home: str) -> DataTable:
    return DataTable(file, None, {"question": (column, column)}, home)


UNRELATED = {  # questions about everything, which no example of a user answers
    "nq": _questions(
        (("nq_open/nq_open_dev", 3_610),),
        "question",
        "https://github.com/google-research-datasets/natural-questions (CC BY-SA 3.0)",
    ),
    "simpleqa": _questions(
        (("simpleqa/simpleqa", 4_326), ("simpleqa/simpleqa_every4", 1_082)),
        "problem",
        "https://github.com/openai/simple-evals (MIT)",
    ),
    "popqa": _questions(
        (("popqa/popqa", 14_267), ("popqa/popqa_1k", 1_000)),
        "question",
        "https://github.com/AlexTMallen/adaptive-retrieval (MIT)",
    ),
}


@dataclass(frozen=True, slots=True)
class ProbeQuestion:
    """A question, its regime, and the examples it means and is about."""

    regime: Regime
    question: str
    means: tuple[str, ...] = ()  # ids of the examples that answer it
    about: tuple[str, ...] = ()  # ids; empty: those it means
    id: str = ""  # empty: made of its example and regime
    check: Mapping[str, Any] = field(default_factory=dict)
    polarity: Literal["", "yes", "no"] = ""
    category: str = ""


def read_unrelated(data: Path | None) -> list[ProbeQuestion]:
    """Questions of the public sets that a data folder holds, in turn; none without one."""
    found: list[list[ProbeQuestion]] = []
    for name, table in UNRELATED.items():
        if data is None or not holds_table(table, data):
            continue
        lines = read_table(table, data)
        spaced = [lines[at * len(lines) // _OF_EACH] for at in range(_OF_EACH)]
        texts = distinct(line.text("question") for line in spaced)
        found.append([ProbeQuestion("unrelated", text, category=name) for text in texts])
    rows = range(max(map(len, found), default=0))
    return [group[row] for row in rows for group in found if row < len(group)]


def probe_pools(
    examples: Sequence[Example],
    questions: Iterable[ProbeQuestion],
    *,
    exact: Collection[str] | None = None,  # ids asked for in their own words; None: all
    counts: Mapping[str, int] | None = None,
) -> Pools:
    """Every example to ground with, and every question that can probe, checked and counted."""
    by_id = {example.id: example for example in examples}
    own = [
        ProbeQuestion("exact", one.question, (one.id,))
        for one in examples
        if exact is None or one.id in exact
    ]
    tally = {**(counts or {})}
    usable = _usable([*own, *questions], by_id, tally)
    numbers: dict[str, int] = {}
    items = []
    for one in usable:
        about = one.about or one.means
        id = one.id or _numbered("-".join([*about, one.regime.replace(" ", "-")]), numbers)
        meant = tuple(by_id[id] for id in one.means)
        rule = match_for(one.regime, meant)
        probe = Probe(one.regime, meant, about, rule, dict(one.check), one.polarity)
        sample = Sample(
            id,
            one.question,
            distinct(answer for example in meant for answer in example.answers),
            distinct(answer for example in meant for answer in example.wrong_answers),
            category=one.category,
            probe=probe,
        )
        items.append(Item(sample))
    return Pools([_ground(example) for example in examples], items, tally)


def _usable(
    questions: Sequence[ProbeQuestion], by_id: Mapping[str, Example], tally: dict[str, int]
) -> list[ProbeQuestion]:
    """The questions that can probe: not asked twice, and what they are said to be."""
    own = {words_of(example.question) for example in by_id.values()}
    covered = own | {words_of(one.question) for one in questions if one.means}
    seen: set[tuple[object, ...]] = set()
    kept = []
    for one in questions:
        words = words_of(one.question)
        key = (one.regime, words, one.means)
        problem = ""
        if key in seen:
            problem = "asked twice"
        elif one.regime in LOCAL and words in covered:
            problem = "no example meant, but one answers"
        elif one.regime == "paraphrase" and words in own:
            problem = "in the words of an example"
        seen.add(key)
        if problem:
            tally[problem] = tally.get(problem, 0) + 1
        else:
            kept.append(one)
    return kept


def _numbered(name: str, numbers: dict[str, int]) -> str:
    numbers[name] = numbers.get(name, 0) + 1
    return f"{name}-{numbers[name]}"


def _ground(example: Example) -> Item:
    sample = Sample(
        example.id, example.question, tuple(example.answers), tuple(example.wrong_answers)
    )
    return Item(sample, example.source)


REGIMES: dict[str, Regime] = {  # of questions that the facts answer, by the benchmark's name
    "covered": "paraphrase",
    "covered-styled": "styled",
    "covered-double": "double",
    "covered-mid-text": "mid-text",
}


def read_regimes(data: Path | None) -> Pools:
    """Every fact to ground with, and the questions of all regimes, each with its regime.

    Unrelated questions come from a data folder; without one there are none.
    """
    asked = [
        ProbeQuestion(
            one.regime, one.question, one.means, one.about, one.id, one.check, one.polarity
        )
        for one in shipped_questions("test")
    ]
    test = {fact.id for fact in read_examples("facts:test")}
    return probe_pools(_facts(), [*asked, *read_unrelated(data)], exact=test)


def read_covered(_: Path | None, regime: Regime) -> Pools:
    """Every fact to ground with, those asked for first, and the questions of one regime."""
    facts = _facts()
    by_id = {fact.id: fact for fact in facts}
    asked = [one for one in shipped_questions("test") if one.regime == regime]
    return Pools(
        [Item(_sample(fact.id, fact.question, [fact], regime), fact.source) for fact in facts],
        [
            Item(_sample(one.id, one.question, [by_id[id] for id in one.means], regime))
            for one in asked
        ],
    )


def _facts() -> list[Example]:
    return [*read_examples("facts:test"), *read_examples("facts:ground")]


def _sample(id: str, question: str, facts: list[Example], category: str) -> Sample:
    return Sample(
        id=id,
        question=question,
        answers=distinct(answer for fact in facts for answer in fact.answers),
        wrong_answers=distinct(answer for fact in facts for answer in fact.wrong_answers),
        category=category,
    )
