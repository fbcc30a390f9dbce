"""A local HTTP server in OpenAI's form, which can also misbehave."""

import json
import os
import socket
import threading
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk-secret-0123456789"
HANG = 300  # seconds after which a test that waits for something that never comes fails


class JudgeServer(ThreadingHTTPServer):
    """Answers each question by `reply(prompt)`, a text or the bytes of a whole response.

    The first requests meet the `faults` instead: a status, a (status, retry-after) pair, a
    function of the handler, or one of cut, half, text, form. `now` tells when requests come in.
    """

    request_queue_size = 128  # more connections at once than this wait a second to be let in

    def __init__(self, reply=lambda prompt: "Yes", faults=(), now=lambda: 0.0):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply, self.faults, self.now = reply, list(faults), now
        self.lock = threading.Lock()
        self.requests = []  # (path, headers, body, prompt), all that came in
        self.times = []  # when each came in, by `now`
        self.answered = []  # the prompts of those that got a verdict: what is paid for
        self.in_flight = self.most_in_flight = 0
        self.released = threading.Event()  # set when the test ends: nothing waits longer

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """A client that went away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["messages"][0]["content"]
        with server.lock:
            server.requests.append((self.path, dict(self.headers), body, prompt))
            server.times.append(server.now())
            server.in_flight += 1
            server.most_in_flight = max(server.most_in_flight, server.in_flight)
            fault = server.faults.pop(0) if server.faults else None
        try:
            send = self._fault(fault) if fault is not None else self._answer(prompt)
        finally:  # before the response is sent: it makes room for another request
            with server.lock:
                server.in_flight -= 1
        with suppress(ConnectionError):  # a client that went away is part of the tests
            send()

    def _answer(self, prompt):
        given = self.headers.get("authorization")
        if given != f"Bearer {KEY}":
            return partial(self.send, 401, json.dumps({"message": f"invalid key {given}"}))
        text = self.server.reply(prompt)
        if isinstance(text, bytes):
            return partial(self.wfile.write, text)
        with self.server.lock:
            self.server.answered.append(prompt)
        return partial(self.send, 200, json.dumps(completion(prompt, text)))

    def _fault(self, fault):
        if callable(fault):
            return partial(fault, self)
        if isinstance(fault, tuple):
            return partial(self.send, fault[0], "slow down", {"retry-after": fault[1]})
        if isinstance(fault, int):
            return partial(self.send, fault, json.dumps({"error": f"failed, key was {KEY}"}))
        return {
            "text": partial(self.send, 200, "<html>a proxy says hello</html>"),
            "form": partial(self.send, 200, '{"weather": "fine"}'),
            "half": partial(self.send, 200, '{"choices": [{"me', {"content-length": "5000"}),
            "cut": partial(self.connection.shutdown, socket.SHUT_RDWR),
        }[fault]

    def send(self, status, text, headers=()):
        data = text.encode()
        self.send_response(status)
        usual = {"content-type": "application/json", "content-length": str(len(data))}
        for name, value in (usual | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def completion(prompt, text):
    """A response with counts a test can work out."""
    message = {"role": "assistant", "content": text or None}
    usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(text.split())}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


@contextmanager
def serving(**options):
    """A running server; it is gone afterwards."""
    server = JudgeServer(**options)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def clean_environment(monkeypatch, tmp_path, key):
    """The key of every service, one for a server of one's own, and a cache of the test's."""
    for name in list(os.environ):
        if name.endswith("_BASE_URL") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("COHERE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, key)
    monkeypatch.delenv("CO_API_KEY", raising=False)
    monkeypatch.setenv("TRUELINE_JUDGE_KEY", KEY)
    monkeypatch.setenv("TRUELINE_JUDGE_URL", "")  # set by the tests
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path / "home"))
