"""Corrective decoding: numbers by hand, laws, and every fast path against the oracle."""

import math
from dataclasses import asdict
from functools import cache, partial

import pytest
import tiny
import torch
from corrective_oracle import END as THE_END
from corrective_oracle import CorrectiveOracle, Form
from hypothesis import example, given
from hypothesis import strategies as st
from test_processor import padded

import trueline as tl
from trueline.corrective.method import UNKNOWN, Lookup
from trueline.corrective.turns import FormRequest
from trueline.corrective.votes import END, Correction, Votes, lift, lift_rows
from trueline.errors import SettingError
from trueline.methods.base import Rows, Step
from trueline.prompts import Prompt, encode_onward
from trueline.types import Example, ScopedExample

SKY, BATS, GOLD, FISH = (
    Example(question, answers, wrong, id=f"fact-{number}")
    for number, ((question, answers), wrong) in enumerate(zip(tiny.FACTS, tiny.WRONG), 1)
)
# Its tokens split characters.
FAR = Example("Где?", ["Да, 😀 это так.", "水在低溫沸騰。"], id="far")
FACTS = [SKY, BATS, GOLD, FISH, FAR]
SCOPES = {  # question: (example, probability, part of the turn)
    tiny.QUESTIONS[0]: [(SKY, 0.9, 0)],
    tiny.QUESTIONS[1]: [(BATS, 0.95, 0), (FISH, 0.7, 0)],
    tiny.QUESTIONS[2]: [],
    tiny.QUESTIONS[3]: [(FISH, 0.9, 1), (BATS, 0.8, 0)],
    tiny.QUESTIONS[4]: [(FAR, 0.6, 0)],
}
LENGTH = 26
PLAIN = FormRequest()


def odds(probability):
    return math.log(probability) - math.log(1 - probability)


def slow_scope(question):
    """A scope as the oracle takes it."""
    return [(one, odds(probability), part) for one, probability, part in SCOPES[question]]


def scoped(*scope):
    return tuple(ScopedExample(one, 1 / (1 + math.exp(-by)), part) for one, by, part in scope)


@pytest.fixture
def chosen_scope(monkeypatch):
    """The scopes of `SCOPES`, since a random embedder knows nothing of meaning."""

    def find(space, question):
        return [
            ScopedExample(one, probability, part, probability, question)
            for one, probability, part in sorted(SCOPES[question], key=lambda own: -own[1])
        ]

    monkeypatch.setattr("trueline.corrective.method.find_scope", find)


@pytest.fixture(scope="module")
def space(embedder):
    return tl.build(None, FACTS, embedder=embedder)


def method(space, **settings):
    return tl.Corrective(space, threshold=0.0, **settings)


def slow(lm):
    return CorrectiveOracle(lm.model, lm.tokenizer, lm.stop_ids)


def prompt_of(lm, question):
    return Prompt().encode(question, lm.tokenizer)


@cache
def expected(chat):
    """The oracle's answers, which all fast paths must give."""
    lm = tiny.language_model("llama", chat=chat)
    return [
        slow(lm).decode(prompt_of(lm, question), slow_scope(question), length=LENGTH)
        for question in tiny.QUESTIONS
    ]


# Numbers by hand: two examples and four tokens, the letters a to d.

LETTERS = "abcd"
ONE = Example("one?", ["ab"])
TWO = Example("two?", ["ac", "d"])
A, B, C, D = range(4)


def by_letters(*scope, **settings):
    def spell(text):
        return [LETTERS.index(letter) for letter in text if letter in LETTERS]

    def read(tokens):
        return "".join(LETTERS[token] for token in tokens)

    return Correction(scoped(*scope), spell, read, **settings)


BOTH = by_letters((ONE, math.log(3), 0), (TWO, 0.0, 0))  # odds of 3 : 1 and 1 : 1
NESTED = by_letters((Example("?", ["ab", "abcd"]), 0.0, 0))
THREE = Example("three?", ["ab", "abc", "d"])
TWICE = by_letters((THREE, 0.0, 0), form=FormRequest(sentences=2))
WHOLE = math.e**2 + 1


