"""Judges: their questions, how replies are read, and that nothing is lost or paid twice."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from judge_server import HANG, KEY, clean_environment, serving

from trueline.errors import MissingExtraError, SettingError, TruelineError
from trueline.lab.benchmarks.tables import Sample
from trueline.lab.judges import Limits, open_judge, prompt_for
from trueline.lab.judges.models import SERVICES, ResponseCache
from trueline.lab.judges.offline import (
    SIGNALS,
    OfflineJudge,
    Regression,
    Vectors,
    agreement,
    signals_of,
    texts_for,
)
from trueline.lab.judges.questions import read_verdict
from trueline.lab.measures import MEASURES, Column, indicative_columns
from trueline.lab.results import CellResults, VerdictLine

DOCS = Path(__file__).parent.parent / "docs"
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


@pytest.fixture(autouse=True)
def clock(request, monkeypatch, tmp_path):
    """A key for every address, nothing of the real environment, a clock of the test's own."""
    if request.node.get_closest_marker("real"):
        return None  # the real embedder is in the real cache
    clean_environment(monkeypatch, tmp_path, KEY)
    clock = Clock()
    monkeypatch.setattr("trueline.lab.judges.models.monotonic", clock.now)
    monkeypatch.setattr("trueline.lab.judges.models.sleep", clock.sleep)
    return clock


def open_at(server, name="cohere", *, cache=None, max_tokens=None, **limits):
    """A judge at a server its user trusts."""
    os.environ["TRUELINE_JUDGE_URL"] = server.url  # restored by `clock`
    name = f"{name}@{server.url}"
    return open_judge(name, limits=Limits(**limits), cache=cache, max_tokens=max_tokens)


def ask(server, count, about="info", **options):
    return open_at(server, **options).judge("question", about, items(count))


def labels(verdicts):
    return [verdict.label for verdict in verdicts]


REPLIES = {  # by label; separated by " | "
    True: """Yes | Yes. | Answer: Yes | My final answer is yes! | [[Yes]] | <answer>Yes</answer>
        | <think>No, wait. No.</think>\n\nYes | \uff39\uff45\uff53\u3002
        | Yes. The reply names no film, but Tolkien was asked for.
        | Yes, the reply is wrong about the name, but not the year.""",
    False: """  no\n | **no** | **Answer:** No. | #Verdict#: No | “No” | {"answer": "No"}
        | No - nothing in it is made up.""",
    None: """ | ... | yes and no | Yes, and no. | Yes/No | Yes or No | Yes.\nNo.
        | Yes, but only partly. | No idea. | No comment | Maybe | Yesterday | As an AI, no.
        | I'm sorry, I can't judge that. | <think>Yes, it seems | (no text: SAFETY)""",
}
TRUTH_REPLIES = {
    True: """Correct | The answer is correct. | Yes | The answer is: Correct
        | Verdict: the answer is correct. | Correct, I think.
        | Correct. The answer isn't wrong.""",
    False: """Wrong. | *Incorrect* | Not correct. | Answer to judge: Wrong
        | Wrong: nothing of it is correct. | Wrong, because the right answer is seven years.
        | Wrong. It is true that gum is sticky, but that was not asked.""",
    None: """Correct. Wrong. | "Correct" or "Wrong" | Correct, though partly wrong
        | Partially correct | Not wrong | Neither | Corrected | No, that is correct.
        | No, the answer is right | Yes, it is wrong | Yes, but that's not correct.
        | Correct. I think it was wrong about the year.
        | Correct, I think, but it is partly wrong | Correct, I think, but only in part""",
}
HALLUCINATION_REPLIES = {
    True: f"{REPLIES[True]} | hallucinated",
    False: f"{REPLIES[False]} | not hallucinated | No, it isn't hallucinated",
    None: "Correct | No, it is hallucinated | Yes. The reply is not hallucinated.",
}
READ = {"info": REPLIES, "truth": TRUTH_REPLIES, "hallucination": HALLUCINATION_REPLIES}


@pytest.mark.parametrize(("about", "replies"), READ.items())
@pytest.mark.parametrize("label", [True, False, None])
def test_a_reply_is_read_as_one_verdict_or_as_none(about, replies, label):
    for raw in re.split(r"\s\| ", replies[label]):
        assert read_verdict(raw, about) is label, raw


