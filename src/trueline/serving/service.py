"""What the endpoints of a server share: the catalog, the engine, the pool, who may come in."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from math import ceil
from os import cpu_count
from time import time
from typing import Any, TypeVar

import torch
from starlette.requests import ClientDisconnect, Request

from trueline.serving.catalog import Catalog
from trueline.serving.engine import EngineThread
from trueline.serving.keys import Keys
from trueline.serving.limits import Limits
from trueline.serving.refusals import Refusal
from trueline.serving.watching import Log, Watch

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