@pytest.mark.parametrize(
    ("correction", "output", "votes"),
    [
        # TWO shares its weight among two answers, so "ab" weighs 3 e^1, "ac" and "d" weigh
        # 1/2 e^1 each: 3/4, 1/8, 1/8. Every answer votes for its first letter.
        (BOTH, [], {A: 7 / 8, D: 1 / 8}),
        # "a" is how "ab" and "ac" begin: 3 e^2 against 1/2 e^2; "d" votes no more.
        (BOTH, [A], {B: 6 / 7, C: 1 / 7}),
        (BOTH, [A, B], {END: 1.0}),
        (BOTH, [D], {END: 1.0}),
        (BOTH, [B, A], None),  # off track
        # Two sentences are wanted, and "ab" is complete; "abc" goes on (a = 1 + 2), "d" begins
        # (a = 1): e^3 against e^1.
        (TWICE, [A, B], {C: math.e**2 / WHOLE, D: 1 / WHOLE}),
        # One answer begins another: it may end or go on.
        (NESTED, [A, B], {END: 0.5, C: 0.5}),
        (NESTED, [A, B, C], {D: 1.0}),
        (NESTED, [A, B, C, D], {END: 1.0}),
    ],
)
def test_votes_are_those_worked_by_hand(correction, output, votes):
    found = correction.votes(output)
    assert (found and found.tokens) == (votes and pytest.approx(votes))


def test_half_of_the_best_vote_makes_a_candidate_and_less_does_not():
    assert BOTH.votes([]).candidates == [A]  # 1/8 is less than half of 7/8
    assert set(NESTED.votes([A, B]).candidates) == {END, C}
    shares = {A: {None: 0.5}, D: {None: 0.25}, C: {None: 0.2499}}
    assert Votes(shares).candidates == [A, D]


def test_candidates_are_lifted_to_the_odds_of_the_margin():
    # Four tokens alike. Odds of 3 : 1 for token a: L = log 3 + log 3 - log 1 = log 9.
    base = torch.zeros(1, 4)
    final = lift(base, [[A]], margin=math.log(3), strength=1)
    assert final[0].tolist() == pytest.approx([math.log(9), 0, 0, 0])
    assert float(final.softmax(-1)[0, A]) == pytest.approx(3 / 4)
    half = lift(base, [[A]], margin=math.log(3), strength=0.5)
    assert half[0].tolist() == pytest.approx([math.log(3), 0, 0, 0])


def test_between_candidates_the_model_decides():
    # a and b together get odds of 3 : 1 against c and d, and keep their own 4 : 1.
    base = torch.tensor([[math.log(4), 0.0, math.log(20), math.log(10)]])
    final = lift(base, [[A, B]], margin=math.log(3), strength=1)
    assert final.softmax(-1)[0].tolist() == pytest.approx([0.6, 0.15, 1 / 6, 1 / 12])


def test_rows_have_candidates_and_settings_of_their_own():
    base = torch.zeros(3, 4)
    margin, strength = torch.tensor([math.log(3), 9.0, 0.0]), torch.tensor([1.0, 1.0, 0.5])
    final = lift(base, [[A], [], [B, C, D]], margin=margin, strength=strength)
    assert final[0].tolist() == pytest.approx([math.log(9), 0, 0, 0])
    assert torch.equal(final[1:], base[1:])  # none, and three of four hold even odds already
    assert lift(base, [[], [], []], margin=5.0, strength=1.0) is base


# Laws.

numbers = st.floats(-30, 30, width=32)


@st.composite
def rows_of_logits(draw):
    rows, width = draw(st.integers(1, 3)), draw(st.integers(2, 9))
    cells = st.lists(numbers | st.just(-math.inf), min_size=width, max_size=width)
    base = torch.tensor(draw(st.lists(cells, min_size=rows, max_size=rows)))
    marks = st.lists(st.booleans(), min_size=width, max_size=width)
    mask = torch.tensor(draw(st.lists(marks, min_size=rows, max_size=rows)))
    return base, mask & base.isfinite()


def tokens_in(mask):
    return [row.nonzero()[:, 0].tolist() for row in mask]


@given(rows_of_logits(), st.floats(-20, 20))
def test_strength_zero_is_the_plain_model_to_the_bit(given_rows, margin):
    base, mask = given_rows
    assert torch.equal(lift(base, tokens_in(mask), margin=margin, strength=0.0), base)


