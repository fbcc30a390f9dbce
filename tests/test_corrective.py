"""Corrective decoding: numbers by hand, laws, and every fast path against the oracle."""

import math
from collections import Counter
from dataclasses import asdict
from functools import cache, partial

import pytest
import tiny
import torch
from corrective_oracle import END as THE_END
from corrective_oracle import CorrectiveOracle, Form
from hypothesis import example, given
from hypothesis import strategies as st

import trueline as tl
from trueline.corrective.method import UNKNOWN, Lookup
from trueline.corrective.turns import FormRequest
from trueline.corrective.votes import END, Correction, VerifiedAnswer, Votes, lift, lift_rows
from trueline.errors import SettingError
from trueline.methods.base import Rows, Step
from trueline.prompts import Prompt, encode_onward
from trueline.types import Example, Sampling, ScopedExample

SKY, BATS, GOLD, FISH = (
    Example(question, answers, wrong, id=f"fact-{number}")
    for number, ((question, answers), wrong) in enumerate(zip(tiny.FACTS, tiny.WRONG), 1)
)
FAR = Example("Где?", ["Да, 😀 это так.", "水在低溫沸騰。"], id="far")  # cut within characters
FACTS = [SKY, BATS, GOLD, FISH, FAR]
SCOPES = {  # question: (example, probability, part of the turn)
    tiny.QUESTIONS[0]: [(SKY, 0.9, 0)],
    tiny.QUESTIONS[1]: [(BATS, 0.95, 0), (FISH, 0.7, 0)],
    tiny.QUESTIONS[2]: [],
    tiny.QUESTIONS[3]: [(FISH, 0.9, 1), (BATS, 0.8, 0)],
    tiny.QUESTIONS[4]: [(FAR, 0.6, 0)],
}
LENGTH = 26


def odds(probability):
    return math.log(probability) - math.log(1 - probability)


def slow_scope(question):
    """A scope as the oracle takes it."""
    return [(one, odds(probability), part) for one, probability, part in SCOPES[question]]


def scoped(*scope):
    return tuple(ScopedExample(one, 1 / (1 + math.exp(-by)), part) for one, by, part in scope)


@pytest.fixture
def chosen_scope(monkeypatch):
    """What is in scope is what `SCOPES` says: a random embedder knows nothing of meaning."""

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
def expected(architecture, chat):
    """The oracle's answers, which all fast paths must give."""
    lm = tiny.language_model(architecture, chat=chat)
    return [
        slow(lm).decode(prompt_of(lm, question), slow_scope(question), length=LENGTH)
        for question in tiny.QUESTIONS
    ]


# Numbers by hand: two examples and four tokens, the letters a to d.

LETTERS = "abcd"


def spell(text):
    return [LETTERS.index(letter) for letter in text if letter in LETTERS]


def read(tokens):
    return "".join(LETTERS[token] for token in tokens)


def letters_plan(*scope, **settings):
    return Correction(scoped(*scope), spell, read, **settings)


ONE = Example("one?", ["ab"])
TWO = Example("two?", ["ac", "d"])
A, B, C, D = range(4)


def by_hand(votes):
    return None if votes is None else pytest.approx(votes)


def test_at_the_start_every_answer_votes_for_its_first_letter():
    # Odds of 3 : 1 and 1 : 1. TWO shares its weight among two answers, so "ab" weighs
    # 3 e^1, "ac" and "d" weigh 1/2 e^1 each: 3/4, 1/8, 1/8.
    votes = letters_plan((ONE, math.log(3), 0), (TWO, 0.0, 0)).votes([])
    assert votes.tokens == by_hand({A: 7 / 8, D: 1 / 8})
    assert votes.candidates == [A]  # 1/8 is less than half of 7/8


def test_an_answer_that_was_left_votes_no_more():
    # "a" is how "ab" and "ac" begin: 3 e^2 against 1/2 e^2.
    votes = letters_plan((ONE, math.log(3), 0), (TWO, 0.0, 0)).votes([A])
    assert votes.tokens == by_hand({B: 6 / 7, C: 1 / 7})


def test_where_an_answer_ends_it_votes_for_the_end():
    plan = letters_plan((ONE, math.log(3), 0), (TWO, 0.0, 0))
    assert plan.votes([A, B]).tokens == {END: 1.0}
    assert plan.votes([D]).tokens == {END: 1.0}


def test_off_all_tracks_nobody_votes():
    assert letters_plan((ONE, 0.0, 0), (TWO, 0.0, 0)).votes([B, A]) is None


def test_half_of_the_best_vote_makes_a_candidate_and_less_does_not():
    half = letters_plan((ONE, math.log(2), 0), (Example("two?", ["d"]), 0.0, 0))
    assert half.votes([]).tokens == by_hand({A: 2 / 3, D: 1 / 3})
    shares = {A: {None: 0.5}, D: {None: 0.25}, C: {None: 0.2499}}
    assert Votes(shares).candidates == [A, D]