def test_the_truth_question_shows_what_is_known_and_the_answer_last():
    prompt = prompt_for("question", "truth", GUM, "It {wrong} dissolves. ")
    assert "- It passes through you.\n- Nothing much.\n" in prompt
    assert "wrong answers:\n- It stays for seven years.\n" in prompt
    assert '"Correct" or "Wrong"' in prompt
    assert prompt.endswith("Answer to judge: It {wrong} dissolves.")
    alone = prompt_for("question", "truth", Sample("1", "Why?", ("So.",)), "So")
    assert "wrong answers" not in alone
    # What no service can take is made what it can.
    assert "half ? sign" in prompt_for("question", "info", GUM, "half \ud800 sign")
    assert "A: (nothing was written)" in prompt_for("question", "info", GUM, " \n")


@pytest.mark.parametrize(
    ("name", "cost"),
    [("cohere", (2.5, 10.0)), ("gemini", (0.1, 0.4)), ("openai:some-model", None)],
)
def test_every_service_gets_the_same_requests_and_verdicts_keep_their_order(name, cost):
    with serving(reply=lambda p: "Correct" if number_in(p) % 3 else "Wrong.") as server:
        verdicts = ask(server, 20, "truth", name=name)
    assert labels(verdicts) == [number % 3 > 0 for number in range(20)]
    assert len(server.requests) == 20
    for path, headers, body, _ in server.requests:
        assert (path, headers["authorization"]) == ("/chat/completions", f"Bearer {KEY}")
        assert (body["temperature"], body["max_tokens"]) == (0, 16)
    words = len(prompt_for("question", "truth", *items(1)[0]).split())
    first = verdicts[0]
    assert (first.prompt_tokens, first.answer_tokens, first.raw) == (words, 1, "Wrong.")
    price = cost and pytest.approx((words * cost[0] + cost[1]) / 1e6)
    assert first.cost == price
    assert first.judge.startswith(name)
    assert first.judge.endswith(f"@{server.url}")


def test_ids_hashes_and_cache_keys_are_those_that_paid_caches_hold(monkeypatch):
    """The values are those of 0.2.0: if one changes, everything is paid for once more."""
    monkeypatch.setenv("TRUELINE_JUDGE_URL", "https://Judge.example.org/v1/")
    judge = open_judge("cohere")
    other = open_judge("openai:m@https://judge.example.org/v1", questions="paper")
    assert (judge.id, judge.hash) == ("cohere:command-a-03-2025", "f32146a7d6fd")
    assert other.id == "openai:m@https://judge.example.org/v1+paper"
    assert other.hash == "fe5f331078b7"
    key = "f518a5664efcbd39209ef8cbaedea7487dcb5a255b1e1db1cafddd87e00fdfe0"
    ResponseCache().write(key, judge.id, ("No", 9, 1))
    (verdict,) = judge.judge("question", "info", items(1))
    assert (verdict.label, verdict.is_cached) == (False, True)
    (verdict,) = judge.judge("question", "truth", [(Sample("1", "Why?"), "So.")])  # not sent
    assert (verdict.label, verdict.raw) == (None, "no reference answer to judge by")


def test_a_reply_without_text_is_unscored_says_why_and_is_not_paid_again():
    with serving(reply=lambda prompt: "") as server:
        (verdict,), (again,) = ask(server, 1), ask(server, 1)
    assert (verdict.label, again.label, len(server.requests)) == (None, None, 1)
    assert verdict.raw == "(no text: stop)"
    assert verdict.prompt_tokens > 0


FAULTS = [408, 503, (429, "0"), (429, "nan"), (429, "-1"), "cut", "half", "text", "form"]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_passing_fault_is_tried_again_and_nothing_is_lost(fault):
    with serving(reply=lambda p: "Yes" if number_in(p) else "No", faults=[fault]) as server:
        assert labels(ask(server, 3, concurrency=2)) == [False, True, True]
    assert len(server.requests) == 4
    assert len(server.answered) == len(set(server.answered)) == 3