@given(rows_of_logits(), st.floats(-12, 12))
def test_candidates_hold_the_margin_or_what_they_held(given_rows, margin):
    base, mask = given_rows
    final = lift(base, tokens_in(mask), margin=margin, strength=1.0)
    for row in range(len(base)):
        if not mask[row].any():
            continue
        before = float(base[row].double().softmax(-1)[mask[row]].sum())
        after = float(final[row].double().softmax(-1)[mask[row]].sum())
        wanted = 1 / (1 + math.exp(-margin))
        assert after == pytest.approx(max(before, wanted), abs=2e-5)


@given(rows_of_logits(), st.floats(-20, 20), st.floats(0, 1))
def test_other_tokens_keep_their_logits_and_banned_ones_stay_banned(
    given_rows, margin, strength
):
    base, mask = given_rows
    final = lift(base, tokens_in(mask), margin=margin, strength=strength)
    assert torch.equal(final[~mask], base[~mask])
    assert torch.equal(final == -math.inf, base == -math.inf)
    assert not final.isnan().any()
    assert bool((final[mask] >= base[mask]).all())
    # The model's order among candidates stays.
    for row in range(len(base)):
        own = mask[row].nonzero()[:, 0]
        raised = (final[row, own] - base[row, own]).tolist()
        assert raised == pytest.approx([raised[0]] * len(raised), abs=1e-4) if raised else True


WORDS = [
    "Bats are not blind.",
    "Bats are not",
    "No, bats see well in the dark.",
    "NASA says no.",
    "It is the air.",
    "It is the air that scatters blue light, and not the sea.",
    "Да, 😀 это так.",
    "да",
    "水在低溫沸騰。",
    "water (boils) 😀",
    "4",
]
FORMS = [
    PLAIN,
    FormRequest(sentences=2),
    FormRequest(is_text=True, sentences=2),
    FormRequest(is_text=True, sentences=2, is_counted=True),
    FormRequest(is_text=True, sentences=3, is_counted=True),
    FormRequest(words=3),
    FormRequest(opening="Well,"),
    FormRequest(opening="So:", closing="Thanks!"),
    FormRequest(is_upper=True),
    FormRequest(is_open=True),
]


@cache
def tiny_tools():
    lm = tiny.language_model("llama")
    return lm, slow(lm), partial(encode_onward, tokenizer=lm.tokenizer)


def correct(scope, form=PLAIN, *, ends=(), **settings):
    lm, _, tokenize = tiny_tools()
    return Correction(
        scoped(*scope), tokenize, lm.decode, form, lm.stop_ids.union(ends), **settings
    )


def by_letter(text):
    """Another tokenization: every letter a token of its own."""
    _, _, tokenize = tiny_tools()
    return [token for letter in text for token in tokenize(letter)]


@st.composite
def scopes(draw):
    answers = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True)
    one = st.tuples(answers, st.floats(-2, 4), st.integers(0, 1))
    found = draw(st.lists(one, min_size=1, max_size=3))
    return [(Example(f"{n}?", own), by, part) for n, (own, by, part) in enumerate(found)]


@st.composite
def outputs(draw):
    """Tokens that a model might generate: answers, parts of them, other words."""
    _, _, tokenize = tiny_tools()
    output = []
    for _ in range(draw(st.integers(0, 3))):
        text = draw(st.sampled_from([*WORDS, "Well, bats see", "I say ", "\n", "So: ", " "]))
        text = draw(st.sampled_from(["", " "])) + draw(
            st.sampled_from([text, text[:1].lower() + text[1:], text.upper()])
        )
        is_split = text.isascii() and draw(st.booleans())
        tokens = by_letter(text) if is_split else tokenize(text)
        output += tokens[: draw(st.integers(0, len(tokens)) | st.just(len(tokens)))]
    return output


@given(scopes(), outputs(), st.sampled_from(FORMS))
@example([(Example("q?", ["Да, 😀 это так."]), 0.0, 0)], [145], PLAIN)
def test_votes_are_those_of_the_oracle_and_sum_to_one(scope, output, form):
    _, oracle, _ = tiny_tools()
    wanted = oracle.votes(scope, output, Form(**asdict(form)))
    votes = correct(scope, form).votes(output)
    found = {} if votes is None else votes.tokens
    assert {THE_END if x == END else x: v for x, v in found.items()} == pytest.approx(wanted)
    if votes is not None:
        assert sum(found.values()) == pytest.approx(1)
        assert sum(votes.answers.values()) == pytest.approx(1)
        assert min(found.values()) > 0


