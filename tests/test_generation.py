"""The contract of every method; batches, streams, stops, draws, scores and traces."""

import math

import pytest
import tiny
import torch
from conftest import EXAMPLES
from oracle import Oracle

import trueline as tl
from trueline.decode.generate import make_request
from trueline.decode.sampling import draw_token, probabilities, random_source
from trueline.errors import SettingError
from trueline.methods import make_method, method_names
from trueline.methods.base import Rows, Step
from trueline.prompts import TokenContext
from trueline.types import Sampling

TAU = 0.8
SEVENTHS = torch.tensor([[0.0, math.log(2), math.log(4)]])  # 1/7, 2/7, 4/7
QUESTION = tiny.QUESTIONS[1]
ODD = ["?", "é漢字🙂 \u2028 ok?", "{question}", "x" * 300]
OFF = {
    "greedy": {},
    "corrective": {"strength": 0.0},
    "rad": {"alpha": 0.0},
    "knn-lm": {"lam": 0.0},
    "cad": {"a": 0.0},
    "adacad": {"scale": 0.0},
    "sled": {"rate": 0.0},
    "id": {"eta": 0.0},
    "dola": {"plausibility": 1.0, "repetition_penalty": 1.0},
    "kate": {"k": 0},
    "lookup": {"threshold": 1.0},
}
ON = {"rad": {"tau": TAU}, "kate": {"k": 2}}  # ten examples would not fit its 512 tokens


@pytest.fixture(scope="module")
def space(embedder):
    return tl.build(tiny.language_model("llama"), EXAMPLES, context=8, embedder=embedder)


@pytest.fixture(params=method_names())
def method(request, space):
    return make_method(request.param, space=space, settings=ON.get(request.param, {}))


def tokens(lm, method, questions=tiny.QUESTIONS, **options):
    return [one.token_ids for one in tl.generate(lm, method, questions, **options)]


# The contract of a method.


def test_a_batch_gives_each_question_the_answer_it_gets_alone_in_its_order(lm, method):
    questions = [*tiny.QUESTIONS, *ODD]
    for batch_size in (2, 16):
        together = tl.generate(lm, method, questions, max_new_tokens=8, batch_size=batch_size)
        for question, answer in zip(questions, together, strict=True):
            assert answer.question == question
            assert answer == tl.generate(lm, method, question, max_new_tokens=8)
    assert tl.generate(lm, method, []) == []


def test_the_pieces_of_a_stream_are_the_whole_answer(lm, method):
    whole = tl.generate(lm, method, QUESTION, max_new_tokens=24, trace=True)
    pieces = list(tl.stream(lm, method, QUESTION, max_new_tokens=24, trace=True))
    assert "".join(map(str, pieces)) == whole.text
    assert len(pieces) > 3
    assert tuple(token for piece in pieces for token in piece.token_ids) == whole.token_ids
    assert tuple(step for piece in pieces for step in piece.steps) == whole.trace
    *others, last = pieces
    assert {piece.finish for piece in others} == {None}
    assert (last.finish, last.answer) == (whole.finish, whole)


def test_a_step_is_left_as_it_was_and_extreme_logits_give_no_nan(lm, method):
    requests = [make_request(lm, method, question) for question in tiny.QUESTIONS]
    contexts = [request.contexts[0] for request in requests]
    for scale in (1.0, 0.0, 1e-30, 1e15):
        streams = [
            lm.start(states=method.reads_states(lm))
            .join(read, layers=method.layers(lm))
            .map(lambda tensor: tensor * scale)  # noqa: B023
            for read in zip(*(request.contexts for request in requests))
        ]
        step = Step(Rows(lm, contexts, list(map(len, contexts))), *streams)
        given = step.states.logits if step.hidden is None else step.hidden
        before, read = given.clone(), [list(context) for context in contexts]
        assert not method.adjust(step).logits.isnan().any()
        assert torch.equal(given, before)
        assert [list(context) for context in step.contexts] == read


def test_a_method_has_an_off_switch_and_does_something_without_it(lm, space, method):
    greedy = tokens(lm, tl.Greedy(), max_new_tokens=10)
    off = make_method(method.name, space=space, settings=OFF[method.name])
    assert tokens(lm, off, max_new_tokens=10) == greedy
    on = make_method(method.name, space=space, settings=ON.get(method.name, {}))
    assert (tokens(lm, on, max_new_tokens=10) == greedy) == (method.name == "greedy")
    candidates = ["No, bats see well.", "Gold."]
    scores = tl.score(lm, on, "Do bats sleep?", candidates)
    assert all(score < 0 for score in scores)
    plain = tl.score(lm, tl.Greedy(), "Do bats sleep?", candidates)
    assert (scores == plain) == (method.name == "greedy")