def test_who_said_more_of_its_answer_weighs_more():
    # Two sentences are wanted. "ab" was told; "abc" goes on (a = 1 + 2), "d" begins (a = 1):
    # e^3 against e^1.
    three = Example("three?", ["ab", "abc", "d"])
    votes = letters_plan((three, 0.0, 0), form=FormRequest(sentences=2)).votes([A, B])
    whole = math.e**2 + 1
    assert votes.tokens == by_hand({C: math.e**2 / whole, D: 1 / whole})


def test_an_answer_that_begins_another_may_end_or_go_on():
    plan = letters_plan((Example("?", ["ab", "abcd"]), 0.0, 0))
    votes = plan.votes([A, B])
    assert votes.tokens == by_hand({END: 0.5, C: 0.5})
    assert set(votes.candidates) == {END, C}
    assert plan.votes([A, B, C]).tokens == {D: 1.0}
    assert plan.votes([A, B, C, D]).tokens == {END: 1.0}


def test_shares_say_who_voted():
    plan = letters_plan((ONE, math.log(3), 0), (TWO, 0.0, 0))
    shares = plan.votes([]).shares
    assert {answer.text: share for answer, share in shares[A].items()} == by_hand(
        {"ab": 6 / 8, "ac": 1 / 8}
    )
    assert {answer.text: share for answer, share in shares[D].items()} == by_hand({"d": 1 / 8})


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


def test_candidates_that_hold_enough_are_left_alone():
    base = torch.tensor([[3.0, 0.0, 0.0, 0.0]])  # e^3 against 3: odds of 6.7
    assert torch.equal(lift(base, [[A]], margin=math.log(6), strength=1), base)
    assert not torch.equal(lift(base, [[A]], margin=math.log(7), strength=1), base)


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
def test_candidates_hold_what_they_are_owed_or_what_they_held(given_rows, margin):
    base, mask = given_rows
    final = lift(base, tokens_in(mask), margin=margin, strength=1.0)
    for row in range(len(base)):
        if not mask[row].any():
            continue
        before = float(base[row].double().softmax(-1)[mask[row]].sum())
        after = float(final[row].double().softmax(-1)[mask[row]].sum())
        owed = 1 / (1 + math.exp(-margin))
        assert after == pytest.approx(max(before, owed), abs=2e-5)


