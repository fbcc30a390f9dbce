"""A JSON request -> the status and text of its response, within a deadline and a size."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import finalize

from trueline.errors import SettingError, import_extra
from trueline.evaluation.judges.pace import JudgeClock

MAX_BYTES = 4_000_000  # of one response, as sent and as unpacked; a verdict has a few hundred
# Asked to, a service sends its response unpacked: it is too short to gain from packing.
_HEADERS = {"accept-encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Received:
    """What came back from a service."""

    status: int
    text: str
    retry_after: str | None  # the header of that name


class ConnectionFailed(Exception):
    """There is no whole response; says why."""


class Connections:
    """Connections to a service, kept from request to request and shared by all threads.

    They live on an event loop in a thread of its own. The time-outs of an HTTP client count
    from byte to byte, so a service that sends one byte now and then would never end. A task on
    a loop can be cancelled wherever it is.
    """

    def __init__(self, url: str, *, concurrency: int, clock: JudgeClock) -> None:
        httpx2 = import_extra("httpx2", "a judge behind an API", "judge")
        try:
            httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise SettingError(f"{url!r} is no address ({error})") from error
        self._url = url
        pool = httpx2.Limits(max_connections=concurrency)
        self._client = httpx2.AsyncClient(timeout=None, limits=pool)
        self._deadline = clock.deadline
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=_run, args=(self._loop,), name="trueline-judge", daemon=True
        ).start()
        # Not at exit: the thread ends with the process, and a forked child does not have it.
        finalize(self, _close, self._loop, self._client).atexit = False

    def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout: float
    ) -> Received:
        """Send one request; TimeoutError if its whole response is not here in time."""
        sent = self._post(self._url + path, body, {**_HEADERS, **headers}, timeout)
        return asyncio.run_coroutine_threadsafe(sent, self._loop).result()

    async def _post(
        self, url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout: float
    ) -> Received:
        import httpx2

        try:
            async with (
                self._deadline(timeout),
                self._client.stream("POST", url, json=dict(body), headers=headers) as response,
            ):
                raw = bytearray()
                async for chunk in response.aiter_raw():
                    raw += _checked(chunk, len(raw))
        except httpx2.TransportError as error:
            raise ConnectionFailed(
                f"the connection failed ({type(error).__name__}: {error})"
            ) from None
        data = _unpacked(bytes(raw), response.headers.get("content-encoding", "identity"))
        text = data.decode("utf-8", "replace")
        return Received(response.status_code, text, response.headers.get("retry-after"))


def _checked(data: bytes, before: int = 0) -> bytes:
    if before + len(data) > MAX_BYTES:
        raise ConnectionFailed(f"the response is longer than {MAX_BYTES:,} bytes")
    return data


def _unpacked(data: bytes, encoding: str) -> bytes:
    """The bytes of a response that was packed although we asked for none, up to the limit."""
    if encoding == "identity":
        return data
    if encoding not in ("gzip", "deflate"):
        raise ConnectionFailed(f"the response is packed with {encoding}, which was not allowed")
    try:
        either = zlib.MAX_WBITS | 32  # a header of gzip or of zlib
        return _checked(zlib.decompressobj(either).decompress(data, MAX_BYTES + 1))
    except zlib.error as error:
        raise ConnectionFailed(f"the response cannot be unpacked ({error})") from None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _close(loop: asyncio.AbstractEventLoop, client: Any) -> None:
    async def close() -> None:
        await client.aclose()
        loop.stop()

    asyncio.run_coroutine_threadsafe(close(), loop)
