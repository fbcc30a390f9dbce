"""The endpoints of chats and completions: answers at once, or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

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


class Completions:
    """The endpoint of chats or of completions."""

    def __init__(
        self, service: Service, catalog: Catalog, kind: type[ChatBody] | type[CompletionBody]
    ) -> None:
        self._service, self._catalog, self._kind = service, catalog, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, service, facts = perf_counter(), self._service, scope["trueline.facts"]
        request = Request(scope, receive)
        body: ChatBody | CompletionBody = await read_body(request, self._kind, service.limits)
        facts |= {"model": body.model[:200], "stream": bool(body.stream)}
        response = _Response(service, self._catalog, body, facts, send, begun)
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


class _Response:
    """The response to one request, from its body to its last byte."""

    def __init__(
        self,
        service: Service,
        catalog: Catalog,
        body: ChatBody | CompletionBody,
        facts: dict[str, Any],
        send: Send,
        begun: float,
    ) -> None:
        self._service, self._catalog, self._body = service, catalog, body
        self._facts, self._send, self._begun = facts, send, begun
        self._answers: list[PendingAnswer] = []
        self._is_started = False

    async def run(self) -> None:
        """Answer before the deadline; the last event of a stream may be an error."""
        deadline = self._service.limits.deadline
        try:
            async with asyncio.timeout(deadline):
                await self._answer()
        except ConnectionError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError):
                message = f"no answer within {deadline:g} s"
                error = APIError(504, message, "deadline_passed")
            if not self._is_started:
                raise error from None
            note_error(self._facts, error)
            await self._write(event(to_api_error(error).body()), is_last=True)
        finally:
            for answer in self._answers:
                self._service.engine.cancel(answer)

    async def _answer(self) -> None:
        job = await self._prepare()
        reply = Reply(self._body, job, self._service.lm)
        queue: asyncio.Queue[Progress] = asyncio.Queue()
        is_streamed = bool(self._body.stream)
        for n, request in enumerate(job.requests):
            self._answers.append(PendingAnswer(request, n, queue, is_streamed))
            self._service.engine.submit(self._answers[n])
        choices = [Choice() for _ in self._answers]
        try:
            await self._collect(reply, queue, choices)
        finally:
            usage = reply.usage(choices)
            self._service.metrics.prompt_tokens.inc(usage["prompt_tokens"])
            for name in ("prompt_tokens", "completion_tokens"):
                self._facts[name] = usage[name]
            if self._service.logs_text:
                self._facts["answer"] = choices[0].text

    async def _prepare(self) -> Job:
        service, begun = self._service, perf_counter()
        work = partial(prepare, self._catalog, service.limits, self._body)
        job = await service.in_scope_pool(work)
        seconds = perf_counter() - begun
        service.metrics.scope.observe(seconds)
        service.metrics.answers.labels(self._body.model, job.covered).inc(len(job.requests))
        facts = {"method": job.method, "space": job.space, "covered": job.is_covered}
        self._facts |= {**facts, "scope_ms": round(1000 * seconds, 1)}
        if service.logs_text:
            self._facts["question"] = job.question
        return job

    async def _collect(
        self, reply: Reply, queue: asyncio.Queue[Progress], choices: list[Choice]
    ) -> None:
        """Take progress until every answer has ended, and send it if it is streamed."""
        is_first, is_streamed = True, bool(self._body.stream)
        while any(choice.finish is None for choice in choices):
            arrived = await _take(queue)
            if is_first:
                seconds = arrived[0].first_token_at - self._begun
                self._service.metrics.first_token.observe(seconds)
                self._facts["first_token_ms"] = round(1000 * seconds, 1)
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
        """Send a part of the body; the first one sends the headers."""
        if not self._is_started:
            self._is_started = True
            raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
            await self._put({"type": "http.response.start", "status": 200, "headers": raw})
        await self._put({"type": "http.response.body", "body": part, "more_body": not is_last})

    async def _put(self, message: Message) -> None:
        """Send something; a client that does not take it in time is disconnected."""
        try:
            async with asyncio.timeout(self._service.limits.write_seconds):
                await self._send(message)
        except TimeoutError:
            self._facts["slow_reader"] = True
            raise ConnectionAbortedError("the client does not read") from None
