"""Limits and a clock -> when each request to a service may start."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from trueline.settings import Between, check_values

_DAY = 86_400.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How hard a service may be asked."""

    concurrency: Annotated[int, Between(1, 1000)] = 8  # requests in flight at once
    # Requests started in a minute; None: as fast as they come.
    per_minute: Annotated[float, Between(0.001, 1e9)] | None = None
    tries: Annotated[int, Between(1, 100)] = 6  # of one request, before its verdict is given up
    # Seconds one whole try may take.
    timeout: Annotated[float, Between(0, _DAY, above=True)] = 60.0
    # Seconds before the second try; twice that before the third.
    backoff: Annotated[float, Between(0, _DAY)] = 1.0
    # Seconds of the longest pause; a service that asks for a longer one is not waited for.
    patience: Annotated[float, Between(0, _DAY)] = 120.0

    def __post_init__(self) -> None:
        check_values(Limits, asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeClock:
    """How time is read, waited for and limited; tests give one that costs no time."""

    now: Callable[[], float] = time.monotonic  # seconds since a fixed moment
    date: Callable[[], datetime] = lambda: datetime.now(UTC)
    # Waits until the event is set, at most so many seconds; True if it is set.
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait
    # Cancels the block of an `async with` after so many seconds, with a TimeoutError.
    deadline: Callable[[float], AbstractAsyncContextManager[Any]] = asyncio.timeout


class Stopped(Exception):
    """The judge was stopped before this request was sent."""


class Pace:
    """When the next request may start, for all threads of one judge."""

    def __init__(self, per_minute: float | None, clock: JudgeClock) -> None:
        self._clock = clock
        self._spacing = 60 / per_minute if per_minute else 0.0  # seconds between two starts
        self._lock = threading.Lock()
        self._next_start = self._paused_until = clock.now()
        self._stopped = threading.Event()

    def wait_turn(self) -> float:
        """Wait until this request may start; returns the time of that moment."""
        self.wait(0.0)
        while True:
            with self._lock:
                now = self._clock.now()
                left = max(self._next_start, self._paused_until) - now
                if left <= 0:
                    self._next_start = now + self._spacing
                    return now
            self.wait(left)

    def pause_all(self, seconds: float) -> None:
        """Let no request start for so long: the service asked for it."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock.now() + seconds)

    def wait(self, seconds: float) -> None:
        """Wait so long; raises Stopped as soon as the judge is stopped."""
        if self._clock.wait(self._stopped, seconds):
            raise Stopped("stopped before it was sent")

    def stop(self) -> None:
        """End every wait of every thread, until `resume`."""
        self._stopped.set()

    def resume(self) -> None:
        """Let requests start again after a `stop`."""
        self._stopped.clear()
