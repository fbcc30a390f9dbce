"""The trace of an answer -> its steps, a summary, and where two answers differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import quantiles

from trueline.types import Candidate, Neighbor, TraceStep

_BROKEN = "\ufffd"  # what part of a character decodes to
_UNCHANGED = ("token", "flipped", "move", "hits", "entropy", "base", "final", "neighbors")
_REACH = 16  # characters that a run of such parts may decode to


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


def explain_steps(text: str, trace: Sequence[TraceStep]) -> tuple[ExplainedStep, ...]:
    """Each step of a trace with its part of the text and its entropy quartile."""
    parts = text_parts(text, [step.text for step in trace])
    quartiles = entropy_quartiles([step.entropy for step in trace])
    steps: list[ExplainedStep] = []
    for step, part, quartile in zip(trace, parts, quartiles, strict=True):
        names = {candidate.token: candidate.text for candidate in (*step.final, *step.base)}
        made = ExplainedStep(
            number=len(steps) + 1,
            text=step.text if part is None else part,
            is_in_text=part is not None,
            wanted=step.base[0].text if step.base else "",
            rival=names.get(step.rival, ""),
            quartile=quartile,
            **{name: getattr(step, name) for name in _UNCHANGED},
        )
        steps.append(made)
    return tuple(steps)


def entropy_quartiles(entropies: Sequence[float]) -> list[int]:
    """The quartile of each entropy among them all, 1 to 4; equal ones share a quartile."""
    if not entropies:
        return []
    bounds = quantiles([*entropies, *entropies[: len(entropies) == 1]], method="inclusive")
    return [1 + sum(entropy > bound for bound in bounds) for entropy in entropies]


def summarize(steps: Sequence[ExplainedStep], divergence: Divergence | None) -> Summary:
    count = max(1, len(steps))
    grounded, flips = sum(step.hits > 0 for step in steps), sum(step.flipped for step in steps)
    recorded = fsum(neighbor.weight for step in steps for neighbor in step.neighbors)
    sides = sum(len({neighbor.is_wrong for neighbor in step.neighbors}) for step in steps)
    return Summary(
        tokens=len(steps),
        grounded=grounded,
        grounded_share=grounded / count,
        flips=flips,
        flipped_share=flips / count,
        mean_entropy=fsum(step.entropy for step in steps) / count,
        quartiles=tuple(_quartile(steps, number) for number in (1, 2, 3, 4)),
        cited=_cite(steps),
        weight_on_record=recorded / max(1, sides),
        divergence=divergence,
    )


def _quartile(steps: Sequence[ExplainedStep], number: int) -> Quartile:
    inside = [step for step in steps if step.quartile == number]
    entropies = [step.entropy for step in inside]
    low, high = min(entropies, default=None), max(entropies, default=None)
    return Quartile(low, high, len(inside), sum(step.flipped for step in inside))


def _cite(steps: Iterable[ExplainedStep]) -> tuple[Cited, ...]:
    """The examples among the neighbors of some steps, the hardest push first."""
    found: dict[tuple[str, bool], list[Neighbor]] = {}
    counts: Counter[tuple[str, bool]] = Counter()  # of steps
    for step in steps:
        for one in step.neighbors:
            found.setdefault((one.example, one.is_wrong), []).append(one)
        counts.update({(one.example, one.is_wrong) for one in step.neighbors})
    cited = [
        Cited(
            example=key[0],
            question=own[0].question,
            answers=tuple(dict.fromkeys(one.answer for one in own)),
            is_wrong=key[1],
            source=own[0].source,
            weight=fsum(one.weight for one in own),
            steps=counts[key],
            push=fsum(one.push for one in own),
        )
        for key, own in found.items()
    ]
    return tuple(sorted(cited, key=lambda one: (-one.push, -one.weight, one.example)))


def find_divergence(
    steps: Sequence[ExplainedStep],
    texts: tuple[str, str],
    tokens: tuple[Sequence[int], Sequence[int]],
) -> Divergence | None:
    """Where the second of two answers differs from the first, whose steps these are."""
    if tuple(tokens[0]) == tuple(tokens[1]):
        return None
    count = _shared(*tokens)
    before = "".join(step.text for step in steps[:count] if step.is_in_text)
    shared = before[: _shared(before, *texts)]
    return Divergence(count + 1, shared, *(text[len(shared) :] for text in texts))


def _shared(*sequences: Sequence[object]) -> int:
    """How many first items some sequences have in common."""
    different = (n for n, items in enumerate(zip(*sequences)) if len({*items}) > 1)  # noqa: B905
    return next(different, min(map(len, sequences)))


def text_parts(text: str, pieces: Sequence[str]) -> list[str | None]:
    """The part of the text of each token; None for one without a part.

    A piece decoded by itself may have lost its space, or be part of a character. The first
    part gets the whole character, the others an empty text.
    """
    placed: list[str | None] = []
    first_part: int | None = None  # the piece that begins an incomplete character
    end = 0
    for piece in pieces:
        span = _span(text, piece, end, first_part is not None)
        if span is not None:
            if first_part is not None:
                placed[first_part] = text[end : span[0]]
                first_part = None
            placed.append(text[slice(*span)])
            end = span[1]
        elif _BROKEN in piece:
            first_part = len(placed) if first_part is None else first_part
            placed.append("")
        else:
            placed.append(None)
    if first_part is not None:
        placed[first_part] = text[end:]
    return placed


def _span(text: str, piece: str, start: int, is_after_part: bool) -> tuple[int, int] | None:
    """The range of the text that a piece decoded to, from `start` on."""
    if is_after_part:
        found = text.find(piece, start, start + len(piece) + _REACH) if piece else -1
        return None if found < 0 else (found, found + len(piece))
    if text.startswith(piece, start):
        return start, start + len(piece)
    rest, bare = text[start:], piece.lstrip(" ")
    word = len(text) - len(rest.lstrip(" "))
    if bare and _BROKEN not in bare and text.startswith(bare, word):
        return start, word + len(bare)
    return (start, len(text)) if rest and piece.startswith(rest) else None  # a stop string