@given(rows_of_logits(), st.floats(-20, 20), st.floats(0, 1))
def test_who_is_no_candidate_keeps_its_logit_and_who_is_banned_stays_so(
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
WISHES = [
    FormRequest(),
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


def form_of(wish):
    return Form(**asdict(wish))


@cache
def tiny_tools():
    lm = tiny.language_model("llama")
    return lm, slow(lm), partial(encode_onward, tokenizer=lm.tokenizer)


def real_plan(scope, form=FormRequest()):  # noqa: B008
    lm, _, cut = tiny_tools()
    return Correction(scoped(*scope), cut, lm.decode, form)


def cut_letters(text):
    """Another cut: every letter a token of its own."""
    _, _, cut = tiny_tools()
    return [token for letter in text for token in cut(letter)]


@st.composite
def scopes(draw):
    answers = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True)
    one = st.tuples(answers, st.floats(-2, 4), st.integers(0, 1))
    found = draw(st.lists(one, min_size=1, max_size=3))
    return [(Example(f"{n}?", own), by, part) for n, (own, by, part) in enumerate(found)]


@st.composite
def sayings(draw):
    """Tokens that a model might have said: answers, parts of them, other words, other cuts."""
    _, _, cut = tiny_tools()
    said = []
    for _ in range(draw(st.integers(0, 3))):
        text = draw(st.sampled_from([*WORDS, "Well, bats see", "I say ", "\n", "So: ", " "]))
        text = draw(st.sampled_from(["", " "])) + draw(
            st.sampled_from([text, text[:1].lower() + text[1:], text.upper()])
        )
        whole = text.isascii() and draw(st.booleans())
        tokens = cut_letters(text) if whole else cut(text)
        said += tokens[: draw(st.integers(0, len(tokens)) | st.just(len(tokens)))]
    return said


@given(scopes(), sayings(), st.sampled_from(WISHES))
@example([(Example("q?", ["Да, 😀 это так."]), 0.0, 0)], [145], FormRequest())
def test_votes_are_those_of_the_oracle(scope, said, wish):
    _, oracle, _ = tiny_tools()
    wanted = oracle.votes(scope, said, form_of(wish))
    votes = real_plan(scope, wish).votes(said)
    found = {} if votes is None else votes.tokens
    assert {THE_END if x == END else x: v for x, v in found.items()} == pytest.approx(wanted)


@given(scopes(), sayings(), st.sampled_from(WISHES))
def test_votes_sum_to_one_or_there_are_none(scope, said, wish):
    votes = real_plan(scope, wish).votes(said)
    if votes is not None:
        assert sum(votes.tokens.values()) == pytest.approx(1)
        assert min(votes.tokens.values()) > 0
        for token, own in votes.shares.items():
            assert sum(own.values()) == pytest.approx(votes.tokens[token])


def tell(plan, said=(), *, prefer=min, most=200):
    """The text that comes of always picking a candidate."""
    lm, _, _ = tiny_tools()
    tokens = list(said)
    for _ in range(most):
        votes = plan.votes(tokens)
        if votes is None:
            return lm.decode(tokens), "off track"
        picked = prefer(votes.candidates)
        if picked == END:
            return lm.decode(tokens), "end"
        tokens.append(picked)
    raise AssertionError(f"no end in sight: {lm.decode(tokens)[:300]}")


@given(scopes(), st.sampled_from([min, max]))
def test_following_the_candidates_tells_verified_answers_once_and_ends(scope, prefer):
    text, how = tell(real_plan(scope), prefer=prefer)
    assert how == "end"
    text = text.lower()  # inside a sentence an answer may begin with a small letter
    told = [(a.lower(), part) for one, _, part in scope for a in one.answers]
    told = [(answer, part) for answer, part in told if answer in text]
    assert {part for _, part in told} == {part for _, _, part in scope}
    longest = max((answer for answer, _ in told), key=len)
    assert text.count(longest) == 1


# Every fast path against the oracle.


@pytest.mark.parametrize("architecture", tiny.mostly_slow(tiny.ARCHITECTURES))
@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_generate_and_stream_pick_the_tokens_of_the_oracle(
    architecture, chat, space, chosen_scope
):
    lm = tiny.language_model(architecture, chat=chat)
    wanted = expected(architecture, chat)
    plain = [
        answer.token_ids
        for answer in tl.generate(lm, tl.Greedy(), tiny.QUESTIONS, max_new_tokens=LENGTH)
    ]
    assert [ours == own for ours, own in zip(wanted, plain)] == [
        False, False, True, False, False,
    ]  # fmt: skip
    for batch_size in (1, 16):
        answers = tl.generate(
            lm, method(space), tiny.QUESTIONS, max_new_tokens=LENGTH, batch_size=batch_size
        )
        assert [answer.token_ids for answer in answers] == wanted
        assert [answer.is_covered for answer in answers] == [True, True, False, True, True]
    for question, tokens, answer in zip(tiny.QUESTIONS, wanted, answers):
        pieces = list(tl.stream(lm, method(space), question, max_new_tokens=LENGTH))
        assert tuple(token for piece in pieces for token in piece.token_ids) == tokens
        assert "".join(map(str, pieces)) == answer.text


@pytest.mark.parametrize("architecture", tiny.mostly_slow(tiny.ARCHITECTURES))
@pytest.mark.parametrize(
    ("strength", "margin"),
    [
        (0.5, 2.0),
        pytest.param(0.8, -1.0, marks=pytest.mark.slow),
        pytest.param(0.0, 5.0, marks=pytest.mark.slow),
    ],
)
def test_every_strength_and_margin_pick_the_tokens_of_the_oracle(
    architecture, strength, margin, space, chosen_scope
):
    lm = tiny.language_model(architecture)
    settings = {"strength": strength, "margin": margin}
    answers = tl.generate(lm, method(space, **settings), tiny.QUESTIONS, max_new_tokens=LENGTH)
    for question, answer in zip(tiny.QUESTIONS, answers):
        picked = slow(lm).picks(
            prompt_of(lm, question), answer.token_ids, slow_scope(question), **settings
        )
        assert picked == answer.token_ids


@pytest.mark.parametrize("architecture", tiny.mostly_slow(tiny.ARCHITECTURES))
def test_score_gives_the_log_probabilities_of_the_oracle(architecture, space, chosen_scope):
    lm = tiny.language_model(architecture)
    candidates = ["Bats are not blind.", "Bats are blind.", "Fish rest, bats see well 😀."]
    for question in tiny.QUESTIONS[1:4]:
        found = tl.score(lm, method(space), question, candidates)
        wanted = [
            slow(lm).log_probability(
                prompt_of(lm, question),
                Prompt().encode_answer(question, text, lm.tokenizer),
                slow_scope(question),
            )
            for text in candidates
        ]
        assert found == pytest.approx(wanted, abs=2e-3)
    bare = tl.score(lm, tl.Greedy(), question, candidates)
    assert found[0] - bare[0] > 5


@pytest.mark.parametrize("architecture", tiny.mostly_slow(tiny.ARCHITECTURES))
@pytest.mark.parametrize(
    ("chat", "is_length_given"),
    [
        (False, False),
        (True, True),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_the_processor_picks_the_tokens_of_the_oracle_in_a_padded_batch(
    architecture, chat, is_length_given, space, chosen_scope
):
    lm = tiny.language_model(architecture, chat=chat)
    prompts = [prompt_of(lm, question) for question in tiny.QUESTIONS]
    batch = lm.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    width = batch["input_ids"].shape[1]
    processor = method(space).processor(
        lm.model, lm.tokenizer, prompt_length=width if is_length_given else None
    )
    for _ in range(1 + is_length_given):  # one instance, several calls
        out = lm.model.generate(
            **batch, max_new_tokens=LENGTH, do_sample=False, logits_processor=[processor]
        )
        for row, answer in zip(out[:, width:].tolist(), expected(architecture, chat)):
            assert tuple(row[: len(answer)]) == answer
            assert set(row[len(answer) :]) <= {lm.tokenizer.pad_token_id, *lm.stop_ids}


@pytest.mark.parametrize("is_length_given", [False, True])
def test_the_processor_takes_a_question_of_its_own(is_length_given, space, chosen_scope):
    lm = tiny.language_model("llama")
    asked, said = tiny.QUESTIONS[1], tiny.QUESTIONS[2]
    ids = [lm.tokenizer.pad_token_id] * 7 + prompt_of(lm, said)  # another question is read
    batch = {
        "input_ids": torch.tensor([ids]),
        "attention_mask": torch.tensor([[0] * 7 + [1] * (len(ids) - 7)]),
    }
    processor = method(space).processor(
        lm.model,
        lm.tokenizer,
        question=asked,
        prompt_length=len(ids) if is_length_given else None,
    )
    out = lm.model.generate(
        **batch, max_new_tokens=LENGTH, do_sample=False, logits_processor=[processor]
    )
    wanted = slow(lm).decode(prompt_of(lm, said), slow_scope(asked), length=LENGTH)
    assert tuple(out[0, len(ids) :].tolist()) == wanted


def test_the_processor_says_where_an_answer_begins_or_asks(space, chosen_scope):
    lm = tiny.language_model("llama")
    ids = torch.tensor([lm.encode("Bats, they say, are", special=True)])
    scores = torch.randn(1, lm.vocabulary)
    quiet = method(space).processor(lm.model, lm.tokenizer)
    assert quiet(ids, scores) is scores  # no question: the plain model
    lost = method(space).processor(lm.model, lm.tokenizer, question=tiny.QUESTIONS[1])
    with pytest.raises(SettingError, match="prompt_length"):
        lost(ids, scores)
    told = method(space).processor(
        lm.model, lm.tokenizer, question=tiny.QUESTIONS[1], prompt_length=ids.shape[1]
    )
    assert not torch.equal(told(ids, scores), scores)


def test_a_question_in_the_answer_is_not_the_question(space, chosen_scope):
    """With its length known, the prompt alone is looked at."""
    lm = tiny.language_model("llama")
    prompt = prompt_of(lm, tiny.QUESTIONS[1])
    other = Prompt().render(tiny.QUESTIONS[2], lm.tokenizer)
    ids = torch.tensor([[*prompt, *lm.encode("It is the air. " + other)]])
    scores = torch.randn(1, lm.vocabulary)
    known = method(space).processor(lm.model, lm.tokenizer, prompt_length=len(prompt))
    asked = method(space).processor(
        lm.model, lm.tokenizer, question=tiny.QUESTIONS[1], prompt_length=len(prompt)
    )
    start = torch.cat([ids, torch.tensor([lm.encode(" Bats are not")])], 1)
    assert torch.equal(known(start, scores), asked(start, scores))
    begun = torch.tensor([[*prompt, *lm.encode(" Bats are not")]])
    assert not torch.equal(known(begun, scores), scores)


def test_beams_tell_a_verified_answer(space, chosen_scope):
    lm = tiny.language_model("llama")
    prompts = [prompt_of(lm, question) for question in tiny.QUESTIONS]
    batch = lm.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    options = {"max_new_tokens": 40, "num_beams": 2, "do_sample": False}
    processor = method(space, margin=12.0).processor(lm.model, lm.tokenizer)
    found = lm.model.generate(**batch, **options, logits_processor=[processor])
    plain = lm.model.generate(**batch, **options)
    width = batch["input_ids"].shape[1]
    texts = [lm.decode(row) for row in found[:, width:].tolist()]
    assert texts[0].strip() in SKY.answers
    assert texts[1].strip() in BATS.answers
    assert texts[4].strip() in FAR.answers
    for example_told in (BATS, FISH):
        assert any(answer in texts[3] for answer in example_told.answers)
    assert texts[2] == lm.decode(plain[2, width:].tolist())  # nothing in scope


def test_a_draw_is_the_same_in_a_batch_and_alone(space, chosen_scope):
    lm = tiny.language_model("llama")
    drawn = {"max_new_tokens": 16, "temperature": 1.0, "top_p": 0.95}
    mild = method(space, margin=1.0)
    for batch_size in (1, 16):
        together = tl.generate(lm, mild, tiny.QUESTIONS, seed=5, batch_size=batch_size, **drawn)
        alone = [
            tl.generate(lm, mild, question, seed=5 + index, **drawn)
            for index, question in enumerate(tiny.QUESTIONS)
        ]
        assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    greedy = tl.generate(lm, mild, tiny.QUESTIONS, max_new_tokens=16)
    assert [one.token_ids for one in together] != [one.token_ids for one in greedy]
    plain = tl.generate(lm, tl.Greedy(), tiny.QUESTIONS, seed=5, **drawn)
    same = [ours.token_ids == own.token_ids for ours, own in zip(together, plain)]
    assert same[2]  # nothing is in scope
    assert not all(same)


def test_a_form_that_is_asked_for_is_that_of_the_oracle(space, monkeypatch):
    lm = tiny.language_model("llama")
    forms = {
        'Are bats blind? Begin with "Well,".': Form(opening="Well,"),
        "Are bats blind? Write in capital letters.": Form(is_upper=True),
        "Are bats blind? Use two sentences.": Form(sentences=2, is_counted=True),
        "Write two sentences about blind bats.": Form(2, is_text=True, is_counted=True),
        "Write about bats and whether they are blind.": Form(sentences=2, is_text=True),
        "Are bats blind? Finish with 'So long!'": Form(closing="So long!"),
        "Are bats blind? In at most 4 words.": Form(words=4),
        "Are bats blind? And who says so?": Form(is_open=True),
    }
    found = [ScopedExample(BATS, 0.9, 0, 0.9, "Are bats blind?")]
    monkeypatch.setattr("trueline.corrective.method.find_scope", lambda *_: found)
    ours = method(space, answer_rest=True)
    answers = tl.generate(lm, ours, list(forms), max_new_tokens=40)
    scope = [(BATS, odds(0.9), 0)]
    for (question, wish), answer in zip(forms.items(), answers):
        prompt = prompt_of(lm, question)
        assert slow(lm).picks(prompt, answer.token_ids, scope, wish=wish) == answer.token_ids
    said = [answer.text.strip() for answer in answers]
    well, upper, two, both, text, closing, short, goes_on = said
    inside = [one[:1].lower() + one[1:] for one in BATS.answers]
    assert well in [f"Well, {one}" for one in [*BATS.answers, *inside]]
    assert upper in [one.upper() for one in BATS.answers]
    assert {two, both} <= {" ".join(BATS.answers), " ".join(BATS.answers[::-1])}
    assert text.startswith((" ".join(BATS.answers), " ".join(BATS.answers[::-1])))
    assert closing in [f"{one} So long!" for one in BATS.answers]
    assert short == "Bats are not blind."
    assert goes_on.startswith(tuple(BATS.answers))
    assert goes_on not in BATS.answers
    asked = "Are bats blind? And who says so?"
    for settings in ({}, {"answer_rest": True, "only_covered": True}):
        alone = tl.generate(lm, method(space, **settings), asked, max_new_tokens=40)
        assert alone.text.strip() in BATS.answers


# In scope and out of it.


def test_nothing_in_scope_is_the_very_same_tensor_and_asks_nobody(space, monkeypatch):
    lm = tiny.language_model("llama")
    monkeypatch.setattr("trueline.corrective.method.find_scope", lambda *_: [])
    monkeypatch.setattr(Correction, "votes", lambda *_: pytest.fail("somebody was asked"))
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


def test_a_row_out_of_scope_stays_beside_one_in_scope():
    lm, _, _ = tiny_tools()
    plan = plan_of(lm, (BATS, 0.0, 0))
    base = torch.randn(3, lm.vocabulary)
    final = lift_rows([None, plan, plan], [[], [], [7, 7]], base).logits
    assert torch.equal(final[0], base[0])  # no plan
    assert torch.equal(final[2], base[2])  # off track
    assert not torch.equal(final[1], base[1])


def plan_of(lm, *scope, ends=(), **settings):
    cut = partial(encode_onward, tokenizer=lm.tokenizer)
    return Correction(scoped(*scope), cut, lm.decode, ends=lm.stop_ids.union(ends), **settings)


def test_strength_zero_gives_the_logits_of_the_model_to_the_bit():
    lm, _, _ = tiny_tools()
    base = torch.randn(lm.vocabulary)
    off, weak = (plan_of(lm, (BATS, 0.0, 0), strength=strength) for strength in (0.0, 0.1))
    assert torch.equal(off.lift([], base), base)
    assert not torch.equal(weak.lift([], base), base)


def test_a_banned_token_stays_banned_and_is_no_candidate():
    lm, _, cut = tiny_tools()
    plan = plan_of(lm, (Example("?", ["Bats are", "Fish rest"]), 0.0, 0), margin=3.0)
    base = torch.zeros(lm.vocabulary)
    bats = {cut("Bats")[0], cut(" Bats")[0]}
    fish = {cut("Fish")[0], cut(" Fish")[0]}
    base[list(bats)] = -math.inf
    final = plan.lift([], base)
    assert bool((final[list(bats)] == -math.inf).all())
    share = float(final.softmax(-1)[list(fish)].sum())
    assert share == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-4)
    base[list(fish)] = -math.inf  # all candidates are banned: the row stays as it is
    assert torch.equal(plan.lift([], base), base)


def test_the_end_stands_for_every_token_that_ends_an_answer():
    lm, _, cut = tiny_tools()
    plan = plan_of(lm, (BATS, 0.0, 0), ends=(9, 11))
    base = torch.randn(lm.vocabulary)
    final = plan.lift(cut("Bats are not blind."), base)
    raised = (final != base).nonzero()[:, 0].tolist()
    assert raised == sorted({9, 11, *lm.stop_ids})


def test_what_is_not_covered_is_refused_where_only_covered_is_asked_for(space, chosen_scope):
    lm = tiny.language_model("llama")
    strict = method(space, only_covered=True)
    answers = tl.generate(lm, strict, tiny.QUESTIONS, max_new_tokens=64)
    assert answers[2].text.strip() == UNKNOWN
    assert (answers[2].is_covered, answers[2].finish) == (False, "stop")
    free = tl.generate(lm, method(space), tiny.QUESTIONS, max_new_tokens=64)
    for index in (0, 1, 3, 4):
        assert answers[index].token_ids == free[index].token_ids
        assert answers[index].is_covered


def test_lookup_prints_the_first_answer_of_the_best_example(space, chosen_scope):
    lm = tiny.language_model("llama")
    lookup = Lookup(space, threshold=0.0)
    answers = tl.generate(lm, lookup, tiny.QUESTIONS, max_new_tokens=64)
    firsts = [SKY, BATS, None, FISH, FAR]  # FISH is more probable than BATS
    for answer, best in zip(answers, firsts):
        if best is not None:
            assert answer.text.strip() == best.answers[0]
            assert (answer.finish, answer.is_covered) == ("stop", True)
            assert [source.example for source in answer.sources] == [best.id]
    plain = tl.generate(lm, tl.Greedy(), tiny.QUESTIONS[2], max_new_tokens=64)
    assert answers[2].token_ids == plain.token_ids
    assert answers[2].is_covered is False


def test_a_source_has_the_share_of_the_tokens_it_voted_for(space, chosen_scope):
    lm = tiny.language_model("llama")
    answer = tl.generate(lm, method(space), tiny.QUESTIONS[0], max_new_tokens=64)
    assert answer.finish == "stop"
    assert [(one.example, one.share) for one in answer.sources] == [
        ("fact-1", pytest.approx(1.0))
    ]
    both = tl.generate(lm, method(space), tiny.QUESTIONS[3], max_new_tokens=64).sources
    assert {one.example for one in both} == {"fact-2", "fact-4"}
    assert sum(one.share for one in both) == pytest.approx(1.0)


def test_a_stop_token_of_the_request_counts_as_the_answers_end(space, chosen_scope):
    """A source's share is 1 also where the request's own token ended the answer."""
    lm = tiny.language_model("llama")
    whole = tl.generate(lm, method(space), tiny.QUESTIONS[0], max_new_tokens=64)
    others = [token for token in range(5, lm.vocabulary) if token not in whole.token_ids]
    for stop_ids in (others, whole.token_ids[-2:-1]):  # what nobody voted for, and the period
        answer = tl.generate(
            lm, method(space), tiny.QUESTIONS[0], max_new_tokens=64, stop_ids=stop_ids
        )
        assert answer.text.startswith(whole.text)
        assert answer.token_ids[-1] in stop_ids
        assert [one.share for one in answer.sources] == [pytest.approx(1.0)]


# Edge cases of the alignment.


def one_answer(*answers, form=FormRequest()):  # noqa: B008
    return real_plan([(Example("?", list(answers)), 0.0, 0)], form)


def next_texts(plan, said):
    """The candidates behind a text, as text."""
    lm, _, cut = tiny_tools()
    votes = plan.votes(cut(said) if isinstance(said, str) else said)
    if votes is None:
        return None
    return {"END" if x == END else lm.decode([x]) for x in votes.candidates}


@pytest.mark.parametrize(
    "answer",
    [
        "😀 ok.",
        "Да, это так.",
        "Это 👩‍👩‍👧 семья, да.",
        "水在低溫沸騰。",
        "naïve café — 北京 🙂",
        "İstanbul ßchön",
    ],
)
@pytest.mark.parametrize("prefer", [min, max])
def test_characters_that_are_cut_into_tokens_come_out_whole(answer, prefer):
    text, how = tell(one_answer(answer), prefer=prefer)
    assert (text.strip(" "), how) == (answer, "end")


def test_an_answer_is_joined_again_at_a_whole_character():
    plan = one_answer("the gold is blue 😀 and more")
    _, _, cut = tiny_tools()
    text, how = tell(plan, cut("Hm, gold is blue "))
    assert (text, how) == ("Hm, gold is blue 😀 and more", "off track")


def test_another_cut_of_the_same_words_still_aligns():
    plan = one_answer("Bats are not blind.")
    said = cut_letters("Bats are n")
    assert said != tiny_tools()[2]("Bats are n")
    assert next_texts(plan, said) == next_texts(plan, "Bats are n") == {"o"}
    text, how = tell(plan, said)
    assert (text, how) == ("Bats are not blind.", "end")


@pytest.mark.parametrize("said", ["", " ", "  "])
def test_blanks_before_an_answer_do_not_count(said):
    _, _, cut = tiny_tools()
    text, how = tell(one_answer("Bats are not blind."), cut(said))
    assert (text.strip(" "), how) == ("Bats are not blind.", "end")
    assert len(text) <= len("Bats are not blind.") + 2


def letters_behind(before, answer):
    """The letters an answer may go on with behind a text, where every letter is a token."""
    scope = [(Example("1?", [before.rstrip(" ")]), 0.0, 0), (Example("2?", [answer]), 0.0, 1)]
    plan = Correction(
        scoped(*scope),
        lambda text: [ord(letter) for letter in text],
        lambda tokens: "".join(map(chr, tokens)),
    )
    found = plan.votes([ord(letter) for letter in before])
    return {"END" if x == END else chr(x) for x in found.candidates}


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ("He said.", {" "}),
        ("He said. ", {"G"}),  # the blank is there already
        ("He said (", {"G", "g"}),
        ("He said ", {"G", "g"}),  # a sentence goes on
    ],
)
def test_what_stands_before_an_answer_decides_on_blank_and_capital(before, wanted):
    assert letters_behind(before, "Gold rusts.") == wanted


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("Bats see.", {"B", "b"}), ("NASA says.", {"N"}), ("it is.", {"i"}), ("A bat.", {"A"})],
)
def test_inside_a_sentence_a_word_may_begin_small_and_an_abbreviation_may_not(answer, wanted):
    assert letters_behind("He said ", answer) == wanted


