"""Progress of answers -> OpenAI's objects: whole answers, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from time import time
from typing import Any

import msgspec

from trueline.engines.base import Engine
from trueline.serve.engine import Progress
from trueline.serve.requests import Job
from trueline.serve.schemas import ChatBody, CompletionBody
from trueline.types import Source, TokenLogprobs, TraceStep

_HALF_CHARACTER = "\ufffd"  # what a token with a part of a character decodes to


@dataclass(slots=True)
class Choice:
    """One answer so far."""

    text: str = ""
    tokens: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    steps: list[TraceStep] = field(default_factory=list)
    sources: tuple[Source, ...] = ()
    finish: str | None = None

    def add(self, progress: Progress) -> None:
        self.text += progress.text
        self.tokens += len(progress.token_ids)
        self.logprobs += progress.logprobs
        self.steps += progress.steps
        self.sources = progress.sources or self.sources
        self.finish = progress.finish or self.finish


class Reply:
    """Makes the objects of one response."""

    def __init__(self, body: ChatBody | CompletionBody, job: Job, lm: Engine) -> None:
        self._is_chat = isinstance(body, ChatBody)
        self._job, self._lm, self._has_sources = job, lm, body.trueline.sources
        self._has_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._has_logprobs = job.requests[0].options.logprobs is not None
        self._head = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{token_hex(12)}",
            "created": int(time()),
            "model": body.model,
        }
        self.headers = {
            "x-trueline-covered": job.covered,
            "x-trueline-method": job.about["method"],
        }

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The object of an answer that is not streamed."""
        about = {**self._job.about, "sources": self._sources(enumerate(choices))}
        if choices[0].steps:
            steps = [(n, step) for n, choice in enumerate(choices) for step in choice.steps]
            about["trace"] = [_numbered(*step) for step in steps]
        return {
            **self._head,
            "object": "chat.completion" if self._is_chat else "text_completion",
            "choices": [self._choice(n, one) for n, one in enumerate(choices)],
            "usage": self.usage(choices),
            "trueline": about,
        }

    def first_chunks(self) -> list[dict[str, Any]]:
        """The chunks of a chat before its first token: the role, and what is known already."""
        if not self._is_chat:
            return []
        delta = {"role": "assistant", "content": ""}
        blank = {"delta": delta, "logprobs": None, "finish_reason": None}
        return [
            self._chunk([{"index": n, **blank}], about={} if n else self._job.about)
            for n in range(len(self._job.requests))
        ]

    def chunk(self, progress: Progress, offset: int, *, is_first: bool) -> dict[str, Any]:
        """The chunk for a progress; `offset` is the number of characters before it."""
        about = dict(self._job.about) if is_first and not self._is_chat else {}
        if progress.steps:
            about["trace"] = [_numbered(progress.choice, step) for step in progress.steps]
        if progress.finish is not None:
            about["sources"] = self._sources([(progress.choice, progress)])
        choice = self._choice(progress.choice, progress, offset)
        if self._is_chat:
            del choice["message"]
            is_empty = not progress.text and progress.finish is not None
            choice["delta"] = {} if is_empty else {"content": progress.text}
        return self._chunk([choice], about=about)

    def last_chunks(self, choices: Sequence[Choice]) -> list[dict[str, Any]]:
        """The chunk with the usage, if the request wants it."""
        return [self._chunk([], usage=self.usage(choices))] if self._has_usage else []

    def usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        """The number of tokens that were read and generated."""
        read, written = self._job.prompt_tokens, sum(one.tokens for one in choices)
        total = read + written
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": total}

    def _sources(self, choices: Iterable[tuple[int, Choice | Progress]]) -> list[Any]:
        found = choices if self._has_sources else ()
        return [_numbered(n, source) for n, one in found for source in one.sources]

    def _choice(self, number: int, one: Choice | Progress, offset: int = 0) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "finish_reason": one.finish}
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": one.text, "refusal": None}
        else:
            choice["text"] = one.text
        choice["logprobs"] = None
        if self._has_logprobs:
            logprobs = one.logprobs
            if logprobs and logprobs[-1].token in self._lm.stop_ids:
                logprobs = logprobs[:-1]  # its token is not part of the text
            if self._is_chat:
                choice["logprobs"] = self._chat_logprobs(logprobs)
            else:
                choice["logprobs"] = self._completion_logprobs(logprobs, offset)
        return choice

    def _chunk(
        self,
        choices: list[dict[str, Any]],
        *,
        usage: dict[str, int] | None = None,
        about: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        chunk = {**self._head, "object": name, "choices": choices}
        if self._has_usage:
            chunk["usage"] = usage
        return {**chunk, "trueline": about} if about else chunk

    def _chat_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            (text,) = self._lm.pieces([token])
            encoded = None if _HALF_CHARACTER in text else [*text.encode("utf-8", "replace")]
            return {"token": text, "logprob": logprob, "bytes": encoded}

        content = [
            {**entry(one.token, one.logprob), "top_logprobs": [entry(*x) for x in one.best]}
            for one in logprobs
        ]
        return {"content": content, "refusal": None}

    def _completion_logprobs(
        self, logprobs: Sequence[TokenLogprobs], offset: int
    ) -> dict[str, Any]:
        """Of two tokens with the same text, the more probable one is listed."""
        texts = self._lm.pieces([one.token for one in logprobs])
        offsets, best = [], []
        for text, one in zip(texts, logprobs, strict=True):
            offsets.append(offset)
            offset += len(text)
            names = self._lm.pieces([token for token, _ in one.best])
            top = dict(zip(reversed(names), (lp for _, lp in reversed(one.best)), strict=True))
            if one.best and one.logprob is not None:
                top[text] = max(one.logprob, top.get(text, one.logprob))
            best.append(top)
        return {
            "tokens": texts,
            "token_logprobs": [one.logprob for one in logprobs],
            "top_logprobs": best if any(best) else None,
            "text_offset": offsets,
        }


def _numbered(choice: int, value: Source | TraceStep) -> dict[str, Any]:
    """The fields of a record, after the number of its answer."""
    return {"choice": choice, **{name: getattr(value, name) for name in value.__slots__}}


def event(value: dict[str, Any]) -> bytes:
    """An object as one event of a stream; numbers that are not finite become null."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
