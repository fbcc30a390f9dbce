"""The parts and the form of a turn, the examples that answer it, its question in tokens."""

import copy
import math
import time

import pytest
import tiny
import torch

import trueline as tl
from trueline.corrective.scope import (
    SIGNALS,
    example_signals,
    find_scope,
    in_scope,
    model_for,
    threshold_for,
)
from trueline.corrective.turns import (
    FormRequest,
    leaves_open,
    question_kind,
    read_form,
    read_turn,
    wants_yes_or_no,
)
from trueline.prompts import Prompt, find_question
from trueline.types import Example, ScopedExample

# Turns.


@pytest.mark.parametrize(
    ("turn", "parts"),
    [
        ("Are bats blind?", ["Are bats blind?"]),
        ("Are bats blind and does gold rust?", ["Are bats blind", "does gold rust?"]),
        ("Does gold rust? Do fish sleep?", ["Does gold rust?", "Do fish sleep?"]),
        ("I read a lot. Is the sky blue?", ["I read a lot.", "Is the sky blue?"]),
        ("Salt and pepper?", ["Salt and pepper?"]),  # neither could stand alone
        ("Est-ce que l'or rouille ? Oui.", ["Est-ce que l'or rouille ?", "Oui."]),
        ("", [""]),
    ],
)
def test_a_turn_is_split_into_parts_that_could_stand_alone(turn, parts):
    assert list(read_turn(turn).parts) == parts


def test_the_texts_of_a_turn_are_its_whole_sentences_parts_and_topic():
    assert read_turn("Are bats blind?").texts == ("Are bats blind?",)
    assert read_turn("Are bats blind and does gold rust? Thanks.").texts == (
        "Are bats blind and does gold rust? Thanks.",
        "Are bats blind and does gold rust?",
        "Thanks.",
        "Are bats blind",
        "does gold rust?",
    )
    turn = read_turn("Write a short text about why the sky is blue.")
    assert turn.topic == turn.texts[-1] == "why the sky is blue."
    assert read_turn("Are there books about the blue sky?").topic == ""
    turn = read_turn(" ".join(f"This is number {n}." for n in range(20)))
    assert len(turn.sentences) == len(turn.parts) == 8


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Are bats blind?", "yes or no"),
        ("Isn't gold a metal?", "yes or no"),
        ("In Australia, do fish sleep?", "yes or no"),
        ("Gold rusts, is that true", "yes or no"),
        ("How many legs has a bat?", "quantity"),
        ("What year was it?", "time"),
        ("Whose gold is it?", "person"),
        ("Where do bats live?", "place"),
        ("How come fish sleep?", "reason"),
        ("How do bats see?", "manner"),
        ("What should I do when it rains?", "thing"),  # the first word counts
        ("Does gold rust? Who says so?", "person"),  # the last question counts
        ("", "unknown"),
        ("Könnte das sein?", "unknown"),
    ],
)
def test_a_text_asks_for_one_kind_of_thing(text, wanted):
    assert question_kind(text) == wanted


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Are bats blind?", FormRequest()),
        ("What are the capitals of Europe?", FormRequest()),
        ("Write about bats.", FormRequest(sentences=2, is_text=True)),
        ("Please describe bats in three sentences.", FormRequest(3, True, is_text=True)),
        ("Are bats blind? Use 2 sentences.", FormRequest(sentences=2, is_counted=True)),
        ("In a few sentences, are bats blind?", FormRequest(sentences=3)),
        ("Are bats blind? Answer in at most 12 words.", FormRequest(words=12)),
        ("Begin with 'Well,'. Are bats blind?", FormRequest(opening="Well,")),
        ('Start your answer with the words "My answer:".', FormRequest(opening="My answer:")),
        ("Are bats blind? End with 'So long!'", FormRequest(closing="So long!")),
        ('Finish with "Ask again."', FormRequest(closing="Ask again.")),
        ("Address me as Priya. Are bats blind?", FormRequest(opening="Priya,")),
        ("Are bats blind? CAPITAL LETTERS ONLY.", FormRequest(is_upper=True)),
        ("Write it in capitals.", FormRequest(sentences=2, is_text=True, is_upper=True)),
        (
            "Repeat my question, then answer: Are bats blind?",
            FormRequest(opening="Are bats blind?"),
        ),
        ("Yes or no: are bats blind?", FormRequest()),  # about a word, not the form
        ("Don't start with 'Sure', start with 'Well,'", FormRequest(opening="Well,")),
        ("Don't begin with anything but 'Well,'", FormRequest(opening="Well,")),
        (
            "Could you start with 'Well,' and say if bats are blind?",
            FormRequest(opening="Well,"),
        ),
        ("The first words should be 'Well now'.", FormRequest(opening="Well now")),
        (
            "Repeat the question before you answer. I am a nurse. Are bats blind?",
            FormRequest(opening="Are bats blind?"),
        ),
        (
            "Repeat my question first: did Mr. Fox meet J. K. Rowling?",
            FormRequest(opening="did Mr. Fox meet J. K. Rowling?"),
        ),
        # Negated, or quoted: not requested.
        ("Do not repeat the question. Are bats blind?", FormRequest()),
        ("Don't begin with 'Well,'. Are bats blind?", FormRequest()),
        ("I don\u2019t want your answer to start with 'Well,'. Are bats blind?", FormRequest()),
        ("Don't begin with 'Well,' or end with 'So long!' Are bats blind?", FormRequest()),
        ("Do not use capital letters. Are bats blind?", FormRequest()),
        (
            "What did Neil Armstrong mean by his first words 'one small step for man'?",
            FormRequest(),
        ),
        ("Which leader said 'Ich bin ein Berliner'?", FormRequest()),
        ("Why do fairy tales start with 'Once upon a time'?", FormRequest()),
        ("I watched the end of 'Jaws'. Are sharks real?", FormRequest()),
    ],
)
def test_a_form_is_read_from_known_words(text, form):
    assert read_form(text) == form


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Are bats blind? Yes or no first.", True),
        ("Give me a yes or a no: are bats blind?", True),
        ("Are bats blind?", False),
        ("Is there no yes in it?", False),
        ("Are bats blind, yes or no?", True),
        ("(yes or no) are bats blind?", True),
        ("Can you answer yes or no: are bats blind?", True),
        ("Don't say anything but yes or no. Are bats blind?", True),
        ("Don't just say yes or no: are bats blind?", False),
        ("I want more than a yes or no: are bats blind?", False),
        ("Do people vote yes or no in Swiss referendums?", False),
        ("Did Scotland say yes or no to independence?", False),
    ],
)
def test_a_yes_or_no_is_requested_in_known_words(text, wanted):
    assert wants_yes_or_no(text) is wanted


