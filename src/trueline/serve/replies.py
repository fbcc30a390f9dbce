"""Progress of answers -> OpenAI's objects: whole answers, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from time import time
from typing import Any

import msgspec

from trueline.decode.loop import Row
from trueline.engines.base import Engine
from trueline.serve.engine import Progress
from trueline.serve.requests import Job
from trueline.serve.schemas import ChatBody, CompletionBody
from trueline.types import Source, TokenLogprobs, TraceStep

_HALF_CHARACTER = "\ufffd"  # what a token with a part of a character decodes to


class Reply:
    """Makes the objects of one response."""

    def __init__(self, body: ChatBody | CompletionBody, job: Job, lm: Engine) -> None:
        self._is_chat = isinstance(body, ChatBody)
        self._job, self._lm, self._has_sources = job, lm, body.trueline.sources
        self.has_usage = bool(body.stream_options and body.stream_options.include_usage)
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

    def whole(self, rows: Mapping[int, Row]) -> dict[str, Any]:
        """The object of an answer that is not streamed."""
        numbered = sorted(rows.items())
        about = {**self._job.about, "sources": self._sources(rows)}
        if rows[0].steps:
            about["trace"] = [_numbered(n, step) for n, row in numbered for step in row.steps]
        return {
            **self._head,
            "object": "chat.completion" if self._is_chat else "text_completion",
            "choices": [
                self._choice(n, row.text or "", row.finish, row.logprobs) for n, row in numbered
            ],
            "usage": self._usage(rows),
            "trueline": about,
        }

    def chunks(self, progress: Progress, *, is_first: bool) -> list[dict[str, Any]]:
        """The chunk for a progress; the first of a chat comes after one with each role.

        The first chunk of all has what is known before the first token.
        """
        row, number, chunks = progress.row, progress.choice, []
        about = dict(self._job.about) if is_first else {}
        if is_first and self._is_chat:
            for n in range(len(self._job.requests)):
                delta = {"role": "assistant", "content": ""}
                blank = {"index": n, "delta": delta, "logprobs": None, "finish_reason": None}
                chunks.append(self._chunk(blank, about=about))
                about = {}
        if steps := row.steps[progress.tokens]:
            about["trace"] = [_numbered(number, step) for step in steps]
        if progress.is_last:
            about["sources"] = self._sources({number: row})
        finish = row.finish if progress.is_last else None
        logprobs = row.logprobs[progress.tokens]
        choice = self._choice(number, progress.text, finish, logprobs, progress.offset)
        if self._is_chat:
            del choice["message"]
            is_empty = progress.is_last and not progress.text
            choice["delta"] = {} if is_empty else {"content": progress.text}
        return [*chunks, self._chunk(choice, about=about)]

    def usage_chunk(self, rows: Mapping[int, Row]) -> dict[str, Any]:
        return {**self._chunk(), "usage": self._usage(rows)}

    def _usage(self, rows: Mapping[int, Row]) -> dict[str, int]:
        read, written = self._job.prompt_tokens, sum(len(one.tokens) for one in rows.values())
        total = read + written
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": total}

    def _sources(self, rows: Mapping[int, Row]) -> list[dict[str, Any]]:
        used = sorted(rows.items()) if self._has_sources else []
        return [_numbered(n, source) for n, row in used for source in row.sources()]

    def _choice(
        self,
        number: int,
        text: str,
        finish: str | None,
        logprobs: Sequence[TokenLogprobs],
        offset: int = 0,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "finish_reason": finish, "logprobs": None}
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        if self._has_logprobs:
            if logprobs and logprobs[-1].token in self._lm.stop_ids:
                logprobs = logprobs[:-1]  # its token is not part of the text
            if self._is_chat:
                content = [self._chat_logprobs(one) for one in logprobs]
                choice["logprobs"] = {"content": content, "refusal": None}
            else:
                choice["logprobs"] = self._completion_logprobs(logprobs, offset)
        return choice

    def _chunk(self, *choices: dict[str, Any], about: object = None) -> dict[str, Any]:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        chunk = {**self._head, "object": name, "choices": choices}
        if self.has_usage:
            chunk["usage"] = None
        return {**chunk, "trueline": about} if about else chunk

    def _chat_logprobs(self, one: TokenLogprobs) -> dict[str, Any]:
        entries = []
        for token, logprob in ((one.token, one.logprob), *one.best):
            (text,) = self._lm.pieces([token])
            encoded = None if _HALF_CHARACTER in text else [*text.encode("utf-8", "replace")]
            entries.append({"token": text, "logprob": logprob, "bytes": encoded})
        return {**entries[0], "top_logprobs": entries[1:]}

    def _completion_logprobs(
        self, logprobs: Sequence[TokenLogprobs], offset: int
    ) -> dict[str, Any]:
        """Of two tokens with the same text, the more probable one is listed."""
        texts = self._lm.pieces([one.token for one in logprobs])
        offsets, best = [], []
        for text, one in zip(texts, logprobs, strict=True):
            offsets.append(offset)
            offset += len(text)
            top: dict[str, float] = {}
            for token, logprob in one.best:  # the most probable first
                top.setdefault(self._lm.pieces([token])[0], logprob)
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


def event(value: object) -> bytes:
    """An object as one event of a stream; numbers that are not finite become null."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