def test_an_answer_that_begins_a_sentence_keeps_its_capital():
    assert letters_behind("He said. ", "Bats see.") == {"B"}
    # Also where its first letter takes two tokens, of which the first is that of "д" too.
    for prefer in (min, max):
        text, how = tell(one_answer("Да, так."), prefer=prefer)
        assert (text.strip(), how) == ("Да, так.", "end")


def test_an_answer_begun_with_a_small_letter_goes_on():
    assert next_texts(one_answer("Gold does not rust."), "gold does") == {" not"}


def test_one_answer_may_be_the_beginning_of_another():
    plan = one_answer("Bats are not", "Bats are not blind.")
    assert next_texts(plan, "Bats are not") == {"END", " blind"}
    assert next_texts(plan, "Bats are not blind.") == {"END"}


def test_two_parts_are_told_one_behind_the_other():
    scope = [(Example("1?", ["Bats are not blind."]), 2.0, 0), (GOLD, 1.0, 1)]
    plan = real_plan(scope)
    for prefer in (min, max):
        text, how = tell(plan, prefer=prefer)
        assert how == "end"
        assert "Bats are not blind." in text
        assert sum(answer in text for answer in GOLD.answers) == 1
    assert "END" not in next_texts(plan, "Bats are not blind.")
    assert "END" not in next_texts(plan, "Gold does not rust.")
    assert next_texts(plan, "Gold does not rust. Bats are not blind.") == {"END"}