@pytest.mark.parametrize(
    "text",
    ["\n" * 50_000, "say" + " " * 50_000, "don't begin with 'a' " * 2_000],
    ids=lambda text: repr(text[:10]),
)
def test_a_long_turn_takes_a_time_that_grows_with_its_length(text):
    start = time.process_time()
    assert (read_form(text), wants_yes_or_no(text)) == (FormRequest(), False)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "answered", "is_open"),
    [
        ("Are bats blind?", "Are bats blind?", False),
        ("Are bats blind? Does gold rust?", "Are bats blind?", True),
        ("Are bats blind? Does gold rust?", "", False),  # nothing of it is answered
        ("Are bats blind? I always wondered.", "Are bats blind?", False),
        ("I saw one. Are bats blind?", "I saw one.", False),  # only one question
        ("Are bats really blind, and why does gold rust", "Are bats really blind", True),
        # Of a turn that asks twice, the sentence counts that is answered best: the first part.
        ("Are bats blind? Does gold rust?", "Are bats blind? Does gold rust?", True),
        # A sentence with two clauses is one question where it is answered as a whole.
        ("Are bats really blind and do they fly well?",) * 2 + (False,),
    ],
)
def test_a_turn_is_open_if_one_of_its_questions_is_not_answered(text, answered, is_open):
    assert leaves_open(read_turn(text), [(answered, 0)] if answered else []) is is_open


# Signals by hand: four words are all this embedder knows.

