"""The shipped facts and how people ask for them -> rows to ground with and to test on.

All facts ground; the questions are about the test facts, to which no weight was fitted.
"""

from __future__ import annotations

from pathlib import Path

from trueline.evaluation.benchmarks.pools import Item, Pools, distinct
from trueline.evaluation.benchmarks.probes import ProbeQuestion, probe_pools, read_unrelated
from trueline.evaluation.samples import Sample
from trueline.examples import read_examples
from trueline.examples.asked import Regime
from trueline.examples.shipped import read_questions
from trueline.records import Example

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
        for one in read_questions("test")
    ]
    test = {fact.id for fact in read_examples("facts:test")}
    return probe_pools(_facts(), [*asked, *read_unrelated(data)], exact=test)


def read_covered(_: Path | None, regime: Regime) -> Pools:
    """Every fact to ground with, those asked for first, and the questions of one regime."""
    facts = _facts()
    by_id = {fact.id: fact for fact in facts}
    asked = [one for one in read_questions("test") if one.regime == regime]
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
