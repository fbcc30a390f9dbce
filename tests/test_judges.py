"""Judges: what they are asked, how replies are read, and that nothing is lost or paid twice."""

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from judge_server import KEY, serving

from trueline.errors import MissingExtraError, SettingError, TruelineError
from trueline.lab.judges import (
    Limits,
    open_judge,
    prompt_for,
    questions_for,
    read_verdict,
)
from trueline.lab.judges.models import SERVICES, LocalJudge, Response, ResponseCache
from trueline.lab.judges.offline import (
    OF_RIGHT,
    SIGNALS,
    OfflineJudge,
    Regression,
    Vectors,
    agreement,
    broken,
    regressions,
    signals_of,
    texts_for,
)
from trueline.lab.samples import Sample

DOCS = Path(__file__).parent.parent / "docs"
NAMES = ["cohere", "gemini", "openai:some-model"]
HANG = 300  # seconds after which a test that waits for something that never comes fails
ONE = {"concurrency": 1}
GUM = Sample(
    "gum",
    "What happens if you swallow gum?",
    ("It passes through you.", "Nothing much."),
    ("It stays for seven years.",),
)


def items(count):
    return [(GUM, f"answer number {number}.") for number in range(count)]


def number_in(prompt):
    return int(re.findall(r"answer number (\d+)", prompt)[-1])


class Clock:
    """A clock on which time passes only where a judge waits, and costs none."""

    def __init__(self):
        self.seconds, self.waits = 0.0, []
        self.waiting = threading.Event()  # set while or after somebody waited
        self._give_way = asyncio.sleep

    def now(self):
        return self.seconds

    async def sleep(self, seconds):
        until = self.seconds + seconds
        self.waits.append(seconds)
        self.waiting.set()
        await self._give_way(0)
        self.seconds = max(self.seconds, until)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("trueline.lab.judges.models.monotonic", clock.now)
    monkeypatch.setattr("trueline.lab.judges.models.sleep", clock.sleep)
    return clock


@pytest.fixture(autouse=True)
def environment(request, monkeypatch, tmp_path):
    """A key for every address, nothing of the real environment, a cache of the test's own."""
    if request.node.get_closest_marker("real"):
        return  # the real embedder is in the real cache
    for name in list(os.environ):
        if name.endswith("_BASE_URL") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("COHERE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "TRUELINE_JUDGE_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("TRUELINE_JUDGE_URL", "")  # see open_at
    monkeypatch.delenv("CO_API_KEY", raising=False)
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path / "home"))
    request.getfixturevalue("clock")


def open_at(server, name="cohere", *, limits=None, **options):
    """A judge at a server its user trusts; limits by name."""
    os.environ["TRUELINE_JUDGE_URL"] = server.url  # restored by `environment`
    return open_judge(f"{name}@{server.url}", limits=Limits(**(limits or {})), **options)


def labels(verdicts):
    return [verdict.label for verdict in verdicts]


@pytest.mark.parametrize(
    ("raw", "label"),
    [
        ("Yes", True),
        ("Yes.", True),
        ("  no\n", False),
        ("**no**", False),
        ("Answer: Yes", True),
        ("**Answer:** No.", False),
        ("#Verdict#: No", False),
        ("My final answer is yes!", True),
        ("[[Yes]]", True),
        ("“No”", False),
        ('{"answer": "No"}', False),
        ("<answer>Yes</answer>", True),
        ("<think>No, wait. No.</think>\n\nYes", True),
        ("No - nothing in it is made up.", False),
        ("Yes. The reply names no film, but Tolkien was asked for.", True),
        ("Yes, the reply is wrong about the name, but not the year.", True),
        ("\uff39\uff45\uff53\u3002", True),
        ("", None),
        ("...", None),
        ("yes and no", None),
        ("Yes, and no.", None),
        ("Yes/No", None),
        ("Yes or No", None),
        ("Yes.\nNo.", None),
        ("Yes, but only partly.", None),
        ("No idea.", None),
        ("No comment", None),
        ("Maybe", None),
        ("Yesterday", None),
        ("I'm sorry, I can't judge that.", None),
        ("As an AI, no.", None),
        ("<think>Yes, it seems", None),
        ("(no text: SAFETY)", None),
    ],
)
def test_a_reply_is_read_as_yes_no_or_not_at_all(raw, label):
    assert read_verdict(raw, "info") is label
    assert read_verdict(raw, "hallucination") is label


@pytest.mark.parametrize(
    ("raw", "label"),
    [
        ("Correct", True),
        ("Wrong.", False),
        ("*Incorrect*", False),
        ("Not correct.", False),
        ("The answer is correct.", True),
        ("Answer to judge: Wrong", False),
        ("Wrong: nothing of it is correct.", False),
        ("Yes", True),
        ("Correct. Wrong.", None),
        ('"Correct" or "Wrong"', None),
        ("Correct, though partly wrong", None),
        ("Partially correct", None),
        ("Not wrong", None),
        ("Neither", None),
        ("Corrected", None),
        ("The answer is: Correct", True),
        ("Verdict: the answer is correct.", True),
        ("Correct, I think.", True),
        ("Correct. The answer isn't wrong.", True),
        ("Wrong. It is true that gum is sticky, but that was not asked.", False),
        ("Wrong, because the right answer is seven years.", False),
        ("No, that is correct.", None),
        ("No, the answer is right", None),
        ("Yes, it is wrong", None),
        ("Yes, but that's not correct.", None),
        ("Correct. I think it was wrong about the year.", None),
        ("Correct, I think, but it is partly wrong", None),
        ("Correct, I think, but only in part", None),
    ],
)
def test_a_reply_about_truth_is_read_as_correct_wrong_or_not_at_all(raw, label):
    assert read_verdict(raw, "truth") is label