LONG = "No, bats see well in the dark."


@pytest.mark.parametrize("is_by_letter", [False, True])
@pytest.mark.parametrize(
    ("answers", "output"),
    [
        (["Bats are not blind."], "Bats are n"),
        (["Gold does not rust."], "gold does"),
        (["He said.", "Gold rusts."], "He said."),
        (["He said:", "Gold rusts."], "He said: "),
        (["He said (", "Gold rusts."], "He said ("),
        (["He said", "NASA says."], "He said "),
        ([LONG], "Hm, bats see well in the"),  # joined again
        ([LONG], "HM, BATS SEE WELL IN"),
        ([LONG], "Hm, see well"),  # too few tokens of it
        (["水在低溫沸騰。"], "水在"),
    ],
)
def test_edge_cases_of_the_alignment_are_those_of_the_oracle(answers, output, is_by_letter):
    _, oracle, tokenize = tiny_tools()
    scope = [(Example(f"{n}?", [one]), 0.0, n) for n, one in enumerate(answers)]
    tokens = by_letter(output) if is_by_letter else tokenize(output)
    for count in range(len(tokens) + 1):
        wanted = oracle.votes(scope, tokens[:count], Form())
        votes = correct(scope).votes(tokens[:count])
        found = {} if votes is None else votes.tokens
        found = {THE_END if token == END else token: share for token, share in found.items()}
        assert found == pytest.approx(wanted)


def follow(correction, *, prefer=min, most=200):
    """The text that comes of always picking a candidate."""
    lm, _, _ = tiny_tools()
    tokens = []
    for _ in range(most):
        votes = correction.votes(tokens)
        if votes is None:
            return lm.decode(tokens).strip(" "), "off track"
        picked = prefer(votes.candidates)
        if picked == END:
            return lm.decode(tokens).strip(" "), "end"
        tokens.append(picked)
    raise AssertionError(f"no end in sight: {lm.decode(tokens)[:300]}")


@given(scopes(), st.sampled_from([min, max]))
def test_following_the_candidates_gives_verified_answers_once_and_ends(scope, prefer):
    text, how = follow(correct(scope), prefer=prefer)
    assert how == "end"
    text = text.lower()  # inside a sentence an answer may begin with a small letter
    given = [(a.lower(), part) for one, _, part in scope for a in one.answers]
    given = [(answer, part) for answer, part in given if answer in text]
    assert {part for _, part in given} == {part for _, _, part in scope}
    longest = max((answer for answer, _ in given), key=len)
    assert text.count(longest) == 1


# Every fast path against the oracle.


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_generate_and_stream_pick_the_tokens_of_the_oracle(chat, space, chosen_scope):
    lm, wanted = tiny.language_model("llama", chat=chat), expected(chat)
    plain = tl.generate(lm, tl.Greedy(), tiny.QUESTIONS, max_new_tokens=LENGTH)
    same = [ours == own.token_ids for ours, own in zip(wanted, plain)]
    assert same == [False, False, True, False, False]
    for batch_size in (1, 16):
        answers = tl.generate(
            lm, method(space), tiny.QUESTIONS, max_new_tokens=LENGTH, batch_size=batch_size
        )
        assert [answer.token_ids for answer in answers] == wanted
        assert [answer.is_covered for answer in answers] == [not own for own in same]
    for question, tokens, answer in zip(tiny.QUESTIONS, wanted, answers):
        pieces = list(tl.stream(lm, method(space), question, max_new_tokens=LENGTH))
        assert tuple(token for piece in pieces for token in piece.token_ids) == tokens
        assert "".join(map(str, pieces)) == answer.text


@pytest.mark.parametrize(("strength", "margin"), [(0.5, 2.0), (0.8, -1.0), (0.0, 5.0)])
def test_every_strength_and_margin_pick_the_tokens_of_the_oracle(
    strength, margin, space, chosen_scope
):
    lm, oracle, _ = tiny_tools()
    settings = {"strength": strength, "margin": margin}
    answers = tl.generate(lm, method(space, **settings), tiny.QUESTIONS, max_new_tokens=LENGTH)
    for question, answer in zip(tiny.QUESTIONS, answers):
        prompt, scope = prompt_of(lm, question), slow_scope(question)
        assert oracle.picks(prompt, answer.token_ids, scope, **settings) == answer.token_ids


