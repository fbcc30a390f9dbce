"""The rows a benchmark offers, a rule and two numbers -> the examples and samples in use."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from trueline.errors import ExampleError
from trueline.evaluation.samples import Choices, Sample
from trueline.examples import to_lines
from trueline.records import Example

Rule = Literal["answered", "all"]  # what becomes of a question without a truthful answer
Side = Literal["ground", "test"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """A row of a benchmark, before it is known whether it grounds or tests."""

    sample: Sample
    source: str = ""

    @property
    def example(self) -> Example:
        """The row as an example to ground with."""
        row = self.sample
        return Example(row.question, row.answers, row.wrong_answers, row.id, self.source)


@dataclass(frozen=True, slots=True)
class Pools:
    """All rows that may ground and all that may test, and what was counted on the way."""

    ground: Sequence[Item]
    test: Sequence[Item]
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is used of the pools."""

    ground: tuple[Example, ...]
    test: tuple[Sample, ...]
    counts: Mapping[str, int]
    hash: str


def choose(
    pools: Pools, *, ground: int | None, test: int | None, seed: int | None, rule: Rule
) -> Chosen:
    """Apply the rule, then take the first rows or draw some; every row is counted."""
    counts = dict(pools.counts)
    kept = {
        side: _kept(side, items, rule, counts)
        for side, items in (("ground", pools.ground), ("test", pools.test))
    }
    drawn = draw(kept["ground"], ground, seed, "ground")
    examples = tuple(item.example for item in drawn if item.sample.answers)
    asked = _asked_of(kept["test"], examples, counts)
    samples = tuple(item.sample for group in asked for item in draw(group, test, seed, "test"))
    # An example without a truthful answer makes no entries, also where the rule keeps it.
    counts["ground drawn without an answer"] = len(drawn) - len(examples)
    counts |= {"ground used": len(examples), "test used": len(samples)}
    for side, used in (("ground", examples), ("test", samples)):
        if not used:
            raise ExampleError(
                f"nothing is left to {side} with: no row taken has a truthful answer, "
                f"rule={rule!r}; ask for more rows"
            )
    return Chosen(examples, samples, counts, data_hash(examples, samples))


def _asked_of(
    items: Sequence[Item], examples: Sequence[Example], counts: dict[str, int]
) -> list[list[Item]]:
    """The questions about examples in use, regime by regime; as many are taken of each."""
    used = {example.id for example in examples}
    groups: dict[str, list[Item]] = {}
    for item in items:
        probe = item.sample.probe
        if probe is None or used.issuperset(probe.about):
            groups.setdefault("" if probe is None else probe.regime, []).append(item)
    left_out = len(items) - sum(map(len, groups.values()))
    if left_out:
        counts["test about other examples"] = left_out
    return list(groups.values())


def draw(rows: Sequence[T], number: int | None, seed: int | None, side: Side) -> list[T]:
    """The first rows, or as many drawn with the seed, in their order; all if there are fewer.

    Ground and test are drawn apart: asking for more of one leaves the other as it was.
    """
    if number is None or number >= len(rows):
        return list(rows)
    if seed is None:
        return list(rows[:number])
    places = random.Random(f"{seed} {side}").sample(range(len(rows)), number)
    return [rows[index] for index in sorted(places)]


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """The different texts, in order."""
    return tuple(dict.fromkeys(texts))


def choices(truthful: Sequence[str], wrong: Sequence[str]) -> Choices | None:
    """Candidates to score, the truthful ones first; none where one kind is missing."""
    if not truthful or not wrong:
        return None
    return Choices((*truthful, *wrong), (True,) * len(truthful) + (False,) * len(wrong))


def data_hash(ground: Sequence[Example], test: Sequence[Sample]) -> str:
    """The SHA-256 of the examples and the samples, in their order."""
    lines = (json.dumps(_content(sample), ensure_ascii=False) + "\n" for sample in test)
    content = "".join([*to_lines(ground), "\n", *lines])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _content(sample: Sample) -> dict[str, Any]:
    """A sample as its hash sees it; where there is no probe, none is told."""
    found = asdict(sample)
    return {name: value for name, value in found.items() if name != "probe" or value}


def _kept(side: str, items: Sequence[Item], rule: Rule, counts: dict[str, int]) -> list[Item]:
    """The rows the rule keeps."""
    answered = [item for item in items if item.sample.answers]
    # A question that no example answers probes a method all the same.
    usable = [item for item in items if item.sample.answers or item.sample.probe]
    kept = list(items) if rule == "all" else usable
    counts[f"{side} read"] = len(items)
    counts[f"{side} without an answer"] = len(items) - len(answered)
    counts[f"{side} left out"] = len(items) - len(kept)
    return kept