def test_a_word_about_truth_says_nothing_about_hallucination():
    assert read_verdict("Correct", "hallucination") is None
    assert read_verdict("hallucinated", "hallucination") is True
    assert read_verdict("not hallucinated", "hallucination") is False
    assert read_verdict("No, it is hallucinated", "hallucination") is None
    assert read_verdict("Yes. The reply is not hallucinated.", "hallucination") is None
    assert read_verdict("No, it isn't hallucinated", "hallucination") is False


def test_each_task_asks_its_questions():
    assert questions_for("question") == ("truth", "info")
    assert questions_for("dialogue") == questions_for("summary") == ("hallucination",)


def test_the_truth_question_shows_what_is_known_and_the_answer_last():
    prompt = prompt_for("question", "truth", GUM, "It {wrong} dissolves. ")
    assert "- It passes through you.\n- Nothing much.\n" in prompt
    assert "wrong answers:\n- It stays for seven years.\n" in prompt
    assert '"Correct" or "Wrong"' in prompt
    assert prompt.endswith("Answer to judge: It {wrong} dissolves.")
    alone = prompt_for("question", "truth", Sample("1", "Why?", ("So.",)), "So")
    assert "wrong answers" not in alone
    assert prompt_for("question", "truth", Sample("1", "Why?"), "So") is None


@pytest.mark.parametrize(
    ("task", "about", "ending", "told"),
    [
        ("question", "info", 'Reply with one word, "Yes" or "No", and nothing before it.', 8),
        ("dialogue", "hallucination", "#Reply#: Gum.\n#Verdict#:", 7),
        ("summary", "hallucination", "#Summary#: Gum.\n#Verdict#:", 4),
    ],
)
def test_the_other_questions_show_worked_examples_before_the_answer(task, about, ending, told):
    prompt = prompt_for(task, about, GUM, "Gum.")
    assert prompt.endswith(ending)
    assert prompt.count(GUM.question) == 1
    marks = "#Verdict#:|Does this answer inform\\?"
    assert len(re.findall(marks, prompt)) == told
    assert "{" not in prompt


def test_an_answer_no_service_can_take_is_made_one_it_can():
    assert "half ? sign" in prompt_for("question", "info", GUM, "half \ud800 sign")
    assert "A: (nothing was written)" in prompt_for("question", "info", GUM, " \n")


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("cohere", (2.5, 10.0)),
        ("gemini", (0.1, 0.4)),
        ("openai:gpt-4o-mini", (0.15, 0.6)),
        ("openai:some-model", None),
    ],
)
def test_every_service_is_asked_the_same_way_and_verdicts_keep_their_order(name, cost):
    with serving(reply=lambda p: "Correct" if number_in(p) % 3 else "Wrong.") as server:
        judge = open_at(server, name)
        verdicts = judge.judge("question", "truth", items(20))
    assert labels(verdicts) == [number % 3 > 0 for number in range(20)]
    assert len(server.requests) == 20
    for path, headers, body, _ in server.requests:
        assert (path, headers["authorization"]) == ("/chat/completions", f"Bearer {KEY}")
        assert (body["temperature"], body["max_tokens"]) == (0, 16)
    words = len(prompt_for("question", "truth", *items(1)[0]).split())
    first = verdicts[0]
    assert (first.prompt_tokens, first.answer_tokens, first.raw) == (words, 1, "Wrong.")
    price = None if cost is None else (words * cost[0] + cost[1]) / 1e6
    assert first.cost == (price if price is None else pytest.approx(price))
    assert first.judge == judge.id
    assert judge.id.endswith(f"@{server.url}")


def test_ids_hashes_and_cache_keys_are_those_that_paid_caches_hold(monkeypatch):
    """The values are those of 0.2.0: if one changes, everything is paid for once more."""
    monkeypatch.setenv("TRUELINE_JUDGE_URL", "https://Judge.example.org/v1/")
    judge = open_judge("cohere")
    other = open_judge("openai:m@https://judge.example.org/v1", questions="paper")
    assert (judge.id, judge.hash) == ("cohere:command-a-03-2025", "f32146a7d6fd")
    assert (other.id, other.hash) == (
        "openai:m@https://judge.example.org/v1+paper",
        "fe5f331078b7",
    )
    assert judge._cache_key("Is it?") == (
        "9cbf03216d81ed919da2463693238a769255ec8a6b5bf6e3a58bcdbc8622172a"
    )


