"""A clock for the judges on which time passes only where somebody waits, and costs none."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

from trueline.evaluation.judges import JudgeClock

START = datetime(2025, 6, 1, tzinfo=UTC)
HANG = 300  # seconds after which a test that waits for something that never comes fails


class FakeClock:
    """Begins at 0; `waits` are the seconds that were waited, in order.

    The first wait ends once `together` threads wait at the same time.
    """

    def __init__(self, together=1):
        self.seconds, self.waits = 0.0, []
        self.waiting = threading.Event()  # set while or after somebody waited
        self._lock, self._gate = threading.Lock(), threading.Barrier(together)
        self._is_open = together == 1
        self._deadlines = []
        self.clock = JudgeClock(
            now=self.now, date=self.date, wait=self._wait, deadline=self._limit
        )

    def now(self):
        return self.seconds

    def date(self):
        return START + timedelta(seconds=self.seconds)

    def _wait(self, stopped, seconds):
        if seconds > 0 and not stopped.is_set():
            with self._lock:
                until = self.seconds + seconds
                self.waits.append(seconds)
            self.waiting.set()
            if not self._is_open:
                self._gate.wait(HANG)
                self._is_open = True
            with self._lock:
                self.seconds = max(self.seconds, until)
        return stopped.is_set()

    def _limit(self, seconds):
        deadline = asyncio.timeout(None)
        self._deadlines.append((asyncio.get_running_loop(), deadline))
        return deadline

    def expire(self):
        """Let the deadline of the last request pass."""
        loop, deadline = self._deadlines[-1]
        loop.call_soon_threadsafe(deadline.reschedule, loop.time())
