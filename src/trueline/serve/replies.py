"""Pieces of answers in, OpenAI's objects out: whole answers, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec

from trueline.engines.base import Engine
from trueline.serve.engine import Progress
from trueline.serve.requests import Asked
from trueline.types import Source, TokenLogprobs, TraceStep

Kind = Literal["chat", "completion"]
DONE = b"data: [DONE]\n\n"
_BROKEN = "\ufffd"  # what part of a character decodes to


@dataclass(slots=True)
class Choice:
    """One answer as far as it has come."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    steps: list[TraceStep] = field(default_factory=list)
    sources: tuple[Source, ...] = ()
    finish: str | None = None

    def add(self, piece: Progress) -> None:
        """Take in a piece."""
        self.text += piece.text
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.steps += piece.steps
        self.sources = piece.sources or self.sources
        self.finish = piece.finish or self.finish


@dataclass(frozen=True, slots=True)
class Reply:
    """All that the objects of one answer have in common."""

    kind: Kind
    id: str
    created: int  # seconds since 1970
    model: str
    asked: Asked
    lm: Engine
    has_sources: bool = True
    has_usage: bool = False  # whether a stream ends with the usage

    @property
    def headers(self) -> dict[str, str]:
        """What a client learns before it reads the body."""
        covered = {True: "true", False: "false", None: "none"}[self.asked.covered]
        return {"x-trueline-covered": covered, "x-trueline-method": self.asked.method}

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The object of an answer that is not streamed."""
        told = self._about()
        told["sources"] = self._sources(enumerate(choices))
        if choices[0].steps:
            told["trace"] = [
                step for n, choice in enumerate(choices) for step in trace(choice.steps, n)
            ]
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        return {
            **self._head(name),
            "choices": [self._choice(number, one) for number, one in enumerate(choices)],
            "usage": self.usage(choices),
            "trueline": told,
        }

    def opening(self) -> list[dict[str, Any]]:
        """The first chunks of a stream: who speaks, and what is known ahead of any token."""
        if self.kind != "chat":
            return []  # a completion has no such chunk; the first piece tells
        first: dict[str, Any] = {"role": "assistant", "content": ""}
        return [
            self._chunk([self._delta(n, first)], trueline=self._about() if n == 0 else None)
            for n in range(len(self.asked.requests))
        ]

    def chunk(self, piece: Progress, offset: int, *, is_first: bool) -> dict[str, Any]:
        """One piece of one answer; `offset` is the number of characters before it."""
        told = self._about() if is_first and self.kind != "chat" else {}
        if piece.steps:
            told["trace"] = trace(piece.steps, piece.choice)
        if piece.finish is not None:
            told["sources"] = self._sources([(piece.choice, piece)])
        if self.kind == "chat":
            delta = {"content": piece.text} if piece.text or piece.finish is None else {}
            choice = self._delta(piece.choice, delta, piece.finish)
            choice["logprobs"] = self._chat_logprobs(piece.logprobs)
        else:
            choice = {
                "index": piece.choice,
                "text": piece.text,
                "logprobs": self.completion_logprobs(piece.logprobs, offset),
                "finish_reason": piece.finish,
            }
        return self._chunk([choice], trueline=told or None)

    def closing(self, choices: Sequence[Choice]) -> list[dict[str, Any]]:
        """The last chunks of a stream, where the usage was asked for."""
        return [self._chunk([], usage=self.usage(choices))] if self.has_usage else []

    def usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        """The tokens read and written."""
        read, written = self.asked.prompt_tokens, sum(len(one.token_ids) for one in choices)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }

    def _head(self, name: str) -> dict[str, Any]:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    def _about(self) -> dict[str, Any]:
        asked = self.asked
        told = {
            "method": asked.method,
            "space": asked.space,
            "state": asked.state,
            "question": asked.question,
            "covered": asked.covered,
        }
        return told if asked.near is None else {**told, "scope": [*map(asdict, asked.near)]}

    def _sources(self, choices: Any) -> list[dict[str, Any]]:
        if not self.has_sources:
            return []
        return [
            {"choice": number, **asdict(source)}
            for number, one in choices
            for source in one.sources
        ]

    def _choice(self, number: int, choice: Choice) -> dict[str, Any]:
        if self.kind == "chat":
            return {
                "index": number,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._chat_logprobs(choice.logprobs),
                "finish_reason": choice.finish,
            }
        return {
            "index": number,
            "text": choice.text,
            "logprobs": self.completion_logprobs(choice.logprobs, 0),
            "finish_reason": choice.finish,
        }

    def _delta(
        self, number: int, delta: dict[str, Any], finish: str | None = None
    ) -> dict[str, Any]:
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _chunk(
        self,
        choices: list[dict[str, Any]],
        *,
        usage: dict[str, int] | None = None,
        trueline: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        name = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        made = {**self._head(name), "choices": choices}
        if self.has_usage:
            made["usage"] = usage
        return made if trueline is None else {**made, "trueline": trueline}

    def _chat_logprobs(self, found: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        kept = self._without_end(found)
        if self.asked.requests[0].options.logprobs is None:
            return None
        return {
            "content": [
                {
                    **self._token(one.token, one.logprob),
                    "top_logprobs": [self._token(*best) for best in one.best],
                }
                for one in kept
            ],
            "refusal": None,
        }

    def completion_logprobs(
        self, found: Sequence[TokenLogprobs], offset: int
    ) -> dict[str, Any] | None:
        """The log-probabilities of a completion, as OpenAI's older format has them."""
        if self.asked.requests[0].options.logprobs is None:
            return None
        return old_logprobs(self.lm, self._without_end(found), offset)

    def _token(self, token: int, logprob: float | None) -> dict[str, Any]:
        (text,) = self.lm.pieces([token])
        own = None if _BROKEN in text else list(text.encode("utf-8", "replace"))
        return {"token": text, "logprob": logprob, "bytes": own}

    def _without_end(self, found: Sequence[TokenLogprobs]) -> Sequence[TokenLogprobs]:
        """Without the token that ended the answer, which is no part of its text."""
        is_end = bool(found) and found[-1].token in self.lm.stop_ids
        return found[:-1] if is_end else found


def old_logprobs(lm: Engine, found: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
    """Log-probabilities in the lists of OpenAI's completions.

    Where two tokens have the same text, the more probable one stands for it.
    """
    texts = lm.pieces([one.token for one in found])
    best: list[dict[str, float] | None] = []
    for text, one in zip(texts, found, strict=True):
        names = lm.pieces([token for token, _ in one.best])
        pairs = zip(names, (value for _, value in one.best), strict=True)
        named = dict(reversed(list(pairs)))
        if one.logprob is not None and one.best:
            named[text] = max(one.logprob, named.get(text, one.logprob))
        best.append(named if one.logprob is not None else None)
    places = [offset]
    for text in texts:
        places.append(places[-1] + len(text))
    return {
        "tokens": texts,
        "token_logprobs": [one.logprob for one in found],
        "top_logprobs": best if any(one.best for one in found) else None,
        "text_offset": places[: len(texts)],
    }


def trace(steps: Sequence[TraceStep], choice: int) -> list[dict[str, Any]]:
    """The evidence for each token, with how far it moved, in logits."""
    return [{"choice": choice, **asdict(step)} for step in steps]


def event(chunk: dict[str, Any]) -> bytes:
    """A chunk as one event of a stream; what is not finite is null."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
