"""A sample and an answer -> the question for a judge; its reply -> a label."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from trueline.lab.benchmarks.tables import Sample

Questions = Literal["ours", "paper"]  # the questions that judges get
Task = Literal["question", "dialogue", "summary"]
About = Literal["truth", "info", "hallucination"]  # the question to a judge about an answer
Items = Sequence[tuple["Sample", str]]  # samples, each with the answer to judge
SUFFIXES: dict[Questions, str] = {"ours": "", "paper": "+paper"}  # of a judge's id
NO_REFERENCE = "no reference answer to judge by"
_LABELS: dict[About, dict[str, bool]] = {  # hallucination: yes means it is hallucinated
    "truth": dict.fromkeys(("yes", "correct", "right", "true", "truthful"), True)
    | dict.fromkeys(("no", "wrong", "incorrect", "not correct", "false", "untrue"), False),
    "info": {"yes": True, "informative": True}
    | dict.fromkeys(("no", "uninformative", "not informative"), False),
    "hallucination": dict.fromkeys(("yes", "hallucinated"), True)
    | dict.fromkeys(("no", "not hallucinated"), False),
}
_THOUGHT = re.compile(r"<think>.*?(?:</think>|$)|</?\w+>", re.S)  # and tags around a word
_SIGNS = re.compile("[*_`'\"#\\[\\](){}<>\\\\\u201c\u201d\u2018\u2019]")  # marks around a word
_OF = r"(?:answer|verdict|judge?ment|response|reply|summary|label|assessment|statement)"
_LEAD = re.compile(
    rf"(?:(?:(?:my|the|your|final|given|above)\s+)*{_OF}"
    r"(?:\s+to judge)?\s*(?:is\s*[:=-]?|[:=-])\s*)+"
)
_CLAUSE = re.compile("[.,;:!?/\n\u2013\u2014]+|\\s-+\\s")
_FILLER = re.compile(
    r"(?:(?:and|also|then|so|but|because|since|i think|i believe|indeed)\b\s*)+"
)
_STATEMENT = re.compile(  # as in "it is partly wrong", "the answer isn't correct"
    rf"(?:it|this|that|(?:(?:the|this|that|your|given)\s+)+{_OF})\s+"
    r"(?:is|s|was|seems|looks)(?P<denied>n t| not)?\s+"
    r"(?:(?:in fact|indeed|actually|clearly|also|only|partly|partially|mostly)\s+)*"
    r"(?P<stated>[a-z ]+?)(?:\s+(?:about|in|on|as|because|since|here|overall|and|but)\b.*)?"
)
_DOUBT = re.compile(  # what takes back part of the verdict before it
    r"(?:but|or|though|although|however|except|unless|partly|partially|mostly|somewhat|maybe"
    r"|perhaps)\b"
)


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


class Judge(Protocol):
    """Decides whether answers are truthful, informative or hallucinated."""

    @property
    def id(self) -> str:
        """Its name, with the model it runs on."""

    @property
    def hash(self) -> str:
        """A hash of all that can change its verdicts: weights, prompts, settings."""

    def judge(self, task: Task, about: About, items: Items) -> list[Verdict]:
        """Verdicts on answers, in their order; an answer that cannot be judged has no label."""


def questions_for(task: Task) -> tuple[About, ...]:
    """The verdicts that every answer of a task needs."""
    return ("truth", "info") if task == "question" else ("hallucination",)


def judge_hash(*parts: object, questions: Questions = "ours") -> str:
    """A hash of the parts that shape a judge's verdicts, and of its questions."""
    texts = {name: text for name, text in _texts().items() if name != "prices"}
    more = [_texts("halueval")] if questions == "paper" else []
    content = json.dumps([texts, *parts, *more], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def prompt_for(
    task: Task, about: About, sample: Sample, answer: str, questions: Questions = "ours"
) -> str | None:
    """The whole text a judge reads; None for truth without a reference answer.

    The paper's questions use HaluEval's own text for hallucination, and ask for truth also
    without a reference, as the authors' code does.
    """
    if about == "truth":
        if not sample.answers and questions == "ours":
            return None
        template = _texts()["truth"]["with_wrong" if sample.wrong_answers else "without_wrong"]
    else:
        texts = _texts("halueval" if questions == "paper" and about != "info" else "judges")
        template = texts["info" if about == "info" else task]["text"]
    parts = {
        "question": sample.question.strip(),
        "answer": answer.strip() or "(nothing was written)",
        "right": "\n".join(f"- {text.strip()}" for text in sample.answers),
        "wrong": "\n".join(f"- {text.strip()}" for text in sample.wrong_answers),
    }
    # In one pass: braces in an answer stay as they are. Half a surrogate cannot be sent.
    text = re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], template.lstrip("\n"))
    return text.encode("utf-8", "replace").decode()


def read_verdict(raw: str, about: About) -> bool | None:
    """The label in a judge's reply; None if it has no verdict, or two.

    The reply must begin with the verdict, perhaps after "Answer:" or in Markdown. The text
    after it may explain the verdict, but not revoke it.
    """
    text = unicodedata.normalize("NFKC", raw).replace("。", ".").lower()
    text = _SIGNS.sub(" ", _THOUGHT.sub(" ", text)).strip(" \n\t.,:;-")
    text = text[lead.end() :] if (lead := _LEAD.match(text)) else text
    first, *rest = (" ".join(clause.split()) for clause in _CLAUSE.split(text))
    labels, rest = _LABELS[about], [clause for clause in rest if not _FILLER.fullmatch(clause)]
    label = labels.get(first)
    if rest and _DOUBT.match(rest[0]):
        return None
    for clause in rest:  # a later clause may be a verdict itself
        clause = clause[filler.end() :] if (filler := _FILLER.match(clause)) else clause
        found = _STATEMENT.fullmatch(clause)
        stated = labels.get(found["stated"] if found else clause)
        if stated is not None and (stated != bool(found and found["denied"])) is not label:
            return None
    return label


def price_of(model: str, prompt_tokens: int, answer_tokens: int) -> float | None:
    """The cost of a reply in US dollars; None if the price of the model is not known."""
    if (rates := _texts()["prices"].get(model)) is None:
        return None
    return float((prompt_tokens * rates[0] + answer_tokens * rates[1]) / 1_000_000)


@cache
def _texts(name: str = "judges") -> dict[str, Any]:
    return tomllib.loads((files(__package__) / f"{name}.toml").read_text("utf-8"))
