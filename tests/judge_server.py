"""A local HTTP server that behaves like the APIs of the judges, also when they misbehave."""

import json
import socket
import threading
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk-secret-0123456789"


class JudgeServer(ThreadingHTTPServer):
    """Answers each question by `reply(prompt)`, a text or the bytes of a whole response.

    The first requests meet the `faults` instead.
    A fault is a status, a (status, retry-after) pair, a function of the handler, or one of:
    cut, half, text, form. `now` tells when requests come in. A connection is closed after one
    response unless `keeps_open`.
    """

    request_queue_size = 128  # more connections at once than this wait a second to be let in

    def __init__(
        self, reply=lambda prompt: "Yes", faults=(), now=lambda: 0.0, keeps_open=False
    ):
        super().__init__(("127.0.0.1", 0), _KeepingHandler if keeps_open else _Handler)
        self.reply, self.faults, self.now = reply, list(faults), now
        self.lock = threading.Lock()
        self.requests = []  # (path, headers, body, prompt), all that came in
        self.times = []  # when each came in, by `now`
        self.ports = []  # the client's end of the connection each came in on
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
        prompt = _prompt(self.path, body)
        with server.lock:
            server.requests.append((self.path, dict(self.headers), body, prompt))
            server.times.append(server.now())
            server.ports.append(self.client_address[1])
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
        refused = _refusal(self.path, self.headers)
        if refused:
            return partial(self.send, refused[0], json.dumps(refused[1]))
        text = self.server.reply(prompt)
        if isinstance(text, bytes):
            return partial(self.wfile.write, text)
        with self.server.lock:
            self.server.answered.append(prompt)
        return partial(self.send, 200, json.dumps(_response(self.path, prompt, text)))

    def _fault(self, fault):
        if callable(fault):
            return partial(fault, self)
        if isinstance(fault, tuple):
            headers = {"retry-after": fault[1]}
            return partial(self.send, fault[0], '{"message": "slow down"}', headers)
        if isinstance(fault, int):
            return partial(self.send, fault, json.dumps({"error": f"failed, key was {KEY}"}))
        return {
            "text": partial(self.send, 200, "<html>a proxy says hello</html>"),
            "form": partial(self.send, 200, '{"weather": "fine"}'),
            "half": partial(self.send, 200, '{"message": {"con', {"content-length": "5000"}),
            "cut": partial(self.connection.shutdown, socket.SHUT_RDWR),
        }[fault]

    def send(self, status, text, headers=()):
        data = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class _KeepingHandler(_Handler):
    protocol_version = "HTTP/1.1"


def _prompt(path, body):
    if path.endswith(":generateContent"):
        return body["contents"][0]["parts"][0]["text"]
    return body["messages"][0]["content"]


def _refusal(path, headers):
    """What an API says to a wrong key; Gemini calls it a bad request."""
    if path.endswith(":generateContent"):
        if headers.get("x-goog-api-key") != KEY:
            details = [{"reason": "API_KEY_INVALID"}]
            return 400, {"error": {"code": 400, "details": details}}
    elif headers.get("authorization") != f"Bearer {KEY}":
        return 401, {"message": f"invalid api key {headers.get('authorization')}"}
    return None


def _response(path, prompt, text):
    """A response in the form of the API, with counts a test can work out."""
    read, written = len(prompt.split()), len(text.split())
    if path == "/v2/chat":
        counts = {"input_tokens": read, "output_tokens": written}
        content = [{"type": "text", "text": text}]
        message = {"role": "assistant", "content": content if text else []}
        usage = {"billed_units": counts, "tokens": {"input_tokens": read + 70}}
        return {"id": "1", "finish_reason": "COMPLETE", "message": message, "usage": usage}
    if path.endswith(":generateContent"):
        usage = {"promptTokenCount": read, "candidatesTokenCount": written}
        if not text:
            return {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": usage}
        content = {"role": "model", "parts": [{"text": text}]}
        return {
            "candidates": [{"content": content, "finishReason": "STOP"}],
            "usageMetadata": usage,
        }
    message = {"role": "assistant", "content": text or None}
    usage = {"prompt_tokens": read, "completion_tokens": written}
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
