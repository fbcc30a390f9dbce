"""`trueline serve` in a process, with the official client and over plain HTTP."""

import json
import math
import os
import re
import signal
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import openai
import pytest
from conftest import EXAMPLES
from server import drained, serving

import trueline as tl
from trueline.prompts import TokenContext, read_messages

BATS = [{"role": "user", "content": "Are bats blind?"}]
GROUNDED, PLAIN = "smollm2-135m+facts", "smollm2-135m"


@pytest.fixture(scope="module")
def folder(tiny_home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spaces") / "facts.space"
    tl.build(None, EXAMPLES).save(folder)
    return folder


@pytest.fixture(scope="module")
def running(tiny_home, folder):
    with serving(tiny_home, "--space", folder) as running:
        yield running


@pytest.fixture(scope="module")
def client(running):
    with running.client() as client:
        yield client


@pytest.fixture(scope="module")
def lm(tiny_home):
    return tl.load(PLAIN)


@pytest.fixture(scope="module")
def corrective(folder):
    return tl.Corrective(tl.open(folder))


def ask(client, model=GROUNDED, messages=BATS, trueline=None, **options):
    extra = {"extra_body": {"trueline": trueline}} if trueline else {}
    return client.chat.completions.create(model=model, messages=messages, **extra, **options)


def test_every_space_and_method_is_a_model_name(client):
    names = [model.id for model in client.models.list()]
    assert names[:2] == [GROUNDED, PLAIN]
    assert {f"{PLAIN}+dola", f"{GROUNDED}+lookup", f"{GROUNDED}+kate"} <= set(names)
    assert f"{GROUNDED}+rad" not in names  # the space has no entries
    assert client.models.retrieve(GROUNDED).id == GROUNDED
    for call in (lambda: client.models.retrieve("gpt-4"), lambda: ask(client, "gpt-4")):
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        assert caught.value.code == "model_not_found"


def test_a_chat_is_what_the_library_generates_with_sources_and_usage(client, lm, corrective):
    alone = tl.generate(lm, corrective, messages=BATS, max_new_tokens=12)
    raw = client.chat.completions.with_raw_response.create(
        model=GROUNDED, messages=BATS, max_tokens=12
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == alone.text
    assert answer.choices[0].finish_reason == alone.finish
    assert alone.is_covered
    assert raw.headers["x-trueline-covered"] == "true"
    assert raw.headers["x-request-id"].startswith("req-")
    assert answer.trueline["covered"] is True
    assert answer.trueline["question"] == "Are bats blind?"
    expected = [{**asdict(one), "choice": 0} for one in alone.sources]
    for one in expected:
        one["probability"] = pytest.approx(one["probability"])
    assert answer.trueline["sources"] == expected
    usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    assert usage == (alone.prompt_tokens, alone.new_tokens)


def test_an_uncovered_question_gets_the_plain_models_answer_and_the_header_says_so(client):
    messages = [{"role": "user", "content": "Who won the match last night in the big city?"}]
    extra = {"trueline": {"threshold": 1}}
    given = {"messages": messages, "max_tokens": 8, "extra_body": extra}
    raw = client.chat.completions.with_raw_response.create(model=GROUNDED, **given)
    plain = ask(client, PLAIN, messages, max_tokens=8)
    assert raw.headers["x-trueline-covered"] == "false"
    assert raw.parse().choices[0].message.content == plain.choices[0].message.content
    assert raw.parse().trueline["sources"] == []
    unknown = dict.fromkeys(("space", "state", "covered"))
    about = {"method": "greedy", "question": messages[0]["content"], "sources": []}
    assert plain.trueline == {**about, **unknown}


def test_a_stream_is_the_whole_answer_in_pieces_with_usage_and_sources(client):
    whole = ask(client, max_tokens=12, n=2)
    texts, finishes, sources, usage = ["", ""], {}, [], None
    for chunk in ask(
        client, max_tokens=12, n=2, stream=True, stream_options={"include_usage": True}
    ):
        assert chunk.object == "chat.completion.chunk"
        usage = chunk.usage or usage
        sources += (getattr(chunk, "trueline", None) or {}).get("sources", [])
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == {0: "stop", 1: "stop"}
    assert usage == whole.usage
    assert sorted(sources, key=lambda one: one["choice"]) == whole.trueline["sources"]
    assert {one["choice"] for one in sources} == {0, 1}


def test_a_trace_has_every_token_and_the_scope_and_sources_can_be_left_out(client):
    whole = ask(client, max_tokens=12, trueline={"trace": True})
    steps, scope = whole.trueline["trace"], whole.trueline["scope"]
    assert len(steps) == whole.usage.completion_tokens
    assert any(step["move"] > 0 and step["neighbors"] for step in steps)
    assert scope[0]["is_in_scope"]
    assert scope[0]["signals"]
    streamed = []
    first, *chunks = ask(client, max_tokens=12, stream=True, trueline={"trace": True})
    assert first.trueline["scope"] == scope
    for chunk in chunks:
        streamed += (getattr(chunk, "trueline", None) or {}).get("trace", [])
    assert streamed == steps
    assert ask(client, max_tokens=4, trueline={"sources": False}).trueline["sources"] == []


def test_the_request_overrides_the_model_name(client):
    by_name = ask(client, f"{GROUNDED}+lookup", max_tokens=12)
    by_extra = ask(client, PLAIN, max_tokens=12, trueline={"method": "lookup"})
    assert by_name.choices[0].message.content == by_extra.choices[0].message.content
    assert by_extra.trueline["space"] == "facts"
    declined = ask(client, max_tokens=30, trueline={"only_covered": True, "threshold": 1})
    assert declined.choices[0].message.content.startswith("I do not know")
    assert declined.trueline["covered"] is False
    dola = ask(client, trueline={"method": "dola", "settings": {"plausibility": 0.2}})
    assert dola.trueline["method"] == "dola"


def test_messages_of_every_kind_of_text_are_read_and_drawn_by_the_seed(client, lm, corrective):
    talk = [
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": "Yes.", "refusal": None, "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "Does gold rust?"}]},
    ]
    plain = [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Does gold rust?"},
    ]
    given = replace(read_messages(plain), question_text="Do fish sleep?")
    drawn = {"temperature": 1.0, "top_p": 0.9, "seed": 7}
    alone = tl.generate(lm, corrective, [given] * 2, max_new_tokens=12, **drawn)
    question = {"question": "Do fish sleep?"}
    answer = ask(client, messages=talk, max_tokens=12, n=2, trueline=question, **drawn)
    assert [one.message.content for one in answer.choices] == [one.text for one in alone]
    assert answer.trueline["question"] == "Do fish sleep?"


