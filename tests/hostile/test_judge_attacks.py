"""What a hostile service, a stranger's plan or a damaged cache can do to a judge: nothing."""

import asyncio
import html
import json
import logging
import os
import re
import sqlite3
import stat
import subprocess
import sys
import zlib
from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from gzip import compress
from random import Random
from urllib.parse import quote

import numpy as np
import pytest
import tiny
import torch
from attack import mutated, mutated_bytes, rounds, run_command, within
from conftest import EXAMPLES
from fake_clock import HANG, FakeClock
from judge_server import KEY, _response, serving

from trueline.errors import SettingError, TruelineError
from trueline.evaluation.judges import Limits, open_judge, read_verdict
from trueline.evaluation.judges import cache as cache_module
from trueline.evaluation.judges.cache import Response, ResponseCache
from trueline.evaluation.judges.http import MAX_BYTES
from trueline.evaluation.judges.keys import Key
from trueline.evaluation.judges.offline import OfflineJudge
from trueline.evaluation.judges.sender import HIDDEN, _pause_in
from trueline.evaluation.lines import VerdictLine, encode_lines, read_written
from trueline.evaluation.samples import Sample
from trueline.examples import to_lines

NAMES = ["cohere", "gemini", "openai:some-model"]
PATHS = {
    "cohere": "/v2/chat",
    "gemini": "/v1beta/models/gemini-2.0-flash:generateContent",
    "openai:some-model": "/chat/completions",
}
OK = b"HTTP/1.1 200 OK\r\n"
GUM = Sample("gum", "What happens if you swallow gum?", ("It passes.",), ("It stays.",))
OWN_KEYS = ("COHERE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY")
OWN = "sk-own-service-aabbccddeeff"  # never to be seen by a server of these tests


def items(count):
    return [(GUM, f"answer number {number}.") for number in range(count)]