@pytest.mark.parametrize("name", method_names())
def test_messages_and_a_prompt_of_two_thousand_tokens_are_answered(name, embedder):
    lm = tiny.language_model("llama", chat=True, positions=4096)
    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder)
    method = make_method(name, space=space, settings=ON.get(name, {}))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Do they sleep?"},
    ]
    assert tl.generate(lm, method, messages=messages, max_new_tokens=3).new_tokens == 3
    assert len(tl.score(lm, method, messages=messages, candidates=["Yes.", "No."])) == 2
    long = "bats, " * 1000
    first, _ = tl.generate(lm, method, [long, "Do bats sleep?"], max_new_tokens=4)
    assert first.prompt_tokens > 2000
    assert first == tl.generate(lm, method, long, max_new_tokens=4)


# What RAD makes of a step.


def step_of(lm, questions, **options):
    contexts = [tl.Prompt().encode(question, lm.tokenizer) for question in questions]
    states = lm.start(states=True).join(contexts)
    return Step(Rows(lm, contexts, list(map(len, contexts))), states, **options)


def test_without_a_hit_the_logits_are_the_models_own_to_the_bit(lm, space):
    step = step_of(lm, tiny.QUESTIONS)
    own = lm.head(step.hidden)
    assert torch.equal(tl.RAD(space, tau=1.0).adjust(step).logits, own)
    hits = tl.RAD(space, tau=-1.0).adjust(step).evidence[0].hits
    best = [float(hits.similarities[hits.rows == row].max()) for row in range(5)]
    mixed = step_of(lm, tiny.QUESTIONS)
    adjusted = tl.RAD(space, tau=(min(best) + max(best)) / 2).adjust(mixed)
    counts = adjusted.evidence[0].hits.count(len(tiny.QUESTIONS))
    assert set((counts > 0).tolist()) == {True, False}
    pairs = zip(adjusted.logits, lm.head(mixed.hidden))
    assert [torch.equal(row, base) for row, base in pairs] == (counts == 0).tolist()


@pytest.mark.parametrize("fusion", ["add", "mix", "prob"])
@pytest.mark.parametrize("architecture", ["llama", "phi", "gemma2"])
def test_every_fusion_agrees_between_hidden_states_and_logits(architecture, fusion, embedder):
    lm = tiny.language_model(architecture)
    spaces = [
        tl.build(lm, EXAMPLES, context=8, embedder=embedder, values=values, dtype="float32")
        for values in ("auto", "logits")
    ]
    for neutral in (False, True):
        for aggregation in ("weighted", "mean"):
            settings = dict(tau=TAU, fusion=fusion, neutral=neutral, aggregation=aggregation)
            one, other = (
                tl.RAD(space, **settings).adjust(step_of(lm, tiny.QUESTIONS)).logits
                for space in spaces
            )
            assert torch.allclose(one, other, atol=1e-4)


def test_the_pushes_of_all_neighbors_add_up_to_the_move(lm, space):
    rad = tl.RAD(space, tau=TAU, alpha=0.5)
    step = step_of(lm, tiny.QUESTIONS)
    adjusted = rad.adjust(step)
    for row in range(len(tiny.QUESTIONS)):
        picked, rival = (int(token) for token in adjusted.logits[row].topk(2).indices)
        neighbors = adjusted.evidence[0].neighbors(row, picked, rival, most=10_000)
        moved = (adjusted.logits - step.logits)[row]
        pushes = sum(neighbor.push for neighbor in neighbors)
        assert pushes == pytest.approx(float(moved[picked] - moved[rival]), abs=1e-4)


# How an answer ends, and how its tokens are drawn.


def test_an_answer_ends_with_the_first_token_that_ends_it(lm):
    free = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=20)
    for stops in ([free.token_ids[0]], [free.token_ids[7], free.token_ids[4]]):
        answer = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=20, stop_ids=stops)
        end = min(free.token_ids.index(stop) for stop in stops) + 1
        assert answer.token_ids == free.token_ids[:end]
        assert (free.finish, answer.finish) == ("length", "stop")


def test_a_stop_string_ends_the_answer_before_it_even_across_tokens(lm):
    free = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=30).text
    stop = free[9:14]
    answer = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=30, stop=stop)
    assert answer.text == free[: free.index(stop)]
    assert answer.finish == "stop"
    streamed = tl.stream(lm, tl.Greedy(), QUESTION, max_new_tokens=30, stop=["never", stop])
    assert "".join(map(str, streamed)) == answer.text


