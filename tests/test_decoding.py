"""The loop: requests join and leave as they like, and each gets the tokens it gets alone."""

import random
from dataclasses import dataclass

import pytest
import tiny
import torch
from conftest import EXAMPLES

import trueline as tl
from trueline.decode.generate import Continuation, make_request, score_continuations
from trueline.decode.loop import Decoding
from trueline.errors import SettingError
from trueline.methods import make_method, method_names
from trueline.methods.base import Prepared
from trueline.prompts import TokenContext
from trueline.types import Sampling

ARCHITECTURES = ("llama", "gemma3", "mistral", "gpt2", "gemma2")
SETTINGS = {"rad": {"tau": 0.5}, "kate": {"k": 1}}
SCHEDULES = 200


def choose_options(draw):
    """Options as different as a server's users send them."""
    sampled = {"temperature": draw.choice([0.7, 1.0]), "seed": draw.randrange(99)}
    return Sampling(
        max_new_tokens=draw.randrange(1, 9),
        **(sampled if draw.random() < 0.4 else {}),
        **({"stop": draw.choice(["e", "is", ("no", " a")])} if draw.random() < 0.3 else {}),
        **({"stop_ids": (draw.randrange(5, 300),)} if draw.random() < 0.3 else {}),
    )


def run(decoding):
    """The rows that ended, by their ticket."""
    ended = {}
    while not decoding.is_idle:
        ended |= {row.ticket: row for row in decoding.step() if row.is_ended}
    return ended


def submit(decoding, lm, questions=tiny.QUESTIONS, methods=None, **options):
    """The tickets of requests that differ in question and method."""
    methods = methods or [tl.Greedy()] * len(questions)
    return [
        decoding.submit(make_request(lm, method, question, Sampling(**options)))
        for question, method in zip(questions, methods)
    ]


class RandomRequests:
    """Makes random requests to one model and the answer each gets alone."""

    def __init__(self, architecture, embedder):
        self.lm = tiny.language_model(architecture)
        space = tl.build(self.lm, EXAMPLES, context=8, embedder=embedder)
        self.methods = [
            make_method(name, space=space, settings=SETTINGS.get(name, {}))
            for name in method_names()
        ]
        for method in self.methods:
            method.check(self.lm)

    def request(self, draw):
        method = draw.choice(self.methods)
        given = draw.choice(tiny.QUESTIONS)[: draw.randrange(3, 60)]
        if draw.random() < 0.2 and not (method.needs.own_prompt or method.needs.second_prompt):
            given = TokenContext(tuple(draw.choices(range(5, 300), k=draw.randrange(1, 40))))
        index = draw.randrange(3)
        return make_request(self.lm, method, given, choose_options(draw), index=index)

    def alone(self, request):
        decoding = Decoding(self.lm, max_rows=1)
        ticket = decoding.submit(request)
        return run(decoding)[ticket].answer()


@pytest.fixture(scope="module")
def sources(embedder):
    return {name: RandomRequests(name, embedder) for name in ARCHITECTURES}


