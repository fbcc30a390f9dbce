"""The trace of an answer -> its steps, a summary, and where two answers part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import quantiles

from trueline.types import Candidate, Neighbor, TraceStep

_BROKEN = "\ufffd"  # what part of a character decodes to
_REACH = 16  # characters a run of such parts may stand for


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One token: what the model wanted, what was picked, how far and by whom it was moved."""

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
    """Where two answers to a question part."""

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
    divergence: Divergence | None = None  # None also where nothing differs


def explain_steps(text: str, trace: Sequence[TraceStep]) -> tuple[ExplainedStep, ...]:
    """Each step of a trace with its part of the text and its entropy quartile."""
    places = place_pieces(text, [step.text for step in trace])
    quartiles = entropy_quartiles([step.entropy for step in trace])
    columns = zip(trace, places, quartiles, strict=True)
    return tuple(_explain_step(number, *column) for number, column in enumerate(columns, 1))


def _explain_step(
    number: int, step: TraceStep, place: str | None, quartile: int
) -> ExplainedStep:
    texts = {candidate.token: candidate.text for candidate in (*step.final, *step.base)}
    return ExplainedStep(
        number=number,
        token=step.token,
        text=step.text if place is None else place,
        is_in_text=place is not None,
        wanted=step.base[0].text if step.base else "",
        rival=texts.get(step.rival, ""),
        flipped=step.flipped,
        move=step.move,
        hits=step.hits,
        entropy=step.entropy,
        quartile=quartile,
        base=step.base,
        final=step.final,
        neighbors=step.neighbors,
    )


def entropy_quartiles(entropies: Sequence[float]) -> list[int]:
    """The quartile of each entropy among them all, 1 to 4; equal ones share a quartile."""
    if not entropies:
        return []
    cuts = quantiles([*entropies, *entropies[: len(entropies) == 1]], method="inclusive")
    return [1 + sum(entropy > cut for cut in cuts) for entropy in entropies]


def summarize(steps: Sequence[ExplainedStep], divergence: Divergence | None) -> Summary:
    """The figures of an answer."""
    count = max(1, len(steps))
    grounded = sum(1 for step in steps if step.hits)
    flips = sum(1 for step in steps if step.flipped)
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
        cited=cite(steps),
        weight_on_record=recorded / max(1, sides),
        divergence=divergence,
    )


def _quartile(steps: Sequence[ExplainedStep], number: int) -> Quartile:
    inside = [step for step in steps if step.quartile == number]
    entropies = [step.entropy for step in inside]
    return Quartile(
        low=min(entropies, default=None),
        high=max(entropies, default=None),
        steps=len(inside),
        flips=sum(1 for step in inside if step.flipped),
    )


def cite(steps: Iterable[ExplainedStep]) -> tuple[Cited, ...]:
    """The examples among the neighbors of some steps, the hardest push first."""
    by_example: dict[tuple[str, bool], list[tuple[int, Neighbor]]] = {}
    for step in steps:
        for neighbor in step.neighbors:
            side = (neighbor.example, neighbor.is_wrong)
            by_example.setdefault(side, []).append((step.number, neighbor))
    cited = [
        Cited(
            example=example,
            question=found[0][1].question,
            answers=tuple(dict.fromkeys(neighbor.answer for _, neighbor in found)),
            is_wrong=is_wrong,
            source=found[0][1].source,
            weight=fsum(neighbor.weight for _, neighbor in found),
            steps=len({number for number, _ in found}),
            push=fsum(neighbor.push for _, neighbor in found),
        )
        for (example, is_wrong), found in by_example.items()
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
    place = _shared(*tokens)
    before = "".join(step.text for step in steps[:place] if step.is_in_text)
    shared = before[: min(_shared(before, text) for text in texts)]
    return Divergence(place + 1, shared, *(text[len(shared) :] for text in texts))


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many first items two sequences share."""
    from trueline.decode.generate import first_difference  # imports torch

    index = first_difference(one, other)
    return len(one) if index is None else index


def place_pieces(text: str, pieces: Sequence[str]) -> list[str | None]:
    """The part of the text of each token; None for one that left nothing there.

    A piece decoded by itself may have lost its space, or be part of a character. The first
    part gets the whole character, the others an empty text.
    """
    placed: list[str | None] = []
    parts: list[int] = []  # pieces of a character that is not complete yet
    here = 0
    for piece in pieces:
        span = _span(text, piece, here, bool(parts))
        if span is None:
            is_part = _BROKEN in piece
            parts += [len(placed)] if is_part else []
            placed.append("" if is_part else None)
            continue
        if parts:
            placed[parts[0]] = text[here : span[0]]
            parts = []
        placed.append(text[slice(*span)])
        here = span[1]
    if parts:
        placed[parts[0]] = text[here:]
    return placed


def _span(text: str, piece: str, here: int, is_after_part: bool) -> tuple[int, int] | None:
    """The next range of a piece, from `here` on."""
    if is_after_part:
        start = text.find(piece, here, here + len(piece) + _REACH) if piece else -1
        return None if start < 0 else (start, start + len(piece))
    if text.startswith(piece, here):
        return here, here + len(piece)
    rest, bare = text[here:], piece.lstrip(" ")
    start = len(text) - len(rest.lstrip(" "))
    if bare and _BROKEN not in bare and text.startswith(bare, start):
        return here, start + len(bare)
    return (here, len(text)) if rest and piece.startswith(rest) else None  # cut at a stop