def number_in(prompt):
    return int(re.findall(r"answer number (\d+)", prompt)[-1])


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Keys for the services' own addresses, one for a server of one's own, and no proxy."""
    for name in list(os.environ):
        if name.endswith("_BASE_URL") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in OWN_KEYS:
        monkeypatch.setenv(name, OWN)
    monkeypatch.delenv("CO_API_KEY", raising=False)
    monkeypatch.setenv("TRUELINE_JUDGE_KEY", KEY)
    monkeypatch.setenv("TRUELINE_JUDGE_URL", "")
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path / "home"))


def open_at(server, name="cohere", *, clock=None, cache=None, **limits):
    """A judge at a server its user trusts, on a clock that costs no time."""
    os.environ["TRUELINE_JUDGE_URL"] = server.url  # restored by `environment`
    clock = clock or FakeClock().clock
    return open_judge(f"{name}@{server.url}", limits=Limits(**limits), clock=clock, cache=cache)


def ask_all(bodies, name="cohere", headers=lambda number: {}, **options):
    """A verdict on each answer, where the service sends these bodies; and the server."""

    def reply(prompt):
        body, more = bodies[number_in(prompt)], headers(number_in(prompt))
        lines = {"content-length": len(body), **more}.items()
        head = "".join(f"{name}: {value}\r\n" for name, value in lines)
        return OK + head.encode("latin-1") + b"\r\n" + body

    with within(HANG), serving(reply=reply) as server:
        judge = open_at(server, name, **options)
        return judge.judge("question", "info", items(len(bodies))), server


def ask_once(server, **options):
    """The one verdict on one answer, after one try."""
    judge = open_at(server, **{"tries": 1, "concurrency": 1, **options})
    (verdict,) = judge.judge("question", "info", items(1))
    return verdict


# Keys: what is one, and where it shows.


@pytest.mark.parametrize(
    "key",
    [
        "sk-secret-01234\n56789",
        "sk-secret-01234\r\nHost: evil",
        "sk-secret 0123456789",
        "sk-secret\t0123456789",
        "sk-s\u00e9cret-0123456789",
        "sk-secret-\U0001f5dd-0123456789",
        "sk-secret-\x7f-0123456789",
        "sk-secret-\u200b0123456789",
        "secret",
        "------------secret--",
        "sk-secret" * 1_000,
    ],
    ids=ascii,
)
@pytest.mark.parametrize("variable", ["COHERE_API_KEY", "TRUELINE_JUDGE_KEY"])
def test_what_cannot_be_a_key_is_refused_when_the_judge_opens(key, variable, monkeypatch):
    url = "https://judge.example.org"
    monkeypatch.setenv("TRUELINE_JUDGE_URL", url)
    monkeypatch.setenv(variable, key)
    with pytest.raises(SettingError, match=variable) as caught:
        open_judge("cohere" if variable == "COHERE_API_KEY" else f"cohere@{url}")
    said = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert not re.search("sk-|secret|0123|56789", said)


@pytest.mark.parametrize("word", ["EMPTY", "ollama", "lm-studio", "none"])
def test_a_server_on_this_machine_takes_any_word_and_hides_none(word, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", word)
    service = open_judge("openai:llama")._sender.service
    assert service.headers == {"Authorization": f"Bearer {word}"}
    assert not service.key.is_in(f"Written with {word}: true")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://judge.example.org/v1")
    with pytest.raises(SettingError, match="fewer than 12 letters and digits"):
        open_judge("openai:llama")


@pytest.mark.parametrize("key", ["", " \n"])
def test_an_empty_key_is_no_key(key, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", key)
    with pytest.raises(TruelineError, match="needs a key; set GEMINI_API_KEY"):
        open_judge("gemini")


def test_a_key_from_a_file_may_end_with_a_line_break(monkeypatch):
    monkeypatch.setenv("TRUELINE_JUDGE_KEY", f"{KEY}\n")
    with serving() as server:
        assert ask_once(server).label is True


SPELLINGS = {  # how a service may write what it was sent
    "plain": lambda key: key,
    "upper": str.upper,
    "json": json.dumps,
    "json twice": lambda key: json.dumps(json.dumps({"authorization": f"Bearer {key}"})),
    "json slash": lambda key: key.replace("-", "\\/-"),
    "\\u": lambda key: "".join(f"\\u{ord(c):04x}" for c in key),
    "\\u twice": lambda key: "".join(f"\\\\u{ord(c):04X}" for c in key),
    "\\u{}": lambda key: "".join(f"\\u{{{ord(c):x}}}" for c in key),
    "\\x": lambda key: "".join(f"\\x{ord(c):02x}" for c in key),
    "octal": lambda key: "".join(f"\\{ord(c):03o}" for c in key),
    "U+": lambda key: " ".join(f"U+{ord(c):04X}" for c in key),
    "some escaped": lambda key: key.replace("e", "\\u0065").replace("0", "%30"),
    "percent": lambda key: "".join(f"%{ord(c):02X}" for c in key),
    "percent twice": lambda key: quote("".join(f"%{ord(c):02x}" for c in key)),
    "quoted printable": lambda key: "".join(f"={ord(c):02X}" for c in key),
    "html": lambda key: "".join(f"&#{ord(c)};" for c in key),
    "html hex": lambda key: html.escape("".join(f"&#x{ord(c):x};" for c in key)),
    "base64": lambda key: b64encode(key.encode()).decode(),
    "base64 bearer": lambda key: b64encode(f"Bearer {key}".encode()).decode(),
    "base64 1 before": lambda key: b64encode(f"x{key}, and on".encode()).decode(),
    "base64 2 before": lambda key: b64encode(f"xy{key}!".encode()).decode().rstrip("="),
    "base64 urlsafe": lambda key: urlsafe_b64encode(f"a?>{key}".encode()).decode(),
    "base64 lines": lambda key: "\n".join(b64encode(key.encode()).decode()),
    "base64 percent": lambda key: quote(b64encode(key.encode()).decode(), safe=""),
    "hex": lambda key: key.encode().hex(),
    "hex pairs": lambda key: key.encode().hex(":").upper(),
    "hex 0x": lambda key: ", ".join(f"0x{ord(c):02x}" for c in key),
    "bytes": lambda key: str(list(key.encode())),
    "repr": lambda key: repr(repr(key.encode())),
    "reversed": lambda key: key[::-1],
    "blanks": lambda key: " ".join(key),
    "line breaks": lambda key: "\r\n".join(key),
    "escaped line breaks": lambda key: "\\n".join(key),
    "zero width": lambda key: "\u200b".join(key),
    "full width": lambda key: "".join(chr(ord(c) + 0xFEE0) for c in key),
    "without its end": lambda key: key[:-4],
    "without its start": lambda key: key[5:],
}
KEYS = [KEY, "sk-proj-" + "aZ3_x-" * 26, "AIza%41/+\\u0041=&amp;~'\"8ZkQ"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_key_is_known_in_every_spelling_wherever_it_stands(spelling):
    for value in KEYS:
        text = SPELLINGS[spelling](value)
        for before in ("", "a", "Yes. Key: ", "{'"):
            assert Key(value, "X").is_in(f"{before}{text} and so on"), (value, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Yes",
        "sk-se...6789",
        "sk-secret-******",
        "Incorrect API key provided: sk-secr*******6789.",
        "The answer is wrong: 0123456 is no number, and sk is no word for secret.",
        "%" * 1_000 + "&#x110000; \\U00110000 \\ud800",
    ],
)
def test_a_text_without_the_key_is_left_alone(text):
    assert not Key(KEY, "X").is_in(text)


def test_a_key_does_not_show_itself():
    assert KEY not in f"{Key(KEY, 'X')!r} {Key(KEY, 'X')}"


@pytest.mark.parametrize("form", ["reply", "error", "text"])
def test_a_reply_that_shows_the_key_is_unscored_and_kept_nowhere(form, tmp_path):
    spelled = [spell(KEY) for spell in SPELLINGS.values()]

    def reply(prompt):
        text = spelled[number_in(prompt)]
        if form == "reply":
            return f"Yes. {text}"
        status = b"200 OK" if form == "text" else b"500 Failed"
        return b"HTTP/1.1 " + status + f"\r\n\r\nkey was {text}".encode()

    cache = tmp_path / "cache.sqlite"
    with serving(reply=reply) as server:
        judge = open_at(server, tries=1, cache=cache)
        verdicts = judge.judge("question", "info", items(len(spelled)))
    for name, text, verdict in zip(SPELLINGS, spelled, verdicts, strict=True):
        assert (verdict.label, verdict.is_answered) == (None, form == "reply"), name
        assert HIDDEN in verdict.raw, name
        assert text.encode() not in cache.read_bytes(), name
    assert form != "reply" or {verdict.raw for verdict in verdicts} == {HIDDEN}
    assert read_verdict(HIDDEN, "info") is None


@pytest.mark.parametrize("status", [404, 401, 302, 400])
def test_no_message_shows_a_key_that_came_back(status):
    spelled = b64encode(f"Bearer {KEY}".encode()).decode()
    line = f"HTTP/1.1 {status} {KEY}\r\nlocation: /{KEY}\r\nx: {spelled}\r\n\r\n{spelled}"
    with serving(reply=lambda prompt: line.encode()) as server:
        try:
            said = ask_once(server).raw
        except TruelineError as error:
            said = str(error)
    assert str(status) in said
    assert not Key(KEY, "X").is_in(said)


def test_a_protocol_error_that_repeats_the_key_is_left_out():
    line = f"HTTP/1.1 2xx {KEY}\r\n{KEY}\r\n\r\n"
    with serving(reply=lambda prompt: line.encode()) as server:
        verdict = ask_once(server)
    assert not Key(KEY, "X").is_in(verdict.raw)
    assert not verdict.is_answered


def test_a_key_in_an_old_cache_does_not_come_back(tmp_path):
    with serving() as server:
        judge = open_at(server, cache=tmp_path / "cache.sqlite")
        judge.judge("question", "info", items(1))
        with sqlite3.connect(tmp_path / "cache.sqlite") as connection:
            connection.execute("UPDATE responses SET text = ?", (f"Yes. {KEY}",))
        connection.close()
        (verdict,) = judge.judge("question", "info", items(1))
    assert (verdict.label, verdict.raw, verdict.is_cached) == (None, HIDDEN, True)


def test_the_log_of_a_client_says_nothing_of_a_service(caplog):
    caplog.set_level(logging.DEBUG)
    line = f"HTTP/1.1 500 {KEY}\r\nx-echo: {KEY}\r\ncontent-length: 0\r\n\r\n"
    with serving(reply=lambda prompt: line.encode()) as server:
        ask_once(server)
    logging.getLogger("httpx2").info("another thread is heard")
    assert KEY not in caplog.text
    assert "another thread is heard" in caplog.text


# Addresses: where a key goes.


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bound", ["", "https://judge.example.org/v1", "{url}/team-a"])
def test_a_plan_moves_no_key_to_an_address_its_user_did_not_name(name, bound, monkeypatch):
    with serving() as server:
        monkeypatch.setenv("TRUELINE_JUDGE_URL", bound.format(url=server.url))
        if not bound:
            monkeypatch.delenv("TRUELINE_JUDGE_KEY")
        address = f"{server.url}/team-b"
        with pytest.raises(TruelineError) as caught:
            open_judge(f"{name}@{address}").judge("question", "info", items(1))
    assert f"set TRUELINE_JUDGE_URL to {address} and TRUELINE_JUDGE_KEY" in str(caught.value)
    assert f"{OWN}" not in f"{caught.value} {server.requests}"
    assert KEY not in f"{caught.value} {server.requests}"


def test_a_server_without_keys_is_asked_without_one():
    body = json.dumps(_response("/chat/completions", "a", "No"))
    os.environ["TRUELINE_JUDGE_URL"] = "https://judge.example.org/v1"
    with serving(faults=[lambda handler: handler.send(200, body)]) as server:
        judge = open_judge(f"openai:mine@{server.url}", clock=FakeClock().clock)
        (verdict,) = judge.judge("question", "info", items(1))
    assert verdict.label is False
    assert not {"Authorization", "x-goog-api-key"} & set(server.requests[0][1])


def test_a_key_without_its_address_is_told_what_to_set():
    with pytest.raises(SettingError, match=r"TRUELINE_JUDGE_URL to https://a\.example/v1"):
        open_judge("openai:m@https://a.example/v1")


def test_a_service_at_another_address_of_ones_own_takes_its_key_along(monkeypatch):
    monkeypatch.setenv("COHERE_BASE_URL", "https://gateway.example.org")
    monkeypatch.delenv("TRUELINE_JUDGE_KEY")
    assert open_judge("cohere").id.endswith("@https://gateway.example.org")
    with pytest.raises(TruelineError, match=r"goes to https://gateway\.example\.org alone"):
        open_judge("cohere@https://api.cohere.com")  # the gateway's key is not Cohere's


@pytest.mark.parametrize(
    "same",
    [
        "https://Judge.example.org/v1",
        "https://judge.example.org:443/v1/",
        "HTTPS://judge.example.org/v1",
    ],
)
def test_an_address_is_the_same_however_it_is_written(same, monkeypatch):
    monkeypatch.setenv("TRUELINE_JUDGE_URL", same)
    judge = open_judge("cohere@https://judge.example.org/v1/")
    assert judge.id == "cohere:command-a-03-2025@https://judge.example.org/v1"


@pytest.mark.parametrize(
    "other",
    [
        "https://judge.example.org",
        "https://judge.example.org/v1/x",
        "https://judge.example.org/V1",
        "https://judge.example.org/v1/..",
        "https://judge.example.org/v1%2f",
        "https://judge.example.org:444/v1",
        "https://judge.example.org.evil.example/v1",
        "https://evil.example/https://judge.example.org/v1",
        "http://judge.example.org/v1",
    ],
)
def test_an_address_that_only_looks_like_ones_own_gets_no_key(other, monkeypatch):
    monkeypatch.setenv("TRUELINE_JUDGE_URL", "https://judge.example.org/v1")
    with pytest.raises(TruelineError, match="needs a key"):
        open_judge(f"gemini@{other}")
    assert open_judge(f"openai:m@{other}")._sender.service.headers == {}


@pytest.mark.parametrize(
    "address",
    [
        "https://judge.example.org\\@evil.example/v1",
        "https://judge.example.org#@evil.example/v1",
        "https://evil.example\uff0fjudge.example.org/v1",
        "https://judge.example.org/\u202e1v",
        "https://judge.example.org/\x1b[31m",
        "https://judge.example.org/" + "a" * 600,
        "https://[judge.example.org/v1",
        "https://judge.example.org:99999/v1",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("given", ["name", "variable"])
def test_an_address_in_tricky_signs_is_no_address(address, given, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", address if given == "variable" else "")
    with pytest.raises(SettingError) as caught:
        open_judge("openai:m" if given == "variable" else f"openai:m@{address}")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "url",
    [
        "http://judge.example.org/v1",
        "http://192.168.1.5:8000/v1",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://0.0.0.0:8000",
        "http://[::ffff:7f00:1]:8000",
        "http://2130706433",
    ],
)
@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "TRUELINE_JUDGE_URL"])
def test_a_key_leaves_this_machine_by_https_alone(url, variable, monkeypatch):
    monkeypatch.setenv(variable, url)
    key = variable.replace("BASE_URL", "API_KEY").replace("_URL", "_KEY")
    with pytest.raises(SettingError, match=f"not https.*{key}"):
        open_judge("openai:m" if "OPENAI" in variable else f"openai:m@{url}")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "[::1]"])
def test_a_key_may_go_to_this_machine_by_http(host, monkeypatch):
    monkeypatch.setenv("TRUELINE_JUDGE_URL", f"http://{host}:8000")
    judge = open_judge(f"cohere@http://{host}:8000")
    assert judge._sender.service.headers == {"Authorization": f"Bearer {KEY}"}


def test_what_is_for_this_machine_goes_to_no_proxy(monkeypatch):
    with serving() as proxy, serving() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert ask_once(server).label is True
    assert proxy.requests == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTPS_PROXY", "ftp://me:hidden@proxy.example"),
        ("HTTPS_PROXY", "http://me:hidden@proxy.example:port"),
        ("ALL_PROXY", "socks5://me:hidden@proxy.example:1"),
        ("SSL_CERT_FILE", "/nonexistent/hidden.pem"),
        ("SSL_CERT_FILE", __file__),
    ],
)
def test_a_proxy_or_certificate_that_cannot_be_is_one_line(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=variable) as caught:
        open_judge("openai:m")
    assert "hidden" not in f"{caught.value}"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("model", ["\udcff", "a\x1b[31m", "a\x00", "\u202eb", "m" * 100_000])
@pytest.mark.parametrize("kind", ["cohere", "gemini", "openai"])
def test_a_model_no_service_can_have_is_refused(kind, model):
    with pytest.raises(SettingError, match="printable"):
        open_judge(f"{kind}:{model}")


def test_a_name_that_holds_the_key_is_refused(monkeypatch):
    url = f"https://judge.example.org/{KEY}/v1"
    monkeypatch.setenv("TRUELINE_JUDGE_URL", url)
    with pytest.raises(SettingError, match="holds its key") as caught:
        open_judge(f"openai:m@{url}")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_key_follows_no_redirect(status):
    with serving() as other, serving() as server:
        target = {"location": f"{other.url}/v2/chat"}
        server.faults = [lambda handler: handler.send(status, "", target)] * 20
        verdict = ask_once(server)
    assert other.requests == []
    assert len(server.requests) == 1
    assert f"HTTP {status}" in verdict.raw


def test_cookies_are_not_kept():
    crowd = {"set-cookie": f"a={'b' * 50_000}; Max-Age=9999999"}
    with serving(faults=[lambda handler: handler.send(500, "", crowd)] * 2) as server:
        open_at(server).judge("question", "info", items(1))
    assert len(server.requests) == 3
    assert not any(
        "cookie" in name.lower() for _, names, _, _ in server.requests for name in names
    )


# Bytes without end: a deadline for the whole try, and a bound on what is read.


def flood(clock, head, part, after=3):
    """A fault: bytes without end; the deadline passes after some of them."""

    def send(handler):
        handler.wfile.write(head)
        for number in range(10**9):
            if number == after:
                clock.expire()
            handler.wfile.write(part)
            handler.server.sent = number * len(part)
            if handler.server.released.is_set():
                return

    return send


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (b"", b"x"),
        (b"HTTP/1.1 20", b"0"),
        (OK, b"a: b\r\n"),
        (OK + b"a: ", b"b"),
        (OK + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (OK + b"transfer-encoding: chunked\r\n\r\n1;", b"x"),
        (OK + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
        (OK + b"content-length: 600000000\r\n\r\n", b" "),
        (OK + b"\r\n", b"["),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
        (b"", b"\r\n"),
    ],
    ids=ascii,
)
def test_a_drip_of_any_part_of_a_response_ends_with_the_deadline(head, part):
    clock = FakeClock()
    with within(HANG), serving(faults=[flood(clock, head, part)]) as server:
        verdict = ask_once(server, clock=clock.clock, timeout=7)
    assert verdict.raw.startswith("(no response: ")
    assert not verdict.is_answered


@pytest.mark.parametrize(
    ("head", "part", "reason"),
    [
        (OK + b"\r\n", b" " * 65_536, "longer than"),
        (OK + b"content-length: 600000000\r\n\r\n", b" " * 65_536, "longer than"),
        (
            OK + b"transfer-encoding: chunked\r\n\r\n",
            b"ffff\r\n" + b" " * 65_535 + b"\r\n",
            "longer",
        ),
        (OK + b"content-encoding: gzip\r\n\r\n", bytes(65_536), "longer than"),
        (OK, b"a: " + b"b" * 9_999 + b"\r\n", "connection failed"),
        (OK + b"a: ", b"b" * 65_536, "connection failed"),
        (b"", b"x" * 65_536, "connection failed"),
    ],
    ids=ascii,
)
def test_no_more_of_an_endless_response_is_read_than_one_may_have(head, part, reason):
    never = FakeClock()
    with within(HANG), serving(faults=[flood(never, head, part, after=None)]) as server:
        verdict = ask_once(server, clock=never.clock)
    assert reason in verdict.raw
    assert server.sent < MAX_BYTES + 20_000_000  # what the system's own buffers hold is sent


def bomb(wbits, times):
    """A megabyte of blanks packed once, and the packed block so many times."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    head = packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b" " * 1_000_000) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * times