@pytest.mark.parametrize("prefer", [min, max])
def test_answers_that_begin_alike_do_not_loop(prefer):
    one = "No reliable evidence shows that gold rusts."
    two = "No reliable evidence shows that bats are blind."
    scope = [(Example("1?", [one]), 1.0, 0), (Example("2?", [two]), 1.0, 1)]
    text, how = tell(real_plan(scope), prefer=prefer)
    assert how == "end"
    assert text.strip() in (f"{one} {two}", f"{two} {one}")


def test_an_answer_is_joined_again_by_four_tokens_in_a_row():
    _, _, cut = tiny_tools()
    plan = one_answer("No, bats see well in the dark.")
    tokens = cut(" " + "No, bats see well in the dark.")
    lm, _, _ = tiny_tools()
    for count in (3, 4):  # of its own tokens, behind words of the model's
        run = tokens[3 : 3 + count]
        found = plan.votes([*cut("Hmm"), *run])
        if count < 4:
            assert found is None
        else:
            assert found.tokens == {tokens[7]: 1.0}
    shout = [*cut("Hmm"), *cut(lm.decode(tokens[3:9]).upper())]
    assert plan.votes(shout).tokens == {tokens[9]: 1.0}  # in capitals too


def test_behind_a_told_answer_nothing_is_joined_but_what_is_left():
    plan = one_answer("Bats are not blind.", "No, bats see well in the dark.")
    assert next_texts(plan, "Bats are not blind.") == {"END"}
    assert next_texts(plan, "Bats are not blind. Hm, bats see well in the") == {" dark"}


