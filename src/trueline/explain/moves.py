"""The trace of an answer in; one line for each changed token out."""

from __future__ import annotations

from collections.abc import Sequence

from trueline.records import TraceStep


def moves(trace: Sequence[TraceStep] | None) -> list[str]:
    """What each changed token was, and the example that pushed most."""
    lines = []
    for number, step in enumerate(trace or (), 1):
        if step.flipped and step.neighbors:
            best = max(step.neighbors, key=lambda neighbor: neighbor.push)
            lines.append(
                f"token {number}: {step.base[0].text!r} became {step.text!r}, moved by "
                f"{best.example} ({best.question} cosine {best.similarity:.2f}, "
                f"{best.push:+.2f}; {step.hits} hits)"
            )
    return lines