KNOWN = ("bats", "blind", "gold", "rusts")


class CountingEmbedder:
    id, hash, dimension = "counting", "counting-1", len(KNOWN)

    def embed(self, texts):
        rows = [[float(word in text.lower()) for word in KNOWN] for text in texts]
        return torch.nn.functional.normalize(torch.tensor(rows), dim=1)


@pytest.fixture
def one_hot(monkeypatch):
    """Equal words have a cosine of 1, all others one of 0."""
    seen = {}

    def vector(word):
        return torch.nn.functional.one_hot(
            torch.tensor(seen.setdefault(word, len(seen))), 64
        ).float()

    monkeypatch.setattr("trueline.corrective.scope._hashed", vector)


BATS = Example("Are bats blind?", ["Bats see."], ["Bats are blind."], id="bats")
GOLD = Example("What rusts?", ["Not gold."], id="gold")  # no wrong answers


def test_signals_are_cosines_shares_of_words_and_kinds(one_hot):
    space = tl.build(None, [BATS], embedder=CountingEmbedder())
    ((found, (signals,)),) = example_signals(space, "Are bats gold?")
    assert found == BATS
    assert list(signals) == list(SIGNALS)
    assert signals == pytest.approx(
        {
            "question": 1 / 2,  # (bats, gold) and (bats, blind)
            "answers": 1 / math.sqrt(2),  # (bats, gold) and (bats)
            "wrong": 1 / 2,
            "words": 2 / 3,  # of are, bats, gold
            "same_words": 2 / 3,
            "back": 2 / 3,  # of are, bats, blind
            "new_words": 1 / 2 * 1,  # gold, times the cosine
            "contains": math.exp(-1),  # gold is missing there, blind here
            "same": math.exp(-2 / 3),
            "same_kind": 1.0,
            "other_kind": 0.0,
            "yes_no": 1.0,
            "its_yes_no": 1.0,
            # Taken off: a quarter of the mean of (bats, blind) and (bats).
            "own_question": 0.2755,  # of (.494, -.088, .707) and (.494, .619, 0)
            "own_answers": 0.5773,  # of the same and (.787, -.088, 0)
        },
        abs=1e-3,
    )
    ((_, (own,)),) = example_signals(space, "are bats blind")
    assert (own["contains"], own["same"]) == pytest.approx((1, 1))
    ((_, (when,)),) = example_signals(space, "When do bats see?")
    kinds = [when[name] for name in ("same_kind", "other_kind", "yes_no", "its_yes_no")]
    assert kinds == [0.0, 1.0, 0.0, 1.0]
    assert (when["words"], when["same_words"]) == pytest.approx((2 / 4, 1 / 4))


@pytest.mark.parametrize("text", ["Why is it so?", "why is it so", "Hello. WHY is it so?!"])
def test_an_example_is_in_scope_of_its_own_words(embedder, text):
    """Also if its answers are far from its question, which counts against it."""
    own = Example("Why is it so?", ["Blue."], ["Red."], id="own")
    examples = [own, Example("???", ["Grey."], ["Green."])]
    for question, answer in zip(tiny.QUESTIONS, tiny.TEXTS):
        examples.append(Example(question, [answer], ["Nobody knows."]))
    space = tl.build(None, examples, embedder=embedder)
    first = find_scope(space, text)[0]
    assert (first.example.id, first.probability) == ("own", 1.0)
    for other in ("Why is it not so?", "!!!"):  # punctuation alone is no word
        assert all(one.probability < 1 for one in find_scope(space, other))


def test_each_example_is_given_the_part_it_answers_best(one_hot):
    gold = Example("Does gold rust?", ["Gold does not rust."], ["Gold rusts."], id="gold")
    space = tl.build(None, [BATS, gold], embedder=CountingEmbedder())
    turn = "Does gold rust and are bats blind?"
    found = {one.example.id: one for one in find_scope(space, turn)}
    assert (found["gold"].part, found["bats"].part) == (0, 1)
    assert found["gold"].text == "Does gold rust"
    assert found["bats"].text == "are bats blind?"
    assert found["bats"].probability == found["bats"].part_probability