@pytest.mark.parametrize(
    ("encoding", "body", "reason"),
    [
        ("gzip", bomb(31, 600), "longer than 1,000,000 bytes"),
        ("GZIP", bomb(31, 600), "longer than 1,000,000 bytes"),
        ("deflate", bomb(15, 600), "longer than 1,000,000 bytes"),
        ("gzip", compress(b'{"a": 1}', mtime=0)[:-6], "end is missing"),
        ("gzip", b"", "end is missing"),
        ("gzip", b"\x1f\x8b\x08\x04nonsense", "end is missing"),
        ("gzip", b"no gzip at all", "cannot be unpacked"),
        ("deflate", b"no deflate at all", "cannot be unpacked"),
        ("gzip, gzip", compress(compress(b"a", mtime=0), mtime=0), "which was not allowed"),
        ("br", b"\x1b\x00\x00", "which was not allowed"),
        ("zstd", b"\x28\xb5\x2f\xfd", "which was not allowed"),
        ("compress", b"\x1f\x9d", "which was not allowed"),
    ],
)
def test_a_response_that_unpacks_to_too_much_or_to_nothing_is_unscored(encoding, body, reason):
    packed = {"content-encoding": encoding}
    with serving(faults=[lambda handler: handler.send(200, body, packed)]) as server:
        assert reason in ask_once(server).raw


