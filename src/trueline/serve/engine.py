"""The one thread that drives the decoding loop, and what all requests share on their way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from math import ceil
from os import cpu_count
from time import monotonic, time
from typing import TypeVar

import torch

from trueline.decode.generate import settled_text
from trueline.decode.loop import Decoding, Request, Row
from trueline.engines.base import Engine
from trueline.serve.access import APIError, format_trace
from trueline.serve.metrics import Log, Metrics
from trueline.serve.schemas import Limits

# While more requests wait than rows are free, their prompts are read together: a pass for each
# one would delay every running answer. No request waits more steps for that, its own included.
_JOIN_WITHIN = 3
_MAX_RETRY_AFTER = 60  # seconds
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Progress:
    """What was added to one answer since the last progress."""

    choice: int
    row: Row  # its lists only grow, so that other threads may read these tokens in them
    tokens: slice
    text: str
    offset: int  # characters before the text
    is_last: bool


@dataclass(eq=False, slots=True)
class PendingAnswer:
    """One answer on its way to a client."""

    request: Request
    choice: int
    queue: asyncio.Queue[Progress | Exception]  # of the client; a slow one delays nobody else
    is_streamed: bool
    ticket: int | None = None
    is_over: bool = False  # finished, failed or cancelled
    chars_sent: int = 0
    tokens_sent: int = 0

    def progress(self, lm: Engine, row: Row) -> Progress | Exception | None:
        """What was added since the last call; None: nothing that can be sent yet."""
        if row.error is not None or not (self.is_streamed or row.is_ended):
            return row.error
        text, ready = settled_text(lm, row)
        start, since = self.chars_sent, self.tokens_sent
        if ready <= start and not row.is_ended:
            return None
        self.chars_sent, self.tokens_sent = ready, len(row.tokens)
        tokens, added = slice(since, self.tokens_sent), text[start:ready]
        return Progress(self.choice, row, tokens, added, start, row.is_ended)


class EngineThread:
    """One thread with one decoding loop; what is submitted to it runs between two steps."""

    loop: asyncio.AbstractEventLoop  # of the clients

    def __init__(self, lm: Engine, limits: Limits, metrics: Metrics, log: Log) -> None:
        self._lm, self._stuck_seconds = lm, limits.stuck_seconds
        self._on_step, self._log = metrics.count_step, log
        self._decoding = Decoding(
            lm,
            max_rows=limits.rows,
            max_cached_tokens=limits.cached_tokens,
            join_at=max(1, limits.rows // 4),
            join_within=_JOIN_WITHIN,
        )
        self._pending: dict[int, PendingAnswer] = {}  # by ticket
        self._step_began: float | None = None
        self._is_scheduled = False  # the next step
        self._is_broken = False  # by a bug: no step is made any more
        self.thread = ThreadPoolExecutor(1, "trueline-engine")

    @property
    def running(self) -> int:
        """The number of answers that are decoded now."""
        return self._decoding.running

    def problem(self) -> str:
        """Why the engine cannot work; empty if it can."""
        began = self._step_began
        if began is not None and monotonic() - began > self._stuck_seconds:
            return "the engine is stuck in a step"
        return "the engine has ended" if self._is_broken else ""

    def submit(self, answer: PendingAnswer) -> None:
        self.thread.submit(self._join, answer)

    def cancel(self, answer: PendingAnswer) -> None:
        """Free the row of an answer, or its place in the queue."""
        if not answer.is_over:
            with suppress(RuntimeError):  # the server has ended
                self.thread.submit(self._leave, answer)

    def _join(self, answer: PendingAnswer) -> None:
        if answer.is_over:
            return
        try:
            if self._is_broken:
                raise _engine_ended()
            answer.ticket = self._decoding.submit(answer.request)
            self._pending[answer.ticket] = answer
            self._schedule_step()
        except Exception as error:  # such as more tokens than the cache may hold
            self._send([(answer, error)])

    def _leave(self, answer: PendingAnswer) -> None:
        answer.is_over = True
        if answer.ticket is not None:
            self._decoding.cancel(answer.ticket)
            self._pending.pop(answer.ticket, None)

    def _schedule_step(self) -> None:
        """Make a step after what was submitted before."""
        if not self._is_scheduled and not self._decoding.is_idle:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the server has ended
                self.thread.submit(self._step)

    def _step(self) -> None:
        self._step_began, self._is_scheduled, made = monotonic(), False, []
        try:
            rows = self._decoding.step()
            for row in rows:
                answer = self._pending[row.ticket]
                if row.is_ended:
                    del self._pending[row.ticket]
                if (progress := answer.progress(self._lm, row)) is not None:
                    made.append((answer, progress))
            self._send(made)
            self._on_step(rows, monotonic() - self._step_began)
            self._schedule_step()
        except BaseException as error:  # a bug: no client may wait for what never comes
            self._is_broken = True
            self._send([(answer, _engine_ended()) for answer in self._pending.values()])
            facts = {"time": round(time(), 3), "server": "the engine ended"}
            self._log({**facts, "trace": format_trace(error)})
        self._step_began = None

    def _send(self, made: Sequence[tuple[PendingAnswer, Progress | Exception]]) -> None:
        """Hand the progress of a whole step to the event loop at once."""

        def deliver() -> None:
            for answer, progress in made:
                if not answer.is_over:
                    answer.is_over = isinstance(progress, Exception) or progress.is_last
                    answer.queue.put_nowait(progress)

        if made:
            self.loop.call_soon_threadsafe(deliver)


def _engine_ended() -> APIError:
    message = "the engine has ended; restart the server, whose log has the reason"
    return APIError(503, message, "engine_ended")


class Service:
    """What the endpoints share: the engine, two pools of threads, and the queue's limit."""

    def __init__(self, lm: Engine, limits: Limits, log: Log, *, logs_text: bool) -> None:
        self.lm, self.limits, self.logs_text = lm, limits, logs_text
        self.metrics = Metrics()
        self.engine = EngineThread(lm, limits, self.metrics, log)
        self.is_draining = False
        self._rows = 0  # answers that are prepared, waiting or running
        self._usual_seconds = 1.0  # of a request, smoothed; for Retry-After
        self.metrics.running.set_function(lambda: self.engine.running)
        self.metrics.waiting.set_function(lambda: max(0, self._rows - self.engine.running))
        # Scope of a request: in the event loop an embedding would delay every client, in the
        # engine's thread every answer. Spaces have a thread of their own: no scope waits there.
        workers = max(1, min(4, (cpu_count() or 1) // 2))
        self.scope_pool = ThreadPoolExecutor(workers, "trueline-scope", _start_worker)
        self.space_thread = ThreadPoolExecutor(1, "trueline-space", _start_worker)

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Start the threads of the server, and end them."""
        pools, threads = (self.scope_pool, self.space_thread), torch.get_num_threads()
        for pool in pools:
            pool.submit(int).result()
        torch.set_num_threads(threads)  # a worker's setting also holds for later threads
        self.engine.thread.submit(torch.get_num_threads).result()
        self.engine.loop = asyncio.get_running_loop()
        yield
        for pool in (*pools, self.engine.thread):
            pool.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def admit(self, rows: int) -> Iterator[None]:
        """Accept some answers, or refuse them because too many wait."""
        if self.is_draining:
            headers = {"retry-after": "5", "connection": "close"}
            message = "the server is shutting down"
            raise APIError(503, message, "shutting_down", headers=headers)
        limits, total = self.limits, self._rows + rows
        if total > limits.rows + limits.queue:
            wait = ceil(total / limits.rows * self._usual_seconds)
            wait = min(_MAX_RETRY_AFTER, max(1, wait))
            message = f"{self._rows} answers run or wait already; try again in about {wait} s"
            raise APIError(429, message, "queue_full", headers={"retry-after": str(wait)})
        self._rows, begun = total, monotonic()
        try:
            yield
        finally:
            self._rows -= rows
            self._usual_seconds += 0.1 * (monotonic() - begun - self._usual_seconds)


async def run_in(pool: Executor, work: Callable[[], Result]) -> Result:
    """The result of some work in a thread; the event loop goes on meanwhile."""
    return await asyncio.wrap_future(pool.submit(work))


def _start_worker() -> None:
    torch.get_num_threads()  # torch reads its default at first use, and would do so later
    torch.set_num_threads(1)
