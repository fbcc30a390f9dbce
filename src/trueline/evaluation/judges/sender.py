"""A question as JSON -> what is read from the response, with retries, pauses and pace."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from trueline.errors import SettingError, TruelineError
from trueline.evaluation.judges.http import ConnectionFailed, Connections, Received
from trueline.evaluation.judges.keys import Key
from trueline.evaluation.judges.pace import JudgeClock, Limits, Pace, Stopped

Read = TypeVar("Read")
HIDDEN = "(this text showed the key and was not kept)"
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class Unanswered(Exception):
    """One request got no usable response; says why, and stays inside the judges."""


class _Retry(Exception):
    """One try failed in a way another may not."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause  # seconds the service asked for


@dataclass(frozen=True, slots=True)
class Service:
    """Where requests go and who sends them; no text this object gives shows the key."""

    name: str
    url: str
    headers: Mapping[str, str]
    key: Key | None
    set_key: str  # what a person has to do to give it one

    def __repr__(self) -> str:
        return f"Service({self.name!r}, {self.url!r})"

    def without_key(self, text: str) -> str:
        """The text, unless it shows the key: a service may send it back, however spelled."""
        return HIDDEN if self.key and self.key.is_in(text) else text


class Sender:
    """Sends requests to one service, from any number of threads."""

    def __init__(self, service: Service, limits: Limits, clock: JudgeClock) -> None:
        self.service, self.limits = service, limits
        self._clock, self._pace = clock, Pace(limits.per_minute, clock)
        self._connections = Connections(
            service.url, concurrency=limits.concurrency, clock=clock
        )

    def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], Read]) -> Read:
        """What is read from a service's response; Unanswered when it cannot be had.

        A refused key or an address that does not exist would fail every time: TruelineError,
        and no other thread begins a request.
        """
        try:
            for attempt in range(1, self.limits.tries + 1):
                self._pace.wait_turn()
                try:
                    return self._try(path, body, read)
                except _Retry as failed:
                    self._pause(failed, attempt)
        except Stopped as stopped:
            raise Unanswered(str(stopped)) from None
        except TruelineError:
            self.stop()
            raise
        raise AssertionError("the last try either returns or raises")

    def stop(self) -> None:
        """Begin no request any more; those in flight still end."""
        self._pace.stop()

    def resume(self) -> None:
        """Begin requests again."""
        self._pace.resume()

    def _pause(self, failed: _Retry, attempt: int) -> None:
        """Wait before the next try, if there is one."""
        if attempt == self.limits.tries:
            raise Unanswered(f"{failed} (tried {attempt} times)") from failed
        if failed.pause is None:
            # Jitter: requests that failed together do not come back together.
            pause = self.limits.backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
            self._pace.wait(min(pause, self.limits.patience))
        elif failed.pause > self.limits.patience:
            raise Unanswered(f"{failed} (asked to wait {failed.pause:.0f} s)") from failed
        else:
            self._pace.pause_all(failed.pause)

    def _try(self, path: str, body: Mapping[str, Any], read: Callable[[Any], Read]) -> Read:
        service, timeout = self.service, self.limits.timeout
        try:
            received = self._connections.post(path, body, service.headers, timeout)
        except TimeoutError:
            raise _Retry(f"no response within {timeout:g} s") from None
        except ConnectionFailed as failed:
            raise _Retry(service.without_key(str(failed))) from None
        self._check(received)
        try:
            return read(json.loads(received.body.decode("utf-8-sig")))
        # Deep nesting is a RecursionError; the others are values of a wrong type or form.
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            start = service.without_key(received.text)[:80]
            raise _Retry(f"the response is not of this API's form: {start!r}") from None

    def _check(self, received: Received) -> None:
        service, status = self.service, received.status
        start = service.without_key(received.text)[:200] if status != 200 else ""
        # Gemini calls a key it does not know a bad request.
        if status in (401, 403) or (status == 400 and "API_KEY_INVALID" in received.text):
            if service.key is None:
                refused, advice = "wants a key, and none was sent", service.set_key
            else:
                refused = "refused the key"
                advice = f"set {service.key.variable} to one that may use this model"
            raise TruelineError(
                f"{service.name} at {service.url} {refused} (HTTP {status}); {advice}"
            )
        if status == 404:
            raise SettingError(
                f"{service.name} at {service.url} does not know the model or address (HTTP "
                f"404); check the name of the judge: {start!r}"
            )
        if status in _RETRIED:
            pause = _pause_in(received.retry_after, self._clock.date())
            raise _Retry(f"HTTP {status}: {start!r}", pause)
        if status != 200:
            raise Unanswered(f"HTTP {status}: {start!r}")


def _pause_in(retry_after: str | None, now: datetime) -> float | None:
    """The seconds a retry-after header asks for; it holds seconds or an HTTP date."""
    if not retry_after:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):  # no date, or one in the year 10^30
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())