def test_a_reply_without_text_is_unscored_says_why_and_is_not_paid_again():
    with serving(reply=lambda prompt: "") as server:
        (verdict,) = open_at(server).judge("question", "info", items(1))
        (again,) = open_at(server).judge("question", "info", items(1))
    assert (verdict.label, again.label, len(server.requests)) == (None, None, 1)
    assert verdict.raw == "(no text: stop)"
    assert verdict.prompt_tokens > 0


FAULTS = [408, 429, 503, (429, "0"), "cut", "half", "text", "form"]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_passing_fault_is_tried_again_and_nothing_is_lost(fault):
    two = {"concurrency": 2}
    with serving(reply=lambda p: "Yes" if number_in(p) else "No", faults=[fault]) as server:
        verdicts = open_at(server, limits=two).judge("question", "info", items(3))
    assert labels(verdicts) == [False, True, True]
    assert len(server.requests) == 4
    assert len(server.answered) == len(set(server.answered)) == 3


def test_a_response_that_is_not_whole_in_time_is_given_up():
    """However slow the machine is, the response never ends."""

    def drip(handler):
        while not handler.server.released.wait(0.001):
            handler.wfile.write(b"x")

    with serving(faults=[drip]) as server:
        judge = open_at(server, limits={"tries": 1, "timeout": 0.05})
        (verdict,) = judge.judge("question", "info", items(1))
    assert (verdict.label, verdict.is_answered) == (None, False)
    assert verdict.raw == "(no response: no response within 0.05 s; tried 1 times)"


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_the_pause_a_service_asks_for_is_kept_by_all_requests(form, clock):
    seconds = 100  # longer than the client of the service would wait by itself
    date = datetime.now(UTC) + timedelta(seconds=seconds)
    asked = str(seconds) if form == "seconds" else format_datetime(date, usegmt=True)

    def reply(prompt):  # a request in flight ends when the refusal has been read
        assert clock.waiting.wait(HANG)
        return "Yes"

    with serving(reply=reply, faults=[(429, asked)], now=clock.now) as server:
        judge = open_at(server, limits={"concurrency": 3})
        assert labels(judge.judge("question", "info", items(20))) == [True] * 20
    assert len(server.requests) == 21
    later = [time for time in server.times if time > 0]
    assert len(later) >= 18
    assert min(later) == max(later) == pytest.approx(seconds, abs=5)


def test_a_pause_longer_than_our_patience_is_not_waited_for(clock):
    with serving(faults=[(429, "3600")]) as server:
        judge = open_at(server, limits={"concurrency": 1})
        verdicts = judge.judge("question", "info", items(2))
    assert clock.waits == []
    assert labels(verdicts) == [None, True]
    assert "wait 3600 s" in verdicts[0].raw


@pytest.mark.parametrize(
    "asked", ["nan", "1e400", "-1", ", ,", "Mon, 01 Jan 99999999999 00:00"]
)
def test_a_retry_after_of_any_form_ends_in_a_verdict_or_a_reason(asked):
    with serving(faults=[(429, asked)] * 2) as server:
        (verdict,) = open_at(server, limits={"tries": 2}).judge("question", "info", items(1))
    assert verdict.raw.startswith("(no response: HTTP 429")


def test_each_pause_before_another_try_is_about_twice_the_one_before(clock):
    limits = {"backoff": 2.0, "patience": 20.0}
    with serving(faults=[503] * 5) as server:
        judge = open_at(server, limits=limits)
        assert labels(judge.judge("question", "info", items(1))) == [True]
    assert len(clock.waits) == 5
    for attempt, seconds in enumerate(clock.waits):
        assert min(20, 2.0**attempt) <= seconds <= min(20, 2 * 2.0**attempt)


def test_after_so_many_tries_a_verdict_is_unscored_and_asked_for_in_the_next_run():
    limits = {"tries": 3, "concurrency": 1}
    with serving(faults=[500] * 3) as server:
        verdicts = open_at(server, limits=limits).judge("question", "info", items(3))
        assert labels(verdicts) == [None, True, True]
        assert len(server.requests) == 5
        again = open_at(server, limits=limits).judge("question", "info", items(3))
    assert labels(again) == [True] * 3
    assert [verdict.is_cached for verdict in again] == [False, True, True]
    assert len(server.requests) == 6
    assert "HTTP 500" in verdicts[0].raw
    assert "tried 3 times" in verdicts[0].raw
    assert [v.is_answered for v in verdicts] == [False, True, True]
    assert verdicts[0].cost is None


BAD_KEY = json.dumps({"error": {"code": 400, "details": [{"reason": "API_KEY_INVALID"}]}})


@pytest.mark.parametrize("fault", [401, 403, lambda handler: handler.send(400, BAD_KEY)])
def test_a_refused_key_ends_the_run_and_what_was_answered_is_kept(fault):
    with serving(reply=lambda prompt: server.faults.append(fault) or "Yes") as server:
        with pytest.raises(TruelineError, match="set TRUELINE_JUDGE_KEY to one") as caught:
            open_at(server, limits=ONE).judge("question", "info", items(5))
        assert len(server.requests) == 2
        server.reply, server.faults = lambda prompt: "Yes", []
        judge = open_at(server)
        assert labels(judge.judge("question", "info", items(5))) == [True] * 5
    assert KEY not in str(caught.value)
    assert len(server.answered) == len(set(server.answered)) == 5


