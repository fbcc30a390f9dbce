"""The endpoints of chats and completions: answers at once, or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from trueline.serve.access import APIError, note_error, to_api_error
from trueline.serve.engine import PendingAnswer, Progress, Service
from trueline.serve.replies import Choice, Reply, event
from trueline.serve.requests import Job, count_answers, prepare
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
        begun, service, facts = perf_counter(), self.service, scope["trueline.facts"]
        request = Request(scope, receive)
        body: ChatBody | CompletionBody = await read_body(request, self.kind, service.limits)
        facts |= {"model": body.model[:200], "stream": bool(body.stream)}
        response = _Response(service, self.catalog, body, facts, send, begun)
        with service.admit(count_answers(body, service.limits)):
            await _unless_disconnected(receive, response.run(), facts)


async def _unless_disconnected(
    receive: Receive, work: Awaitable[None], facts: dict[str, Any]
) -> None:
    """Do something, and stop if the client leaves."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(one) for one in (work, disconnected())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        else:
            facts["gone"] = True
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _take(queue: asyncio.Queue[Progress]) -> list[Progress]:
    """All progress that has arrived, at least one."""
    arrived = [await queue.get()]
    while not queue.empty():
        arrived.append(queue.get_nowait())
    for progress in arrived:
        if progress.error is not None:
            raise progress.error
    return arrived


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
        job = await self._prepare()
        reply = Reply(self.body, job, self.service.lm)
        queue: asyncio.Queue[Progress] = asyncio.Queue()
        is_streamed = bool(self.body.stream)
        for n, request in enumerate(job.requests):
            self.answers.append(PendingAnswer(request, n, queue, is_streamed))
            self.service.engine.submit(self.answers[n])
        choices = [Choice() for _ in self.answers]
        try:
            await self._collect(reply, queue, choices)
        finally:
            usage = reply.usage(choices)
            self.service.metrics.prompt_tokens.inc(usage["prompt_tokens"])
            for name in ("prompt_tokens", "completion_tokens"):
                self.facts[name] = usage[name]
            if self.service.logs_text:
                self.facts["answer"] = choices[0].text

    async def _prepare(self) -> Job:
        service, begun = self.service, perf_counter()
        work = partial(prepare, self.catalog, service.limits, self.body)
        job = await service.in_scope_pool(work)
        seconds = perf_counter() - begun
        service.metrics.scope.observe(seconds)
        service.metrics.answers.labels(self.body.model, job.covered).inc(len(job.requests))
        logged = ["method", "space", "covered", *(["question"] if service.logs_text else [])]
        self.facts |= {name: job.about[name] for name in logged}
        self.facts["scope_ms"] = round(1000 * seconds, 1)
        return job

    async def _collect(
        self, reply: Reply, queue: asyncio.Queue[Progress], choices: list[Choice]
    ) -> None:
        """Take progress until every answer has ended, and send it if it is streamed."""
        is_first, is_streamed = True, bool(self.body.stream)
        while any(choice.finish is None for choice in choices):
            arrived = await _take(queue)
            if is_first:
                seconds = arrived[0].first_token_at - self.begun
                self.service.metrics.first_token.observe(seconds)
                self.facts["first_token_ms"] = round(1000 * seconds, 1)
            events = reply.first_chunks() if is_first else []
            for progress in arrived:
                choice = choices[progress.choice]
                if is_streamed:
                    chunk = reply.chunk(progress, len(choice.text), is_first=is_first)
                    events.append(chunk)
                choice.add(progress)
                is_first = False
            if is_streamed:
                headers = {**_STREAM_HEADERS, **reply.headers}
                await self._write(b"".join(map(event, events)), headers)
        if is_streamed:
            last = b"".join(map(event, reply.last_chunks(choices))) + b"data: [DONE]\n\n"
            await self._write(last, is_last=True)
        else:
            content = msgspec.json.encode(reply.whole(choices))
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
