"""Requests for chats and completions in, answers out, whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from secrets import token_hex
from time import perf_counter, time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from trueline.serve.access import Refusal, refusal_of
from trueline.serve.engine import Line, Mailbox, Progress
from trueline.serve.metrics import Record
from trueline.serve.replies import DONE, Choice, Kind, Reply, event
from trueline.serve.requests import Asked, prepare_chat, prepare_completion, rows_of
from trueline.serve.schemas import ChatBody, CompletionBody, parse
from trueline.serve.service import Service, read_body

_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # a proxy is to hand on every piece at once
}


class Completions:
    """The endpoint of chats or of completions: one request in, one answer out."""

    def __init__(self, service: Service, kind: Kind) -> None:
        self._service, self._kind = service, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; a client that goes takes its rows with it."""
        begun = perf_counter()
        service, record = self._service, scope["trueline.record"]
        content = await read_body(Request(scope, receive), service.limits)
        body: ChatBody | CompletionBody
        if self._kind == "chat":
            body = parse(content, ChatBody)
        else:
            body = parse(content, CompletionBody)
        record.facts |= {"model": body.model[:200], "stream": bool(body.stream)}
        answer = _Answer(service, self._kind, body, record, send, begun)
        with service.admitted(rows_of(body, service.limits)):
            await _unless_gone(receive, answer.run(), record)


async def _unless_gone(receive: Receive, work: Awaitable[None], record: Record) -> None:
    """Do something unless the client leaves first."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            record.facts["gone"] = True
            return
        doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Answer:
    """One request on its way from body to answer."""

    def __init__(
        self,
        service: Service,
        kind: Kind,
        body: ChatBody | CompletionBody,
        record: Record,
        send: Send,
        begun: float,
    ) -> None:
        self._service, self._kind, self._body = service, kind, body
        self._record, self._send, self._begun = record, send, begun
        self._lines: list[Line] = []
        self._is_started = False

    async def run(self) -> None:
        """Answer within the deadline, or say that it has passed."""
        limits = self._service.limits
        try:
            async with asyncio.timeout(limits.deadline):
                await self._answer()
        except TimeoutError:
            late = Refusal(
                504, f"there was no answer within {limits.deadline:g} s", code="deadline_passed"
            )
            await self._fail(late)
        except Exception as error:  # of the engine, or of the way to the client
            if isinstance(error, ConnectionError) or not self._is_started:
                raise
            self._record.error = error
            await self._fail(refusal_of(error))
        finally:
            for line in self._lines:
                self._service.engine.cancel(line)

    async def _answer(self) -> None:
        body, service = self._body, self._service
        asked = await self._prepare()
        reply = self._reply(asked)
        mailbox = Mailbox()
        self._lines = [
            Line(request, number, mailbox, bool(body.stream))
            for number, request in enumerate(asked.requests)
        ]
        for line in self._lines:
            service.engine.submit(line)
        choices = [Choice() for _ in self._lines]
        try:
            await self._collect(reply, mailbox, choices)
        finally:
            self._note(reply, choices)

    async def _prepare(self) -> Asked:
        service, body, begun = self._service, self._body, perf_counter()
        parts = service.catalog, service.limits
        if isinstance(body, ChatBody):
            found = await service.apart(partial(prepare_chat, *parts, body))
        else:
            found = await service.apart(partial(prepare_completion, *parts, body))
        asked = found if isinstance(found, Asked) else await service.with_model(found)
        took = perf_counter() - begun
        service.watch.scope.observe(took)
        covered = {True: "true", False: "false", None: "none"}[asked.covered]
        service.watch.coverage.labels(body.model, covered).inc(len(asked.requests))
        self._record.facts |= {
            "method": asked.method,
            "space": asked.space,
            "covered": asked.covered,
            "scope_ms": round(1000 * took, 1),
        }
        if service.logs_text:
            self._record.facts["question"] = asked.question
        return asked

    def _reply(self, asked: Asked) -> Reply:
        body = self._body
        options = body.stream_options
        return Reply(
            self._kind,
            f"{'chatcmpl' if self._kind == 'chat' else 'cmpl'}-{token_hex(12)}",
            int(time()),
            body.model,
            asked,
            self._service.catalog.lm,
            has_sources=body.trueline.sources,
            has_usage=bool(options and options.include_usage),
        )

    async def _collect(self, reply: Reply, mailbox: Mailbox, choices: list[Choice]) -> None:
        """Take pieces until every answer has ended, and send what was asked for."""
        is_streamed = bool(self._body.stream)
        is_first = True
        while any(choice.finish is None for choice in choices):
            pieces = await mailbox.take()
            if failed := next((one.error for one in pieces if one.error), None):
                raise failed
            parts = []
            if is_first:
                self._time_first_token(pieces[0])
                parts = [event(one) for one in reply.opening()]
            for piece in pieces:
                parts.append(self._piece(reply, piece, choices[piece.choice], is_first))
                is_first = False
            if is_streamed:
                await self._stream(b"".join(parts), reply)
        if is_streamed:
            await self._stream(b"".join([*map(event, reply.closing(choices)), DONE]), reply)
            await self._put({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self._respond(200, reply.whole(choices), reply.headers)

    def _piece(self, reply: Reply, piece: Progress, choice: Choice, is_first: bool) -> bytes:
        """Take in a piece; the event that tells of it, if the answer is streamed."""
        made = b""
        if self._body.stream:
            made = event(reply.chunk(piece, len(choice.text), is_first=is_first))
        choice.add(piece)
        return made

    def _time_first_token(self, piece: Progress) -> None:
        took = piece.first_token_at - self._begun
        self._service.watch.first_token.observe(took)
        self._record.facts["first_token_ms"] = round(1000 * took, 1)

    def _note(self, reply: Reply, choices: list[Choice]) -> None:
        usage = reply.usage(choices)
        self._service.watch.prompt_tokens.inc(usage["prompt_tokens"])
        self._record.facts |= {k: v for k, v in usage.items() if k != "total_tokens"}
        if self._service.logs_text:
            self._record.facts["answer"] = choices[0].text

    async def _stream(self, part: bytes, reply: Reply) -> None:
        if not self._is_started:
            self._is_started = True
            headers = {**_STREAM_HEADERS, **reply.headers}
            await self._put(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
                }
            )
        await self._put({"type": "http.response.body", "body": part, "more_body": True})

    async def _put(self, message: Message) -> None:
        """Send something; who does not take it in time is let go."""
        try:
            async with asyncio.timeout(self._service.limits.write_seconds):
                await self._send(message)
        except TimeoutError:
            self._record.facts["slow_reader"] = True
            raise ConnectionAbortedError("the client does not read") from None

    async def _respond(
        self, status: int, value: object, headers: dict[str, str] | None = None
    ) -> None:
        self._is_started = True
        body = msgspec.json.encode(value)
        response = Response(body, status, headers, "application/json")
        for message in _messages(response):
            await self._put(message)

    async def _fail(self, refusal: Refusal) -> None:
        """Say that it failed: by the status, or as the last event of a stream."""
        if not self._is_started:
            raise refusal
        self._record.facts["error"] = refusal.code
        last = event(refusal.body())
        await self._put({"type": "http.response.body", "body": last, "more_body": True})
        await self._put({"type": "http.response.body", "body": b"", "more_body": False})


def _messages(response: Response) -> list[Message]:
    """A response as the messages that send it."""
    return [
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        },
        {"type": "http.response.body", "body": bytes(response.body), "more_body": False},
    ]