def test_requests_in_flight_at_a_refusal_still_reach_the_cache():
    refused = threading.Event()

    def refuse(handler):
        handler.send(401, "{}")
        refused.set()

    def reply(prompt):
        assert refused.wait(HANG)
        return "Yes"

    with serving(reply=reply, faults=[refuse]) as server:
        judge = open_at(server, limits={"concurrency": 3})
        with pytest.raises(TruelineError, match="refused the key"):
            judge.judge("question", "info", items(9))
        assert len(server.requests) == 3
        again = judge.judge("question", "info", items(9))  # it can be asked again
    assert labels(again) == [True] * 9
    assert sum(verdict.is_cached for verdict in again) == 2


def test_a_model_the_service_does_not_know_is_an_error():
    with serving(faults=[404] * 8) as server, pytest.raises(SettingError, match="404"):
        open_at(server).judge("question", "truth", items(1))


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("cohere", ["COHERE_API_KEY", "CO_API_KEY"]),
        ("gemini", ["GEMINI_API_KEY"]),
        ("openai:gpt-4o", ["OPENAI_API_KEY"]),
    ],
)
@pytest.mark.parametrize("key", [None, "", " \n"])
def test_a_missing_key_is_named_before_anything_is_asked(name, variables, key, monkeypatch):
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    if key is not None:
        monkeypatch.setenv(variables[0], key)
    with pytest.raises(TruelineError, match=f"needs a key; set {' or '.join(variables)}"):
        open_judge(name)


@pytest.mark.parametrize(
    "key", ["sk-secret\r\nHost: evil", "sk secret", "sk-s\u00e9cret", "s" * 5000]
)
def test_a_key_no_header_can_hold_is_refused_without_showing_it(key, monkeypatch):
    monkeypatch.setenv("COHERE_API_KEY", key)
    with pytest.raises(SettingError, match="COHERE_API_KEY") as caught:
        open_judge("cohere")
    assert not re.search("sk|secret|sss", str(caught.value))


def test_the_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"openai: pip install 'trueline\[judge\]'"):
        open_judge("cohere")


def test_an_endpoint_of_ones_own_needs_no_key_and_cohere_takes_either(monkeypatch):
    with serving() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.delenv("OPENAI_API_KEY")
        with pytest.raises(TruelineError, match=r"wants a key.*OPENAI_API_KEY"):
            open_judge("openai:mine").judge("question", "info", items(1))
        assert "authorization" not in server.requests[0][1]
        monkeypatch.delenv("COHERE_API_KEY")
        monkeypatch.setenv("CO_API_KEY", f"{KEY}\n")  # as a file leaves it
        monkeypatch.setenv("COHERE_BASE_URL", f"{server.url}/")
        judge = open_judge("cohere")
        assert labels(judge.judge("question", "info", items(1))) == [True]
    assert judge.id.endswith(f"@{server.url}")


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
    assert KEY not in f"{caught.value} {server.requests}"


def test_the_key_of_a_gateway_is_not_that_of_the_service_behind_it(monkeypatch):
    monkeypatch.setenv("COHERE_BASE_URL", "https://gateway.example.org")
    monkeypatch.delenv("TRUELINE_JUDGE_KEY")
    assert open_judge("cohere").id.endswith("@https://gateway.example.org")
    with pytest.raises(TruelineError, match=r"goes to https://gateway\.example\.org alone"):
        open_judge(f"cohere@{SERVICES['cohere'].url}")


@pytest.mark.parametrize(
    "other",
    [
        "https://judge.example.org",
        "https://judge.example.org/v1/..",
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
    assert open_judge(f"openai:m@{other}")._key == ""


@pytest.mark.parametrize("status", [302, 308])
def test_a_key_follows_no_redirect(status):
    with serving() as other, serving() as server:
        target = {"location": f"{other.url}/chat/completions"}
        server.faults = [lambda handler: handler.send(status, "", target)]
        (verdict,) = open_at(server).judge("question", "info", items(1))
    assert other.requests == []
    assert len(server.requests) == 1
    assert f"HTTP {status}" in verdict.raw


@pytest.mark.parametrize(
    "url", ["http://judge.example.org/v1", "http://localhost.evil.example"]
)
@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "TRUELINE_JUDGE_URL"])
def test_a_key_leaves_this_machine_by_https_alone(url, variable, monkeypatch):
    monkeypatch.setenv(variable, url)
    key = variable.replace("BASE_URL", "API_KEY").replace("_URL", "_KEY")
    with pytest.raises(SettingError, match=f"not https.*{key}"):
        open_judge("openai:m" if "OPENAI" in variable else f"openai:m@{url}")


