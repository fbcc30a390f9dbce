"""The loop: batches, streams, stops, chance, traces; and nothing is kept between calls."""

import math

import pytest
import tiny
import torch

import trueline as tl
from trueline.decode.generate import make_request
from trueline.decode.sampling import draw_token, probabilities, random_source
from trueline.engines.transformers.cache import BatchCache
from trueline.errors import SettingError
from trueline.methods import make_method, method_names
from trueline.methods.base import Rows, Step
from trueline.prompts import TokenContext
from trueline.types import Sampling

TAU = 0.8
QUESTION = tiny.QUESTIONS[1]


@pytest.fixture(scope="module")
def space(embedder):
    from conftest import EXAMPLES

    return tl.build(tiny.language_model("llama"), EXAMPLES, context=8, embedder=embedder)


@pytest.fixture(params=method_names())
def method(request, space):
    settings = {
        "rad": {"tau": TAU},
        "kate": {"k": 2},
    }  # ten examples would not fit its 512 tokens
    return make_method(request.param, space=space, settings=settings.get(request.param, {}))


def step_of(lm, questions, **options):
    contexts = [tl.Prompt().encode(question, lm.tokenizer) for question in questions]
    return Step(
        Rows(lm, contexts, list(map(len, contexts))),
        lm.start(states=True).join(contexts),
        **options,
    )


def test_a_list_comes_back_in_its_order(lm, method):
    answers = tl.generate(lm, method, tiny.QUESTIONS, max_new_tokens=8, batch_size=2)
    assert [answer.question for answer in answers] == tiny.QUESTIONS


def test_a_batch_gives_each_question_the_answer_it_gets_alone(lm, method):
    together = tl.generate(lm, method, tiny.QUESTIONS, max_new_tokens=12, batch_size=16)
    for question, answer in zip(tiny.QUESTIONS, together):
        assert answer == tl.generate(lm, method, question, max_new_tokens=12)


def test_the_same_call_twice_gives_the_same_answer(lm, method):
    first = tl.generate(lm, method, tiny.QUESTIONS, max_new_tokens=8)
    assert tl.generate(lm, method, tiny.QUESTIONS, max_new_tokens=8) == first


def test_the_pieces_of_a_stream_are_the_whole_answer(lm, method):
    whole = tl.generate(lm, method, QUESTION, max_new_tokens=24)
    pieces = list(tl.stream(lm, method, QUESTION, max_new_tokens=24))
    assert "".join(map(str, pieces)) == whole.text
    assert len(pieces) > 3


def step_for(lm, method, questions, scale=1.0):
    """A step as the loop makes it for a method, its states blown up or shrunk."""
    requests = [make_request(lm, method, question) for question in questions]
    streams = [
        lm.start(states=method.reads_states(lm))
        .join(contexts, layers=method.layers(lm))
        .map(lambda tensor: tensor * scale)
        for contexts in zip(*(request.contexts for request in requests))
    ]
    contexts = [request.contexts[0] for request in requests]
    return Step(Rows(lm, contexts, list(map(len, contexts))), *streams)


def test_a_step_is_left_as_it_was(lm, method):
    step = step_for(lm, method, tiny.QUESTIONS)
    given = step.states.logits if step.hidden is None else step.hidden
    before, contexts = given.clone(), [list(context) for context in step.contexts]
    method.adjust(step)
    assert torch.equal(given, before)
    assert [list(context) for context in step.contexts] == contexts


def test_extreme_logits_give_no_nan(lm, method):
    for scale in (0.0, 1e-30, 1e15):
        step = step_for(lm, method, tiny.QUESTIONS, scale)
        assert not method.adjust(step).logits.isnan().any()


def test_no_questions_give_no_answers(lm, method):
    assert tl.generate(lm, method, []) == []


@pytest.mark.parametrize("question", ["?", "é漢字🙂 \u2028 ok?", "{question}", "x" * 300])
def test_odd_questions_are_answered(question, lm, method):
    answer = tl.generate(lm, method, question, max_new_tokens=4)
    assert len(answer.token_ids) == 4


@pytest.mark.parametrize("name", method_names())
def test_a_prompt_of_two_thousand_tokens_is_answered_as_its_batch_is(name, embedder):
    from conftest import EXAMPLES

    lm = tiny.language_model("llama", positions=4096)
    method = make_method(name, space=tl.build(lm, EXAMPLES, context=8, embedder=embedder))
    long = "bats, " * 1000
    alone, _ = tl.generate(lm, method, [long, "Do bats sleep?"], max_new_tokens=4)
    assert alone.prompt_tokens > 2000
    assert alone == tl.generate(lm, method, long, max_new_tokens=4)


