"""A sample and an answer in, the question for a judge out; its reply in, a verdict out."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from trueline.evaluation.samples import About, Sample, Task, Verdict

NO_REFERENCE = "no reference answer to judge by"
_QUESTIONS: dict[Task, tuple[About, ...]] = {
    "question": ("truth", "info"),
    "dialogue": ("hallucination",),
    "summary": ("hallucination",),
}
_YES, _NO = {"yes": True}, {"no": False}
_PHRASES: dict[About, dict[str, bool]] = {  # hallucination: yes means it is hallucinated
    "truth": {
        **_YES,
        **_NO,
        **dict.fromkeys(("correct", "right", "true", "truthful"), True),
        **dict.fromkeys(("wrong", "incorrect", "not correct", "false", "untrue"), False),
    },
    "info": {
        **_YES,
        **_NO,
        "informative": True,
        **dict.fromkeys(("uninformative", "not informative"), False),
    },
    "hallucination": {
        **_YES,
        **_NO,
        "hallucinated": True,
        "not hallucinated": False,
    },
}
_THOUGHT = re.compile(r"<think>.*?(?:</think>|$)|</?\w+>", re.S)  # and tags around a word
_SIGNS = re.compile("[*_`'\"#\\[\\](){}<>\\\\\u201c\u201d\u2018\u2019]")  # marks around a word
_LEAD = re.compile(
    r"(?:(?:my|the|your|final|given|above)\s+)*"
    r"(?:answer|verdict|judge?ment|response|reply|summary|label|assessment)"
    r"(?:\s+to judge)?\s*(?:is|:|=|-)\s*"
)
_CLAUSE = re.compile("[.,;:!?/\n\u2013\u2014]+|\\s-+\\s")
_DOUBT = re.compile(  # what takes back part of a verdict that came before it
    r"(?:but|or|though|although|however|except|unless|partly|partially|mostly|somewhat|maybe"
    r"|perhaps)\b"
)


class Judge(Protocol):
    """Who says whether answers are truthful, informative or hallucinated."""

    @property
    def id(self) -> str:
        """Its name, with the model it runs on."""
        ...

    def judge(
        self,
        task: Task,
        about: About,
        items: Sequence[tuple[Sample, str]],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Verdict]:
        """Verdicts on answers, in their order; one that cannot be had has no label."""
        ...


def questions_for(task: Task) -> tuple[About, ...]:
    """What is asked of every answer of a task."""
    return _QUESTIONS[task]


def prompt_for(task: Task, about: About, sample: Sample, answer: str) -> str | None:
    """The whole text a judge reads; None where truth is asked and no reference is known."""
    if about == "truth":
        if not sample.answers:
            return None
        template = _texts()["truth"]["with_wrong" if sample.wrong_answers else "without_wrong"]
    else:
        template = _texts()["info" if about == "info" else task]["text"]
    parts = {
        "question": sample.question.strip(),
        "answer": answer.strip() or "(nothing was written)",
        "right": _lines(sample.answers),
        "wrong": _lines(sample.wrong_answers),
    }
    # In one pass: braces within an answer are left alone. Half a surrogate cannot be sent.
    text = re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], template.lstrip("\n"))
    return text.encode("utf-8", "replace").decode()


def read_verdict(raw: str, about: About) -> bool | None:
    """The label a judge's reply stands for, or None where it gives none or two.

    The reply must open with a verdict, perhaps behind "Answer:" or in Markdown. What follows
    may explain it, but not take it back. For a hallucination, True is yes, it is one.
    """
    text = unicodedata.normalize("NFKC", raw).replace("。", ".").lower()
    text = _SIGNS.sub(" ", _THOUGHT.sub(" ", text)).strip(" \n\t.,:;-")
    text = text[lead.end() :] if (lead := _LEAD.match(text)) else text
    clauses = [" ".join(clause.split()) for clause in _CLAUSE.split(text)]
    phrases = _PHRASES[about]
    label = phrases.get(clauses[0])
    if any(_DOUBT.match(clause) for clause in clauses[1:2]):
        return None
    others = [re.sub(r"^(?:and|also|then)\s+", "", clause) for clause in clauses[1:]]
    return label if all(phrases.get(other, label) == label for other in others) else None


def price_of(model: str, prompt_tokens: int, answer_tokens: int) -> float | None:
    """What a reply costs in US dollars; None where the price of the model is not known."""
    rates = _texts()["prices"].get(model)
    if rates is None:
        return None
    return float((prompt_tokens * rates[0] + answer_tokens * rates[1]) / 1_000_000)


def _lines(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text.strip()}" for text in texts)


@cache
def _texts() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "judges.toml").read_text("utf-8"))
