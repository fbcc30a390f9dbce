"""The one thread that drives the decoding loop, and all that requests do on their way there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from math import ceil
from os import cpu_count
from queue import SimpleQueue
from threading import Thread
from time import monotonic, time
from typing import TypeVar

import torch

from trueline.decode.generate import settled_text
from trueline.decode.loop import Decoding, Request, Row
from trueline.engines.base import Engine
from trueline.serve.access import APIError, format_trace
from trueline.serve.metrics import Log, Metrics
from trueline.serve.schemas import Limits
from trueline.types import Finish, Source, TokenLogprobs, TraceStep

# While more requests wait than rows are free, their prompts are read together: a pass for each
# one would delay every running answer. No request waits more steps for that, its own included.
_JOIN_WITHIN = 3
_MAX_RETRY_AFTER = 60  # seconds
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Progress:
    """What was added to one answer since the last progress."""

    choice: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    steps: tuple[TraceStep, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None  # set at the end
    sources: tuple[Source, ...] = ()  # set at the end
    first_token_at: float = 0.0  # by perf_counter
    error: Exception | None = None  # instead of all else


@dataclass(eq=False, slots=True)
class PendingAnswer:
    """One answer on its way to a client."""

    request: Request
    choice: int
    queue: asyncio.Queue[Progress]  # of the client; a slow one delays nobody else
    is_streamed: bool
    ticket: int | None = None
    is_over: bool = False  # finished, failed or cancelled
    chars_sent: int = 0
    tokens_sent: int = 0

    def progress(self, lm: Engine, row: Row) -> Progress | None:
        """What was added since the last call; None: nothing that can be sent yet."""
        if row.error is not None:
            return Progress(self.choice, error=row.error)
        if not self.is_streamed and not row.is_ended:
            return None
        text, ready = settled_text(lm, row)
        if ready <= self.chars_sent and not row.is_ended:
            return None
        start, since = self.chars_sent, self.tokens_sent
        self.chars_sent, self.tokens_sent = ready, len(row.tokens)
        return Progress(
            self.choice,
            text[start:ready],
            tuple(row.tokens[since:]),
            tuple(row.steps[since:]),
            tuple(row.logprobs[since:]),
            row.finish if row.is_ended else None,
            row.sources() if row.is_ended else (),
            row.first_token_at,
        )


class EngineThread:
    """One thread with one decoding loop; it runs the tasks it is given between two steps."""

    def __init__(self, lm: Engine, limits: Limits, metrics: Metrics, log: Log) -> None:
        self._lm, self._stuck_seconds = lm, limits.stuck_seconds
        self._on_step, self._log = metrics.count_step, log
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._decoding = Decoding(
            lm,
            max_rows=limits.rows,
            max_cached_tokens=limits.cached_tokens,
            join_at=max(1, limits.rows // 4),
            join_within=_JOIN_WITHIN,
        )
        self._pending: dict[int, PendingAnswer] = {}  # by ticket
        self._busy_since: float | None = None
        self._is_stopping = False
        self._is_broken = False  # by a bug: no step is made any more
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._work, name="trueline-engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; progress is handed to clients in this event loop."""
        self._loop = loop
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """End after the current step."""
        self._tasks.put(lambda: setattr(self, "_is_stopping", True))
        self._thread.join(seconds)

    @property
    def running(self) -> int:
        """The number of answers that are decoded now."""
        return self._decoding.running

    def problem(self) -> str:
        """Why the engine cannot work; empty if it can."""
        if self._is_broken or not self._thread.is_alive():
            return "the engine's thread is not running"
        since = self._busy_since
        is_stuck = since is not None and monotonic() - since > self._stuck_seconds
        return "the engine is stuck in a step" if is_stuck else ""

    def submit(self, answer: PendingAnswer) -> None:
        self._tasks.put(lambda: self._join(answer))

    def cancel(self, answer: PendingAnswer) -> None:
        """Free the row of an answer, or its place in the queue."""
        if not answer.is_over:
            self._tasks.put(lambda: self._leave(answer))

    def run(self, job: Callable[[], Result]) -> Future[Result]:
        """Do something that needs the model between two steps."""
        future: Future[Result] = Future()

        def task() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                self._check()
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)

        self._tasks.put(task)
        return future

    def _work(self) -> None:
        try:
            while not self._is_stopping:
                while self._decoding.is_idle or not self._tasks.empty():
                    task = self._tasks.get()
                    self._busy_since = monotonic()
                    task()
                    self._busy_since = None
                    if self._is_stopping:
                        return
                self._step()
        except BaseException as error:  # a bug: no client may wait for what never comes
            self._is_broken = True
            ended = _engine_ended()
            self._send(
                [(one, Progress(one.choice, error=ended)) for one in self._pending.values()]
            )
            facts = {"time": round(time(), 3), "server": "the engine ended"}
            self._log({**facts, "trace": format_trace(error)})
            while not self._is_stopping:  # later requests fail at once
                self._tasks.get()()

    def _check(self) -> None:
        if self._is_broken:
            raise _engine_ended()

    def _step(self) -> None:
        self._busy_since = begun = monotonic()
        rows = self._decoding.step()
        made = []
        for row in rows:
            answer = self._pending[row.ticket]
            if row.is_ended:
                del self._pending[row.ticket]
            if (progress := answer.progress(self._lm, row)) is not None:
                made.append((answer, progress))
        self._send(made)
        self._on_step(rows, monotonic() - begun)
        self._busy_since = None

    def _join(self, answer: PendingAnswer) -> None:
        if answer.is_over:
            return
        try:
            self._check()
            answer.ticket = self._decoding.submit(answer.request)
            self._pending[answer.ticket] = answer
        except Exception as error:  # such as more tokens than the cache may hold
            self._send([(answer, Progress(answer.choice, error=error))])

    def _leave(self, answer: PendingAnswer) -> None:
        answer.is_over = True
        if answer.ticket is not None:
            self._decoding.cancel(answer.ticket)
            self._pending.pop(answer.ticket, None)

    def _send(self, made: Sequence[tuple[PendingAnswer, Progress]]) -> None:
        """Hand the progress of a whole step to the event loop at once."""
        assert self._loop is not None
        try:
            if made:
                self._loop.call_soon_threadsafe(_deliver, made)
        except RuntimeError:  # the event loop is closed: no client waits any more
            self._is_stopping = True


