"""Values that pass through an evaluation: benchmarks, samples, verdicts; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trueline.examples import Regime
from trueline.prompts import Layout, Prompt, prompt_sets
from trueline.types import Example

Task = Literal["question", "dialogue", "summary"]
Match = Literal["wording", "told", "target", "entry"]  # when an answer counts as right
About = Literal["truth", "info", "hallucination"]  # the question to a judge about an answer


@dataclass(frozen=True, slots=True)
class Choices:
    """Candidate answers to score, and which of them are truthful."""

    texts: tuple[str, ...]
    is_true: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """The regime of a question, and when its answer is right."""

    regime: Regime
    meant: tuple[Example, ...] = ()  # they answer it; empty: the answer must not change
    about: tuple[str, ...] = ()  # ids of examples; without them it is left out
    match: Match = "wording"
    check: Mapping[str, Any] = field(default_factory=dict)  # the requested form
    polarity: Literal["", "yes", "no"] = ""  # the true answer to a question of yes or no


@dataclass(frozen=True, slots=True)
class Sample:
    """A question to evaluate on, with its known right and wrong answers."""

    id: str
    question: str  # what goes into the prompt; for a summary, the document
    answers: tuple[str, ...] = ()  # truthful, the best one first
    wrong_answers: tuple[str, ...] = ()
    single: Choices | None = None  # MC1: one of them is truthful
    multiple: Choices | None = None  # MC2 and MC3: several are
    knowledge: str = ""  # HaluEval's; only for the hash of the data
    category: str = ""  # its authors'; only for the hash of the data
    probe: Probe | None = None  # None: a question without a regime
    source: str = ""  # of an example; not in the hash of the data


def bare_letters(question: str) -> str:
    """A question in lower case without signs and spaces, to compare two copies of it."""
    return "".join(sign for sign in question.lower() if sign.isalnum())


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Examples to ground with and samples to test on, as they were read."""

    name: str
    task: Task
    ground: tuple[Example, ...]
    test: tuple[Sample, ...]
    hash: str  # of examples and samples, in order
    settings: Mapping[str, Any] = field(default_factory=dict)  # for methods that have them
    counts: Mapping[str, int] = field(default_factory=dict)  # rows read, kept, left out
    layout: Layout = "lines"  # of the prompt

    @property
    def prompt(self) -> Prompt:
        """The paper's prompt for its task."""
        return prompt_sets(self.layout)[self.task].base


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict on one answer."""

    judge: str  # its id, with the model it runs on
    about: About
    label: bool | None  # None: it could not be read, and the answer stays unscored
    raw: str  # what the judge wrote, or the reason there is no verdict
    prompt_tokens: int = 0
    answer_tokens: int = 0
    cost: float | None = None  # in US dollars, where the price is known
    is_cached: bool = False
    is_answered: bool = True  # False: a service gave no response; the next run tries again
    basis: str = ""  # the rule it follows: a name in the judge's `agreement`
