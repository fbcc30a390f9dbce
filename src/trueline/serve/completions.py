"""The endpoints of chats and completions: answers at once, or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from trueline.decode.loop import Row
from trueline.serve.access import APIError, note_error, to_api_error
from trueline.serve.engine import PendingAnswer, Progress, Service, run_in
from trueline.serve.replies import Reply, event
from trueline.serve.requests import count_answers, prepare
from trueline.serve.schemas import ChatBody, CompletionBody, read_body
from trueline.serve.spaces import Catalog

_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # so that a proxy passes on every chunk at once
}


@dataclass(frozen=True, slots=True)
class Completions:
    """The endpoint of chats or of completions."""

    service: Service
    catalog: Catalog
    kind: type[ChatBody] | type[CompletionBody]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, limits, facts = perf_counter(), self.service.limits, scope["trueline.facts"]
        request = Request(scope, receive)
        body: ChatBody | CompletionBody = await read_body(request, self.kind, limits)
        facts |= {"model": body.model[:200], "stream": bool(body.stream)}
        response = _Response(self.service, self.catalog, body, facts, send, begun)
        with self.service.admit(count_answers(body, limits)):
            work = asyncio.ensure_future(response.run())

            async def cancel_at_disconnect() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                if work.cancel():
                    facts["gone"] = True

            watcher = asyncio.ensure_future(cancel_at_disconnect())
            try:
                await work
            except asyncio.CancelledError:
                if "gone" not in facts:
                    raise
            finally:
                watcher.cancel()


@dataclass(slots=True)
class _Response:
    """The response to one request, from its body to its last byte."""

    service: Service
    catalog: Catalog
    body: ChatBody | CompletionBody
    facts: dict[str, Any]  # for the log
    send: Send
    begun: float
    answers: list[PendingAnswer] = field(default_factory=list)
    is_started: bool = False

    async def run(self) -> None:
        """Answer before the deadline; the last event of a stream may be an error."""
        deadline = self.service.limits.deadline
        try:
            async with asyncio.timeout(deadline):
                await self._answer()
        except ConnectionError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError):
                message = f"no answer within {deadline:g} s"
                error = APIError(504, message, "deadline_passed")
            if not self.is_started:
                raise error from None
            note_error(self.facts, error)
            await self._write(event(to_api_error(error).body()), is_last=True)
        finally:
            for answer in self.answers:
                self.service.engine.cancel(answer)

    async def _answer(self) -> None:
        service, body, facts, begun = self.service, self.body, self.facts, perf_counter()
        work = partial(prepare, self.catalog, service.limits, body)
        job = await run_in(service.scope_pool, work)
        seconds = perf_counter() - begun
        service.metrics.scope.observe(seconds)
        service.metrics.answers.labels(body.model, job.covered).inc(len(job.requests))
        service.metrics.prompt_tokens.inc(job.prompt_tokens)
        logged = ["method", "space", "covered", *(["question"] if service.logs_text else [])]
        facts |= {name: job.about[name] for name in logged}
        facts |= {"scope_ms": round(1000 * seconds, 1), "prompt_tokens": job.prompt_tokens}
        reply = Reply(body, job, service.lm)
        queue: asyncio.Queue[Progress | Exception] = asyncio.Queue()
        for n, request in enumerate(job.requests):
            self.answers.append(PendingAnswer(request, n, queue, bool(body.stream)))
            service.engine.submit(self.answers[n])
        rows: dict[int, Row] = {}  # by choice
        try:
            await self._collect(reply, queue, rows)
        finally:
            facts["completion_tokens"] = sum(len(row.tokens) for row in rows.values())
            if service.logs_text and 0 in rows:
                facts["answer"] = rows[0].text

    async def _collect(
        self, reply: Reply, queue: asyncio.Queue[Progress | Exception], rows: dict[int, Row]
    ) -> None:
        """Take progress until every answer has ended, and send it if it is streamed."""
        running, headers = len(self.answers), {**_STREAM_HEADERS, **reply.headers}
        while running:
            events: list[dict[str, Any]] = []
            arrived = [await queue.get()]
            while not queue.empty():
                arrived.append(queue.get_nowait())
            for progress in arrived:
                if isinstance(progress, Exception):
                    raise progress
                if not rows:
                    seconds = progress.row.first_token_at - self.begun
                    self.service.metrics.first_token.observe(seconds)
                    self.facts["first_token_ms"] = round(1000 * seconds, 1)
                if self.body.stream:
                    events += reply.chunks(progress, is_first=not rows)
                rows[progress.choice] = progress.row
                running -= progress.is_last
            if self.body.stream:
                await self._write(b"".join(map(event, events)), headers)
        if self.body.stream:
            usage = event(reply.usage_chunk(rows)) if reply.has_usage else b""
            await self._write(usage + b"data: [DONE]\n\n", is_last=True)
        else:
            content = msgspec.json.encode(reply.whole(rows))
            headers = {"content-type": "application/json", "content-length": str(len(content))}
            await self._write(content, {**headers, **reply.headers}, is_last=True)

    async def _write(
        self, part: bytes, headers: Mapping[str, str] | None = None, *, is_last: bool = False
    ) -> None:
        """Send a part of the body; the first one sends the headers.

        A client that does not take it in time is disconnected.
        """
        message = {"type": "http.response.body", "body": part, "more_body": not is_last}
        try:
            async with asyncio.timeout(self.service.limits.write_seconds):
                if not self.is_started:
                    self.is_started = True
                    raw = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
                    start = {"type": "http.response.start", "status": 200, "headers": raw}
                    await self.send(start)
                await self.send(message)
        except TimeoutError:
            self.facts["slow_reader"] = True
            raise ConnectionAbortedError("the client does not read") from None
