"""Requests in, pieces of their answers out: the one thread that drives the decoding loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from trueline.decode.generate import settled_text
from trueline.decode.loop import Decoding, Request, Row
from trueline.engines.base import Engine
from trueline.serve.access import Refusal
from trueline.serve.schemas import Limits
from trueline.types import Finish, Source, TokenLogprobs, TraceStep

# While more wait than rows are free, prompts are read together: a pass for each alone holds up
# every answer that runs. Nobody waits longer for that than so many steps, its own counted.
_JOIN_WITHIN = 3
OnStep = Callable[[Sequence[Row], float], None]  # the rows that got a token, and its seconds
OnFailure = Callable[[BaseException], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """What one answer has come to since its last piece."""

    choice: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    steps: tuple[TraceStep, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None  # on the last piece
    sources: tuple[Source, ...] = ()  # on the last piece
    first_token_at: float = 0.0  # by the clock of the loop, perf_counter
    error: Exception | None = None  # in the place of all else


class Mailbox:
    """What arrives for one client, taken all at once: a slow one makes nobody wait."""

    def __init__(self) -> None:
        self._items: list[Progress] = []
        self._arrived = asyncio.Event()

    def put(self, item: Progress) -> None:
        """Leave something; called in the event loop."""
        self._items.append(item)
        self._arrived.set()

    async def take(self) -> list[Progress]:
        """All that is there, at least one."""
        await self._arrived.wait()
        self._arrived.clear()
        items, self._items = self._items, []
        return items


@dataclass(eq=False, slots=True)
class Line:
    """One answer on its way to a client."""

    request: Request
    choice: int
    mailbox: Mailbox
    is_streamed: bool
    ticket: int | None = None
    is_over: bool = False  # ended, failed or cancelled: nothing more comes
    text_sent: int = 0
    tokens_sent: int = field(default=0)


class EngineThread:
    """One thread with one decoding loop; what it is told to do, it does between two steps."""

    def __init__(
        self, lm: Engine, limits: Limits, on_step: OnStep, on_failure: OnFailure
    ) -> None:
        self.lm = lm
        self._limits = limits
        self._on_step, self._on_failure = on_step, on_failure
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._decoding = Decoding(
            lm,
            max_rows=limits.rows,
            max_cached_tokens=limits.cached_tokens,
            join_at=max(1, limits.rows // 4),
            join_within=_JOIN_WITHIN,
        )
        self._lines: dict[int, Line] = {}
        self._busy_since: float | None = None
        self._is_stopping = False
        self._is_broken = False  # an error that nothing foresaw: no step is made any more
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; pieces are handed out in this event loop."""
        self._loop = loop
        self._thread = Thread(target=self._work, name="trueline-engine", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """End after the step that runs."""
        self._orders.put(self._end)
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def running(self) -> int:
        """How many answers are being decoded."""
        return self._decoding.running

    @property
    def waiting(self) -> int:
        """How many answers wait for a row."""
        return self._decoding.waiting

    def trouble(self) -> str:
        """Why it cannot be relied on, or nothing."""
        if self._is_broken or self._thread is None or not self._thread.is_alive():
            return "the engine's thread is not running"
        since = self._busy_since
        if since is not None and monotonic() - since > self._limits.stuck_seconds:
            return "the engine is stuck in a step"
        return ""

    def submit(self, line: Line) -> None:
        """Decode an answer; its pieces arrive in its mailbox."""
        self._orders.put(lambda: self._join(line))

    def cancel(self, line: Line) -> None:
        """Free the row of an answer, wherever it is."""
        if not line.is_over:
            self._orders.put(lambda: self._drop(line))

    def run(self, job: Callable[[], Any]) -> Future[Any]:
        """Do something with the model between two steps."""
        future: Future[Any] = Future()

        def do() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._is_broken:
                    raise _engine_ended()
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)

        self._orders.put(do)
        return future

    def _work(self) -> None:
        try:
            while not self._is_stopping:
                self._take_orders()
                if not self._decoding.is_idle:
                    self._step()
        except BaseException as error:  # a bug: nobody may wait for what never comes
            self._is_broken = True
            self._hand_out(
                [
                    (one, Progress(one.choice, error=_engine_ended()))
                    for one in self._lines.values()
                ]
            )
            self._on_failure(error)
            while not self._is_stopping:  # who comes later is told so at once
                self._orders.get()()

    def _take_orders(self) -> None:
        """Do what was ordered; with nothing to decode, wait for an order."""
        is_idle = self._decoding.is_idle
        while True:
            try:
                order = self._orders.get(block=is_idle)
            except Empty:
                return
            self._busy_since = monotonic()
            order()
            self._busy_since = None
            is_idle = False

    def _step(self) -> None:
        self._busy_since = begun = monotonic()
        rows = self._decoding.step()
        pieces = []
        for row in rows:
            line = self._lines[row.ticket]
            piece = _piece(self.lm, line, row)
            if row.is_ended:
                del self._lines[row.ticket]
            if piece is not None:
                pieces.append((line, piece))
        self._hand_out(pieces)
        self._on_step(rows, monotonic() - begun)
        self._busy_since = None

    def _join(self, line: Line) -> None:
        if line.is_over:
            return
        try:
            if self._is_broken:
                raise _engine_ended()
            line.ticket = self._decoding.submit(line.request)
            self._lines[line.ticket] = line
        except Exception as error:  # such as more tokens than the cache may hold
            self._hand_out([(line, Progress(line.choice, error=error))])

    def _drop(self, line: Line) -> None:
        line.is_over = True
        if line.ticket is not None:
            self._decoding.cancel(line.ticket)
            self._lines.pop(line.ticket, None)

    def _hand_out(self, pieces: Sequence[tuple[Line, Progress]]) -> None:
        """Give the event loop all pieces of a step at once."""
        if not pieces:
            return
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_deliver, pieces)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._is_stopping = True

    def _end(self) -> None:
        self._is_stopping = True


def _deliver(pieces: Sequence[tuple[Line, Progress]]) -> None:
    for line, piece in pieces:
        if not line.is_over:
            line.is_over = piece.finish is not None or piece.error is not None
            line.mailbox.put(piece)


def _piece(lm: Engine, line: Line, row: Row) -> Progress | None:
    """What has become of an answer since its last piece; None: nothing to send yet."""
    if row.error is not None:
        return Progress(line.choice, error=row.error)
    if not line.is_streamed and not row.is_ended:
        return None
    text, ready = settled_text(lm, row)
    if ready <= line.text_sent and not row.is_ended:
        return None
    since = line.tokens_sent
    piece = Progress(
        line.choice,
        text[line.text_sent : ready],
        tuple(row.tokens[since:]),
        tuple(row.steps[since:]),
        tuple(row.logprobs[since:]),
        row.finish if row.is_ended else None,
        row.sources() if row.is_ended else (),
        row.first_token_at,
    )
    line.text_sent, line.tokens_sent = ready, len(row.tokens)
    return piece


def _engine_ended() -> Refusal:
    return Refusal(
        503,
        "the server's engine has ended and must be started anew; its log tells why",
        code="engine_ended",
    )