def test_what_no_part_brings_in_answers_the_part_of_the_first():
    first = ScopedExample(BATS, 0.9, 1, 0.8, "", {})
    whole = ScopedExample(GOLD, 0.7, 0, 0.2, "", {})  # by the turn, by no part
    out = ScopedExample(GOLD, 0.4, 0, 0.4, "", {})
    found = in_scope([first, whole, out], [0.5, 0.5, 0.5])
    assert [(one.probability, one.part) for one in found] == [(0.9, 1), (0.7, 1)]
    assert in_scope([out], [0.5]) == []
    assert [one.part for one in in_scope([first, whole], [0.5, 0.1])] == [1, 0]


# The question among tokens.

LATER = [
    {"role": "user", "content": "Does gold rust?"},
    {"role": "assistant", "content": "No."},
    {"role": "user", "content": "Are bats blind?"},
]
TEMPLATES = {
    "tiny": tiny.CHAT,
    "with a system line and empty lines": (
        "{{ bos_token }}<|start|>system<|end|>\n\nToday is a day.\n\n<|end|>"
        "{% for m in messages %}<|start|>{{ m['role'] }}<|end|>\n\n{{ m['content'] }}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
    ),
    "on one line": (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
        "[INST] {{ m['content'] }}[/INST]{% else %} {{ m['content'] }}{{ eos_token }}"
        "{% endif %}{% endfor %}"
    ),
}


def chat_tokenizer(name):
    made = copy.deepcopy(tiny.tokenizer(True))
    made.chat_template = TEMPLATES[name]
    return made


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", [LATER[2:], LATER], ids=["alone", "with history"])
@pytest.mark.parametrize("answer", ["", "Bats are not", "Да 😀"])
def test_the_last_user_turn_is_the_question(name, messages, answer):
    tokenizer = chat_tokenizer(name)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    output = tokenizer.encode(answer, add_special_tokens=False)
    for pads in (0, 5):
        found = find_question(Prompt(), tokenizer, [0] * pads + prompt + output)
        assert found == ("Are bats blind?", pads + len(prompt))


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
@pytest.mark.parametrize(
    "prompt",
    [Prompt(), Prompt("{question}"), Prompt("Q: {question}\nA:", system="Be kind.")],
    ids=["default", "bare", "system"],
)
@pytest.mark.parametrize("question", ["Are bats blind?", "Да 😀?", "Is it true?\nQ: or not?"])
def test_what_the_template_leaves_of_a_prompt_is_the_question(chat, prompt, question):
    tokenizer = tiny.tokenizer(chat)
    ids = prompt.encode(question, tokenizer)
    if prompt.template == "{question}" and not chat:  # its end is unknown
        assert find_question(prompt, tokenizer, ids) is None
        return
    output = tokenizer.encode(" Bats are not blind.", add_special_tokens=False)
    for pads in (0, 3):
        found = find_question(prompt, tokenizer, [0] * pads + ids + output)
        assert found == (question, pads + len(ids))


@pytest.mark.parametrize("text", ["", "Bats, they say", "Q: Are bats blind?", "A:"])
@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_without_a_question_none_is_found(text, chat):
    tokenizer = tiny.tokenizer(chat)
    assert find_question(Prompt(), tokenizer, tokenizer.encode(text)) is None
    assert find_question(Prompt(), tokenizer, Prompt().encode("  ", tokenizer)) is None


def test_the_threshold_is_lower_for_a_longer_text():
    space = tl.build(None, [BATS], embedder=CountingEmbedder())
    model = model_for(space, BATS)
    assert threshold_for(space, BATS, "Are bats blind?") == model.threshold
    text = threshold_for(space, BATS, "Please write a note on blind bats.")
    assert text == model.text_threshold < model.threshold
    tuned = space.tune({"threshold": 0.05})
    assert threshold_for(tuned, BATS, "Please write a note on blind bats.") == 0.05
    method = tl.Corrective(space, threshold=0.9)
    (found,) = find_scope(space, "Please write a note on blind bats.")
    assert method.threshold_of(found, "Please write a note on blind bats.") == 0.9
