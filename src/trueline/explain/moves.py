"""The trace of an answer in; one line for each changed token out."""

from __future__ import annotations

from collections.abc import Sequence

from trueline.records import Neighbor, TraceStep


def moves(trace: Sequence[TraceStep] | None) -> list[str]:
    """What each changed token was, and the example that pushed most."""
    lines = []
    for number, step in enumerate(trace or (), 1):
        if step.flipped and step.neighbors:
            best = max(step.neighbors, key=lambda neighbor: neighbor.push)
            lines.append(
                f"token {number}: {step.base[0].text!r} became {step.text!r}, moved by "
                f"{best.example} ({best.question} {best.nearness} {best.similarity:.2f}, "
                f"{best.push:+.2f}; {_heard(step.hits, best)})"
            )
    return lines


def _heard(count: int, best: Neighbor) -> str:
    """How many had a say: entries that were near, or answers that voted."""
    one = "hit" if best.nearness == "cosine" else "vote"
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