def test_score_gives_the_log_probabilities_of_the_oracle(space, chosen_scope):
    lm, oracle, _ = tiny_tools()
    candidates = ["Bats are not blind.", "Bats are blind.", "Fish rest, bats see well 😀."]
    for question in tiny.QUESTIONS[1:4]:
        prompt, scope = prompt_of(lm, question), slow_scope(question)
        found = tl.score(lm, method(space), question, candidates)
        tokens = [Prompt().encode_answer(question, one, lm.tokenizer) for one in candidates]
        wanted = [oracle.log_probability(prompt, one, scope) for one in tokens]
        assert found == pytest.approx(wanted, abs=2e-3)
    bare = tl.score(lm, tl.Greedy(), question, candidates)
    assert found[0] - bare[0] > 5


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("is_length_given", [False, True])
def test_the_processor_picks_the_tokens_of_the_oracle_in_a_padded_batch(
    chat, is_length_given, space, chosen_scope
):
    lm = tiny.language_model("llama", chat=chat)
    batch = padded(lm, tiny.QUESTIONS)
    width = batch["input_ids"].shape[1]
    processor = method(space).processor(
        lm.model, lm.tokenizer, prompt_length=width if is_length_given else None
    )
    for _ in range(1 + is_length_given):  # one instance, several calls
        out = lm.model.generate(
            **batch, max_new_tokens=LENGTH, do_sample=False, logits_processor=[processor]
        )
        for row, answer in zip(out[:, width:].tolist(), expected(chat)):
            assert tuple(row[: len(answer)]) == answer
            assert set(row[len(answer) :]) <= {lm.tokenizer.pad_token_id, *lm.stop_ids}


@pytest.mark.parametrize("is_length_given", [False, True])
def test_the_processor_takes_another_question_than_the_prompts(
    is_length_given, space, chosen_scope
):
    lm, oracle, _ = tiny_tools()
    question, read = tiny.QUESTIONS[1], tiny.QUESTIONS[2]
    batch = padded(lm, [read, question])
    width = batch["input_ids"].shape[1]
    options = {"question": question, "prompt_length": width if is_length_given else None}
    processor = method(space).processor(lm.model, lm.tokenizer, **options)
    out = lm.model.generate(
        **batch, max_new_tokens=LENGTH, do_sample=False, logits_processor=[processor]
    )
    wanted = oracle.decode(prompt_of(lm, read), slow_scope(question), length=LENGTH)
    assert tuple(out[0, width:].tolist())[: len(wanted)] == wanted


def test_the_processor_needs_to_know_where_an_answer_begins(space, chosen_scope):
    lm, _, _ = tiny_tools()
    ids = torch.tensor([lm.encode("Bats, they say, are", special=True)])
    scores = torch.randn(1, lm.vocabulary)

    def adjusted(**settings):
        return method(space).processor(lm.model, lm.tokenizer, **settings)(ids, scores)

    assert adjusted() is scores  # no question: the plain model
    with pytest.raises(SettingError, match="prompt_length"):
        adjusted(question=tiny.QUESTIONS[1])
    length = ids.shape[1]
    assert not torch.equal(adjusted(question=tiny.QUESTIONS[1], prompt_length=length), scores)


def test_a_question_in_the_answer_is_not_the_question(space, chosen_scope):
    """If its length is known, only the prompt is read."""
    lm, _, _ = tiny_tools()
    prompt = prompt_of(lm, tiny.QUESTIONS[1])
    other = Prompt().render(tiny.QUESTIONS[2], lm.tokenizer)
    scores = torch.randn(1, lm.vocabulary)

    def adjusted(text, **settings):
        settings |= {"prompt_length": len(prompt)}
        made = method(space).processor(lm.model, lm.tokenizer, **settings)
        return made(torch.tensor([[*prompt, *lm.encode(text)]]), scores)

    text = f"It is the air. {other} Bats are not"
    given = adjusted(text, question=tiny.QUESTIONS[1])
    assert torch.equal(adjusted(text), given)
    assert not torch.equal(adjusted(" Bats are not"), scores)