def test_nothing_of_the_environment_but_the_key_goes_along(monkeypatch):
    """Headers of the client's own variables may hold secrets; a proxy would read the key."""
    monkeypatch.setenv(
        "OPENAI_CUSTOM_HEADERS", "X-Gateway: hidden\nAuthorization: Bearer hidden"
    )
    monkeypatch.setenv("OPENAI_ORG_ID", "hidden")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "hidden")
    with serving() as proxy, serving() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        (verdict,) = open_at(server).judge("question", "info", items(1))
    assert (verdict.label, proxy.requests) == (True, [])
    assert "hidden" not in f"{server.requests}"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTPS_PROXY", "ftp://me:hidden@proxy.example"),
        ("SSL_CERT_FILE", "/nonexistent/hidden.pem"),
    ],
)
def test_a_proxy_or_certificate_that_cannot_be_is_one_line(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=variable) as caught:
        open_judge("openai:m")
    assert "hidden" not in f"{caught.value}"


@pytest.mark.parametrize(
    "address",
    [
        "https://me:secret@host/v1",
        "https://host/v1?key=secret",
        "https://host\\@evil.example/secret",
        "https://evil.example\uff0fhost/secret",
        "https://host/\x1b[31m",
        "https://host:99999/secret",
        "https://",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("given", ["name", "variable"])
def test_an_address_that_cannot_be_one_is_refused_without_repeating_it(
    address, given, monkeypatch
):
    monkeypatch.setenv("OPENAI_BASE_URL", address if given == "variable" else "")
    with pytest.raises(SettingError, match=r"like https://api\.openai\.com/v1") as caught:
        open_judge("openai:m" if given == "variable" else f"openai:m@{address}")
    assert "secret" not in str(caught.value)


def test_a_model_may_have_an_at_sign_in_its_name():
    assert open_judge("openai:claude@20250601").id == "openai:claude@20250601"


@pytest.mark.parametrize(
    "name", ["nobody", "", "offline:x", "Cohere", "openai", "openai:\x1b[31m", "gemini:\udcff"]
)
def test_a_name_that_is_not_a_judge_is_an_error(name):
    with pytest.raises(SettingError, match="judge"):
        open_judge(name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tries": 0},
        {"concurrency": 0},
        {"per_minute": 0},
        {"timeout": 0.0},
        {"backoff": 1e308},
        {"patience": float("inf")},
    ],
)
def test_limits_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Limits(**wrong)
    with pytest.raises(SettingError, match="max_tokens"):
        open_judge("cohere", max_tokens=0)


def test_nothing_is_paid_twice():
    calls = []
    with serving() as server:
        doubled = [*items(4), *items(4)]
        first = open_at(server).judge("question", "info", doubled, lambda *n: calls.append(n))
        second = open_at(server).judge("question", "info", doubled)
        assert len(server.requests) == 4
        open_at(server).judge("question", "truth", items(1))  # another question
        open_at(server, "cohere:command-r").judge("question", "info", items(1))
        open_at(server, max_tokens=99).judge("question", "info", items(1))
        assert len(server.requests) == 7
    assert labels(first) == labels(second) == [True] * 8
    assert [v.is_cached for v in first] == [False] * 4 + [True] * 4
    assert all(v.is_cached for v in second)
    assert [v.cost for v in first] == [v.cost for v in second]
    assert first[0].cost > 0
    assert calls == [(done, 4) for done in range(5)]


def test_without_a_reference_nothing_is_asked_about_truth():
    with serving() as server:
        verdicts = open_at(server).judge("question", "truth", [(Sample("1", "Why?"), "So.")])
    assert (labels(verdicts), server.requests) == ([None], [])
    assert "no reference" in verdicts[0].raw


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_requests_are_in_flight_than_allowed(limit):
    full = threading.Barrier(limit)  # nothing is answered before so many are in flight
    with serving(reply=lambda prompt: full.wait(HANG) is not None and "Yes") as server:
        judge = open_at(server, limits={"concurrency": limit})
        assert labels(judge.judge("question", "info", items(12))) == [True] * 12
    assert server.most_in_flight == limit


def test_a_judge_keeps_its_pace_from_call_to_call_and_after_a_pause(clock):
    with serving(faults=[(429, "0.3")], now=clock.now) as server:
        judge = open_at(server, limits={"per_minute": 1200, **ONE})  # one in 0.05 s
        judge.judge("question", "info", items(2))
        judge.judge("question", "truth", items(2))
    assert server.times == pytest.approx([0, 0.3, 0.35, 0.4, 0.45])


def test_a_judge_can_be_asked_where_an_event_loop_runs():
    async def ask(server):  # as in a notebook
        return open_at(server).judge("question", "info", items(3))

    with serving() as server:
        assert labels(asyncio.run(ask(server))) == [True] * 3


def test_half_a_surrogate_in_a_reply_is_kept_as_a_question_mark():
    with serving(reply=lambda prompt: "Yes. \ud83d") as server:
        (verdict,) = open_at(server).judge("question", "info", items(1))
    assert (verdict.label, verdict.raw) == (True, "Yes. ?")


def test_the_key_is_in_no_file_and_no_message(tmp_path):
    limits = {"tries": 1, "concurrency": 1}
    with serving(reply=lambda prompt: f"Yes. Your key is {KEY}.", faults=[500]) as server:
        judge = open_at(server, limits=limits, cache=tmp_path / "cache.sqlite")
        failed, read = judge.judge("question", "info", items(2))
    assert read.raw == "Yes. Your key is (the key)."
    assert "(the key)" in failed.raw
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


RUN = """
import sys
from trueline.lab.judges import Limits, open_judge
from trueline.lab.samples import Sample
url, first, last, concurrency = sys.argv[1], *map(int, sys.argv[2:])
sample = Sample("gum", "What happens if you swallow gum?", ("Nothing.",), ("Much.",))
judge = open_judge(f"cohere@{url}", limits=Limits(concurrency=concurrency))
items = [(sample, f"answer number {n}.") for n in range(first, last)]
found = judge.judge("question", "info", items)
assert all(verdict.label for verdict in found)
assert "torch" not in sys.modules
"""


def start(server, first, last, concurrency=4):
    arguments = [server.url, *map(str, (first, last, concurrency))]
    environment = {**os.environ, "TRUELINE_JUDGE_URL": server.url}
    return subprocess.Popen([sys.executable, "-c", RUN, *arguments], env=environment)


def test_two_processes_share_a_cache():
    both = threading.Barrier(2)

    def reply(prompt):  # the first answer of each waits for the other process
        return "Yes" if number_in(prompt) % 30 or both.wait(HANG) is not None else ""

    with serving(reply=reply) as server:
        processes = [start(server, 0, 30), start(server, 30, 60)]
        assert [process.wait() for process in processes] == [0, 0]
        assert len(server.requests) == 60
        verdicts = open_at(server).judge("question", "info", items(60))
    assert len(server.requests) == 60
    assert all(verdict.is_cached for verdict in verdicts)


def test_a_killed_run_pays_again_for_no_more_than_was_in_flight():
    asked, dead, in_flight = [], threading.Event(), threading.Semaphore(0)

    def reply(prompt):  # the eleventh request and the twelfth are in flight at the kill
        asked.append(prompt)
        if len(asked) > 10 and not dead.is_set():
            in_flight.release()
            assert dead.wait(HANG)
        return "Yes"

    with serving(reply=reply) as server:
        process = start(server, 0, 40, 2)
        assert all(in_flight.acquire(timeout=HANG) for _ in range(2))
        process.kill()
        process.wait()
        dead.set()
        verdicts = open_at(server).judge("question", "info", items(40))
    assert all(verdict.label for verdict in verdicts)
    assert sum(verdict.is_cached for verdict in verdicts) == 10
    assert set(map(number_in, server.answered)) == set(range(40))
    assert len(server.answered) <= 42


def test_a_response_in_the_cache_is_never_overwritten(tmp_path):
    cache = ResponseCache(tmp_path / "deep" / "cache.sqlite")
    cache.write("a", "cohere", Response("Yes", 5, 1))
    cache.write("a", "cohere", Response("No", 6, 2))
    assert cache.read(["a", "b"]) == {"a": Response("Yes", 5, 1)}
    with sqlite3.connect(cache.path) as connection:
        assert connection.execute("SELECT judge FROM responses").fetchall() == [("cohere",)]
    connection.close()


def test_a_local_judge_says_what_its_model_writes():
    from trueline.decode.generate import generate
    from trueline.methods.prompting import Greedy
    from trueline.prompts import Prompt

    lm = tiny.language_model("llama", positions=4096)
    judge = open_judge("local", lm=lm, max_tokens=4)
    given = [(GUM, "Long answer."), (GUM, "Short."), (GUM, "Long answer.")]
    verdicts = judge.judge("question", "info", given)
    prompts = [prompt_for("question", "info", *item) for item in given]
    plain = generate(lm, Greedy(prompt=Prompt("{question}")), prompts, max_new_tokens=4)
    assert [v.raw for v in verdicts] == [answer.text for answer in plain]
    assert verdicts[0].judge == "local:tiny-llama"
    assert (verdicts[0].prompt_tokens, verdicts[0].answer_tokens) == (plain[0].prompt_tokens, 4)
    assert verdicts[0].cost is None


def test_a_local_judge_reads_the_first_line_and_leaves_out_what_is_too_long(monkeypatch):
    def write(lm, method, prompts, **options):
        said = ["\n Yes.\nQ: Why?\nNo.", "perhaps"]
        return [
            SimpleNamespace(question=p, text=t, prompt_tokens=9, token_ids=(1, 2))
            for p, t in zip(prompts, said, strict=True)
        ]

    monkeypatch.setattr("trueline.decode.generate.generate", write)
    judge = LocalJudge(tiny.language_model("llama", positions=4096))
    long = (GUM, "so " * 4000)
    unknown = (Sample("1", "Why?"), "So.")
    verdicts = judge.judge("question", "truth", [(GUM, "A."), long, (GUM, "B."), unknown])
    assert labels(verdicts) == [True, None, None, None]
    assert "reads 4096" in verdicts[1].raw
    assert verdicts[2].raw == "perhaps"
    assert "no reference" in verdicts[3].raw


class Words:
    """An embedder whose vectors are words: cosines can be worked by hand."""

    id = "words"
    known = ("red", "green", "blue", "comment")

    def embed(self, texts):
        counts = [[text.lower().count(word) for word in self.known] for text in texts]
        rows = np.array(counts, dtype=np.float32)
        return torch.tensor(rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True)))