def test_an_opening_stands_before_the_answer():
    opened = one_answer("Bats are not blind.", form=FormRequest(opening="Well,"))
    assert tell(opened)[0].strip().lower() == "well, bats are not blind."
    new = one_answer("Bats are not blind.", form=FormRequest(opening="My answer:"))
    assert tell(new)[0].strip() == "My answer: Bats are not blind."


def test_a_closing_stands_behind_the_answer():
    plan = one_answer("Bats are not blind.", form=FormRequest(closing="Ask again!"))
    assert tell(plan)[0].strip() == "Bats are not blind. Ask again!"
    assert "END" not in next_texts(plan, "Bats are not blind.")


def test_capitals_are_told_in_capitals():
    plan = one_answer("Bats are not blind.", form=FormRequest(is_upper=True))
    text, how = tell(plan)
    assert (text.strip(), how) == ("BATS ARE NOT BLIND.", "end")


def test_two_sentences_tell_two_answers_and_no_third():
    answers = ["Bats see.", "Gold rusts.", "Fish rest."]
    plan = one_answer(*answers, form=FormRequest(sentences=2))
    text, how = tell(plan)
    assert how == "end"
    assert sum(answer in text for answer in answers) == 2


def test_a_text_goes_on_where_the_facts_are_told():
    plan = one_answer("Bats are not blind.", form=FormRequest(is_text=True))
    text, how = tell(plan)
    assert (text.strip(), how) == ("Bats are not blind.", "off track")