def test_beams_give_a_verified_answer(space, chosen_scope):
    lm, _, _ = tiny_tools()
    batch = padded(lm, tiny.QUESTIONS)
    options = {"max_new_tokens": 40, "num_beams": 2, "do_sample": False}
    processor = method(space, margin=12.0).processor(lm.model, lm.tokenizer)
    found = lm.model.generate(**batch, **options, logits_processor=[processor])
    plain = lm.model.generate(**batch, **options)
    width = batch["input_ids"].shape[1]
    texts = [lm.decode(row) for row in found[:, width:].tolist()]
    for index, one in ((0, SKY), (1, BATS), (4, FAR)):
        assert texts[index].strip() in one.answers
    for one in (BATS, FISH):
        assert any(answer in texts[3] for answer in one.answers)
    assert texts[2] == lm.decode(plain[2, width:].tolist())  # nothing in scope


def test_a_requested_form_is_that_of_the_oracle(space, monkeypatch):
    lm, oracle, _ = tiny_tools()
    answers, (first, second) = BATS.answers, BATS.answers
    orders = (f"{first} {second}", f"{second} {first}")
    inside = [one[:1].lower() + one[1:] for one in answers]
    forms = {  # question: the form, and the answers it allows; None: the model continues them
        'Are bats blind? Begin with "Well,".': (
            Form(opening="Well,"), [f"Well, {one}" for one in [*answers, *inside]]
        ),
        "Are bats blind? Write in capital letters.": (
            Form(is_upper=True), [one.upper() for one in answers]
        ),
        "Are bats blind? Use two sentences.": (Form(sentences=2, is_counted=True), orders),
        "Write two sentences about blind bats.": (
            Form(2, is_text=True, is_counted=True), orders
        ),
        "Write about bats and whether they are blind.": (Form(2, is_text=True), None),
        "Are bats blind? Finish with 'So long!'": (
            Form(closing="So long!"), [f"{one} So long!" for one in answers]
        ),
        "Are bats blind? In at most 4 words.": (Form(words=4), ["Bats are not blind."]),
        "Are bats blind? And who says so?": (Form(is_open=True), None),
    }  # fmt: skip
    found = [ScopedExample(BATS, 0.9, 0, 0.9, "Are bats blind?")]
    monkeypatch.setattr("trueline.corrective.method.find_scope", lambda *_: found)
    written = tl.generate(lm, method(space, answer_rest=True), [*forms], max_new_tokens=40)
    scope = [(BATS, odds(0.9), 0)]
    for (question, (form, allowed)), answer in zip(forms.items(), written):
        prompt, text = prompt_of(lm, question), answer.text.strip()
        picked = oracle.picks(prompt, answer.token_ids, scope, wish=form)
        assert picked == answer.token_ids
        if allowed is None:
            assert text.startswith(tuple(orders) if form.is_text else tuple(answers))
            assert text not in answers
        else:
            assert text in allowed
    for settings in ({}, {"answer_rest": True, "only_covered": True}):
        alone = tl.generate(lm, method(space, **settings), question, max_new_tokens=40)
        assert alone.text.strip() in answers


# In scope and out of it.


def test_nothing_in_scope_is_the_very_same_tensor_without_any_vote(space, monkeypatch):
    lm, _, _ = tiny_tools()
    monkeypatch.setattr("trueline.corrective.method.find_scope", lambda *_: [])
    monkeypatch.setattr(Correction, "votes", lambda *_: pytest.fail("votes were counted"))
    prompts = [prompt_of(lm, question) for question in tiny.QUESTIONS[:2]]
    rows = Rows(lm, prompts, list(map(len, prompts)), tiny.QUESTIONS[:2], [None, None])
    step = Step(rows, lm.start().join(prompts))
    ours = method(space)
    assert ours.adjust(step).logits is step.logits
    for sampled in ({}, {"temperature": 1.0, "seed": 3}):
        answers, plain = (
            tl.generate(lm, way, tiny.QUESTIONS, max_new_tokens=8, **sampled)
            for way in (ours, tl.Greedy())
        )
        assert [one.token_ids for one in answers] == [one.token_ids for one in plain]
        assert [(one.is_covered, one.sources) for one in answers] == [(False, ())] * 5
    texts = ["It is the air."]
    for question in tiny.QUESTIONS:
        assert tl.score(lm, ours, question, texts) == tl.score(lm, tl.Greedy(), question, texts)


