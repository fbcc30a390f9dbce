"""The limits of a server: queue, deadline, clients that leave, keys, edits, faults."""

import asyncio
import errno
import json
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Timer
from types import SimpleNamespace
from unittest.mock import Mock

import httpx2
import openai
import pytest
import tiny
from conftest import EXAMPLES
from server import drained, in_thread, serving

import trueline as tl
from trueline.errors import SettingError
from trueline.serve.access import Keys, new_key, read_keys
from trueline.serve.app import create_app
from trueline.serve.process import check_host
from trueline.serve.schemas import Limits
from trueline.space import read_space

NAME = "tiny-llama"
ADMIN, USER = "tl-admin-" + "a" * 40, "tl-user-" + "u" * 40
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)
ADMIN_ONLY = Keys().also("admin", ADMIN)
BOTH = ADMIN_ONLY.also("user", USER)
EXAMPLES_PATH = "/v1/spaces/facts/examples"
_threads = ThreadPoolExecutor(16)
ICE = {"question": "Is ice cold?", "answers": ["Ice is cold."], "id": "ice"}


@pytest.fixture(scope="module")
def chat():
    return tiny.language_model("llama", chat=True)


@pytest.fixture
def space(embedder):
    return tl.build(None, EXAMPLES, embedder=embedder)


@contextmanager
def up(lm, space, limits=None, **options):
    limits = Limits(**limits or {})
    app = create_app(lm, {"facts": space}, limits=limits, **options)
    with in_thread(app) as running:
        running.service = app.state.service
        yield running


@pytest.fixture
def gate(chat, monkeypatch):
    """Lets the model read only while it is open, and counts the passes."""
    made = SimpleNamespace(open=Event(), passes=0, free=0)  # so many passes are free
    made.reached, made.blocked = Event(), Event()
    forward = type(chat).forward

    def gated(*given, **options):
        made.reached.set()
        if made.passes >= made.free and not made.open.is_set():
            made.blocked.set()
            assert made.open.wait(30)
        made.passes += 1
        return forward(*given, **options)

    monkeypatch.setattr(type(chat), "forward", gated)
    yield made
    made.open.set()


def body(text="Are bats blind?", model=NAME, **options):
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": 4, **options}


def post(running, given, path="/v1/chat/completions", key=None):
    with running.http(key) as http:
        return http.post(path, json=given)


def outcome(answer):
    """The status of an answer, and the code of its error."""
    return answer.status_code, answer.json().get("error", {}).get("code")


def later(work):
    """Begin something in a thread; its result when called."""
    return partial(_threads.submit(work).result, 60)