MEASURED = """
import sys
from trueline.evaluation.judges import Limits, open_judge
from trueline.evaluation.samples import Sample

def held_mb():  # the most so far; what getrusage tells is the parent's, if that is more
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024

judge = open_judge(sys.argv[1], limits=Limits(tries=1, concurrency=8))
sample = Sample("gum", "What happens if you swallow gum?", ("Nothing.",), ("Much.",))
before = held_mb()
verdicts = judge.judge("question", "info", [(sample, f"answer {n}.") for n in range(24)])
assert all(not verdict.is_answered for verdict in verdicts)
print(held_mb() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the most memory held is told by Linux")
def test_memory_stays_small_whatever_comes(monkeypatch):
    """8 requests at once meet bodies without end, bombs, and JSON of a million small parts."""
    packed = {"content-encoding": "gzip"}
    parts = b"[" + b"{}," * 333_000 + b"{}]"
    faults = [
        flood(FakeClock(), OK + b"\r\n", b" " * 65_536, after=None),
        lambda handler: handler.send(200, bomb(31, 600), packed),
        lambda handler: handler.send(200, parts),
    ]
    with within(HANG), serving(faults=faults * 8) as server:
        monkeypatch.setenv("TRUELINE_JUDGE_URL", server.url)
        command = [sys.executable, "-c", MEASURED, f"cohere@{server.url}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200  # megabytes; 2.5 GB were taken for 600 MB of body


NO_RESPONSES = [
    b"",
    b"\x00" * 100,
    b"Yes",
    b"<html>hello</html>",
    b"HTTP/0.9 200 OK\r\n\r\nYes",
    b"HTTP/3.0 200 OK\r\n\r\nYes",
    b"HTTP/1.1 999 Odd\r\n\r\n{}",
    b"HTTP/1.1 2000 OK\r\n\r\n{}",
    b"HTTP/1.1 -1 OK\r\n\r\n{}",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n" + b"\x00" * 99,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    OK + b"content-length: -5\r\n\r\n{}",
    OK + b"content-length: 5000\r\n\r\n{}",
    OK + b"content-length: 99999999999999999999999\r\n\r\n{}",
    OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    OK + b"content-length: \xb2\r\n\r\n{}",
    OK + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffffff\r\n{}",
    OK + b"transfer-encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n",
    OK + b"transfer-encoding: gzip\r\n\r\n{}",
    OK + b"bad header\r\n\r\n{}",
    OK + b"a\x00b: c\r\n\r\n{}",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x01" * 99,
]


def test_what_is_no_response_is_unscored_with_a_reason():
    sent = NO_RESPONSES
    with within(HANG), serving(reply=lambda prompt: sent[number_in(prompt)]) as server:
        verdicts = open_at(server, tries=2).judge("question", "info", items(len(sent)))
    for data, verdict in zip(sent, verdicts, strict=True):
        assert (verdict.label, verdict.is_answered) == (None, False), data
        assert verdict.raw.startswith("(no response: "), data


def test_https_to_a_server_that_speaks_http_is_unscored_with_a_reason(monkeypatch):
    with within(HANG), serving() as server:
        url = server.url.replace("http:", "https:")
        monkeypatch.setenv("TRUELINE_JUDGE_URL", url)
        judge = open_judge(f"cohere@{url}", limits=Limits(tries=2), clock=FakeClock().clock)
        (verdict,) = judge.judge("question", "info", items(1))
    assert "connection failed" in verdict.raw
    assert server.requests == []


# Replies: what is not in the API's form is tried again, then unscored.


def with_counts(number):
    """A whole response of each API with this text where its counts of tokens stand."""
    made = {name: json.dumps(_response(path, "a b", "Yes")) for name, path in PATHS.items()}
    return {
        name: re.sub(r": 2\b", lambda _: f": {number}", text) for name, text in made.items()
    }


NO_COUNTS = ["1e999", "-1e999", "NaN", "Infinity", "9" * 30, "9" * 5_000, "-1", "1.5", "1e20"]
NO_COUNTS += ["9" * 12, '"2"', "[2]", "{}x", "true", '"\\ud800"']


@pytest.mark.parametrize("name", NAMES)
def test_a_count_of_tokens_that_is_none_is_tried_again_then_unscored(name, tmp_path):
    bodies = [with_counts(number)[name].encode() for number in NO_COUNTS]
    assert with_counts("2")[name].encode() not in bodies
    verdicts, server = ask_all(bodies, name, tries=2, cache=tmp_path / "cache.sqlite")
    assert len(server.requests) == 2 * len(bodies)
    for body, verdict in zip(bodies, verdicts, strict=True):
        assert (verdict.label, verdict.is_answered) == (None, False), body
        assert "not of this API's form" in verdict.raw, body
        assert "tried 2 times" in verdict.raw, body
    with sqlite3.connect(tmp_path / "cache.sqlite") as connection:  # so they are asked again
        assert connection.execute("SELECT count(*) FROM responses").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_count_may_be_whole_and_written_as_a_float(name):
    body = with_counts("2.0")[name]
    with serving(faults=[lambda handler: handler.send(200, body)]) as server:
        assert ask_once(server, name=name).prompt_tokens == 2


def deep(left, right=b""):
    return left * 50_000 + right * 50_000


OTHER_FORMS = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"0",
    b'"Yes"',
    b"[[]]",
    b'[{"choices": []}]',
    b'{"choices": {"0": 1}, "message": [], "candidates": "Yes"}',
    b'{"choices": [], "message": null, "candidates": [null]}',
    b'{"choices": [{"message": {"content": ["Yes"]}}], "message": {"content": {"a": 1}}, '
    b'"candidates": [{"content": {"parts": [{"text": 5}]}}]}',
    b'{"choices": [{"message": {"content": "Yes"}}], "usage": [], '
    b'"message": {"content": [{"type": "text", "text": 1}]}, "candidates": [{"content": 5}]}'
    b"}",
    deep(b"["),
    deep(b"[", b"]"),
    deep(b'{"message":'),
    deep(b'{"a":', b"}"),
    b'{"choices": [{"message": {"content": null, "refusal": '
    + b"[" * 900
    + b"]" * 900
    + b"}}]}",
    b'{"message": {"content": [{"type": "text", "text": "Yes"}], "a": "\xff\xfe"}}',
    b"9" * 5_000,
    b"\x00\x01\x02",
    b"\xff\xfe" + '{"choices": []}'.encode("utf-16-le"),
    json.dumps({"choices": [{"message": {"content": "Yes " * 60_000}}]}).encode(),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_in_another_form_is_tried_again_then_unscored(name):
    verdicts, server = ask_all(OTHER_FORMS, name, tries=2)
    assert len(server.requests) == 2 * len(OTHER_FORMS)
    for body, verdict in zip(OTHER_FORMS, verdicts, strict=True):
        assert (verdict.label, verdict.is_answered) == (None, False), body[:200]
        assert "not of this API's form" in verdict.raw, body[:200]


KINDS = ["application/json", "text/plain; charset=base64", "a; charset=undefined", "", ";;"]
KINDS += [f"a; charset={code}" for code in ("utf-7", "utf-16", "rot13", "idna", "zip", "\xff")]


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_is_read_as_utf8_whatever_its_header_says(name):
    response = _response(PATHS[name], "a", "Yes. \u00e9")
    bodies = [json.dumps(response, ensure_ascii=False).encode()] * len(KINDS)
    kinds = [{"content-type": kind} for kind in KINDS]
    verdicts, _ = ask_all(bodies, name, headers=kinds.__getitem__, tries=1)
    for kind, verdict in zip(KINDS, verdicts, strict=True):
        assert (verdict.label, verdict.raw) == (True, "Yes. \u00e9"), kind


def test_marks_nul_and_doubled_names_are_read_as_json_has_them():
    twice = b'{"choices": [{"message": {"content": "Yes", "content": "No. \\u0000\\ud83d"}}]}'
    with serving(faults=[lambda handler: handler.send(200, b"\xef\xbb\xbf" + twice)]) as server:
        verdict = ask_once(server, name="openai:m")
    assert (verdict.label, verdict.raw) == (False, "No. \x00?")


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        ("nan", 0.0),
        ("-inf", 0.0),
        ("-5", 0.0),
        ("1e400", float("inf")),
        ("\u0661", 1.0),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2025 00:00:00 +99999999999999", None),
        ("Mon, 99 Jan 2025 99:99:99", None),
        (", , ,", None),
        ("Mon", None),
        ("9" * 5_000, float("inf")),
    ],
)
def test_a_pause_that_is_none_is_not_kept(header, pause):
    assert _pause_in(header, FakeClock().date()) == pause


def test_a_retry_after_of_any_length_ends_in_a_verdict_or_a_reason():
    headers = ["nan", "1e400", "-1", "Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "9" * 999]
    for header in headers:
        with within(HANG), serving(faults=[(429, header)] * 2) as server:
            assert ask_once(server, tries=2).raw.startswith("(no response: HTTP 429")


@pytest.mark.parametrize(
    "limits",
    [
        {"tries": 10**9},
        {"backoff": 1e308},
        {"per_minute": 1e-300},
        {"timeout": 1e300},
        {"patience": float("inf")},
        {"concurrency": 10**9},
    ],
)
def test_limits_no_clock_can_keep_are_refused(limits):
    with pytest.raises(SettingError, match=next(iter(limits))):
        Limits(**limits)


def test_no_pause_is_longer_than_patience():
    clock = FakeClock()
    with serving(faults=[500] * 40) as server:
        ask_once(server, clock=clock.clock, tries=40, patience=10)
    assert len(clock.waits) == 39
    assert max(clock.waits) == 10


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 100_000,
        "<" + "a" * 500_000,
        "the " * 200_000,
        "answer is " * 50_000,
        "and " * 100_000 + "x",
        "yes, it is " + "clearly " * 50_000,
        "yes " + "-" * 500_000,
        "\ufdfa" * 100_000,
        ". " * 300_000,
        "\ud800\x00\u202e" * 1_000,
    ],
    ids=lambda text: ascii(text[:9]),
)
def test_a_long_reply_is_read_in_no_time(text):
    with within(20):
        assert read_verdict(text, "truth") in (True, False, None)
        assert read_verdict(f"Yes. {text}", "truth") in (True, False, None)
        Key(KEY, "X").is_in(text)


# Whole runs: what a service answers, and where a plan's key goes.


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a plan with one judge by the command; its outcome, and the lines of the verdicts."""
    load = "trueline.engines.transformers.language.load"
    monkeypatch.setattr(load, lambda name, **options: tiny.language_model("llama"))
    for name, examples in {"ground": EXAMPLES[:1], "test": EXAMPLES[1:]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(to_lines(examples)), "utf-8")
    data = f"{tmp_path / 'ground.jsonl'}:{tmp_path / 'test.jsonl'}"

    def evaluate(judge):
        (tmp_path / "run.toml").write_text(
            f'models = ["smollm2-135m"]\nbenchmarks = ["{data}"]\nmethods = ["greedy"]\n'
            f'judges = ["{judge}"]\nmax_new_tokens = 2\n[judge]\ntries = 2\nbackoff = 0\n',
            "utf-8",
        )
        with within(HANG):
            ran = run_command(
                "eval", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")
            )
        path = tmp_path / "out" / "results.jsonl"
        lines = read_written(path).lines if path.exists() else []
        return ran, [line for line in lines if isinstance(line, VerdictLine)]

    return evaluate