def test_an_answer_ends_before_a_stop_string_or_at_its_length(client):
    whole = ask(client, max_tokens=12).choices[0].message.content
    word = whole.split()[2]
    cut = ask(client, max_tokens=12, stop=[word, "never"])
    assert cut.choices[0].message.content == whole[: whole.index(word)]
    assert cut.choices[0].finish_reason == "stop"
    pieces = ask(client, max_tokens=12, stop=word, stream=True)
    text = "".join(one.choices[0].delta.content or "" for one in pieces)
    assert text == whole[: whole.index(word)]
    short = ask(client, PLAIN, max_completion_tokens=3)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 3)


def test_a_chat_has_log_probabilities_and_neutral_values_change_nothing(client):
    neutral = {"logit_bias": {}, "tools": [], "response_format": {"type": "text"}, "user": "me"}
    answer = ask(client, max_tokens=6, logprobs=True, top_logprobs=3, **neutral)
    content = answer.choices[0].logprobs.content
    assert "".join(one.token for one in content) == answer.choices[0].message.content
    for one in content:
        assert one.top_logprobs[0].logprob == one.logprob
        assert bytes(one.bytes).decode() == one.token
        assert len(one.top_logprobs) == 3
    streamed = []
    for chunk in ask(client, max_tokens=6, logprobs=True, top_logprobs=3, stream=True):
        found = chunk.choices[0].logprobs
        streamed += found.content if found else []
    assert streamed == content


def test_a_completion_goes_on_with_a_text_or_with_tokens(client, lm, corrective):
    prompt = "Q: Are bats blind?\nA:"
    tokens = lm.encode(prompt, special=True)
    given = TokenContext(tuple(tokens), "Are bats blind?")
    alone = tl.generate(lm, corrective, given, max_new_tokens=8)
    for form in (prompt, tokens, [prompt], [tokens]):
        answer = client.completions.create(
            model=GROUNDED,
            prompt=form,
            max_tokens=8,
            logprobs=2,
            extra_body={"trueline": {"question": "Are bats blind?"}},
        )
        (choice,) = answer.choices
        assert choice.text == alone.text
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
        assert choice.logprobs.text_offset[0] == 0
    pieces = client.completions.create(model=GROUNDED, prompt=prompt, max_tokens=8, stream=True)
    plain = client.completions.create(model=GROUNDED, prompt=prompt, max_tokens=8)
    first, *others = pieces
    assert first.trueline["method"] == "corrective"
    assert "".join(one.choices[0].text for one in (first, *others)) == plain.choices[0].text