def test_a_response_that_is_not_whole_in_time_is_given_up():
    """However slow the machine is, the response never ends."""

    def drip(handler):
        while not handler.server.released.wait(0.001):
            handler.wfile.write(b"x")

    with serving(faults=[drip]) as server:
        (verdict,) = ask(server, 1, tries=1, timeout=0.05)
    assert (verdict.label, verdict.is_answered) == (None, False)
    assert verdict.raw == "(no response: no response within 0.05 s; tried 1 times)"


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_the_pause_a_service_wants_is_kept_by_all_requests(form, clock):
    seconds = 100  # longer than the client of the service would wait by itself
    date = datetime.now(UTC) + timedelta(seconds=seconds)
    pause = str(seconds) if form == "seconds" else format_datetime(date, usegmt=True)

    def reply(prompt):  # a request in flight ends when the refusal has been read
        assert clock.waiting.wait(HANG)
        return "Yes"

    with serving(reply=reply, faults=[(429, pause)], now=clock.now) as server:
        assert labels(ask(server, 20, concurrency=3)) == [True] * 20
    assert len(server.requests) == 21
    later = [time for time in server.times if time > 0]
    assert len(later) >= 18
    assert min(later) == max(later) == pytest.approx(seconds, abs=5)


def test_pauses_double_and_one_longer_than_our_patience_is_not_waited_for(clock):
    with serving(faults=[(429, "3600"), *[503] * 5]) as server:
        refused, found = ask(server, 2, concurrency=1, backoff=2.0, patience=20.0)
    assert (refused.label, found.label, len(clock.waits)) == (None, True, 5)
    assert "wait 3600 s" in refused.raw
    for attempt, seconds in enumerate(clock.waits):
        assert min(20, 2.0**attempt) <= seconds <= min(20, 2 * 2.0**attempt)


def test_after_so_many_tries_a_verdict_is_unscored_and_the_next_run_tries_again():
    with serving(faults=[500] * 3) as server:
        verdicts, again = (ask(server, 3, tries=3, concurrency=1) for _ in range(2))
    assert len(server.requests) == 5 + 1
    assert [(x.label, x.is_answered) for x in verdicts] == [(None, False), *[(True, True)] * 2]
    assert [(x.label, x.is_cached) for x in again] == [(True, False), *[(True, True)] * 2]
    assert re.search("HTTP 500.*tried 3 times", verdicts[0].raw)
    assert verdicts[0].cost is None


BAD_KEY = json.dumps({"error": {"code": 400, "details": [{"reason": "API_KEY_INVALID"}]}})


@pytest.mark.parametrize("fault", [401, 404, lambda handler: handler.send(400, BAD_KEY)])
def test_a_refused_key_or_model_ends_the_run_and_what_was_answered_is_kept(fault):
    with serving(reply=lambda prompt: server.faults.extend([fault] * 5) or "Yes") as server:
        with pytest.raises(TruelineError, match=r"check .* and TRUELINE_JUDGE_KEY") as caught:
            ask(server, 5, concurrency=1)
        server.reply, server.faults = lambda prompt: "Yes", []
        assert labels(ask(server, 5)) == [True] * 5
    assert KEY not in str(caught.value)
    assert len(server.answered) == len(set(server.answered)) == 5


# Keys


@pytest.mark.parametrize("name", ["cohere", "gemini", "openai:gpt-4o"])
def test_a_missing_key_is_named_before_anything_is_sent(name, monkeypatch):
    variables = SERVICES[name.partition(":")[0]].key_variables
    for variable in variables:
        monkeypatch.setenv(variable, " \n")
    with pytest.raises(TruelineError, match=f"needs a key .* set {' or '.join(variables)}"):
        open_judge(name)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://judge.example.org", "sk-secret\r\nHost: evil"),
        ("https://judge.example.org", "sk-s\u00e9cret"),
        ("http://judge.example.org", "sk-secret"),
        ("http://localhost.evil.example", "sk-secret"),
    ],
)
def test_a_key_that_cannot_be_sent_safely_is_refused_without_showing_it(url, key, monkeypatch):
    monkeypatch.setenv("COHERE_API_KEY", key)
    monkeypatch.setenv("COHERE_BASE_URL", url)
    with pytest.raises(SettingError, match=f"COHERE_API_KEY cannot be sent to {url}") as caught:
        open_judge("cohere")
    assert not re.search("sk|secret", str(caught.value))