def test_what_is_asked_beside_the_told_is_left_to_the_model():
    text, how = tell(one_answer("Bats are not blind.", form=FormRequest(is_open=True)))
    assert (text.strip(), how) == ("Bats are not blind.", "off track")


def test_few_words_choose_the_short_answers():
    plan = one_answer("Bats see.", "No, bats see well in the dark.", form=FormRequest(words=4))
    assert [answer.text for answer in plan.answers] == ["Bats see."]
    none = one_answer("No, bats see well in the dark.", form=FormRequest(words=2))
    assert len(none.answers) == 1  # none is short enough: what there is is told


def test_a_plan_keeps_the_cuts_it_made():
    lm, _, cut = tiny_tools()
    seen = Counter()

    def counted(text):
        seen[text] += 1
        return cut(text)

    plan = Correction(scoped((BATS, 0.0, 0)), counted, lm.decode)
    first = tell(plan)
    assert max(seen.values()) == 1
    seen.clear()
    assert tell(plan) == first
    assert not seen


def test_voices_name_their_speaker_and_their_text():
    plan = one_answer("  Bats see.  ")
    (answer,) = plan.answers
    assert isinstance(answer, VerifiedAnswer)
    assert (answer.text, answer.variants) == ("Bats see.", ("Bats see.", "bats see."))