def test_without_a_hit_the_logits_are_the_models_own_to_the_bit(lm, space):
    step = step_of(lm, tiny.QUESTIONS)
    own = lm.head(step.hidden)
    assert torch.equal(tl.RAD(space, tau=1.0).adjust(step).logits, own)
    everything = tl.RAD(space, tau=-1.0).adjust(step).evidence[0].hits
    best = [
        float(everything.similarities[everything.rows == row].max())
        for row in range(len(tiny.QUESTIONS))
    ]
    mixed = step_of(lm, tiny.QUESTIONS)
    adjusted = tl.RAD(space, tau=(min(best) + max(best)) / 2).adjust(mixed)
    counts = adjusted.evidence[0].hits.count(len(tiny.QUESTIONS))
    assert set((counts > 0).tolist()) == {True, False}
    same = torch.tensor(
        [torch.equal(row, base) for row, base in zip(adjusted.logits, lm.head(mixed.hidden))]
    )
    assert torch.equal(same, counts == 0)


@pytest.mark.parametrize("fusion", ["add", "mix", "prob"])
@pytest.mark.parametrize("architecture", ["llama", "phi", "gemma2"])
def test_every_fusion_agrees_between_hidden_states_and_logits(architecture, fusion, embedder):
    from conftest import EXAMPLES

    lm = tiny.language_model(architecture)
    hidden, logits = (
        tl.build(lm, EXAMPLES, context=8, embedder=embedder, values=values, dtype="float32")
        for values in ("auto", "logits")
    )
    for neutral in (False, True):
        for aggregation in ("weighted", "mean"):
            one, other = (
                tl.RAD(s, tau=TAU, fusion=fusion, neutral=neutral, aggregation=aggregation)
                .adjust(step_of(lm, tiny.QUESTIONS))
                .logits
                for s in (hidden, logits)
            )
            assert torch.allclose(one, other, atol=1e-4)


def test_neutral_is_on_where_probabilities_are_read_and_off_elsewhere(lm, space):
    rad = tl.RAD(space, tau=TAU)
    greedy, drawn = (
        rad.adjust(step_of(lm, tiny.QUESTIONS, is_probability=read)).logits
        for read in (False, True)
    )
    hit = rad.adjust(step_of(lm, tiny.QUESTIONS)).evidence[0].hits.count(len(greedy)) > 0
    assert hit.all()
    assert torch.allclose(greedy, 1.5 * drawn, atol=1e-5)


def test_an_answer_ends_with_the_token_that_ended_it(lm):
    free = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=20)
    stop = free.token_ids[5]
    answer = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=20, stop_ids=[stop])
    assert answer.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert (free.finish, answer.finish) == ("length", "stop")


def test_several_stop_ids_all_end_an_answer(lm):
    free = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=20).token_ids
    stops = [free[7], free[4]]
    answer = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=20, stop_ids=stops)
    assert len(answer.token_ids) == min(free.index(stop) for stop in stops) + 1


def test_a_stop_string_ends_the_answer_before_it_even_across_tokens(lm):
    free = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=30).text
    stop = free[9:14]
    answer = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=30, stop=stop)
    assert answer.text == free[: free.index(stop)]
    assert answer.finish == "stop"
    streamed = tl.stream(lm, tl.Greedy(), QUESTION, max_new_tokens=30, stop=["never", stop])
    assert "".join(map(str, streamed)) == answer.text


def test_rows_leave_the_batch_as_they_end(lm, monkeypatch):
    widths = []
    extend = BatchCache.extend

    def counted(self, tokens, **options):
        widths.append(len(tokens))
        return extend(self, tokens, **options)

    monkeypatch.setattr(BatchCache, "extend", counted)
    free = tl.generate(lm, tl.Greedy(), tiny.QUESTIONS, max_new_tokens=10)
    assert widths == [5] * 9
    widths.clear()
    stop = free[0].token_ids[2]
    ended = tl.generate(lm, tl.Greedy(), tiny.QUESTIONS, max_new_tokens=10, stop_ids=[stop])
    ends = [len(answer.token_ids) for answer in ended]
    assert widths == [sum(end > step for end in ends) for step in range(1, max(ends))]
    assert min(widths) < 5


def test_a_seed_repeats_a_draw_whatever_the_batch(lm, space):
    options = {"max_new_tokens": 10, "temperature": 1.0, "seed": 3}
    rad = tl.RAD(space, tau=TAU)
    whole = tl.generate(lm, rad, tiny.QUESTIONS, **options)
    assert tl.generate(lm, rad, tiny.QUESTIONS, batch_size=2, **options) == whole
    other = tl.generate(lm, rad, tiny.QUESTIONS, **{**options, "seed": 4})
    assert other != whole


def test_an_answer_may_end_at_once_and_a_prompt_may_be_one_token(lm):
    first = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=1).token_ids[0]
    ended = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=9, stop_ids=[first])
    assert (ended.token_ids, ended.finish) == ((first,), "stop")
    answer = tl.generate(lm, tl.Greedy(), TokenContext((1,)), max_new_tokens=3)  # <bos> alone
    assert (answer.prompt_tokens, len(answer.token_ids)) == (1, 3)