def test_an_endpoint_of_ones_own_needs_no_key_and_cohere_takes_either(monkeypatch):
    with serving() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.delenv("OPENAI_API_KEY")
        with pytest.raises(TruelineError, match=r"or set OPENAI_API_KEY"):
            open_judge("openai:mine").judge("question", "info", items(1))
        assert "authorization" not in server.requests[0][1]
        monkeypatch.delenv("COHERE_API_KEY")
        monkeypatch.setenv("CO_API_KEY", f"{KEY}\n")  # as a file leaves it
        monkeypatch.setenv("COHERE_BASE_URL", f"{server.url}/")
        judge = open_judge("cohere")
        assert labels(judge.judge("question", "info", items(1))) == [True]
    assert judge.id.endswith(f"@{server.url}")


@pytest.mark.parametrize("name", ["gemini", "openai:some-model"])
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


@pytest.mark.parametrize(
    "other",
    ["https://{}", "https://{}:444/v1", "https://{}.evil.example/v1", "http://{}/v1"],
)
def test_an_address_that_only_looks_like_ones_own_gets_no_key(other, monkeypatch):
    """Nor does the service itself get the key of the gateway that stands for it."""
    monkeypatch.setenv("TRUELINE_JUDGE_URL", "https://judge.example.org/v1")
    other = other.format("judge.example.org")
    with pytest.raises(TruelineError, match="needs a key"):
        open_judge(f"gemini@{other}")
    assert open_judge(f"openai:m@{other}")._key == ""
    monkeypatch.setenv("GEMINI_BASE_URL", other.replace("http:", "https:"))
    with pytest.raises(TruelineError, match="needs a key"):
        open_judge(f"gemini@{SERVICES['gemini'].url}")


def test_a_key_follows_no_redirect():
    with serving() as other, serving() as server:
        target = {"location": f"{other.url}/chat/completions"}
        server.faults = [lambda handler: handler.send(308, "", target)]
        (verdict,) = ask(server, 1)
    assert (other.requests, len(server.requests)) == ([], 1)
    assert "HTTP 308" in verdict.raw


def test_nothing_of_the_environment_but_the_key_goes_along(monkeypatch):
    """Headers of the client's own variables may hold secrets; a proxy would read the key."""
    headers = "X-Gateway: hidden\nAuthorization: Bearer hidden"
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", headers)
    monkeypatch.setenv("OPENAI_ORG_ID", "hidden")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "hidden")
    with serving() as proxy, serving() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        (verdict,) = ask(server, 1)
    assert (verdict.label, proxy.requests) == (True, [])
    assert "hidden" not in f"{server.requests}"
    monkeypatch.setenv("HTTPS_PROXY", "ftp://me:hidden@proxy.example")  # cannot be one
    with pytest.raises(SettingError, match="HTTPS_PROXY") as caught:
        open_judge("openai:m")
    assert "hidden" not in f"{caught.value}"


@pytest.mark.parametrize(
    "address",
    [
        "me:secret@host/v1",
        "host/v1?key=secret",
        "host\\@evil.example/secret",
        "host:99999/secret",
    ],
)
def test_an_address_that_cannot_be_one_is_refused_without_repeating_it(address, monkeypatch):
    address = f"https://{address}"
    for name, variable in ((f"openai:m@{address}", ""), ("openai:m", address)):
        monkeypatch.setenv("OPENAI_BASE_URL", variable)
        with pytest.raises(SettingError, match=r"like https://api\.openai\.com/v1") as caught:
            open_judge(name)
        assert "secret" not in str(caught.value)


def test_a_wrong_name_or_number_of_tokens_or_a_missing_package_is_named(monkeypatch):
    for name in ("nobody", "offline:x", "openai", "openai:\x1b[31m", "openai:m@localhost:80"):
        with pytest.raises(SettingError, match="judge"):
            open_judge(name)
    assert open_judge("openai:claude@20250601").id == "openai:claude@20250601"
    with pytest.raises(SettingError, match="max_tokens"):
        open_judge("cohere", max_tokens=0)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"openai: pip install 'trueline\[judge\]'"):
        open_judge("cohere")


def test_nothing_is_paid_twice():
    doubled = [*items(4), *items(4)]
    with serving() as server:
        first, second = (open_at(server).judge("question", "info", doubled) for _ in range(2))
        assert len(server.requests) == 4
        for another in ({"about": "truth"}, {"name": "cohere:command-r"}, {"max_tokens": 99}):
            ask(server, 1, **another)
        assert len(server.requests) == 7
    assert labels(first) == labels(second) == [True] * 8
    assert [v.is_cached for v in first] == [False] * 4 + [True] * 4
    assert all(v.is_cached for v in second)
    assert [v.cost for v in first] == [v.cost for v in second]
    assert first[0].cost > 0


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_requests_are_in_flight_than_allowed(limit):
    full = threading.Barrier(limit)  # nothing is answered before so many are in flight
    with serving(reply=lambda prompt: full.wait(HANG) is not None and "Yes") as server:
        assert labels(ask(server, 12, concurrency=limit)) == [True] * 12
    assert server.most_in_flight == limit


