"""What the endpoints of a server share: the catalog, the engine, the pool, who may come in."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from math import ceil
from os import cpu_count
from secrets import token_hex
from time import perf_counter, time
from typing import Any, TypeVar

import torch
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trueline.serve.access import Keys, Refusal, Role, refusal_of
from trueline.serve.catalog import Catalog
from trueline.serve.engine import EngineThread
from trueline.serve.metrics import Log, Record, Watch
from trueline.serve.schemas import Limits

Made = TypeVar("Made")
_LEAST, _MOST = 1, 60  # seconds a client is told to wait
_CLOSE = {"connection": "close"}  # what is left of a body is not waited for


class Service:
    """One server's parts, from its start to its end."""

    def __init__(
        self, catalog: Catalog, limits: Limits, keys: Keys, log: Log, *, logs_text: bool
    ) -> None:
        self.catalog, self.limits, self.keys = catalog, limits, keys
        self.log, self.logs_text = log, logs_text
        self.watch = Watch()
        self.engine = EngineThread(catalog.lm, limits, self.watch.on_step, self._log_failure)
        self.is_draining = False
        self._rows = 0  # answers that are prepared, wait or run
        self._usual_seconds = 1.0  # of a request, smoothed; for Retry-After
        self._scope_pool: ThreadPoolExecutor | None = None
        self._space_pool: ThreadPoolExecutor | None = None

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Start the engine's thread and the pool; end them at shutdown."""
        workers = max(1, min(4, (cpu_count() or 1) // 2))
        threads = torch.get_num_threads()
        self._scope_pool = ThreadPoolExecutor(workers, "trueline-scope", _begin_worker)
        self._space_pool = ThreadPoolExecutor(1, "trueline-space", _begin_worker)
        for pool in (self._scope_pool, self._space_pool):
            pool.submit(int).result()
        torch.set_num_threads(threads)  # what a worker sets holds for threads yet to come, too
        self.engine.start(asyncio.get_running_loop())
        try:
            yield
        finally:
            self.engine.stop()
            for pool in (self._scope_pool, self._space_pool):
                pool.shutdown(wait=False, cancel_futures=True)

    async def apart(self, work: Callable[[], Made]) -> Made:
        """Do what a request needs before it joins the loop, in the pool for that."""
        assert self._scope_pool is not None
        return await asyncio.get_running_loop().run_in_executor(self._scope_pool, work)

    async def on_spaces(self, work: Callable[[], Made]) -> Made:
        """Search or change a space, one after the other; no scope waits for that."""
        assert self._space_pool is not None
        return await asyncio.get_running_loop().run_in_executor(self._space_pool, work)

    async def with_model(self, job: Callable[[], Made]) -> Made:
        """Do something with the model, in the engine's thread between two steps."""
        done: Made = await asyncio.wrap_future(self.engine.run(job))
        return done

    @contextmanager
    def admitted(self, rows: int) -> Iterator[None]:
        """Take on some answers, or refuse them while too many wait."""
        limits = self.limits
        if self.is_draining:
            raise Refusal(
                503,
                "the server is shutting down",
                code="shutting_down",
                headers={"retry-after": "5", "connection": "close"},
            )
        if self._rows + rows > limits.rows + limits.queue:
            ahead = (self._rows + rows) / limits.rows
            seconds = min(_MOST, max(_LEAST, ceil(ahead * self._usual_seconds)))
            raise Refusal(
                429,
                f"{self._rows} answers are running or waiting, and no more are taken on; try "
                f"again in about {seconds} s",
                code="queue_full",
                headers={"retry-after": str(seconds)},
            )
        self._rows += rows
        begun = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._rows -= rows
            took = asyncio.get_running_loop().time() - begun
            self._usual_seconds += 0.1 * (took - self._usual_seconds)

    def _log_failure(self, error: BaseException) -> None:
        told = "".join(traceback.format_exception(error))
        self.log({"time": round(time(), 3), "server": "the engine ended", "trace": told})

    def refresh_gauges(self) -> None:
        """Bring up to date what is looked at, not counted."""
        self.watch.running.set(self.engine.running)
        self.watch.waiting.set(max(0, self._rows - self.engine.running))
        for name, served in self.catalog.spaces.items():
            self.watch.stale.labels(name).set(1 if served.trouble else 0)


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request; too large, too slow or half sent, it is refused."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != (
        "application/json"
    ):  # also keeps forms of foreign pages out: a browser asks first for this type
        raise Refusal(
            415, "the body must be JSON: send Content-Type: application/json", code="not_json"
        )
    too_large = Refusal(
        413,
        f"the body may have {limits.body_bytes} bytes",
        code="body_too_large",
        headers=_CLOSE,
    )
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limits.body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                body += part
                if len(body) > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        raise Refusal(
            408,
            f"the body did not arrive within {limits.body_seconds:g} s",
            code="slow_body",
            headers=_CLOSE,
        ) from None
    except ClientDisconnect:
        raise Refusal(400, "the body ended too early", code="half_body") from None
    return bytes(body)


def _begin_worker() -> None:
    torch.get_num_threads()  # torch reads its default at first use, and would do so later
    torch.set_num_threads(1)


def json_bytes(value: Any) -> bytes:
    """A value as JSON; what is not finite is null."""
    import msgspec

    return msgspec.json.encode(value)


_GONE = 499  # what nginx calls a client that left before its answer
_OPEN = ("/", "/health", "/ready")  # answered without a key
_ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Front:
    """Checks the host and the key, gives every request a name, and logs it in one line."""

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        hosts: Collection[str] | None,
        routes: Collection[str],
    ) -> None:
        self._app, self._service = app, service
        self._hosts, self._routes = hosts, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, and see it out."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(f"req-{token_hex(8)}")
        scope["trueline.record"] = record
        begun, way_out = perf_counter(), _WayOut(send, record.id)
        try:
            self._let_in(scope)
            await self._app(scope, receive, way_out)
        except ConnectionError:  # the client has left, or was let go
            pass
        except Exception as error:
            refusal = refusal_of(error)
            record.facts["error"] = refusal.code or type(error).__name__
            if refusal.status >= 500 and not isinstance(error, Refusal):
                record.error = error
            if not way_out.status:
                await _refuse(refusal, scope, receive, way_out)
        finally:
            self._log(scope, record, way_out.status, perf_counter() - begun)

    def _let_in(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            raise Refusal(421, "this server does not answer to that host", code="wrong_host")
        scope["trueline.role"] = self._role(headers)
        keys = self._service.keys
        if keys.has("user") and scope["trueline.role"] is None and scope["path"] not in _OPEN:
            raise unauthorized()

    def _role(self, headers: Headers) -> Role | None:
        """Whose key came with a request; a wrong one is refused where keys are wanted."""
        kind, _, key = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not key:
            return None
        role = self._service.keys.role_of(key.strip())
        if role is None and self._service.keys.has("user"):
            raise unauthorized()
        return role

    def _log(self, scope: Scope, record: Record, status: int, took: float) -> None:
        path, status = scope["path"], status or _GONE
        route = scope.get("route")
        name = getattr(route, "path", None) or (path if path in self._routes else "other")
        watch = self._service.watch
        watch.requests.labels(name, str(status)).inc()
        if "model" in record.facts:
            watch.whole.observe(took)
        facts: dict[str, Any] = {
            "time": round(record.begun, 3),
            "id": record.id,
            "request": f"{scope['method'][:10]} {name}",
            "status": status,
            "ms": round(1000 * took, 1),
            **record.facts,
        }
        if record.error is not None:  # in the log alone
            facts["trace"] = "".join(traceback.format_exception(record.error))[-4000:]
        self._service.log(facts)


class _WayOut:
    """Sends on what an endpoint sends, with the headers that every response has."""

    def __init__(self, send: Send, id: str) -> None:
        self._send, self._id = send, id
        self.status = 0  # nothing was sent yet

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._id
            for name, value in _ALWAYS.items():
                headers.setdefault(name, value)
        await self._send(message)


def unauthorized(what: str = "this server wants a key") -> Refusal:
    """What is said to who has no key that fits."""
    return Refusal(
        401,
        f"{what}: send Authorization: Bearer <key>",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def need_admin(scope: Scope) -> None:
    """Refuse who is no admin."""
    if scope["trueline.role"] != "admin":
        if scope["trueline.role"] is None:
            raise unauthorized("changing a space needs an admin's key")
        raise Refusal(403, "this needs an admin's key", code="not_admin")


def _host(header: str) -> str:
    """The name in a Host header, without the port."""
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0].lower()


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    response = Response(
        json_bytes(refusal.body()),
        refusal.status,
        refusal.headers,
        "application/json",
    )
    await response(scope, receive, send)