def test_prepare_reads_the_last_user_turn(space, chosen_scope):
    lm = tiny.language_model("llama", chat=True)
    asked = tiny.QUESTIONS[0]
    history = [
        {"role": "user", "content": tiny.QUESTIONS[1]},
        {"role": "assistant", "content": "Bats are not blind."},
        {"role": "user", "content": asked},
    ]
    answer = tl.generate(lm, method(space), messages=history, max_new_tokens=64)
    assert answer.text.strip() in SKY.answers
    text = lm.tokenizer.apply_chat_template(history, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([lm.tokenizer.encode(text, add_special_tokens=False)])
    processor = method(space).processor(lm.model, lm.tokenizer)
    out = lm.model.generate(
        ids, max_new_tokens=64, do_sample=False, logits_processor=[processor]
    )
    assert tuple(out[0, ids.shape[1] :].tolist()) == answer.token_ids


def test_options_of_a_request_reach_its_plan(space, chosen_scope):
    from trueline.prompts import FilledPrompt

    lm = tiny.language_model("llama")
    asked = FilledPrompt(Prompt(), tiny.QUESTIONS[0])
    prepared = method(space).prepare(lm, asked, Sampling(stop_ids=(8,)))
    assert prepared.state.ends == {8, *lm.stop_ids}
    assert prepared.coverage is True
