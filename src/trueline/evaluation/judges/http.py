"""A JSON request in, a JSON response out, with retries, pauses and pace."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import monotonic
from typing import Any, TypeVar
from weakref import finalize

from trueline.errors import SettingError, TruelineError, import_extra

Read = TypeVar("Read")
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How hard a service may be asked."""

    concurrency: int = 8  # requests in flight at once
    per_minute: float | None = None  # requests started a minute; None: as fast as they come
    tries: int = 6  # of one request, before its verdict is given up
    timeout: float = 60.0  # seconds one try may take
    backoff: float = 1.0  # seconds before the second try; twice that before the third
    patience: float = 120.0  # a longer pause, asked for by the service, is not waited for

    def __post_init__(self) -> None:
        for name in ("concurrency", "tries"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise SettingError(f"{name} must be a whole number from 1, got {value!r}")
        if self.per_minute is not None and not self.per_minute > 0:
            raise SettingError(f"per_minute must be above 0, got {self.per_minute}")
        if not (self.timeout > 0 and self.backoff >= 0 and self.patience >= 0):
            raise SettingError(
                "timeout must be above 0, backoff and patience not below it, got "
                f"{self.timeout}, {self.backoff} and {self.patience}"
            )


class Unanswered(Exception):
    """One request got no usable response; says why, and stays inside the judges."""


class _Retry(Exception):
    """One try failed in a way another may not."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause  # seconds the service asked for


@dataclass(frozen=True, slots=True)
class Service:
    """Where requests go and who asks; the key stands in no text this object gives."""

    name: str
    url: str
    headers: Mapping[str, str]
    key: str
    variable: str  # the environment variable the key comes from

    def __repr__(self) -> str:
        return f"Service({self.name!r}, {self.url!r})"

    def hide(self, text: str) -> str:
        """The text without the key, should a service send it back."""
        return text.replace(self.key, "[key]") if self.key else text


class Pace:
    """When the next request may start, for all threads of one judge."""

    def __init__(self, per_minute: float | None) -> None:
        self._spacing = 60 / per_minute if per_minute else 0.0
        self._lock, self._next, self._held = threading.Lock(), 0.0, 0.0
        self.stopped = threading.Event()

    def wait(self) -> None:
        """Sleep until it is this request's turn; raises Unanswered once all is stopped."""
        self.sleep(0)
        while (rest := self._take_turn()) > 0:
            self.sleep(rest)

    def _take_turn(self) -> float:
        """Take the next turn if it has come, else say in how many seconds it will have."""
        with self._lock:
            now = monotonic()
            if (rest := max(self._next, self._held) - now) <= 0:
                self._next = now + self._spacing
            return rest

    def hold(self, seconds: float) -> None:
        """Let nobody start for a while: the service asked for it."""
        with self._lock:
            self._held = max(self._held, monotonic() + seconds)

    def sleep(self, seconds: float) -> None:
        """Wait, unless all is stopped meanwhile."""
        if self.stopped.wait(seconds):
            raise Unanswered("stopped before it was asked")


class Sender:
    """Sends requests to one service, from any number of threads; it ends with its owner."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service, self.limits, self.pace = service, limits, Pace(limits.per_minute)
        self._client = _open_client(service, limits)
        finalize(self, self._client.close)

    def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], Read]) -> Read:
        """What is read from a service's response; Unanswered when it cannot be had.

        A refused key or an address that does not exist would fail every time: TruelineError.
        """
        for attempt in range(1, self.limits.tries + 1):
            self.pace.wait()
            try:
                return self._try(path, body, read)
            except _Retry as failed:
                self._pause(failed, attempt)
        raise AssertionError("the last try either returns or raises")

    def _pause(self, failed: _Retry, attempt: int) -> None:
        """Wait before the next try, if there is one."""
        if attempt == self.limits.tries:
            raise Unanswered(f"{failed} (tried {attempt} times)") from failed
        if failed.pause is None:
            # Jitter: requests that failed together do not come back together.
            self.pace.sleep(self.limits.backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
        elif failed.pause > self.limits.patience:
            raise Unanswered(f"{failed} (asked to wait {failed.pause:.0f} s)") from failed
        else:
            self.pace.hold(failed.pause)

    def _try(self, path: str, body: Mapping[str, Any], read: Callable[[Any], Read]) -> Read:
        import httpx2

        service = self.service
        try:
            response = self._client.post(
                service.url + path, json=dict(body), headers=dict(service.headers)
            )
        except httpx2.TimeoutException:
            raise _Retry(f"no response within {self.limits.timeout:g} s") from None
        except httpx2.TransportError as error:
            kind = type(error).__name__
            raise _Retry(service.hide(f"the connection failed ({kind}: {error})")) from None
        self._check(response.status_code, response.text, response.headers.get("retry-after"))
        try:
            return read(json.loads(response.text))
        except (ValueError, LookupError, TypeError, AttributeError):
            told = service.hide(response.text)[:80]
            raise _Retry(f"the response is not of this API's form: {told!r}") from None

    def _check(self, status: int, raw: str, retry_after: str | None) -> None:
        service, text = self.service, self.service.hide(raw)
        # Gemini calls a key it does not know a bad request.
        if status in (401, 403) or (status == 400 and "API_KEY_INVALID" in raw):
            raise TruelineError(
                f"{service.name} at {service.url} refused the key (HTTP {status}); set "
                f"{service.variable} to one that is valid and may use this model"
            )
        if status == 404:
            raise SettingError(
                f"{service.name} at {service.url} does not know the model or address (HTTP "
                f"404); check the name of the judge: {text[:200]!r}"
            )
        if status in _RETRIED:
            raise _Retry(f"HTTP {status}: {text[:200]!r}", _seconds(retry_after))
        if status != 200:
            raise Unanswered(f"HTTP {status}: {text[:200]!r}")


def _seconds(retry_after: str | None) -> float | None:
    """The pause a retry-after header asks for: seconds, or an HTTP date."""
    if not retry_after:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _open_client(service: Service, limits: Limits) -> Any:
    httpx2 = import_extra("httpx2", "a judge behind an API", "judge")
    try:
        httpx2.URL(service.url)
    except httpx2.InvalidURL as error:
        raise SettingError(f"{service.url!r} is no address ({error})") from error
    pool = httpx2.Limits(max_connections=limits.concurrency)
    return httpx2.Client(timeout=limits.timeout, limits=pool)
