"""What one question got: the text, its tokens, and on request the reason for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trueline.explain import Explanation, explain
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
    prompt_hashes: tuple[str, ...] = ()  # of every prompt the method read, the first one first
    trace: tuple[TraceStep, ...] | None = None  # when asked for

    def explain(
        self, beside: Answer | None = None, *, settings: Mapping[str, Any] | None = None
    ) -> Explanation:
        """Why it says what it says, optionally beside the greedy answer to the same question.

        `settings` are shown as they are: the model, alpha, tau, or what else is worth knowing.
        """
        return explain(self, beside, settings=settings)