@pytest.mark.parametrize("architecture", tiny.mostly_slow(ARCHITECTURES))
def test_each_request_of_a_random_schedule_gets_the_answer_it_gets_alone(sources, architecture):
    source = sources[architecture]
    for seed in range(SCHEDULES // len(ARCHITECTURES)):
        draw = random.Random(f"{architecture} {seed}")
        decoding = Decoding(
            source.lm,
            max_rows=draw.randrange(1, 6),
            join_at=draw.randrange(1, 3),
            join_within=draw.choice([None, 1, 3]),
        )
        requests, answers, gone = {}, {}, set()
        left = draw.randrange(3, 7)
        while left or not decoding.is_idle:
            while left and draw.random() < 0.5:
                request = source.request(draw)
                requests[decoding.submit(request)] = request
                left -= 1
            if requests and draw.random() < 0.1:
                ticket = draw.choice([*requests])
                decoding.cancel(ticket)
                gone |= {ticket} - answers.keys()
            for row in decoding.step():
                assert row.ticket not in gone
                if row.is_ended:
                    answers[row.ticket] = row.answer()
        assert answers.keys() == requests.keys() - gone
        for ticket, answer in answers.items():
            assert answer == source.alone(requests[ticket]), (seed, ticket)


@pytest.mark.parametrize(
    ("join_within", "begun_at"),
    [(1, [1, 1, 3, 5]), (2, [1, 1, 4, 6]), (3, [1, 1, 5, 7]), (None, [1, 1, 7, 7])],
)
def test_waiting_requests_join_together_or_within_so_many_steps(lm, join_within, begun_at):
    """Of two rows one is free after the second step, the other after the sixth."""
    decoding = Decoding(lm, max_rows=2, join_at=2, join_within=join_within)
    for n, question in zip([6, 2, 2, 2], tiny.QUESTIONS):
        submit(decoding, lm, [question], max_new_tokens=n)
    begun, step = {}, 0
    while not decoding.is_idle:
        step += 1
        for row in decoding.step():
            begun.setdefault(row.ticket, step)
    assert list(begun.items()) == list(enumerate(begun_at, 1))


def test_the_caches_never_hold_more_tokens_than_the_cap(lm):
    cap, most = 120, 0
    decoding = Decoding(lm, max_rows=8, max_cached_tokens=cap)
    submit(decoding, lm, tiny.QUESTIONS * 3, [tl.CAD()] * 15, max_new_tokens=9)
    while not decoding.is_idle:
        decoding.step()
        if (cache := decoding._cache) is not None:
            most = max(most, cache.rows * cache.width)
    assert 60 < most <= cap
    with pytest.raises(SettingError, match="room for 120; shorten it"):
        submit(decoding, lm, ["bats, " * 60], max_new_tokens=9)


def test_the_width_of_a_long_running_batch_comes_down_again(lm):
    """A server's batch may never be empty; what pads every row is forgotten all the same."""
    decoding, widths = Decoding(lm, max_rows=2), []
    for turn in range(40):
        submit(decoding, lm, [tiny.QUESTIONS[turn % 5]], max_new_tokens=6)
        for _ in range(3):
            decoding.step()
            widths.append(decoding._cache.width if decoding._cache else 0)
    longest = max(len(tl.Prompt().encode(q, lm.tokenizer)) for q in tiny.QUESTIONS)
    assert max(widths) <= 2 * (longest + 6)


def test_an_answer_has_its_tokens_and_seconds(lm):
    decoding = Decoding(lm, clock=iter(range(100)).__next__)  # a second a look
    (ticket,) = submit(decoding, lm, ["Do fish sleep?"], max_new_tokens=3)
    answer = run(decoding)[ticket].answer()
    assert (answer.new_tokens, answer.first_token_seconds, answer.seconds) == (3, 1, 3)
    assert answer.prompt_tokens == len(tl.Prompt().encode("Do fish sleep?", lm.tokenizer))


def test_messages_are_read_through_the_chat_template():
    lm = tiny.language_model("llama", chat=True)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Are bats blind?"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "Do they sleep?"},
    ]
    text = "".join(f"<|start|>{m['role']}\n{m['content']}<|end|>\n" for m in messages)
    ids = lm.tokenizer.encode(text + "<|start|>assistant\n", add_special_tokens=False)
    answer = tl.generate(lm, tl.Greedy(), messages=messages, max_new_tokens=8)
    with torch.no_grad():
        for token in answer.token_ids:
            assert token == int(lm.model(torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)
    assert answer.question == "Do they sleep?"
    pieces = tl.stream(lm, tl.Greedy(), messages=messages, max_new_tokens=8)
    assert "".join(map(str, pieces)) == answer.text


USER = {"role": "user", "content": "Do fish sleep?"}


@pytest.mark.parametrize(
    ("method", "messages", "message"),
    [
        (tl.Greedy(), "hello", "messages must be a list"),
        (tl.Greedy(), [{"role": "user"}], "message 1 needs a content and a role"),
        (tl.Greedy(), [{**USER, "role": "robot"}], "a role, one of system, user, .*robot"),
        (tl.Greedy(), [{**USER, "content": 3}], "content of message 1 must be text"),
        (tl.Greedy(), [{**USER, "role": "assistant"}], "the last message must be the user's"),
        (tl.CAD(), [USER], "no context to be contrasted with"),
    ],
)
def test_impossible_messages_are_refused(method, messages, message, lm):
    with pytest.raises(SettingError, match=message):
        tl.generate(lm, method, messages=messages)


@pytest.mark.parametrize(
    ("method", "tokens", "message"),
    [
        (tl.CAD(), (5, 6, 7), "cad needs the text of the question"),
        (tl.Greedy(), (), "empty prompt"),
        (tl.Greedy(), (5, 10**6), "tiny-llama has those from 0"),
    ],
)
def test_impossible_tokens_are_refused(method, tokens, message, lm):
    with pytest.raises(SettingError, match=message):
        tl.generate(lm, method, TokenContext(tokens))
    with pytest.raises(SettingError, match=message):
        tl.score(lm, method, TokenContext(tokens), ["No."])


BAD = tiny.QUESTIONS[1]


@dataclass(frozen=True)
class Faulty(tl.Greedy):
    """Greedy that fails on one question: as it joins, looks up, or at its third token."""

    where: str = "adjust"
    name = "faulty"

    def _fail(self, where, rows, after=0):
        lengths = zip(rows.questions, map(len, rows.contexts), rows.starts)
        is_due = any(one == BAD and n > start + after for one, n, start in lengths)
        if self.where == where and is_due:
            raise ZeroDivisionError(where)

    def complete(self, lm, prepared):
        if self.where == "complete" and prepared.state == BAD:
            raise ZeroDivisionError(self.where)
        return prepared

    def prepare(self, lm, given, options):
        return Prepared(given.question)

    def prefetch(self, rows):
        self._fail("prefetch", rows, after=1)
        return lambda: self._fail("run", rows)

    def adjust(self, step):
        self._fail("adjust", step.rows, after=1)
        return super().adjust(step)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("where", ["complete", "adjust", "prefetch", "run"])
def test_a_method_that_fails_ends_its_own_rows_and_no_others(where, temperature, lm):
    """Only the row that caused it, if that can be found by trying each row alone."""
    drawn = {"temperature": temperature, "seed": 3} if temperature else {}
    decoding, methods = Decoding(lm), [tl.Greedy(), *[Faulty(where=where)] * 2]
    questions = (tiny.QUESTIONS[0], BAD, tiny.QUESTIONS[2])
    submit(decoding, lm, questions, methods, max_new_tokens=6, **drawn)
    ended = run(decoding)
    failed = {ticket for ticket, row in ended.items() if row.error is not None}
    assert failed == ({2} if where in ("adjust", "complete") else {2, 3})
    for row in ended.values():
        if row.error is None:
            question = row.request.question
            alone = tl.generate(lm, tl.Greedy(), question, max_new_tokens=6, **drawn)
            assert row.answer().token_ids == alone.token_ids
        else:
            assert row.text is None
            with pytest.raises(ZeroDivisionError, match=where):
                row.answer()
    with pytest.raises(ZeroDivisionError, match=where):
        tl.generate(lm, Faulty(where=where), BAD, max_new_tokens=6)


def test_an_engine_that_fails_ends_the_rows_it_read_and_the_waiting_ones_go_on(lm, monkeypatch):
    decoding = Decoding(lm, max_rows=1)
    submit(decoding, lm, tiny.QUESTIONS[:2], max_new_tokens=3)
    with monkeypatch.context() as patch:
        patch.setattr(type(lm), "forward", lambda *given, **options: 1 / 0)
        (row,) = decoding.step()
    assert (row.ticket, type(row.error)) == (1, ZeroDivisionError)
    assert run(decoding)[2].answer().text


def test_an_engine_that_fails_on_one_row_ends_it_and_the_others_go_on(lm, monkeypatch):
    methods, decoding = (tl.Greedy(), tl.Greedy(), tl.CAD()), Decoding(lm)
    submit(decoding, lm, tiny.QUESTIONS[:3], methods, max_new_tokens=5)
    decoding.step()
    rows = decoding.step()
    bad, forward = rows[1].tokens[-1], type(lm).forward
    assert bad not in (rows[0].tokens[-1], rows[2].tokens[-1])

    def failing(self, inputs, **options):
        if (inputs["input_ids"] == bad).any() and rows[1].error is None:
            raise ZeroDivisionError
        return forward(self, inputs, **options)

    monkeypatch.setattr(type(lm), "forward", failing)
    ended = run(decoding)
    assert isinstance(ended[2].error, ZeroDivisionError)
    for index in (0, 2):
        alone = tl.generate(lm, methods[index], tiny.QUESTIONS[index], max_new_tokens=5)
        assert ended[index + 1].answer().token_ids == alone.token_ids


def test_the_log_probabilities_of_an_answer_are_those_that_score_gives(lm, embedder):
    method = tl.Corrective(tl.build(None, EXAMPLES, embedder=embedder), threshold=0.0)
    decoding = Decoding(lm)
    (ticket,) = submit(
        decoding, lm, ["Are bats blind?"], [method], max_new_tokens=6, logprobs=3
    )
    row = run(decoding)[ticket]
    request = row.request
    assert [one.token for one in row.logprobs] == row.tokens
    given = Continuation(request.given, request.contexts, tuple(row.tokens))
    ((total, is_own),) = score_continuations(lm, method, [given])
    assert is_own
    assert sum(one.logprob for one in row.logprobs) == pytest.approx(total, abs=1e-4)
    for one in row.logprobs:
        assert one.best[0] == (one.token, one.logprob)
        assert len(one.best) == 3


def test_a_long_context_and_a_long_continuation_fit_into_one_pass_of_gpt2():
    """The pads after a shorter continuation have no position that the model does not know."""
    lm = tiny.language_model("gpt2")
    rows = [
        Continuation(TokenContext(context), (context,), after)
        for context, after in [((5,) * 500, (6,)), ((7,) * 10, (8, 9) * 150)]
    ]
    together = score_continuations(lm, tl.Greedy(), rows)
    alone = [score_continuations(lm, tl.Greedy(), [row])[0] for row in rows]
    assert [total for total, _ in together] == pytest.approx([t for t, _ in alone], abs=1e-3)


def test_what_is_prepared_belongs_to_a_question_and_is_made_once(lm):
    made = []

    @dataclass(frozen=True)
    class Preparing(tl.Greedy):
        name = "preparing"

        def prepare(self, lm, given, options):
            made.append(given.question)
            return Prepared(given.question)

        def adjust(self, step):
            assert list(step.rows.prepared) == list(step.rows.questions)
            return super().adjust(step)

    tl.generate(lm, Preparing(), ["Are bats blind?", "Do fish sleep?"], max_new_tokens=3)
    assert made == ["Are bats blind?", "Do fish sleep?"]
    made.clear()
    tl.score(lm, Preparing(), "Are bats blind?", ["No.", "Yes.", "So."])
    assert made == ["Are bats blind?"]
