"""Requests as no client sends them: bodies and heads, damaged at random, to a real server."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter

import pytest
import tiny
from attack import mutated, mutated_bytes, rounds, within
from conftest import EXAMPLES
from server import in_thread

import trueline as tl
from trueline.corrective.turns import read_form
from trueline.serve.access import Keys
from trueline.serve.app import create_app
from trueline.serve.schemas import Limits

ADMIN = "tl-admin-" + "a" * 40
NAME = "tiny-llama+facts"
CHAT = {
    "model": NAME,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Are bats blind?"}]},
    ],
    "max_tokens": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 1,
    "seed": 3,
    "stop": ["\n\n"],
    "logprobs": True,
    "top_logprobs": 2,
    "stream": False,
    "user": "somebody",
    "trueline": {
        "method": "corrective",
        "space": "facts",
        "strength": 0.5,
        "threshold": 0.5,
        "only_covered": False,
        "settings": {"margin": 3.0},
        "question": "Are bats blind?",
        "sources": True,
        "trace": True,
    },
}
COMPLETION = {
    "model": NAME,
    "prompt": [[5, 6, 7], [8, 9]],
    "max_tokens": 4,
    "logprobs": 1,
    "trueline": {"question": ["Are bats blind?", "Do fish sleep?"]},
}
EDIT = {"examples": [{"question": "q?", "answers": ["a"], "wrong_answers": ["b"], "id": "x"}]}
BORDERS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/spaces/facts/examples": EDIT,
}


@pytest.fixture(scope="module")
def running(embedder):
    lm = tiny.language_model("llama", chat=True)
    space = tl.build(None, EXAMPLES, embedder=embedder)
    limits = Limits(body_bytes=20_000, new_tokens=8, body_seconds=2)
    lines = []
    app = create_app(
        lm, {"facts": space}, limits=limits, keys=Keys().also("admin", ADMIN), log=lines.append
    )
    with in_thread(app) as running:
        running.lines = lines
        yield running


@pytest.mark.parametrize("path", BORDERS)
def test_no_body_breaks_the_server(running, path):
    headers = {"content-type": "application/json"}
    with running.http(ADMIN) as http:
        for chance in rounds(path, quick=170, long=2000):
            body = BORDERS[path]
            for _ in range(chance.choice([1, 1, 2])):
                body = mutated(chance, body) if isinstance(body, dict) else body
            content = json.dumps(body).encode()
            if chance.random() < 0.3:
                content = mutated_bytes(chance, content)
            with within(20):
                answer = http.post(path, content=content, headers=headers)
            traces = [line["trace"] for line in running.lines if "trace" in line]
            assert answer.status_code < 500, (chance.name, content, *traces)
            is_stream = answer.headers["content-type"].startswith("text/event-stream")
            found = {} if is_stream else answer.json()  # a changed body may want a stream
            if answer.status_code >= 400:
                assert set(found["error"]) == {"message", "type", "param", "code"}, chance.name
        assert http.post(path, json=BORDERS[path]).status_code in (200, 201, 400)
        assert http.get("/health").status_code == 200
    assert not [line for line in running.lines if "trace" in line]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[" * 10_000,
        b'{"model": "\xff\xfe"}',
        b'{"model": "x", "messages": [], "seed": ' + b"9" * 5_000 + b"}",
        b'{"model": "x", "messages": [], "temperature": 1e999}',
        b'{"model": "\\ud800 half", "messages": []}',
        b'{"model": "x", "messages": [{"role": "user", "content": "\\udfff"}]}',
    ],
    ids=lambda content: repr(content[:24]),
)
def test_bad_json_is_a_400(running, content):
    with running.http() as http:
        headers = {"content-type": "application/json"}
        answer = http.post("/v1/chat/completions", content=content, headers=headers)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"]


def with_question(text):
    return {**CHAT, "trueline": {"question": text}}


SLOW = {  # none of them may hold a thread, or Python's lock, for long
    "long": {**CHAT, "messages": [{"role": "user", "content": "'s " * 300_000}]},
    "too_long": {**CHAT, "messages": [{"role": "user", "content": "a" * 5_000_000}]},
    "controls": {
        **CHAT,
        "messages": [{"role": "user", "content": "<|end|>" * 20_000 + "\ufdd0" * 20_000}],
    },
    "tokens": {**CHAT, "max_tokens": 10**15},
    "stops": {**CHAT, "stop": ["x" * 1000] * 16, "n": 8, "stream": True},
    "many_stops": {**CHAT, "stop": [f"x{n}" for n in range(10_000)]},
    "messages": {**CHAT, "messages": [{"role": "user", "content": "a"}] * 10_000},
    "settings": {**CHAT, "trueline": {"settings": {f"x{n}": 1 for n in range(20_000)}}},
    "spaces": with_question("a" + " " * 7_990 + "b"),
    "quotes": with_question("'\"" * 4_000),
    "clauses": with_question("and is it a " * 660),
    "requests": with_question("begin 'b" * 1_000),
}


@pytest.mark.parametrize("name", SLOW)
def test_no_request_freezes_the_server(embedder, name):
    lm = tiny.language_model("llama", chat=True)
    app = create_app(lm, {"facts": tl.build(None, EXAMPLES, embedder=embedder)})
    path = "/v1/chat/completions"
    with in_thread(app) as running, running.http() as http, within(20):
        with ThreadPoolExecutor(1) as thread:
            slow = thread.submit(http.post, path, json=SLOW[name])
            while not slow.done():  # others are served meanwhile
                begun = perf_counter()
                assert http.post(path, json=CHAT).status_code == 200
                assert perf_counter() - begun < 5
        assert slow.result().status_code in (200, 400, 413)
        assert http.post(path, json=CHAT).status_code == 200


def test_the_form_of_a_long_turn_is_read_at_once():
    for opening in ("begin 'b ", 'end "b '):  # quotes that do not end
        with within(5):
            assert read_form(opening * 20_000).opening == ""


def test_no_head_breaks_the_server(running):
    body = json.dumps(CHAT).encode()
    whole = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    for chance in rounds("heads", quick=40, long=1000):
        raw = mutated_bytes(chance, whole)
        raw += b"" if chance.random() < 0.3 else body[: chance.randrange(len(body))]
        with within(30), socket.create_connection(("127.0.0.1", running.port)) as sock:
            sock.sendall(raw)
            if chance.random() < 0.8:
                sock.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    while sock.recv(65536):
                        pass
    with running.http() as http:
        assert http.get("/health").status_code == 200
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert not [line for line in running.lines if "trace" in line]