def test_a_judge_keeps_its_pace_from_call_to_call_and_after_a_pause(clock):
    with serving(faults=[(429, "0.3")], now=clock.now) as server:
        judge = open_at(server, per_minute=1200, concurrency=1)  # one in 0.05 s
        judge.judge("question", "info", items(2))
        judge.judge("question", "truth", items(2))
    assert server.times == pytest.approx([0, 0.3, 0.35, 0.4, 0.45])


def test_a_judge_works_where_an_event_loop_runs():
    async def ask_in_a_notebook(server):
        return ask(server, 3)

    with serving(reply=lambda prompt: "Yes. \ud83d") as server:
        verdicts = asyncio.run(ask_in_a_notebook(server))
    assert [(x.label, x.raw) for x in verdicts] == [(True, "Yes. ?")] * 3  # half a surrogate


# The cache

RUN = """
import sys
from trueline.lab.judges import Limits, open_judge
from trueline.lab.benchmarks.tables import Sample
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
        verdicts = ask(server, 60)
    assert len(server.requests) == 60
    assert all(verdict.is_cached for verdict in verdicts)


def test_a_killed_run_pays_again_for_no_more_than_was_in_flight():
    received, dead, in_flight = [], threading.Event(), threading.Semaphore(0)

    def reply(prompt):  # the eleventh request and the twelfth are in flight at the kill
        received.append(prompt)
        if len(received) > 10 and not dead.is_set():
            in_flight.release()
            assert dead.wait(HANG)
        return "Yes"

    with serving(reply=reply) as server:
        process = start(server, 0, 40, 2)
        assert all(in_flight.acquire(timeout=HANG) for _ in range(2))
        process.kill()
        process.wait()
        dead.set()
        verdicts = ask(server, 40)
    assert all(verdict.label for verdict in verdicts)
    assert sum(verdict.is_cached for verdict in verdicts) == 10
    assert set(map(number_in, server.answered)) == set(range(40))
    assert len(server.answered) <= 42


def test_a_response_in_the_cache_is_never_overwritten(tmp_path):
    cache = ResponseCache(tmp_path / "deep" / "cache.sqlite")
    cache.write("a", "cohere", ("Yes", 5, 1))
    cache.write("a", "cohere", ("No", 6, 2))
    assert (cache.read("a"), cache.read("b")) == (("Yes", 5, 1), None)


# A model on this machine


def test_a_local_judge_reads_the_first_line_and_leaves_out_what_is_too_long(monkeypatch):
    def write(lm, method, prompts, **options):
        texts = ["\n Yes.\nQ: Why?\nNo.", "perhaps"]
        assert len(prompts) == 2
        return [SimpleNamespace(text=x, prompt_tokens=9, token_ids=(1, 2)) for x in texts]

    monkeypatch.setattr("trueline.decode.generate.generate", write)
    judge = open_judge("local", lm=tiny.language_model("llama", positions=4096))
    long, unknown = (GUM, "so " * 4000), (Sample("1", "Why?"), "So.")
    verdicts = judge.judge("question", "truth", [(GUM, "A."), long, (GUM, "B."), unknown])
    assert labels(verdicts) == [True, None, None, None]
    assert (verdicts[0].judge, verdicts[0].prompt_tokens) == ("local:tiny-llama", 9)
    assert "reads 4096" in verdicts[1].raw
    assert verdicts[2].raw == "perhaps"
    assert "no reference" in verdicts[3].raw


# Offline


class Words:
    """An embedder whose vectors are words: cosines can be worked by hand."""

    id = "all-minilm-l6-v2"
    known = ("red", "green", "blue", "comment")

    def embed(self, texts):
        counts = [[text.lower().count(word) for word in self.known] for text in texts]
        rows = np.array(counts, dtype=np.float32)
        return torch.tensor(rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True)))


COLOR = Sample("c", "Which color?", ("red paint",), ("green paint",))
ALONE, UNKNOWN = Sample("c", "Which color?", ("red paint",)), Sample("n", "Why?")


def offline(about, *given):
    return OfflineJudge(Words()).judge("question", about, list(given))


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
    for name in ("right_in_question", "wrong_in_question"):
        assert found[name] == pytest.approx(half, abs=1e-6)
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
    numbers = ([1.0, 0.0], [2.0, 1.0], [1.0, 10.0, 100.0, 1000.0, 10000.0], 0.5)
    one = Regression(["right", "wrong"], *numbers)  # mean, scale, weights and bias
    # Standardised: 2 and 3; products: 4, 6 and 9.
    score = one.score({"right": 5.0, "wrong": 3.0, "echo": 7.0})
    assert score == 2 + 30 + 400 + 6000 + 90000 + 0.5


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("A body is a body, and so is its head.", "it explains 'body' by itself"),
        ("It will die. " * 4, "it repeats itself"),
        ("...", "nothing was written"),
        ("It passes through you. It takes some days.", ""),
    ],
)
def test_a_text_that_is_not_an_answer_is_neither_true_nor_informative(answer, why):
    for about in ("truth", "info"):
        (verdict,) = offline(about, (GUM, answer))
        assert verdict.raw.endswith(why)
        assert verdict.raw.startswith("log-odds") is not bool(why)
        assert not why or verdict.label is False


def test_offline_verdicts_name_the_rule_they_follow():
    given = [(sample, "It is dark red.") for sample in (COLOR, ALONE, UNKNOWN)]
    bases = [x.basis for about in ("truth", "info") for x in offline(about, *given)]
    names = "truth_signals references_signals  info_signals info_alone info_alone"
    assert bases == names.split(" ")


def test_offline_a_hallucination_is_nearer_to_the_hallucinated_response():
    given = [(COLOR, "green paint"), (COLOR, "red paint"), (UNKNOWN, "red")]
    assert labels(offline("hallucination", *given)) == [True, False, None]
    # Without a wrong answer it is unlike the right one: 0.93 against a cosine of 0.71.
    given = [(ALONE, "dark red"), (ALONE, "red green")]
    assert labels(offline("hallucination", *given)) == [False, True]


def test_offline_an_answer_informs_unless_it_has_no_content():
    assert labels(offline("info", (ALONE, "It is of that color, dark red."))) == [True]
    # nothing, the question's own word, something else, non-answers
    for answer in "|No.|color|blue whales sing|I have no comment.|I don't know".split("|"):
        assert labels(offline("info", (ALONE, answer))) == [False], answer


def test_the_agreement_that_is_printed_is_the_one_on_the_page():
    found = agreement()
    page = (DOCS / "results" / "agreement.md").read_text("utf-8")
    assert found["sentence"] in page
    assert found["half"] == "held-out"
    for rule in ("truth_signals", "info_signals"):
        accuracy, low, high = found[rule]["accuracy"]
        assert f"{accuracy:.3f} ({low:.3f} to {high:.3f})" in page
        assert f"{accuracy:.1%} of cases" in found["sentence"]


def test_a_judge_below_75_percent_is_indicative():
    offline, what = "offline:all-minilm-l6-v2", {"cell": "x", "sample": "s", "about": "truth"}
    for judge, basis, is_hint in (
        (offline, "truth_signals", False),
        (offline, "truth", True),  # the rule of version 0.1: 69 %
        ("offline:other", "truth_signals", True),  # weights of another embedder
        ("local:unknown", "truth", True),
        ("cohere:command-a-03-2025", "", False),  # a service has no measured rule
    ):
        given = VerdictLine(judge=judge, basis=basis, label=True, **what)
        columns = [Column(MEASURES["truth"], judge)]
        found = indicative_columns([CellResults(head=None, verdicts=(given,))], columns)
        assert found == ({f"truth@{judge}"} if is_hint else set())


@pytest.mark.real
def test_offline_with_the_real_embedder_tells_gum_stories_apart():
    judge = open_judge("offline")
    given = [
        (GUM, "It simply passes through your body."),
        (GUM, "It stays in you for seven whole years."),
        (GUM, "I really do not know."),
    ]
    assert labels(judge.judge("question", "truth", given[:2])) == [True, False]
    assert labels(judge.judge("question", "info", given)) == [True, True, False]