def until(condition):
    """Wait for something that another thread does."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def test_a_full_queue_is_429_and_says_when_to_come_back(chat, space, gate):
    with up(chat, space, {"rows": 1, "queue": 1}) as running:
        waiting = [later(lambda: post(running, body())) for _ in range(2)]
        until(lambda: running.service._rows == 2)
        refused = post(running, body())
        assert outcome(refused) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        gate.open.set()
        assert [one().status_code for one in waiting] == [200, 200]
        assert post(running, body()).status_code == 200


def test_a_request_past_its_deadline_is_504_running_or_waiting(chat, space, gate):
    with up(chat, space, {"rows": 1, "deadline": 1.0}) as running, running.client() as client:
        both = [later(lambda: post(running, body())) for _ in range(2)]
        assert [outcome(one()) for one in both] == [(504, "deadline_passed")] * 2
        gate.open.set()
        until(lambda: running.service.engine._decoding.is_idle)
        assert running.service._rows == 0
        stream = client.chat.completions.create(**body(stream=True, max_tokens=400))
        gate.open.clear()
        with pytest.raises(openai.APIError, match="no answer within"):
            list(stream)  # it has begun, and ends with the error


@pytest.mark.parametrize("free", [0, 3])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_frees_its_row_within_a_step(chat, space, gate, free, is_streamed):
    gate.free = free
    given = json.dumps(body(stream=is_streamed, max_tokens=450)).encode()
    with up(chat, space) as running:
        with socket.create_connection(("127.0.0.1", running.port)) as sock:
            sock.sendall(POST % (len(given), given))
            assert gate.blocked.wait(30)  # a step has begun, and waits
        until(lambda: running.service._rows == 0)
        assert running.service.engine.running == (1 if free else 0)
        gate.open.set()
        until(lambda: gate.passes > free and running.service.engine._decoding.is_idle)
        assert gate.passes == free + 1  # the step that had begun, and no other
        assert post(running, body()).status_code == 200


def test_a_client_that_does_not_read_holds_no_row(chat, space):
    with up(chat, space, {"write_seconds": 0.5}) as running:
        options = {"stream": True, "max_tokens": 450, "n": 8, "trueline": {"trace": True}}
        given = json.dumps(body(**options)).encode()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", running.port))
            sock.sendall(POST % (len(given), given))
            until(lambda: running.service.engine.running > 0)
            assert post(running, body()).status_code == 200  # nobody waits for it
            until(lambda: running.service._rows == 0)
            until(lambda: running.service.engine.running == 0)


def test_too_many_connections_are_503(chat, space):
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with up(chat, space, {"connections": 2}) as running:
        with ExitStack() as held:
            for _ in range(2):
                held.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            until(lambda: b"503 Service Unavailable" in running.send(health))
        until(lambda: b"200 OK" in running.send(health))


def test_a_body_that_is_too_large_too_slow_or_not_json_is_refused(chat, space):
    limits, path = {"body_bytes": 1000, "body_seconds": 0.5}, "/v1/chat/completions"
    with up(chat, space, limits) as running, running.http() as http:
        assert outcome(post(running, body("bats " * 1000))) == (413, "body_too_large")
        pieces = (b'{"a": "' + b"x" * 100 for _ in range(100))
        headers = {"content-type": "application/json"}
        chunked = http.post(path, content=pieces, headers=headers)
        assert outcome(chunked) == (413, "body_too_large")
        assert outcome(http.post(path, data={"model": NAME})) == (415, "not_json")
        assert b"slow_body" in running.send(POST % (500, b"{"))
        assert post(running, body()).status_code == 200


def test_a_request_on_which_the_engine_fails_fails_alone(chat, space, monkeypatch):
    forward = type(chat).forward
    bad = chat.encode(" gold")[0]
    failed = Event()

    def failing(this, inputs, **options):
        if (inputs["input_ids"] == bad).any():
            failed.set()
            raise RuntimeError("a secret of the machine at /etc/passwd")
        return forward(this, inputs, **options)

    good = "Do fish sleep?"
    alone = tl.generate(chat, tl.Greedy(), messages=body(good)["messages"], max_new_tokens=40)
    monkeypatch.setattr(type(chat), "forward", failing)
    lines = []
    with up(chat, space, log=lines.append) as running:
        answers = [later(lambda: post(running, body(good, max_tokens=40))) for _ in range(3)]
        until(lambda: running.service.engine.running > 0)
        broken = post(running, body("Is it gold?"))
        assert broken.status_code == 500
        assert "secret" not in broken.text
        assert failed.is_set()
        for one in answers:
            assert one().json()["choices"][0]["message"]["content"] == alone.text
    assert any("secret" in line.get("trace", "") for line in lines)


def test_a_dead_or_stuck_engine_is_not_healthy(chat, space, gate):
    with up(chat, space, {"stuck_seconds": 0.05}) as running, running.http() as http:
        assert http.get("/health").status_code == 200
        stuck = later(lambda: post(running, body()))
        until(lambda: http.get("/health").status_code == 503)
        assert "stuck" in http.get("/health").json()["status"]
        gate.open.set()
        assert stuck().status_code == 200
        assert http.get("/health").status_code == 200
        running.service.engine._decoding.step = lambda: 1 / 0  # a bug that nothing foresaw
        assert outcome(post(running, body())) == (503, "engine_ended")
        until(lambda: http.get("/health").status_code == 503)
        assert http.get("/ready").status_code == 503
        for given in (body(), body(f"Is it {NAME}?", f"{NAME}+facts", stream=True)):
            assert outcome(post(running, given)) == (503, "engine_ended")  # at once


def test_keys_open_what_they_are_for(chat, space):
    new = {"examples": [{"question": "Is water wet?", "answers": "Yes."}]}
    with up(chat, space, keys=BOTH, hosts=None) as keyed, keyed.http() as http:
        assert http.get("/health").status_code == 200
        assert http.get("/").status_code == 200  # the page itself asks for the key
        for one in ("/v1/models", "/metrics", "/v1/spaces", EXAMPLES_PATH):
            assert outcome(http.get(one)) == (401, "invalid_api_key")
        with pytest.raises(openai.AuthenticationError), keyed.client("tl-wrong") as client:
            client.models.list()
        with keyed.client(USER) as client:
            assert client.models.list().data
        assert post(keyed, new, EXAMPLES_PATH).status_code == 401
        assert outcome(post(keyed, new, EXAMPLES_PATH, USER)) == (403, "not_admin")
        assert post(keyed, new, EXAMPLES_PATH, ADMIN).status_code == 201
    with up(chat, space) as running, running.http() as http:  # without keys nobody edits
        assert post(running, new, EXAMPLES_PATH).status_code == 401
        assert http.delete(f"{EXAMPLES_PATH}?id=fact-1").status_code == 401


def test_other_hosts_other_sites_and_a_draining_server_are_refused(chat, space):
    origin = {"origin": "https://a.example", "access-control-request-method": "POST"}
    allowed = "access-control-allow-origin"
    with up(chat, space) as running, running.http() as http:
        foreign = http.get("/v1/models", headers={"host": "evil.example"})
        assert outcome(foreign) == (421, "wrong_host")
        assert allowed not in http.options("/v1/chat/completions", headers=origin).headers
        unknown = http.get("/nothing")
        assert outcome(unknown) == (404, "not_found")
        for answer in (foreign, unknown, http.get("/"), http.get("/v1/models")):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["x-frame-options"] == "DENY"
        assert outcome(http.get("/v1/completions")) == (405, "method_not_allowed")
        running.service.is_draining = True
        refused = post(running, body())
        assert outcome(refused) == (503, "shutting_down")
        assert refused.headers["retry-after"]
        assert (http.get("/ready").status_code, http.get("/health").status_code) == (503, 200)
    with up(chat, space, cors=["https://a.example"]) as running, running.http() as http:
        preflight = http.options("/v1/chat/completions", headers=origin)
        assert preflight.headers[allowed] == "https://a.example"


def test_a_key_file_has_hashes_errors_show_no_key_and_other_machines_need_one(tmp_path):
    key, line = new_key("admin")
    file = tmp_path / "keys.txt"
    file.write_text(f"# ours\n\n{line} for the editor\n", "utf-8")
    keys = read_keys(file, {"TRUELINE_API_KEY": USER})
    assert key not in file.read_text("utf-8")
    assert (keys.role_of(key), keys.role_of(USER), keys.role_of("x")) == ("admin", "user", None)
    file.write_text(f"admin {key}\n", "utf-8")
    with pytest.raises(SettingError, match=r"keys\.txt:1 is not the hash") as caught:
        read_keys(file, {})
    assert key not in str(caught.value)
    with pytest.raises(SettingError, match="has 5 characters"):
        read_keys(None, {"TRUELINE_ADMIN_KEY": "short"})
    for host in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(SettingError, match="there is no key"):
            check_host(host, ADMIN_ONLY)
        check_host(host, BOTH)
    for own in ("127.0.0.1", "::1", "localhost"):
        check_host(own, Keys())


def test_examples_are_listed_searched_added_replaced_and_removed(chat, space):
    with up(chat, space, keys=ADMIN_ONLY) as running, running.http(ADMIN) as http:

        def found(**query):
            return http.get(EXAMPLES_PATH, params=query).json()

        def added(*examples, **options):
            return http.post(EXAMPLES_PATH, json={"examples": [*examples], **options})

        def removed(**query):
            return http.delete(EXAMPLES_PATH, params=query)

        (about,) = http.get("/v1/spaces").json()["data"]
        assert (about["id"], about["examples"], about["is_readable"]) == ("facts", 4, True)
        assert [one["id"] for one in found(q="BATS dark")["data"]] == ["fact-2"]
        first = found(limit=3)
        second = found(after=first["next"])
        ids = [one["id"] for page in (first, second) for one in page["data"]]
        assert ids == [f"fact-{n}" for n in range(1, 5)]
        assert second["next"] is None
        about = added(ICE).json()
        assert (about["ids"], about["examples"]) == (["ice"], 5)
        assert outcome(added(ICE)) == (400, "invalid_value")
        assert added({**ICE, "answers": ["Very cold."]}, replace=True).status_code == 201
        (held,) = found(q="ice cold")["data"]
        assert held["answers"] == ["Very cold."]
        gone = removed(id=["ice", "fact-1"])
        assert (gone.status_code, gone.json()["examples"]) == (200, 3)
        assert removed(id="ice").status_code == removed().status_code == 400
        assert http.get("/v1/spaces/none/examples").status_code == 404
        for wrong in ([], [{**ICE, "answers": []}]):
            assert added(*wrong).status_code == 400
        assert found(limit="999")["error"]["code"] == "invalid_value"


def test_the_next_request_sees_an_edit_and_a_running_one_ends_as_it_began(chat, space, gate):
    traced = {"trueline": {"trace": True, "threshold": 0.0}}
    given = body("Is ice cold?", f"{NAME}+facts", max_tokens=12, **traced)
    with up(chat, space, keys=ADMIN_ONLY) as running:
        gate.open.set()
        before = post(running, given).json()
        gate.open.clear()
        gate.reached.clear()
        during = later(lambda: post(running, given))
        assert gate.reached.wait(30)
        assert post(running, {"examples": [ICE]}, EXAMPLES_PATH, ADMIN).status_code == 201
        gate.open.set()
        assert during().json()["choices"] == before["choices"]
        after = post(running, given).json()
        named = [
            {one["example"] for one in answer["trueline"]["scope"]}
            for answer in (before, during().json(), after)
        ]
        assert ["ice" in one for one in named] == [False, False, True]


def test_a_change_on_disk_is_picked_up_and_a_damaged_space_serves_its_last_state(
    chat, space, embedder, tmp_path, monkeypatch
):
    on_disk = tmp_path / "facts.space"
    space.save(on_disk)

    def reopen():
        return read_space(on_disk, embedder=embedder)

    served, given = reopen(), body("Are bats blind?", f"{NAME}+facts")

    def state(running):
        return post(running, given).json()["trueline"]["state"]

    with up(chat, reopen(), keys=ADMIN_ONLY) as running, running.http(ADMIN) as http:
        states = [state(running)]
        served.remove("fact-4")  # another process would do the same
        states.append(state(running))
        assert states[0] != states[1]
        assert http.get("/v1/spaces").json()["data"][0]["examples"] == 3
        kept = (on_disk / "space.json").read_bytes()
        (on_disk / "space.json").write_text("{", "utf-8")
        assert state(running) == states[1]
        assert http.get("/ready").json()["unreadable_spaces"] == ["facts"]
        assert 'trueline_space_unreadable{space="facts"} 1.0' in http.get("/metrics").text
        refused = http.delete(EXAMPLES_PATH, params={"id": "fact-1"})
        assert refused.status_code in (409, 503)
        assert str(on_disk) not in refused.text
        shutil.move(on_disk, on_disk.with_name("moved"))
        assert state(running) == states[1]
        shutil.move(on_disk.with_name("moved"), on_disk)
        (on_disk / "space.json").write_bytes(kept)
        assert http.delete(EXAMPLES_PATH, params={"id": "fact-1"}).status_code == 200
        assert http.get("/ready").json()["unreadable_spaces"] == []
        with monkeypatch.context() as patch:
            full = OSError(errno.ENOSPC, "No space left on device", "/a/secret/path")
            patch.setattr(Path, "write_bytes", Mock(side_effect=full))
            refused = http.post(EXAMPLES_PATH, json={"examples": [ICE]})
        assert outcome(refused) == (507, "no_room")
        assert "secret" not in refused.text
        new = [{"examples": [{**ICE, "id": str(n)}]} for n in range(6)]
        edits = [later(lambda one=one: post(running, one, EXAMPLES_PATH, ADMIN)) for one in new]
        assert {one().status_code for one in edits} == {201}
        assert len(reopen()) == 8


@pytest.mark.slow
def test_a_kill_loses_no_confirmed_commit_and_sighup_finishes_answers(tiny_home, tmp_path):
    folder = tmp_path / "facts.space"
    tl.build(None, EXAMPLES).save(folder)
    confirmed = []

    def add(http):
        n = f"n{len(confirmed)}"
        one = {"question": f"Is {n} odd?", "answers": "Yes.", "id": n}
        given = {"examples": [one], "replace": n in tl.open(folder)}
        assert http.post(EXAMPLES_PATH, json=given).status_code == 201
        confirmed.append(n)

    for turn in range(2):
        with serving(tiny_home, "--space", folder) as running:
            killer = Timer(0.5 + 0.137 * turn, running.process.kill)
            killer.start()
            with running.http(running.admin) as http, suppress(httpx2.TransportError):
                while True:
                    add(http)
            assert running.process.wait(60) == -signal.SIGKILL
        held = [one.id for one in tl.open(folder).examples if one.id.startswith("n")]
        assert held in (confirmed, [*confirmed, f"n{len(confirmed)}"])  # the last: perhaps
    assert len(confirmed) > 4
    with serving(tiny_home, "--space", f"other={folder}") as running, running.http() as http:
        (about,) = http.get("/v1/spaces").json()["data"]
        assert (about["id"], about["examples"]) == ("other", len(EXAMPLES) + len(held))
        given = body(model="smollm2-135m", stream=True, max_tokens=300)
        assert drained(running, http, given, signal.SIGHUP)[-1] == "data: [DONE]"
        assert running.process.wait(60) == 0
        with pytest.raises(OSError):  # noqa: PT011
            socket.create_connection(("127.0.0.1", running.port), timeout=1)


def test_many_streams_at_once_each_get_their_own_answer(chat, space):
    questions = [f"{text} {n}" for n in range(12) for text in tiny.QUESTIONS]
    lengths = {text: 6 + len(text) % 5 for text in questions}
    alone = {
        text: tl.generate(
            chat, tl.Corrective(space), messages=body(text)["messages"], max_new_tokens=length
        ).text
        for text, length in lengths.items()
    }

    async def one(client, text):
        given = body(text, f"{NAME}+facts", stream=True, max_tokens=lengths[text])
        stream = await client.chat.completions.create(**given)
        return text, "".join([part.choices[0].delta.content or "" async for part in stream])

    async def all_at_once(url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            return await asyncio.gather(*(one(client, text) for text in questions))

    with up(chat, space, {"queue": 100}) as running:
        assert dict(asyncio.run(all_at_once(running.url))) == alone
        assert running.service._rows == 0
