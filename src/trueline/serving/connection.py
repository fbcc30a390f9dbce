"""One client's connection: HTTP/1.1 that lets go of who sends no head, or takes no bytes."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from trueline.serving.limits import Limits
from trueline.serving.refusals import Refusal
from trueline.serving.service import json_bytes


class Connection(H11Protocol):
    """uvicorn's own protocol, with a look at the connection now and then."""

    def __init__(self, limits: Limits, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._limits = limits
        self._quiet_since = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_one_too_many = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a client on, or note that there are too many."""
        super().connection_made(transport)
        self._is_one_too_many = len(self.connections) > self._limits.connections
        self._look_later()

    def data_received(self, data: bytes) -> None:
        """Read what a client sends; one too many is told so once it has said something.

        Closing before would reset the connection, and the answer would be lost.
        """
        if not self._is_one_too_many:
            super().data_received(data)
        elif not self.transport.is_closing():
            self.transport.write(_too_many())
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """From here on the next request may be waited for."""
        self._quiet_since = self.loop.time()
        super().on_response_complete()

    def _look_later(self) -> None:
        seconds = min(self._limits.header_seconds, self._limits.write_seconds) / 2
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        is_between = self.cycle is None or self.cycle.response_complete
        quiet = self.loop.time() - self._quiet_since
        is_slow = is_between and quiet > self._limits.header_seconds
        if self.transport.is_closing() or (is_slow and not self.timeout_keep_alive_task):
            self.transport.abort()  # what is left unread would keep it open for good
        else:
            self._look_later()


def _too_many() -> bytes:
    body = json_bytes(
        Refusal(503, "too many connections; try again soon", code="too_many_connections").body()
    )
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
        f"retry-after: 1\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