def test_a_row_without_votes_stays_as_it_is_next_to_one_with_votes():
    correction = correct([(BATS, 0.0, 0)])
    base = torch.randn(3, tiny_tools()[0].vocabulary)
    final = lift_rows([None, correction, correction], [[], [], [7, 7]], base).logits
    assert torch.equal(final[0], base[0])  # nothing in scope
    assert torch.equal(final[2], base[2])  # off track
    assert not torch.equal(final[1], base[1])
    off = correct([(BATS, 0.0, 0)], strength=0.0)
    assert torch.equal(off.lift([], base[1]), base[1])


def test_a_banned_token_stays_banned_and_is_no_candidate():
    lm, _, tokenize = tiny_tools()
    correction = correct([(Example("?", ["Bats are", "Fish rest"]), 0.0, 0)], margin=3.0)
    base = torch.zeros(lm.vocabulary)
    bats, fish = ([tokenize(x)[0], tokenize(f" {x}")[0]] for x in ("Bats", "Fish"))
    base[bats] = -math.inf
    final = correction.lift([], base)
    assert bool((final[bats] == -math.inf).all())
    share = float(final.softmax(-1)[fish].sum())
    assert share == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-4)
    base[fish] = -math.inf  # all candidates are banned: the row stays as it is
    assert torch.equal(correction.lift([], base), base)


def test_the_end_stands_for_every_token_that_ends_an_answer():
    lm, _, tokenize = tiny_tools()
    correction = correct([(BATS, 0.0, 0)], ends=(9, 11))
    base = torch.randn(lm.vocabulary)
    final = correction.lift(tokenize("Bats are not blind."), base)
    assert (final != base).nonzero()[:, 0].tolist() == sorted({9, 11, *lm.stop_ids})


def test_with_only_covered_any_other_question_is_refused(space, chosen_scope):
    lm, _, _ = tiny_tools()
    strict, free = (
        tl.generate(lm, method(space, only_covered=only), tiny.QUESTIONS, max_new_tokens=64)
        for only in (True, False)
    )
    assert strict[2].text.strip() == UNKNOWN
    assert (strict[2].is_covered, strict[2].finish, strict[2].sources) == (False, "stop", ())
    for index in (0, 1, 3, 4):
        assert strict[index].token_ids == free[index].token_ids
        assert strict[index].is_covered


def test_lookup_prints_the_first_answer_of_the_best_example(space, chosen_scope):
    lm, _, _ = tiny_tools()
    answers = tl.generate(lm, Lookup(space, threshold=0.0), tiny.QUESTIONS, max_new_tokens=64)
    firsts = [SKY, BATS, None, FISH, FAR]  # FISH is more probable than BATS
    for answer, best in zip(answers, firsts):
        if best is not None:
            assert answer.text.strip() == best.answers[0]
            assert (answer.finish, answer.is_covered) == ("stop", True)
            assert [source.example for source in answer.sources] == [best.id]
    plain = tl.generate(lm, tl.Greedy(), tiny.QUESTIONS[2], max_new_tokens=64)
    assert (answers[2].token_ids, answers[2].is_covered) == (plain.token_ids, False)


def test_a_source_has_the_share_of_the_tokens_it_voted_for(space, chosen_scope):
    lm, _, _ = tiny_tools()

    def answer(question, **options):
        return tl.generate(lm, method(space), question, max_new_tokens=64, **options)

    whole = answer(tiny.QUESTIONS[0])
    assert {one.example: one.share for one in whole.sources} == {"fact-1": pytest.approx(1.0)}
    both = answer(tiny.QUESTIONS[3]).sources
    assert {one.example for one in both} == {"fact-2", "fact-4"}
    assert sum(one.share for one in both) == pytest.approx(1.0)
    # A stop token of the request counts as the end of the answer: one that no answer votes
    # for, and the period.
    others = [token for token in range(5, lm.vocabulary) if token not in whole.token_ids]
    for stop_ids in (others, whole.token_ids[-2:-1]):
        stopped = answer(tiny.QUESTIONS[0], stop_ids=stop_ids)
        assert stopped.text.startswith(whole.text)
        assert stopped.token_ids[-1] in stop_ids
        assert [one.share for one in stopped.sources] == [pytest.approx(1.0)]