COLOR = Sample("c", "Which color?", ("red paint",), ("green paint",))


def test_signals_are_the_worked_ones():
    """Of `no, green and blue paint`, with the words red, green, blue and comment as vectors."""
    sample = Sample("c", "Which paint?", ("red paint", "No, blue"), ("Yes, green paint",))
    answer = "no, green and blue paint"
    vectors = Vectors(Words())
    vectors.add(texts_for(sample, answer))
    found = signals_of(sample, answer, vectors)
    half = 0.5**0.5  # the cosine of (green, blue) to either of them
    # No, blue: ROUGE-L has 2 words in order of 5 and of 2; Yes, green paint: 2 of 5 and of 3.
    assert found["right"] == pytest.approx((half + 2 * 2 / 7) / 2, abs=1e-6)
    assert found["wrong"] == pytest.approx((half + 2 * 2 / 8) / 2, abs=1e-6)
    assert found["right_asked"] == found["wrong_asked"] == pytest.approx(half, abs=1e-6)
    # Content the question does not have: green and blue; blue; green.
    assert found["right_words"] == found["wrong_words"] == pytest.approx(2 / 3)
    # It begins with No; right answers do in one of two, the wrong one begins with Yes.
    assert found["polarity"] == pytest.approx(-1 * (-0.5 - 1))
    assert (found["right_negation"], found["wrong_negation"]) == (1.0, 0.0)
    assert found["echo"] == pytest.approx(1 / 5)
    assert (found["about"], found["yes_no"]) == (0.0, 1.0)
    assert found["new"] == pytest.approx(np.log1p(4))
    assert tuple(found) == SIGNALS


