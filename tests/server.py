"""Servers for the tests: a real process, or the same in a thread; both over real HTTP."""

import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from threading import Event, Thread

import httpx2
import openai

from trueline.serve.process import Server, listen, page_address


class Running:
    """A server that runs, and ways to talk to it."""

    def __init__(self, url, admin="", process=None, lines=None):
        self.url, self.admin, self.process = url, admin, process
        self.lines = [] if lines is None else lines  # of its log
        self.port = int(url.rpartition(":")[2])

    def client(self, key="none", **options):
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60, **options
        )

    def http(self, key=None, **options):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, **options)

    def send(self, raw: bytes) -> bytes:
        """What comes back for bytes as they are."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as sock:
            sock.sendall(raw)
            found = b""
            while part := sock.recv(65536):
                found += part
            return found


def drained(running, http, given, how):
    """The lines of a stream that goes on while the server is told to end."""
    with http.stream("POST", "/v1/chat/completions", json=given) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        running.process.send_signal(how)
        return [line for line in (first, *lines) if line]


@contextmanager
def serving(home, *options, env=()):
    """`trueline serve` in a process of its own, on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trueline", "serve", "--port", "0", *map(str, options)],
        env={**os.environ, "TRUELINE_HOME": str(home), "OMP_NUM_THREADS": "1", **dict(env)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    notes, lines = [], []
    for note in process.stderr:
        notes.append(note)
        if found := re.search(r"page: (http://\S+?)/(?:#key=(\S+))?$", note.strip()):
            break
    else:
        raise AssertionError(f"it did not start: {''.join(notes)}")
    for stream, kept in ((process.stdout, lines), (process.stderr, notes)):
        Thread(target=lambda stream=stream, kept=kept: kept.extend(stream), daemon=True).start()
    running = Running(found[1], found[2] or "", process, lines)
    running.notes = notes
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


@contextmanager
def in_thread(app, admin=""):
    """An application behind the same server, in a thread of this process."""
    bound, started = listen("127.0.0.1", 0), Event()
    server = Server(app, started.set)
    thread = Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    url = page_address(bound)
    thread.start()
    assert started.wait(30)
    try:
        yield Running(url, admin)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
