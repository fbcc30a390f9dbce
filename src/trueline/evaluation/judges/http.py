"""A JSON request -> the status and text of its response, within a deadline and a size."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar
from typing import Any
from weakref import finalize

from trueline.errors import SettingError, import_extra
from trueline.evaluation.judges.addresses import is_loopback
from trueline.evaluation.judges.pace import JudgeClock

MAX_BYTES = 1_000_000  # of one response, as sent and as unpacked; a verdict has a few hundred
# Asked to, a service sends its response unpacked: it is too short to gain from packing.
_HEADERS = {"accept-encoding": "identity"}
_THREAD = "trueline-judge"
_CONNECTED = "connect_tcp.started"  # the client opens a connection for this request
_ANSWERED = "receive_response_headers.complete"  # the head of the response is here
_LOGGERS = (
    "httpx2 httpcore2.connection httpcore2.http11 httpcore2.proxy httpcore2.socks".split()
)


@dataclass(frozen=True, slots=True)
class Received:
    """What came back from a service."""

    status: int
    body: bytes
    retry_after: str | None  # the header of that name

    @property
    def text(self) -> str:
        """The body for a person to read, whatever it is."""
        return self.body.decode("utf-8", "replace")


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
        # Plain http needs no certificates, which take long to read: an empty set trusts nobody.
        is_https = url.startswith("https:")
        try:
            httpx2.URL(url)
            self._client = httpx2.AsyncClient(
                timeout=None,
                verify=is_https or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                limits=httpx2.Limits(max_connections=concurrency),
                cookies=_NoCookies(),
                follow_redirects=False,  # the key is for this address
                trust_env=not is_loopback(url),  # what is for this machine goes to no proxy
            )
        except (httpx2.InvalidURL, ValueError, OSError, ImportError) as error:
            # Without the error's own words: the address of a proxy may hold a password.
            raise SettingError(
                f"{url} cannot be asked ({type(error).__name__}); check the address, and the "
                "proxy and certificates in HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and SSL_CERT_FILE"
            ) from None
        self._url = url
        self._deadline = clock.deadline
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop,), name=_THREAD, daemon=True).start()
        for name in _LOGGERS:  # the same filter is added once
            logging.getLogger(name).addFilter(_is_not_ours)
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
            async with self._deadline(timeout):
                while True:
                    events: set[str] = set()
                    try:
                        return await self._exchange(url, body, headers, events)
                    except (httpx2.RemoteProtocolError, httpx2.ReadError):
                        # A service closes connections it has kept for a while, perhaps just as
                        # a request is on its way: that says nothing about the request. The
                        # connection is gone now, so this ends with a new one at the latest.
                        if events & {_CONNECTED, _ANSWERED}:
                            raise
        except httpx2.RequestError as error:
            raise ConnectionFailed(
                f"the connection failed ({type(error).__name__}: {error})"
            ) from None

    async def _exchange(
        self, url: str, body: Mapping[str, Any], headers: Mapping[str, str], events: set[str]
    ) -> Received:
        """Send one request on a kept connection or a new one; `events` gets what happened."""

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            events.add(event.split(".", 1)[1])  # behind the part of the client that says it

        async with self._client.stream(
            "POST", url, json=dict(body), headers=headers, extensions={"trace": trace}
        ) as response:
            raw = bytearray()
            async for chunk in response.aiter_raw():
                raw += _checked(chunk, len(raw))
        whole = _unpacked(bytes(raw), response.headers.get("content-encoding", "identity"))
        return Received(response.status_code, whole, response.headers.get("retry-after"))


class _NoCookies(CookieJar):
    """Takes no cookie: a service could send more than is good for memory."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        pass


def _is_not_ours(record: logging.LogRecord) -> bool:
    """Whether a log record is from another thread than a judge's.

    The client logs the status line and the headers of responses, and a service may write the
    key into them.
    """
    return record.threadName != _THREAD


def _checked(data: bytes, before: int = 0) -> bytes:
    if before + len(data) > MAX_BYTES:
        raise ConnectionFailed(f"the response is longer than {MAX_BYTES:,} bytes")
    return data


def _unpacked(data: bytes, encoding: str) -> bytes:
    """The bytes of a response that was packed although we asked for none, up to the limit."""
    if encoding.lower() in ("", "identity"):
        return data
    if encoding.lower() not in ("gzip", "deflate"):
        raise ConnectionFailed(f"the response is packed with {encoding}, which was not allowed")
    try:
        packed = zlib.decompressobj(zlib.MAX_WBITS | 32)  # a header of gzip or of zlib
        unpacked = _checked(packed.decompress(data, MAX_BYTES + 1))
    except zlib.error as error:
        raise ConnectionFailed(f"the response cannot be unpacked ({error})") from None
    if not packed.eof:
        raise ConnectionFailed("the response cannot be unpacked (its end is missing)")
    return unpacked


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _close(loop: asyncio.AbstractEventLoop, client: Any) -> None:
    async def close() -> None:
        await client.aclose()
        loop.stop()

    asyncio.run_coroutine_threadsafe(close(), loop)