def with_head(body, **headers):
    """The bytes of a response."""
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    return OK + "".join(lines).encode() + b"\r\n" + body


NO_VERDICTS = {
    "1e999": with_head(with_counts("1e999")["openai:some-model"].encode()),
    "30 digits": with_head(with_counts("9" * 30)["openai:some-model"].encode()),
    "deep nesting": with_head(deep(b"[", b"]")),
    "bad gzip": with_head(b"no gzip", content_encoding="gzip"),
    "a charset that is none": with_head(b"\xff", content_type="a; charset=base64"),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", NO_VERDICTS)
def test_a_run_goes_through_whatever_its_judge_replies_and_asks_again_in_the_next(kind, run):
    with serving(reply=lambda prompt: NO_VERDICTS[kind]) as server:
        os.environ["TRUELINE_JUDGE_URL"] = server.url  # restored by `environment`
        ran, verdicts = run(f"openai:m@{server.url}")
        assert (ran.code, "Traceback" in ran.err) == (0, False), ran.err
        assert len(verdicts) == 6  # three answers, truth and info
        assert {(one.label, one.is_answered) for one in verdicts} == {(None, False)}
        assert "6 questions got no response; the next run asks again" in ran.err
        asked = {prompt for _, _, _, prompt in server.requests}
        assert len(server.requests) == 2 * len(asked)
        server.reply = lambda prompt: "Yes"
        ran, verdicts = run(f"openai:m@{server.url}")
    assert (ran.code, {one.label for one in verdicts}) == (0, {True})


@pytest.mark.parametrize(
    "spelling", ["plain", "base64 bearer", "\\u", "reversed", "line breaks"]
)
def test_a_key_that_a_judge_sends_back_is_in_no_file_of_a_run(spelling, run, tmp_path):
    spelled = SPELLINGS[spelling](KEY)
    with serving(reply=lambda prompt: f"Yes. {spelled}") as server:
        os.environ["TRUELINE_JUDGE_URL"] = server.url  # restored by `environment`
        ran, verdicts = run(f"openai:m@{server.url}")
    assert {(one.label, one.raw) for one in verdicts} == {(None, HIDDEN)}
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    said = [ran.out, ran.err, *(data.decode("utf-8", "replace") for data in written)]
    assert not any(Key(KEY, "X").is_in(text) for text in said)
    assert not any(
        text in part for part in said for text in (spelled, json.dumps(spelled)[1:-1])
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_a_strangers_plan_sends_no_key_to_the_address_in_it(name, run, monkeypatch):
    monkeypatch.delenv("TRUELINE_JUDGE_KEY")
    body = json.dumps(_response("/chat/completions", "a", "Yes")).encode()
    with serving(faults=[lambda handler: handler.send(200, body)] * 6) as server:  # to anyone
        ran, verdicts = run(f"{name}@{server.url}")
    assert OWN not in f"{ran} {server.requests}"
    if name.startswith("openai"):  # which may need no key
        assert (ran.code, {one.label for one in verdicts}) == (0, {True})
        assert not any("Authorization" in headers for _, headers, _, _ in server.requests)
    else:
        assert (ran.code, ran.err.count("Error: "), server.requests) == (1, 1, [])


# The cache.


@pytest.fixture
def cache(tmp_path):
    cache = ResponseCache(tmp_path / "cache.sqlite")
    cache.write("a", "cohere", Response("Yes", 5, 1))
    return cache


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_cache_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        cache = ResponseCache(tmp_path / "deep" / "cache.sqlite")
        assert mode(cache.path) == 0o600
        for kind in ("delete", "wal"):
            with cache._open() as connection:
                connection.execute(f"PRAGMA journal_mode={kind}")
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(
                    "INSERT INTO responses VALUES (?, '', '', 1, 1, '')", (kind,)
                )
                beside = [mode(path) for path in cache.path.parent.iterdir()]
                connection.execute("COMMIT")
            assert set(beside) == {0o600}
            assert len(beside) > 1
    finally:
        os.umask(before)


def test_a_cache_all_could_read_is_narrowed_when_it_is_opened(cache):
    cache.path.chmod(0o644)
    assert ResponseCache(cache.path).read(["a"]) == {"a": Response("Yes", 5, 1)}
    assert mode(cache.path) == 0o600


def test_a_cache_that_a_group_shares_stays_shared(cache):
    cache.path.chmod(0o660)
    ResponseCache(cache.path)
    assert mode(cache.path) == 0o660


@pytest.mark.parametrize(
    "change",
    [
        "text = x'ff00'",
        "text = CAST(x'ff' AS TEXT)",
        "prompt_tokens = 'many'",
        "prompt_tokens = 1e300",
        "answer_tokens = 9e999",
        "answer_tokens = x'00'",
        "answer_tokens = -1",
    ],
)
def test_a_row_nobody_wrote_is_an_error_that_names_the_file(cache, change):
    with sqlite3.connect(cache.path) as connection:
        connection.execute(f"UPDATE responses SET {change}")
    connection.close()
    with pytest.raises(TruelineError, match=r"cache\.sqlite cannot be used") as caught:
        cache.read(["a"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "table", ["notes (a TEXT)", "responses (key TEXT)", "responses (key, judge, text, x, y, z)"]
)
def test_the_database_of_another_program_is_not_written_to(tmp_path, table):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE {table}")
    connection.close()
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(TruelineError, match=r"other\.sqlite cannot be used"):
        ResponseCache(path)
    assert path.read_bytes() == before
    assert mode(path) == 0o644


def test_a_locked_cache_is_an_error_after_a_while(cache, monkeypatch):
    monkeypatch.setattr(cache_module, "_LOCK_SECONDS", 0.01)
    with sqlite3.connect(cache.path, isolation_level=None) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        for use in (lambda: ResponseCache(cache.path), lambda: cache.read(["a"])):
            with pytest.raises(TruelineError, match="locked"):
                use()
    connection.close()


@pytest.mark.skipif(not os.getuid(), reason="root may write everywhere")
@pytest.mark.parametrize("modes", [(0o400, 0o700), (0o600, 0o500)])
def test_a_cache_that_cannot_be_written_is_told_before_anything_is_paid(cache, modes):
    file, folder = modes
    cache.path.chmod(file)
    cache.path.parent.chmod(folder)
    try:
        with pytest.raises(TruelineError, match=r"cache\.sqlite cannot be used"):
            ResponseCache(cache.path)
    finally:
        cache.path.parent.chmod(0o700)


def test_what_is_no_file_is_no_cache(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("a")
    paths = [tmp_path, tmp_path / "fifo", tmp_path / "file" / "cache", tmp_path / "a\0b"]
    for path in [*paths, tmp_path / ("a" * 300), "/dev/null"]:
        with within(HANG), pytest.raises(TruelineError, match="cannot be used"):
            ResponseCache(path)


def test_a_damaged_cache_ends_in_an_error_or_in_what_was_written(cache):
    """A flip inside a text is beyond what SQLite can see; types and structure are not."""
    sound, counts = cache.path.read_bytes(), Counter()
    for chance in rounds("judge cache", 60, 2_000):
        cache.path.write_bytes(damaged := mutated_bytes(chance, sound))
        try:
            found = ResponseCache(cache.path).read(["a"])
        except TruelineError:
            counts["refused"] += 1
        except Exception as error:
            raise AssertionError(f"{chance.name}: {damaged.hex()}") from error
        else:
            counts["read"] += 1
            for response in found.values():
                assert isinstance(response.text, str), chance.name
                assert response.prompt_tokens >= 0, chance.name
        for path in cache.path.parent.glob("cache.sqlite*"):
            path.unlink()
    assert counts["refused"], counts
    assert counts["read"], counts
    print(dict(counts))


# Judges on this machine.


class Broken:
    """An embedder whose weights are damaged."""

    id = "broken"

    def embed(self, texts):
        [text.encode() for text in texts]  # a tokenizer takes no half surrogate either
        return torch.tensor(np.full((len(texts), 4), np.nan, dtype=np.float32))


def test_offline_what_cannot_be_compared_is_unscored_and_never_wrong():
    alone = Sample("a", "Why \ud800?", ("So \udfff.",))
    given = [(GUM, "It passes \ud800."), (alone, "So")]
    for about in ("truth", "info", "hallucination"):
        for verdict in OfflineJudge(Broken()).judge("question", about, given):
            assert verdict.label is None
            assert "not finite" in verdict.raw
            assert verdict.basis == ""


# The fuzzer.

STATUSES = [200] * 60 + [
    201,
    204,
    206,
    301,
    304,
    307,
    400,
    401,
    403,
    404,
    408,
    418,
    429,
    500,
    503,
]
HEADERS = [
    ("content-type", "application/json; charset=base64"),
    ("content-type", "\xff\xfe"),
    ("content-encoding", "gzip"),
    ("content-encoding", "br"),
    ("content-encoding", "identity"),
    ("content-length", "1"),
    ("content-length", "999999"),
    ("content-length", "-1"),
    ("transfer-encoding", "chunked"),
    ("transfer-encoding", "gzip, chunked"),
    ("set-cookie", "a=b; expires=never; domain=.."),
    ("location", "http://[::1/\x7f"),
    ("location", "//evil.example/" + "a" * 70_000),
    ("retry-after", "1e999"),
    ("retry-after", "Mon, 01 Jan 99999999999 00:00:00 +99999"),
    ("connection", "upgrade"),
    ("x" * 5_000, "y"),
]
NUMBERS = [
    "1e999",
    "-1",
    "9" * 30,
    "9" * 5_000,
    "NaN",
    "1.5",
    '"2"',
    "null",
    "2.0",
    "[[[[2]]]]",
]


def hostile(chance, name):
    """The bytes of a response, sound or not, and the spelling of the key in it, if any."""
    text = chance.choice(["Yes", "No", "Yes.", "**no**", "", "Yes and no", "\ud83d Yes"])
    spelled = ""
    if chance.random() < 0.2:
        spelled = SPELLINGS[chance.choice(list(SPELLINGS))](KEY)
        text = f"{text}. {spelled}"
    value = _response(PATHS[name], "a b", text)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 4])):
        value = mutated(chance, value)
    body = json.dumps(value)
    if chance.random() < 0.15:
        body = re.sub(r": [12]\b", lambda _: f": {chance.choice(NUMBERS)}", body)
    body = body.encode()
    if chance.random() < 0.1:
        body = body.replace(b"{", b'{"a":' * chance.choice([10, 2_000, 50_000]), 1)
    if chance.random() < 0.2 and body:
        body = mutated_bytes(chance, body)
    return packed(chance, body), spelled


def packed(chance, body):
    """A body in a response, perhaps damaged on its way."""
    headers = {}
    if chance.random() < 0.1:
        body, headers["content-encoding"] = compress(body), "gzip"
        body = body if chance.random() < 0.5 else mutated_bytes(chance, body)
    if chance.random() < 0.5:
        headers["content-length"] = str(len(body))
    if chance.random() < 0.15:
        headers |= [chance.choice(HEADERS)]
    lines = [f"HTTP/1.1 {chance.choice(STATUSES)} {chance.choice(['OK', KEY, ''])}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    sent = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    return mutated_bytes(chance, sent) if chance.random() < 0.1 else sent


def check_verdict(round_name, verdict, spelled):
    """A verdict is one, or says why there is none; it can be written, and shows no key."""
    line = VerdictLine(cell="c", sample="s", **asdict(verdict))
    assert verdict.raw, round_name
    assert "no response within" not in verdict.raw, f"{round_name}: it hung"
    assert verdict.is_answered or verdict.raw.startswith("(no response: "), round_name
    assert verdict.label is None or verdict.label is read_verdict(verdict.raw, "info"), (
        round_name
    )
    assert 0 <= verdict.prompt_tokens <= 10**7 >= verdict.answer_tokens >= 0, round_name
    for secret in filter(None, (KEY, OWN, spelled)):
        assert secret not in verdict.raw, round_name
        assert repr(secret)[1:-1] not in verdict.raw, round_name
    return line


def judge_all(judge, numbers):
    """Verdicts by number; where one reply ends the run, every answer alone."""
    try:
        found = judge.judge("question", "info", [items(n + 1)[n] for n in numbers])
        return dict(zip(numbers, found, strict=True))
    except TruelineError as error:
        if len(numbers) == 1:
            return {numbers[0]: error}
        return {n: found for one in numbers for n, found in judge_all(judge, [one]).items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_reply_ends_in_a_verdict_or_is_unscored_with_a_reason(name, tmp_path):
    chances = list(rounds(f"judge replies of {name}", 40, 667))
    replies = [hostile(chance, name) for chance in chances]
    clock = replace(FakeClock().clock, deadline=asyncio.timeout)
    counts, path = Counter(), tmp_path / "results.jsonl"
    with serving(reply=lambda prompt: replies[number_in(prompt)][0]) as server:
        for first in range(0, len(chances), 20):
            numbers = list(range(len(chances)))[first : first + 20]
            tries = Random(chances[first].name).choice([1, 2])
            judge = open_at(
                server, name, clock=clock, cache=tmp_path / "c", tries=tries, timeout=60.0
            )
            try:
                found = judge_all(judge, numbers)
            except Exception as error:
                sent = [replies[n][0][:500] for n in numbers]
                raise AssertionError(f"{chances[first].name} and on: {sent}") from error
            for number, verdict in found.items():
                round_name, spelled = chances[number].name, replies[number][1]
                if isinstance(verdict, TruelineError):
                    counts["ended the run"] += 1
                    assert KEY not in str(verdict), round_name
                    assert str(verdict).isprintable(), round_name
                    continue
                line = check_verdict(round_name, verdict, spelled)
                path.write_bytes(encode_lines([line]))
                kind = "scored" if verdict.label is not None else "unscored"
                counts[kind if verdict.is_answered else "no response"] += 1
                if verdict.label is not None:  # damage did not make up a verdict
                    word = re.findall("[a-z]+", verdict.raw, re.I)[0].encode()
                    sent = replies[number][0]
                    with suppress(IndexError, zlib.error):
                        sent += zlib.decompress(sent.split(b"\r\n\r\n", 1)[1], 31)
                    assert word in sent, round_name
    kept = (tmp_path / "c").read_bytes()
    assert not any(secret.encode() in kept for secret in (KEY, OWN))
    for number, (_, spelled) in enumerate(replies):
        assert not spelled or spelled.encode() not in kept, chances[number].name
    assert read_written(path).lines
    assert counts.total() == len(chances)
    assert min(counts["scored"], counts["unscored"], counts["no response"]) > 0, counts
    print(name, dict(counts))
