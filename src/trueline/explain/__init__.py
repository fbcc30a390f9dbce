"""A traced answer -> why it has its words: steps, a summary, and where two answers differ."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import fsum
from os.path import commonprefix
from pathlib import Path
from statistics import quantiles
from typing import Any

from trueline.errors import SettingError
from trueline.explain.page import as_page
from trueline.explain.text import WIDTH, as_text
from trueline.files import reason, replacing
from trueline.types import Answer, Candidate, NearExample, Neighbor, Source, TraceStep

__all__ = ["Explanation", "OtherAnswer", "check_explanation_path", "explain"]

_SUFFIXES = (".html", ".json", ".txt")
_OF_ANSWER = ("question", "method", "finish", "prompt_tokens", "is_covered", "sources", "scope")
_OF_STEP = (
    "token",
    "flipped",
    "move",
    "hits",
    "entropy",
    "base",
    "final",
    "neighbors",
    "window",
)
_BROKEN = "\ufffd"  # what part of a character decodes to
_REACH = 16  # characters that a run of such parts may decode to


@dataclass(frozen=True, slots=True)
class OtherAnswer:
    """The answer of another method to the same question."""

    method: str
    answer: str


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One token: what the model wanted, what was picked, and what moved it how far."""

    number: int  # in the answer, from 1
    token: int
    text: str  # its part of the answer; a special token by its name
    is_in_text: bool  # not so for the token that ends an answer
    wanted: str  # the model's own first choice
    rival: str  # the same, or the model's second choice if the first was picked
    flipped: bool
    move: float  # by how many logits the method widened the lead of the token over its rival
    hits: int
    entropy: float  # of the model's own distribution, in nats
    quartile: int  # of that entropy among the steps of this answer, from 1, the surest, to 4
    base: tuple[Candidate, ...]
    final: tuple[Candidate, ...]
    neighbors: tuple[Neighbor, ...]
    window: str = ""  # the text that was looked up


@dataclass(frozen=True, slots=True)
class Quartile:
    """The steps of an answer in one quarter of its entropies."""

    low: float | None  # the least entropy in it, in nats; None if it is empty
    high: float | None  # the greatest
    steps: int
    flips: int


