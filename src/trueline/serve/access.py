"""Who may send requests: host names and keys. Errors, as OpenAI's error object. The log."""

from __future__ import annotations

import errno
import hashlib
import re
import secrets
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, time
from typing import Any, Literal

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trueline.errors import ExampleError, SettingError, SpaceConflictError, SpaceError
from trueline.files import read_text
from trueline.serve.metrics import Log, Metrics

Role = Literal["user", "admin"]
VARIABLES: Mapping[str, Role] = {"TRUELINE_API_KEY": "user", "TRUELINE_ADMIN_KEY": "admin"}
_SHORTEST_KEY = 20  # characters; a shorter key can be guessed from its hash
_KEY_LINE = re.compile(r"(user|admin)\s+sha256:([0-9a-f]{64})(?:\s.*)?")
_PUBLIC_PATHS = ("/", "/health", "/ready")  # need no key
_SAFE_HEADERS = {  # no guessed types, no address of a page for other sites, no frames
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
_CLIENT_LEFT = 499  # nginx's status for a client that left before its answer
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class APIError(Exception):
    """An error that the client is shown."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] | None = None

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _ERROR_TYPES.get(self.status, usual)
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(param: str, message: str) -> APIError:
    """The error for a parameter with a value that it cannot have."""
    return APIError(400, f"{param}: {message}", "invalid_value", param)


def to_api_error(error: Exception) -> APIError:
    """The error that the client is shown; the details of a server's fault are only logged."""
    cause: BaseException | None = error
    while cause is not None and getattr(cause, "errno", None) not in _DISK_FULL:
        cause = cause.__cause__
    match error:
        case APIError():
            return error
        case HTTPException():  # Starlette's own: no such path, or not with this HTTP method
            code = error.detail.lower().replace(" ", "_")
            return APIError(error.status_code, error.detail, code, headers=error.headers)
        case SettingError() | ExampleError():
            return APIError(400, str(error), "invalid_value")
        case _ if cause is not None:
            return APIError(507, "the disk is full; nothing was changed", "no_room")
        case SpaceConflictError():
            message = "another change of the space came first; try again"
            return APIError(409, message, "space_conflict")
        case SpaceError():
            message = "the space on disk cannot be used; the server's log has the reason"
            return APIError(503, message, "space_unavailable")
    return APIError(500, "internal server error; the server's log has the reason")


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response in JSON; numbers that are not finite become null."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


@dataclass(frozen=True, slots=True)
class Keys:
    """A server's keys, by their hashes. Without a user's key, requests need none."""

    roles: Mapping[str, Role] = field(default_factory=dict)

    def has(self, role: Role) -> bool:
        return role in self.roles.values()

    def role_of(self, key: str) -> Role | None:
        return self.roles.get(_hash(key))

    def also(self, role: Role, key: str) -> Keys:
        """These keys and one more."""
        return Keys({**self.roles, _hash(key): role})


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def new_key(role: Role) -> tuple[str, str]:
    """A random key, and its line for the key file."""
    key = f"tl-{role}-{secrets.token_urlsafe(32)}"
    return key, f"{role} sha256:{_hash(key)}"


def read_keys(path: Path | None, environment: Mapping[str, str]) -> Keys:
    """The keys of a key file and of the environment; error messages contain no key."""
    roles: dict[str, Role] = {}
    lines = [] if path is None else read_text(path, "the key file").splitlines()
    for number, line in enumerate(map(str.strip, lines), 1):
        if match := _KEY_LINE.fullmatch(line):
            roles[match[2]] = "admin" if match[1] == "admin" else "user"
        elif line and not line.startswith("#"):
            raise SettingError(
                f"{path}:{number} is not the hash of a key; a line is `user sha256:<64 hex "
                "digits>`, as `trueline serve --new-key user` prints it"
            )
    for variable, role in VARIABLES.items():
        if key := environment.get(variable):
            if len(key) < _SHORTEST_KEY:
                raise SettingError(
                    f"the key in {variable} has {len(key)} characters and needs "
                    f"{_SHORTEST_KEY}; make one with `trueline serve --new-key {role}`"
                )
            roles[_hash(key)] = role
    return Keys(roles)


def _unauthorized(problem: str) -> APIError:
    headers = {"www-authenticate": "Bearer"}
    message = f"{problem}: send Authorization: Bearer <key>"
    return APIError(401, message, "invalid_api_key", headers=headers)


def need_admin(scope: Scope) -> None:
    """Refuse a request that came without an admin's key."""
    if scope["trueline.role"] is None:
        raise _unauthorized("changing a space needs an admin's key")
    if scope["trueline.role"] != "admin":
        raise APIError(403, "this needs an admin's key", "not_admin")


@dataclass(frozen=True, slots=True)
class AccessMiddleware:
    """Checks host and key of every request, gives it an id, and logs it in one line.

    Endpoints add to `scope["trueline.facts"]` what the log should have.
    """

    app: ASGIApp
    keys: Keys
    hosts: Collection[str] | None  # None: any
    paths: Collection[str]  # of the routes; other paths are counted together
    metrics: Metrics
    log: Log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, begun, status = time(), perf_counter(), 0
        facts: dict[str, Any] = {"id": f"req-{secrets.token_hex(8)}"}
        scope["trueline.facts"] = facts

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {"x-request-id": facts["id"], **_SAFE_HEADERS}
                MutableHeaders(scope=message).update(headers)
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, send_with_headers)
        except ConnectionError:  # the client left, or does not read
            pass
        except Exception as error:
            note_error(facts, error)
            if not status:
                shown = to_api_error(error)
                response = json_response(shown.body(), shown.status, shown.headers)
                await response(scope, receive, send_with_headers)
        finally:
            status, seconds = status or _CLIENT_LEFT, perf_counter() - begun
            path = scope["path"] if scope["path"] in self.paths else "other"
            route = getattr(scope.get("route"), "path", path)
            self.metrics.requests.labels(route, str(status)).inc()
            if "model" in facts:
                self.metrics.request.observe(seconds)
            request = f"{scope['method'][:10]} {route}"
            line = {"time": round(started, 3), "request": request, "status": status}
            self.log({**line, "ms": round(1000 * seconds, 1), **facts})

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        name = host.partition("]")[0] + "]" if host[:1] == "[" else host.partition(":")[0]
        if self.hosts is not None and name not in self.hosts:
            raise APIError(421, "this server does not have that host name", "wrong_host")
        kind, _, key = headers.get("authorization", "").partition(" ")
        role = self.keys.role_of(key.strip()) if kind.lower() == "bearer" else None
        scope["trueline.role"] = role
        is_public = scope["path"] in _PUBLIC_PATHS or not self.keys.has("user")
        if role is None and not is_public:
            raise _unauthorized("this server needs a key")


def note_error(facts: dict[str, Any], error: Exception) -> None:
    """Add an error to the facts of a request for the log, a bug with its traceback."""
    shown = to_api_error(error)
    facts["error"] = shown.code or type(error).__name__
    if shown.status >= 500 and shown is not error:
        facts["trace"] = format_trace(error)


def format_trace(error: BaseException) -> str:
    """The end of the traceback of an error."""
    return "".join(traceback.format_exception(error))[-4000:]
