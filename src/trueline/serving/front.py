"""The door of a server: who may come in, what is written down, how a refusal leaves."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from secrets import token_hex
from time import perf_counter
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trueline.serving.keys import Role
from trueline.serving.refusals import Refusal, refusal_of
from trueline.serving.service import Service, json_bytes
from trueline.serving.watching import Record

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