def test_a_draw_follows_the_probabilities():  # 1/7, 2/7, 4/7
    logits = torch.tensor([[0.0, math.log(2), math.log(4)]])
    options = Sampling(temperature=1.0, seed=0)
    source = random_source(options, 0)
    draws = [draw_token(logits[0], options, source) for _ in range(3000)]
    assert [draws.count(token) / 3000 for token in range(3)] == pytest.approx(
        [1 / 7, 2 / 7, 4 / 7], abs=0.03
    )


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"temperature": 0.5}, [1 / 21, 4 / 21, 16 / 21]),
        ({"temperature": 1.0, "top_k": 2}, [0, 1 / 3, 2 / 3]),
        ({"temperature": 1.0, "top_p": 0.5}, [0, 0, 1]),
        ({"temperature": 1.0, "top_p": 0.58}, [0, 1 / 3, 2 / 3]),
        ({"temperature": 1.0, "top_p": 1.0}, [1 / 7, 2 / 7, 4 / 7]),
        ({"temperature": 1.0, "top_k": 9, "top_p": 1.0}, [1 / 7, 2 / 7, 4 / 7]),
    ],
)
def test_temperature_and_cuts_reshape_the_distribution(settings, wanted):
    logits = torch.tensor([[0.0, math.log(2), math.log(4)]])
    found = probabilities(logits, Sampling(**settings))
    assert found[0].tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"batch_size": 0}, "batch_size"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1.0, "top_k": 0}, "top_k"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p"),
        ({"seed": 1}, "temperature above 0"),
        ({"stop": ["a", ""]}, "stop string"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(options, message, lm):
    with pytest.raises(SettingError, match=message):
        tl.generate(lm, tl.Greedy(), QUESTION, **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 1.1}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"tau": -1.1}, "tau"),
        ({"tau": math.nan}, "tau"),
        ({"fusion": "sum"}, "fusion must be one of add, mix, prob"),
        ({"aggregation": "max"}, "aggregation"),
        ({"matches": "some"}, "matches"),
    ],
)
def test_a_method_that_cannot_be_is_refused_by_name(settings, message, space):
    with pytest.raises(SettingError, match=message):
        tl.RAD(space, **settings)


def test_a_question_longer_than_the_model_reads_is_named(lm):
    with pytest.raises(
        SettingError, match=r"question 2 makes greedy read a prompt of \d+ tokens"
    ):
        tl.generate(lm, tl.Greedy(), ["short?", "bats, " * 600])


def test_an_answer_stops_where_the_model_cannot_read_on(lm):
    answer = tl.generate(lm, tl.Greedy(), "bats, " * 200, max_new_tokens=200)
    assert answer.prompt_tokens + len(answer.token_ids) == 512


def test_a_score_is_the_sum_of_the_log_probabilities_of_the_tokens(lm):
    prompt = tl.Prompt()
    candidates = ["Bats see well.", "No.", "Fish rest with open eyes, as most of them do."]
    scores = tl.score(lm, tl.Greedy(), QUESTION, candidates)
    for candidate, found in zip(candidates, scores):
        start = prompt.encode(QUESTION, lm.tokenizer)
        answer = prompt.encode_answer(QUESTION, candidate, lm.tokenizer)
        with torch.no_grad():
            logits = lm.model(torch.tensor([start + answer])).logits[0]
        wanted = sum(
            float(logits[len(start) + n - 1].log_softmax(-1)[token])
            for n, token in enumerate(answer)
        )
        assert found == pytest.approx(wanted, abs=1e-3)


def test_a_score_under_rad_is_on_the_models_own_scale(lm, space, sentence_transformer):
    from oracle import Oracle

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


def test_scoring_nothing_gives_nothing_and_an_empty_candidate_is_refused(lm):
    assert tl.score(lm, tl.Greedy(), QUESTION, []) == []
    with pytest.raises(SettingError, match="empty"):
        tl.score(lm, tl.Greedy(), QUESTION, ["fine", ""])


def test_a_trace_tells_what_the_model_wanted_and_who_moved_it(lm, space):
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


def test_the_pushes_of_all_neighbors_add_up_to_the_move(lm, space):
    rad = tl.RAD(space, tau=TAU, alpha=0.5)
    step = step_of(lm, tiny.QUESTIONS)
    adjusted = rad.adjust(step)
    for row in range(len(tiny.QUESTIONS)):
        picked, rival = (int(token) for token in adjusted.logits[row].topk(2).indices)
        pushes = adjusted.evidence[0].neighbors(row, picked, rival, most=10_000)
        moved = (adjusted.logits - step.logits)[row]
        assert sum(neighbor.push for neighbor in pushes) == pytest.approx(
            float(moved[picked] - moved[rival]), abs=1e-4
        )


def test_an_answer_has_no_trace_unless_asked_for(lm):
    assert tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=2).trace is None


def test_progress_counts_the_answers(lm):
    seen = []
    tl.generate(
        lm,
        tl.Greedy(),
        tiny.QUESTIONS,
        max_new_tokens=3,
        progress=lambda *now: seen.append(now),
    )
    assert seen[-1] == (5, 5)
