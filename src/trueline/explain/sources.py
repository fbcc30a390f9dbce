"""An answer in; lines that say which verified examples spoke in it, or that none did, out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trueline.records import Source

NOT_COVERED = "not covered by your examples"
SILENT = "covered by your examples, but none of them spoke"


class Spoken(Protocol):
    """What is read of an answer, or of the last piece of one."""

    @property
    def sources(self) -> Sequence[Source]:
        """The examples that spoke, with their share."""
        ...

    @property
    def is_covered(self) -> bool | None:
        """Whether one was in scope; None: the method has no scope."""
        ...


def source_lines(answer: Spoken) -> list[str]:
    """Two lines for each example that spoke: who, and what it said; or one that none did."""
    return coverage_lines(answer) or [
        line
        for one in answer.sources
        for line in (
            f"{share_text(one.share)} from {one.example}: {one.question}",
            "  " + " ".join([f'"{one.answer}"', *_bracketed(one.source)]),
        )
    ]


def short_source_lines(answer: Spoken) -> list[str]:
    """The same in one line an example."""
    return coverage_lines(answer) or [
        " ".join([f"{share_text(one.share)} from {one.example}", *_bracketed(one.source)])
        for one in answer.sources
    ]


def coverage_lines(answer: Spoken) -> list[str]:
    """One line that says why no example spoke; none if one did, or if the method has no scope.

    An example may be in scope and say nothing, as with a strength of 0.
    """
    if answer.is_covered is None or answer.sources:
        return []
    return [SILENT if answer.is_covered else NOT_COVERED]


def share_text(share: float) -> str:
    """The part of an answer's tokens that were picked with an example's votes."""
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def _bracketed(source: str) -> list[str]:
    return [f"[{source}]"] if source else []