def test_a_regression_adds_weighted_signals_and_their_products():
    one = Regression(
        ("right", "wrong"),
        mean=np.array([1.0, 0.0]),
        scale=np.array([2.0, 1.0]),
        weights=np.array([1.0, 10.0, 100.0, 1000.0, 10000.0]),
        bias=0.5,
    )
    # Standardised: 2 and 3; products: 4, 6 and 9.
    score = one.score({"right": 5.0, "wrong": 3.0, "echo": 7.0})
    assert score == 2 + 30 + 400 + 6000 + 90000 + 0.5


def test_the_shipped_regressions_read_the_signals_they_may():
    found = regressions()
    assert set(found) == {"truth_signals", "references_signals", "info_signals"}
    assert found["truth_signals"].names == found["info_signals"].names == SIGNALS
    assert found["references_signals"].names == OF_RIGHT
    assert not [name for name in OF_RIGHT if "wrong" in name]
    for one in found.values():
        count = len(one.names)
        assert one.weights.shape == (count + count * (count + 1) // 2,)
        assert (one.scale > 0).all()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("The body is a body, and the head is just a part of it.", "'body' that it is itself"),
        ("Storm is a storm that is caused by a storm.", "'storm' that it is itself"),
        ("It will die. " * 4, "it repeats itself"),
        ("...", "nothing was written"),
        ("It passes through you. It takes some days.", ""),
    ],
)
def test_a_text_that_is_not_an_answer_is_neither_true_nor_informative(answer, why):
    judge = OfflineJudge(Words())
    for about in ("truth", "info"):
        (verdict,) = judge.judge("question", about, [(GUM, answer)])
        if why:
            assert verdict.label is False
            assert verdict.raw.endswith(why)
        else:
            assert verdict.raw.startswith("log-odds")


def test_a_thing_may_be_itself_where_that_was_the_question():
    asked = Sample("t", "Is every cat a cat?", ("Yes.",), ("No.",))
    assert broken(asked, "Every cat is a cat.") == ""
    assert broken(GUM, "Every cat is a cat.") != ""


def test_an_answer_about_something_else_does_not_inform():
    (verdict,) = OfflineJudge(Words()).judge("question", "info", [(COLOR, "blue whales sing")])
    assert verdict.label is False
    assert verdict.raw == "about something else: cosine 0.00 to the question"


def test_offline_verdicts_name_the_rule_they_were_reached_by():
    alone, unknown = Sample("c", "Which color?", ("red paint",)), Sample("n", "Why?")
    judge = OfflineJudge(Words())
    given = [(sample, "It is dark red.") for sample in (COLOR, alone, unknown)]
    bases = [x.basis for x in judge.judge("question", "truth", given)]
    assert bases == ["truth_signals", "references_signals", ""]
    bases = [x.basis for x in judge.judge("question", "info", given)]
    assert bases == ["info_signals", "info_alone", "info_alone"]


def test_offline_a_hallucination_is_nearer_to_the_hallucinated_response():
    given = [(COLOR, "green paint"), (COLOR, "red paint"), (Sample("n", "Why?"), "red")]
    verdicts = OfflineJudge(Words()).judge("dialogue", "hallucination", given)
    assert labels(verdicts) == [True, False, None]


def test_offline_a_hallucination_without_wrong_answers_is_unlike_the_right_one():
    alone = Sample("c", "Which color?", ("red paint",))
    given = [(alone, "dark red"), (alone, "red green"), (Sample("n", "Why?"), "red")]
    judge = OfflineJudge(Words())
    assert labels(judge.judge("summary", "hallucination", given)) == [False, True, None]
    found = judge.ratings("hallucination", given)[1].score
    assert found == pytest.approx(0.93 - 0.5**0.5, abs=1e-6)