def test_several_prompts_get_an_answer_each_in_their_order(client, lm):
    prompts = ["Is the sky blue", "Do fish sleep", "Gold is"]
    answer = client.completions.create(model=PLAIN, prompt=prompts, max_tokens=4, n=2)
    given = [TokenContext(tuple(lm.encode(one, special=True))) for one in prompts]
    alone = tl.generate(lm, tl.Greedy(), given, max_new_tokens=4)
    assert [one.text for one in answer.choices] == [a.text for a in alone for _ in range(2)]
    assert [one.index for one in answer.choices] == list(range(6))
    assert answer.usage.prompt_tokens == sum(a.prompt_tokens for a in alone)


LONG = [{"role": "user", "content": "a b " * 4000}]
WRONG = [
    ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
    ({"messages": [{"role": "tool"}]}, "messages[0].role", "unsupported_parameter"),
    ({"stream_options": {"x": 1}}, "stream_options.x", "unsupported_parameter"),
    ({"n": "two"}, "n", "invalid_type"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_parameter"),
    ({"messages": [{"role": "user", "content": " "}]}, None, "invalid_value"),
    ({"messages": LONG}, None, "context_length_exceeded"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"n": 99}, "n", "invalid_value"),
    ({"top_p": 2}, "top_p", "invalid_value"),
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"stop": ["x", ""]}, "stop[1]", "invalid_value"),
    ({"max_tokens": 10**9}, "max_tokens", "invalid_value"),
    ({"max_tokens": 4, "max_completion_tokens": 4}, "max_tokens", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"trueline": {"strength": 7}}, "trueline.strength", "invalid_value"),
    ({"trueline": {"method": "magic"}}, "trueline.method", "invalid_value"),
]


@pytest.mark.parametrize(("given", "param", "code"), WRONG, ids=str)
def test_a_wrong_parameter_is_refused_by_its_name(running, given, param, code):
    with running.http() as http:
        body = {"model": GROUNDED, "messages": BATS, **given}
        answer = http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")


def test_health_and_metrics_are_shown(running, client):
    ask(client, max_tokens=2)
    with running.http() as http:
        assert http.get("/health").json() == {"status": "ok"}
        assert http.get("/ready").json() == {"status": "ok", "unreadable_spaces": []}
        text = http.get("/metrics").text
    for name in (
        'trueline_requests_total{route="/v1/chat/completions",status="200"}',
        "trueline_tokens_total",
        "trueline_between_tokens_seconds_count",
        "trueline_batch_rows_count",
        'trueline_answers_total{covered="true",model="smollm2-135m+facts"}',
        "trueline_rows_waiting 0.0",
    ):
        assert name in text, name


def test_each_request_is_one_line_of_json_without_its_text(running, client):
    ask(client, max_tokens=2)
    with running.http() as http:
        http.get("/nothing/with/bats")
    lines = [json.loads(line) for line in list(running.lines)]
    chat = [line for line in lines if line["request"] == "POST /v1/chat/completions"][-1]
    assert chat["status"] == 200
    assert {"model", "method", "covered", "scope_ms", "first_token_ms", "ms"} <= set(chat)
    assert not any("bats" in line.lower() for line in running.lines)
    assert all(math.isfinite(line["ms"]) for line in lines)


def test_the_curl_commands_and_the_client_of_the_page_run(running, capsys):
    page = (Path(__file__).parent.parent / "docs" / "serving.md").read_text("utf-8")
    page = page.replace("http://127.0.0.1:8000", running.url)
    commands = re.findall(r"^\$ (curl .*)$", page, re.M)
    assert len(commands) >= 6
    for command in commands:
        env = {**os.environ, "TRUELINE_ADMIN_KEY": running.admin}
        options = {"shell": True, "env": env, "capture_output": True, "text": True}
        done = subprocess.run(command.replace("curl ", "curl --fail-with-body ", 1), **options)
        assert done.returncode == 0, done.stdout + done.stderr
    (block,) = re.findall(r"^```py\n(.*?)^```$", page, re.M | re.S)
    exec(compile(block, "serving.md", "exec"), {})
    assert "fact-2" in capsys.readouterr().out


def test_sigterm_lets_the_answers_end_and_then_the_server(running):  # the last of them
    given = {"model": PLAIN, "messages": BATS, "stream": True, "max_tokens": 300}
    with running.http() as http:
        lines = drained(running, http, given, signal.SIGTERM)
    assert lines[-1] == "data: [DONE]"
    assert running.process.wait(60) == 0
