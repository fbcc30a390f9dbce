"""Corrective decoding in a real vLLM, over HTTP; `make test-vllm` runs this."""

from dataclasses import fields

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")

from served import FLAG, served

import trueline as tl
from trueline.corrective.scope import threshold_for
from trueline.engines.models import resolve
from trueline.examples import read_examples
from trueline.integrations.vllm import Corrective, Plugin
from trueline.types import Example

COVERED = [
    "Where does swallowed chewing gum go?",
    *(example.question for example in read_examples("facts:ground")[:5]),
]
NEAR = ["How is chewing gum made?", "Why was the Great Wall of China built?"]
UNRELATED = [
    "Who won the match last night?",
    "How do I boil an egg?",
    "Which language do people speak in Australia?",
]
OWN = Example(
    "How long is the warranty of the Presto coffee machine?",
    ["The Presto has a warranty of three years, and its pump one of five."],
    id="warranty",
)
OFF = {"trueline_off": 1}


@pytest.fixture(scope="module")
def model():
    return resolve("smollm2-135m", "language").folder


@pytest.fixture(scope="module")
def spaces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spaces")
    tl.build(None, "facts:ground").save(folder / "facts")
    tl.build(None, [OWN]).save(folder / "own")
    return {name: folder / name for name in ("facts", "own")}


@pytest.fixture(scope="module")
def server(model, spaces):
    """In float32 and with the logits it picks from, to be compared with our own loop."""
    exact = ("--dtype", "float32", "--logprobs-mode", "processed_logprobs", "--enforce-eager")
    with served(model, *FLAG, *exact, spaces=spaces) as found:
        yield found


def verified(space, question):
    """The answers of the example that answers a question."""
    method = tl.Corrective(tl.open(space))
    best, probability = method.scope(None, question)[0]
    assert probability > threshold_for(method.space, best, question), question
    return best.answers


def test_covered_questions_get_verified_answers_and_the_plain_model_does_not(server, spaces):
    for question in COVERED:
        answers = verified(spaces["facts"], question)
        assert server.ask(question) in answers
        assert server.ask(question, OFF) not in answers


def test_near_misses_and_unrelated_questions_stay_the_models_own(server):
    for question in [*NEAR, *UNRELATED]:
        options = {"logprobs": True, "top_logprobs": 5}
        ours, plain = (server.chat(question, own, **options) for own in (None, OFF))
        assert ours["message"] == plain["message"]
        assert ours["logprobs"] == plain["logprobs"]  # to the bit


def test_sixteen_requests_of_two_spaces_in_one_batch_get_what_each_gets_alone(server, spaces):
    own = {"trueline_space": "own"}
    requests = [(question, None) for question in COVERED]
    requests += [(OWN.question, own), (OWN.question, None), (COVERED[0], own)]
    requests += [(question, None) for question in [*NEAR, *UNRELATED]]
    requests += [(COVERED[1], OFF), (COVERED[0], {"trueline_strength": 0.0})]
    assert len(requests) == 16
    together = server.ask_all(requests)
    for answer, question in zip(together, COVERED, strict=False):
        assert answer in verified(spaces["facts"], question)
    assert together[6] == OWN.answers[0]
    assert together[7] != OWN.answers[0]
    facts = verified(spaces["facts"], COVERED[0])
    assert together[8] not in facts
    assert together[15] not in facts


def test_arguments_are_checked_and_the_client_gets_the_message(server, spaces):
    refused = server.chat(UNRELATED[0], {"trueline_space": "nobody"})
    assert refused["status"] == 400
    assert "it has facts, own" in refused["error"]
    assert server.ask(UNRELATED[0], {"trueline_only_covered": True}).startswith("I do not know")
    given = {"trueline_question": COVERED[0]}
    assert server.ask("Tell me, please.", given) in verified(spaces["facts"], COVERED[0])


def test_tokens_part_from_our_own_loop_only_within_the_noise(server, spaces, capsys):
    """Engines compute logits of their own, so greedy runs may part where two tokens are close.

    Closer, that is, than the engines differ about the lead of the best token on other texts.
    """
    lm, method = tl.load("smollm2-135m"), tl.Corrective(tl.open(spaces["facts"]))
    noise, same = 0.0, 0
    for question in UNRELATED:  # nothing is in scope
        theirs = steps(server.chat(question, OFF, **ALL))
        for own, (token, values) in zip(trace(lm, tl.Greedy(), question), theirs, strict=False):
            best, second = sorted(own.base, key=lambda one: -one.logit)[:2]
            lead = values.get(best.token, -100.0) - values.get(second.token, -100.0)
            noise = max(noise, abs(best.logit - second.logit - lead))
            if own.token != token:
                break
    for question in [*COVERED, *NEAR]:
        ours, theirs = trace(lm, method, question), steps(server.chat(question, None, **ALL))
        for own, (token, _) in zip(ours, theirs, strict=False):
            if own.token != token:
                assert own.final[0].logit - own.final[1].logit <= noise, question
                break
            same += 1
        else:
            assert len(ours) == len(theirs), question
    with capsys.disabled():
        print(f"\nour loop and vLLM in float32: {same} steps alike; noise {noise:.1g} logits")
    assert noise < 0.1
    assert same > 150


ALL = {"logprobs": True, "top_logprobs": 20, "return_tokens_as_token_ids": True}


def trace(lm, method, question):
    messages = [{"role": "user", "content": question}]
    return tl.generate(lm, method, messages=messages, max_new_tokens=48, trace=True).trace


def steps(choice):
    """The picked token of each step, and the best tokens with their log-probabilities."""

    def number(text):
        return int(text.removeprefix("token_id:"))

    return [
        (number(one["token"]), {number(o["token"]): o["logprob"] for o in one["top_logprobs"]})
        for one in choice["logprobs"]["content"]
    ]


def test_the_entry_point_alone_corrects_where_vllm_hides_no_token(model, spaces):
    flags = ("--no-async-scheduling", "--enforce-eager")
    with served(model, *flags, spaces=spaces) as found:
        assert found.ask(COVERED[0]) in verified(spaces["facts"], COVERED[0])
        refused = found.chat(COVERED[0], {"trueline_space": "nobody"})
        assert refused["status"] == 400


def test_the_stand_ins_of_the_contract_have_the_shapes_of_the_real_ones():
    from test_contract import Direction, Params
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import _load_logitsprocs_plugins
    from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsContext,
        LogitsProcRequestState,
    )
    from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs

    assert [one.name for one in fields(BatchUpdate)] == [
        "batch_size",
        "removed",
        "added",
        "moved",
    ]
    assert [one.name for one in MoveDirectionality] == [one.name for one in Direction]
    read = {"expanded_idx_mapping", "idx_mapping_np", "expanded_local_pos", "input_ids"}
    assert read <= {one.name for one in fields(LogitsContext)}
    states = {one.name for one in fields(LogitsProcRequestState)}
    assert {"all_token_ids", "total_len", "prompt_len"} <= states
    params = SamplingParams(extra_args={"trueline_off": 1}, stop_token_ids=[7])
    assert all(hasattr(params, one.name) for one in fields(Params))
    assert params.all_stop_token_ids == {7}
    assert _load_logitsprocs_plugins() == [Plugin]
    named = ["trueline.integrations.vllm:Corrective"]
    assert _load_v2_logitsprocs(named) == [Plugin, Corrective]
