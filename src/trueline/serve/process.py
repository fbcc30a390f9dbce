"""An application -> a process that serves it: the socket, uvicorn, and signals."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from types import FrameType

import torch
import uvicorn
from starlette.applications import Starlette

from trueline.errors import SettingError
from trueline.serve.access import Keys
from trueline.serve.engine import Service


def check_host(host: str, keys: Keys) -> None:
    """Refuse to listen to other machines without keys."""
    if not is_loopback(host) and not keys.has("user"):
        raise SettingError(
            f"--host {host} is open to other machines, and there is no key; make one with "
            "`trueline serve --new-key user` and name its file with --keys, or set "
            "TRUELINE_API_KEY"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket on an address."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise SettingError(f"cannot listen on {host}, port {port}: {error}") from None
    return bound


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread while the model is opened.

    Threads that torch used in the main thread stay; with those of the engine's thread they
    would be more than there are cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def page_address(bound: socket.socket) -> str:
    """The address of a socket for a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: Starlette, bound: socket.socket, on_start: Callable[[], None]) -> None:
    """Serve until a signal; then finish the running answers and return."""
    server = Server(app, on_start)
    signal.signal(signal.SIGHUP, server.handle_exit)  # uvicorn handles the others
    server.run(sockets=[bound])


class Server(uvicorn.Server):
    """uvicorn's server, which refuses new requests while it drains."""

    def __init__(self, app: Starlette, on_start: Callable[[], None]) -> None:
        self._service: Service = app.state.service
        self._on_start, limits = on_start, self._service.limits
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=limits.drain_seconds,
            limit_concurrency=limits.connections + 1,  # uvicorn counts the new one, too
            timeout_keep_alive=30,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at a signal; a second Ctrl-C ends at once. The signal is not raised again."""
        self._service.is_draining = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
