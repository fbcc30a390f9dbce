"""What one question got: the text, its tokens, and on request the reason for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trueline.records import TraceStep


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question by one method."""

    question: str
    text: str
    token_ids: tuple[int, ...]  # all that were picked, the one that ended the answer included
    finish: Literal["stop", "length"]
    method: str
    prompt_tokens: int
    trace: tuple[TraceStep, ...] | None = None  # when asked for