@dataclass(frozen=True, slots=True)
class Cited:
    """An example that moved tokens of an answer."""

    example: str  # its id
    question: str
    answers: tuple[str, ...]  # those of its answers that were retrieved or voted
    is_wrong: bool  # whether these are its wrong answers, which push the other way
    source: str
    weight: float  # the sum of its shares over tokens
    steps: int  # tokens it moved
    push: float  # logits it gave to picked tokens over their rivals, in all


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two answers to a question differ."""

    token: int  # the first token that differs, from 1
    shared: str  # the text before it
    text: str  # the rest of the explained answer
    beside: str  # the rest of the other one


@dataclass(frozen=True, slots=True)
class Summary:
    """An answer in figures."""

    tokens: int
    grounded: int  # tokens with at least one hit
    grounded_share: float
    flips: int  # tokens that are not the model's own first choice
    flipped_share: float
    mean_entropy: float  # of the model's own distributions, in nats
    quartiles: tuple[Quartile, ...]  # four, from the surest steps to the least sure
    cited: tuple[Cited, ...]  # the hardest push first, then the greatest weight
    weight_on_record: float  # a trace keeps the strongest neighbors: their share of weight
    divergence: Divergence | None = None  # None also if nothing differs


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an answer has its words: token by token, and in sum."""

    question: str
    answer: str
    method: str
    settings: dict[str, Any]  # shown unchanged; may be empty
    finish: str
    prompt_tokens: int
    beside: OtherAnswer | None
    is_covered: bool | None  # whether an example was in scope; None: the method has no scope
    sources: tuple[Source, ...]  # the examples it follows, the largest share first
    scope: tuple[NearExample, ...] | None  # those near to the question, and why in or out
    summary: Summary
    steps: tuple[ExplainedStep, ...]

    def text(self, width: int = WIDTH, *, with_signals: bool = False) -> str:
        """For a terminal: sources, scope in words, with signals also in numbers, and tokens."""
        return as_text(self, width, with_signals=with_signals)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values; a number that is not finite is None."""
        text = json.dumps(asdict(self), default=str)
        values: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
        return values

    def json(self) -> str:
        """Everything as JSON."""
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)

    def html(self) -> str:
        """Everything as one page that needs no other file."""
        return as_page(self)

    def save(self, path: str | Path, *, with_signals: bool = False) -> None:
        """Write a .html, .json or .txt file; only the text can leave out the signals."""
        target = check_explanation_path(path)
        form = {".html": self.html, ".json": self.json}.get(target.suffix.lower())
        text = form() if form else self.text(with_signals=with_signals)
        try:
            with replacing(target) as scratch:
                scratch.write_bytes(f"{text.rstrip()}\n".encode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            raise SettingError(f"{target} cannot be written: {reason(error)}") from error


def explain(
    answer: Answer, beside: Answer | None = None, *, settings: Mapping[str, Any] | None = None
) -> Explanation:
    """Explain a traced answer, optionally next to the greedy answer to the same question.

    `settings` are shown unchanged: the model, alpha, or what else is worth knowing.
    """
    if answer.trace is None:
        raise SettingError(
            "the answer has no trace to explain; generate it with trace=True, as in "
            "generate(lm, method, question, trace=True)"
        )
    if beside is not None and beside.question != answer.question:
        raise SettingError(
            "an answer can be compared with one to the same question only: this one is to "
            f"{answer.question!r}, the other to {beside.question!r}"
        )
    steps = _explain_steps(answer.text, answer.trace)
    return Explanation(
        answer=answer.text,
        settings=dict(settings or {}),
        beside=None if beside is None else OtherAnswer(beside.method, beside.text),
        summary=_summarize(steps, _find_divergence(steps, answer, beside)),
        steps=steps,
        **{name: getattr(answer, name) for name in _OF_ANSWER},
    )


def check_explanation_path(path: str | Path, *, overwrite: bool = True) -> Path:
    """Refuse a name with another ending, outside a folder, or of an existing file."""
    target = Path(path)
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK | os.X_OK):
        raise SettingError(f"there is no folder {target.parent} to write in; make it first")
    if target.is_dir():
        raise SettingError(f"{target} is a folder; name a file in it")
    if not overwrite and os.path.lexists(target):
        raise SettingError(f"{target} exists; name another file, or add --overwrite")
    if target.suffix.lower() not in _SUFFIXES:
        expected = ", ".join(_SUFFIXES)
        raise SettingError(f"an explanation is written as {expected}; got {target.name!r}")
    return target


def _explain_steps(text: str, trace: Sequence[TraceStep]) -> tuple[ExplainedStep, ...]:
    """Each step of a trace with its part of the text and its entropy quartile."""
    parts = text_parts(text, [step.text for step in trace])
    quartiles = entropy_quartiles([step.entropy for step in trace])
    steps = []
    for number, (step, part, quartile) in enumerate(
        zip(trace, parts, quartiles, strict=True), 1
    ):
        names = {candidate.token: candidate.text for candidate in (*step.final, *step.base)}
        made = ExplainedStep(
            number=number,
            text=step.text if part is None else part,
            is_in_text=part is not None,
            wanted=step.base[0].text if step.base else "",
            rival=names.get(step.rival, ""),
            quartile=quartile,
            **{name: getattr(step, name) for name in _OF_STEP},
        )
        steps.append(made)
    return tuple(steps)


def entropy_quartiles(entropies: Sequence[float]) -> list[int]:
    """The quartile of each entropy among them all, 1 to 4; equal ones share a quartile."""
    if len(entropies) < 2:
        return [1 for _ in entropies]
    bounds = quantiles(entropies, method="inclusive")
    return [1 + sum(entropy > bound for bound in bounds) for entropy in entropies]


def _summarize(steps: Sequence[ExplainedStep], divergence: Divergence | None) -> Summary:
    count = max(1, len(steps))
    grounded, flips = sum(step.hits > 0 for step in steps), sum(step.flipped for step in steps)
    recorded = fsum(neighbor.weight for step in steps for neighbor in step.neighbors)
    sides = sum(len({neighbor.is_wrong for neighbor in step.neighbors}) for step in steps)
    quarters = []
    for number in (1, 2, 3, 4):
        inside = [step for step in steps if step.quartile == number]
        entropies = [step.entropy for step in inside]
        low, high = min(entropies, default=None), max(entropies, default=None)
        quarters.append(Quartile(low, high, len(inside), sum(one.flipped for one in inside)))
    return Summary(
        tokens=len(steps),
        grounded=grounded,
        grounded_share=grounded / count,
        flips=flips,
        flipped_share=flips / count,
        mean_entropy=fsum(step.entropy for step in steps) / count,
        quartiles=tuple(quarters),
        cited=_cite(steps),
        weight_on_record=recorded / max(1, sides),
        divergence=divergence,
    )


def _cite(steps: Sequence[ExplainedStep]) -> tuple[Cited, ...]:
    """The examples among the neighbors of some steps, the hardest push first."""
    found: dict[tuple[str, bool], list[tuple[int, Neighbor]]] = {}
    for step in steps:
        for one in step.neighbors:
            found.setdefault((one.example, one.is_wrong), []).append((step.number, one))
    cited = []
    for (example, is_wrong), uses in found.items():
        own = [neighbor for _, neighbor in uses]
        made = Cited(
            example=example,
            question=own[0].question,
            answers=tuple(dict.fromkeys(one.answer for one in own)),
            is_wrong=is_wrong,
            source=own[0].source,
            weight=fsum(one.weight for one in own),
            steps=len({number for number, _ in uses}),
            push=fsum(one.push for one in own),
        )
        cited.append(made)
    return tuple(sorted(cited, key=lambda one: (-one.push, -one.weight, one.example)))


def _find_divergence(
    steps: Sequence[ExplainedStep], answer: Answer, other: Answer | None
) -> Divergence | None:
    if other is None or answer.token_ids == other.token_ids:
        return None
    count = len(commonprefix([answer.token_ids, other.token_ids]))  # noqa: RUF071
    before = "".join(step.text for step in steps[:count] if step.is_in_text)
    shared = commonprefix([before, answer.text, other.text])  # noqa: RUF071
    rest = (text.removeprefix(shared) for text in (answer.text, other.text))
    return Divergence(count + 1, shared, *rest)


def text_parts(text: str, pieces: Sequence[str]) -> list[str | None]:
    """The part of the text of each token; None for one without a part.

    A piece decoded by itself may have lost its space, or be part of a character. The first
    part gets the whole character, the others an empty text.
    """
    parts: list[str | None] = []
    end, broken = 0, -1  # the number of the piece that begins an incomplete character
    for number, piece in enumerate(pieces):
        rest, part = text[end:], None
        if broken < 0:
            spaces = rest[: len(rest) - len(rest.lstrip(" "))]
            forms = (piece, spaces + piece.lstrip(" "))
            part = next((one for one in forms if rest.startswith(one)), None)
            if part is None and rest and piece.startswith(rest):  # it has a stop string
                part = rest
        elif piece and (start := rest.find(piece, 0, len(piece) + _REACH)) >= 0:
            parts[broken], part = rest[:start], piece
            end, broken = end + start, -1
        if part is None and _BROKEN in piece:
            part, broken = "", number if broken < 0 else broken
        parts.append(part)
        end += len(part or "")
    if broken >= 0:
        parts[broken] = text[end:]
    return parts