def _deliver(made: Sequence[tuple[PendingAnswer, Progress]]) -> None:
    for answer, progress in made:
        if not answer.is_over:
            answer.is_over = progress.finish is not None or progress.error is not None
            answer.queue.put_nowait(progress)


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
        # Scope of a request: in the event loop an embedding would delay every client, in the
        # engine's thread every answer. Spaces have a thread of their own: no scope waits there.
        workers = max(1, min(4, (cpu_count() or 1) // 2))
        self._scope_pool = ThreadPoolExecutor(workers, "trueline-scope", _start_worker)
        self._space_pool = ThreadPoolExecutor(1, "trueline-space", _start_worker)

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Run the threads of the server while it runs."""
        pools, threads = (self._scope_pool, self._space_pool), torch.get_num_threads()
        for pool in pools:
            pool.submit(int).result()
        torch.set_num_threads(threads)  # a worker's setting also holds for later threads
        self.engine.start(asyncio.get_running_loop())
        try:
            yield
        finally:
            self.engine.stop()
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)

    async def in_scope_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.wrap_future(self._scope_pool.submit(work))

    async def in_space_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.wrap_future(self._space_pool.submit(work))

    async def in_engine(self, work: Callable[[], Result]) -> Result:
        return await asyncio.wrap_future(self.engine.run(work))

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

    def set_gauges(self) -> None:
        self.metrics.running.set(self.engine.running)
        self.metrics.waiting.set(max(0, self._rows - self.engine.running))


def _start_worker() -> None:
    torch.get_num_threads()  # torch reads its default at first use, and would do so later
    torch.set_num_threads(1)