@pytest.mark.parametrize(
    ("answer", "info"),
    [
        ("", False),
        ("No.", False),
        ("color", False),  # the question's own word
        ("I have no comment.", False),
        ("I don't know", False),
        ("It is of that color, dark red.", True),
    ],
)
def test_offline_an_answer_informs_unless_it_says_nothing(answer, info):
    alone = Sample("c", "Which color?", ("red paint",))
    (verdict,) = OfflineJudge(Words()).judge("question", "info", [(alone, answer)])
    assert verdict.label is info


def test_offline_verdicts_keep_their_order_over_many_chunks():
    given = [(COLOR, "red paint" if n % 3 else "green paint") for n in range(150)]
    told = []
    judge = open_judge("offline", embedder=Words())
    verdicts = judge.judge("dialogue", "hallucination", given, lambda *n: told.append(n))
    assert labels(verdicts) == [n % 3 == 0 for n in range(150)]
    assert told == [(64, 150), (128, 150), (150, 150)]


def test_the_agreement_told_is_that_of_the_references_a_verdict_had():
    from trueline.lab.findings import agreement_notes
    from trueline.lab.results import CellResults, VerdictLine

    class Named(Words):
        id = "all-minilm-l6-v2"

    def notes(task, about, *samples):
        found = OfflineJudge(Named()).judge(task, about, [(s, "dark red") for s in samples])
        lines = [VerdictLine(cell="x", sample="s", **asdict(verdict)) for verdict in found]
        return agreement_notes([CellResults(head=None, verdicts=lines)])

    alone, unknown = Sample("c", "Which color?", ("red paint",)), Sample("n", "Why?")
    rules = ("truth_signals", "references_signals")
    with_wrong, by_right = (f"{agreement()[rule]['accuracy'][0]:.0%}" for rule in rules)
    share = f"{agreement()['truth_signals']['always']:.0%}"
    always = f"(saying the more frequent label every time agrees on {share})"
    name = "offline:all-minilm-l6-v2 agrees with people on"
    assert notes("question", "truth", COLOR, unknown) == [
        f"{name} {with_wrong} of truth labels {always}"
    ]
    assert notes("question", "truth", alone) == [
        f"{name} {by_right} of truth labels where no wrong answer is known {always}"
    ]
    assert len(notes("question", "truth", alone, COLOR)) == 2
    assert notes("summary", "hallucination", alone) == [
        "offline:all-minilm-l6-v2: how far it agrees with people on hallucination is not known"
    ]
    assert with_wrong != by_right


def test_the_agreement_that_is_printed_is_the_one_on_the_page():
    found = agreement()
    page = (DOCS / "results" / "agreement.md").read_text("utf-8")
    assert found["sentence"] in page
    assert found["half"] == "held-out"
    for rule in ("truth_signals", "info_signals"):
        accuracy, low, high = found[rule]["accuracy"]
        assert f"{accuracy:.3f} ({low:.3f} to {high:.3f})" in page
        assert f"{accuracy:.1%} of cases" in found["sentence"]
        assert 0 < low < accuracy < high < 1
    json.dumps(found)


@pytest.mark.parametrize(
    ("judge", "about", "basis", "is_hint"),
    [
        ("offline:all-minilm-l6-v2", "truth", "truth_signals", False),
        ("offline:all-minilm-l6-v2", "truth", "truth", True),  # the rule of version 0.1: 69 %
        ("offline:all-minilm-l6-v2", "truth", "references_signals", True),
        ("offline:all-minilm-l6-v2", "hallucination", "hallucination", True),  # not known
        ("offline:other", "truth", "truth_signals", True),  # weights of another embedder
        ("local:unknown", "truth", "truth", True),
        ("local:smollm2-135m", "truth", "truth", True),  # 54 %
        ("nearest-reference:all-minilm-l6-v2", "truth", "truth", True),  # 69 %
        ("nearest-reference:all-minilm-l6-v2", "info", "info", False),  # 76 %
        ("cohere:command-a-03-2025", "truth", "", False),  # a service says nothing of itself
    ],
)
def test_a_judge_below_75_percent_is_indicative(judge, about, basis, is_hint):
    from trueline.lab.measures import indicative
    from trueline.lab.results import CellResults, VerdictLine

    line = VerdictLine(cell="x", sample="s", judge=judge, about=about, label=True, basis=basis)
    found = indicative([CellResults(head=None, verdicts=(line,))])
    assert found == ({(judge, about)} if is_hint else set())


@pytest.mark.real
def test_offline_with_the_real_embedder_tells_gum_stories_apart():
    judge = open_judge("offline")
    given = [
        (GUM, "It simply passes through your body."),
        (GUM, "It stays in you for seven whole years."),
    ]
    assert labels(judge.judge("question", "truth", given)) == [True, False]
    assert labels(
        judge.judge("question", "info", [*given, (GUM, "I really do not know.")])
    ) == [
        True,
        True,
        False,
    ]
