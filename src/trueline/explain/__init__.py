"""A traced answer -> why it has its words, as text, JSON or a page."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from trueline.errors import SettingError
from trueline.explain.page import as_page
from trueline.explain.summary import (
    ExplainedStep,
    Summary,
    explain_steps,
    find_divergence,
    summarize,
)
from trueline.explain.text import WIDTH, as_text
from trueline.files import reason, replacing
from trueline.types import Answer, NearExample, Source

__all__ = ["Explanation", "OtherAnswer", "check_explanation_path", "explain"]

_SUFFIXES = (".html", ".json", ".txt")
_UNCHANGED = ("question", "method", "finish", "prompt_tokens", "is_covered", "sources", "scope")


@dataclass(frozen=True, slots=True)
class OtherAnswer:
    """The answer of another method to the same question."""

    method: str
    answer: str


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
        return {name: _plain(value) for name, value in asdict(self).items()}

    def json(self) -> str:
        """Everything as JSON."""
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)

    def html(self) -> str:
        """Everything as one page that needs no other file."""
        return as_page(self)

    def save(self, path: str | Path, *, with_signals: bool = False) -> None:
        """Write a .html, .json or .txt file; only the text can leave out the signals."""
        target = check_explanation_path(path)
        suffix = target.suffix.lower()
        if suffix == ".txt":
            form = self.text(with_signals=with_signals)
        else:
            form = self.html() if suffix == ".html" else self.json()
        try:
            with replacing(target) as scratch:
                scratch.write_bytes((form.rstrip("\n") + "\n").encode("utf-8", "replace"))
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
    steps = explain_steps(answer.text, answer.trace)
    divergence = other = None
    if beside is not None:
        if beside.question != answer.question:
            raise SettingError(
                "an answer can be compared with one to the same question only: this one is to "
                f"{answer.question!r}, the other to {beside.question!r}"
            )
        other = OtherAnswer(beside.method, beside.text)
        tokens = (answer.token_ids, beside.token_ids)
        divergence = find_divergence(steps, (answer.text, beside.text), tokens)
    return Explanation(
        answer=answer.text,
        settings=dict(settings or {}),
        beside=other,
        summary=summarize(steps, divergence),
        steps=steps,
        **{name: getattr(answer, name) for name in _UNCHANGED},
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


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