def test_a_draw_follows_the_probabilities():
    options = Sampling(temperature=1.0, seed=0)
    source = random_source(options, 0)
    draws = [draw_token(SEVENTHS[0], options, source) for _ in range(3000)]
    shares = [draws.count(token) / 3000 for token in range(3)]
    assert shares == pytest.approx([1 / 7, 2 / 7, 4 / 7], abs=0.03)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"temperature": 0.5}, [1 / 21, 4 / 21, 16 / 21]),
        ({"temperature": 1.0, "top_k": 2}, [0, 1 / 3, 2 / 3]),
        ({"temperature": 1.0, "top_p": 0.5}, [0, 0, 1]),
        ({"temperature": 1.0, "top_p": 0.58}, [0, 1 / 3, 2 / 3]),
        ({"temperature": 1.0, "top_k": 9, "top_p": 1.0}, [1 / 7, 2 / 7, 4 / 7]),
    ],
)
def test_temperature_top_k_and_top_p_reshape_the_distribution(settings, wanted):
    found = probabilities(SEVENTHS, Sampling(**settings))
    assert found[0].tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"temperature": -1.0}, "temperature"),
        ({"seed": 1}, "temperature above 0"),
        ({"stop": ["a", ""]}, "stop string"),
    ],
)
def test_an_impossible_option_is_refused_by_name(options, message, lm):
    with pytest.raises(SettingError, match=message):
        tl.generate(lm, tl.Greedy(), QUESTION, **options)


def test_a_prompt_may_be_one_token_and_must_fit_the_model(lm):
    answer = tl.generate(lm, tl.Greedy(), TokenContext((1,)), max_new_tokens=3)  # <bos> alone
    assert (answer.prompt_tokens, len(answer.token_ids)) == (1, 3)
    answer = tl.generate(lm, tl.Greedy(), "bats, " * 200, max_new_tokens=200)
    assert answer.prompt_tokens + len(answer.token_ids) == 512
    message = r"question 2 makes greedy read a prompt of \d+ tokens"
    with pytest.raises(SettingError, match=message):
        tl.generate(lm, tl.Greedy(), ["short?", "bats, " * 600])


# Scores and traces.


def test_a_score_under_rad_is_on_the_models_own_scale(lm, space, sentence_transformer):
    prompt, candidate = tl.Prompt(), "Bats are not blind."
    oracle = Oracle(lm.model, lm.tokenizer, sentence_transformer)
    for example in space.examples:
        for answer in example.answers:
            oracle.add(
                prompt.encode(example.question, lm.tokenizer),
                prompt.encode_answer(example.question, answer, lm.tokenizer),
            )
    tokens = prompt.encode(QUESTION, lm.tokenizer)
    start, wanted = len(tokens), 0.0
    for token in prompt.encode_answer(QUESTION, candidate, lm.tokenizer):
        final, hits = oracle.step(tokens, start, alpha=0.5, tau=TAU)
        wanted += float((final / 1.5 if hits else final).log_softmax(-1)[token])
        tokens = [*tokens, token]
    (found,) = tl.score(lm, tl.RAD(space, tau=TAU), QUESTION, [candidate])
    assert found == pytest.approx(wanted, abs=1e-3)


def test_a_trace_has_the_choice_of_the_model_and_the_examples_that_moved_it(lm, space):
    rad = tl.RAD(space, tau=TAU)
    answer = tl.generate(lm, rad, QUESTION, max_new_tokens=12, trace=True)
    assert [step.token for step in answer.trace] == list(answer.token_ids)
    assert any(step.flipped for step in answer.trace)
    for step in answer.trace:
        assert (len(step.base), len(step.final)) == (5, 5)
        assert step.flipped == (step.token != step.base[0].token)
        assert step.final[0].token == step.token
        assert 0 <= step.entropy <= math.log(lm.vocabulary)
        assert step.rival == (step.base[0] if step.flipped else step.base[1]).token
        assert len(step.neighbors) == min(5, step.hits)
        for neighbor in step.neighbors:
            assert neighbor.similarity > TAU
            assert neighbor.example in {example.id for example in space.examples}


def test_a_trace_reads_probabilities_on_the_models_own_scale(lm, space):
    stretched, neutral = (
        tl.generate(
            lm, tl.RAD(space, tau=TAU, neutral=flag), QUESTION, max_new_tokens=6, trace=True
        ).trace
        for flag in (None, True)  # False: probabilities are read as the logits give them
    )
    assert any(step.hits for step in stretched)
    for one, other in zip(stretched, neutral):
        assert one.token == other.token
        for a, b in zip(one.final, other.final):
            assert a.probability == pytest.approx(b.probability, abs=1e-5)
            assert a.logit == pytest.approx((1.5 if one.hits else 1.0) * b.logit, abs=1e-4)
