"""Yes or no before an answer: where the verified fact decides on it, and only there."""

from threading import current_thread
from types import SimpleNamespace

import pytest
import tiny
import torch
from server import in_thread

import trueline as tl
from trueline.corrective import method as polarity
from trueline.corrective.method import LEAST_EFFECT, Correction, effect_of_truth, with_true_word
from trueline.prompts import Prompt
from trueline.serve.app import create_app
from trueline.types import Example, ScopedExample

BATS = Example("Are bats blind?", ["Bats see well."], ["Bats see nothing."], id="bats")
OTHER = Example("Do bats see?", ["No, bats are not blind."], ["Bats are blind."], id="other")
ASKED = "are bats blind? yes or no first"


@pytest.fixture
def scope(monkeypatch):
    """What is in scope of every question: a random embedder knows nothing of meaning."""
    found = [ScopedExample(BATS, 0.9, 0, 0.9, "are bats blind?")]
    monkeypatch.setattr("trueline.corrective.method.find_scope", lambda *_: found)
    return found


@pytest.fixture
def effect(monkeypatch):
    """Sets the effect of the truth; lists the threads that compute it."""
    threads = []

    def choose(value):
        def found(*_):
            threads.append(current_thread().name)
            return value

        monkeypatch.setattr(polarity, "effect_of_truth", found)
        return threads

    return choose


@pytest.fixture(scope="module")
def method(embedder):
    return tl.Corrective(tl.build(None, [BATS, OTHER], embedder=embedder), threshold=0.0)


def test_the_effect_is_what_the_truth_adds_to_yes_over_no():
    lm, prompt = tiny.language_model("llama"), Prompt()
    template = (
        "Fact: {}\nQuestion: {}\nGoing by the fact, is the answer to the question yes or no?"
    )
    means = []
    for fact in ("Bats see well.", "Bats see nothing."):
        question = template.format(fact, ASKED)
        for word in ("Yes", "No"):
            (total,) = tl.score(lm, tl.Greedy(), question, [word])
            means.append(total / len(prompt.encode_answer(question, word, lm.tokenizer)))
    yes, no, wrong_yes, wrong_no = means
    expected = yes - no - wrong_yes + wrong_no
    assert effect_of_truth(lm, prompt, ASKED, BATS) == pytest.approx(expected, abs=1e-5)
    assert expected != 0


def opening_for(example):
    scoped = ScopedExample(example, 0.9, 0, 0.9, ASKED)
    correction = Correction((scoped,), str.split, " ".join, asks_yes_or_no=True)
    return with_true_word(SimpleNamespace(limit=None), Prompt(), correction).form.opening


@pytest.mark.parametrize(
    ("value", "opening"),
    [
        (2.0, "Yes."),
        (-2.0, "No."),
        *[(value, "") for value in (LEAST_EFFECT, -LEAST_EFFECT, 0.0, float("nan"), None)],
    ],
)
def test_a_word_comes_first_if_the_truth_moves_it_far_enough(effect, value, opening):
    effect(value)
    assert opening_for(BATS) == opening


def test_without_a_wrong_answer_or_before_such_a_word_the_model_is_not_asked(effect):
    threads = effect(2.0)
    assert opening_for(Example("Are bats blind?", ["Bats see."])) == ""
    assert opening_for(Example("Are bats blind?", ["No, they see."], ["Yes."])) == ""
    assert threads == []


@pytest.mark.parametrize("value", [-2.0, 0.0])
def test_the_word_opens_the_verified_answer_in_every_loop(value, effect, scope, method):
    effect(value)
    lm = tiny.language_model("llama")
    wanted = "No. Bats see well." if value else "Bats see well."
    assert tl.generate(lm, method, ASKED, max_new_tokens=24).text.strip() == wanted
    prompt = torch.tensor([method.space.prompt.encode(ASKED, lm.tokenizer)])
    processor = method.processor(lm.model, lm.tokenizer)
    made = lm.model.generate(
        prompt, max_new_tokens=24, do_sample=False, logits_processor=[processor]
    )
    assert lm.decode(made[0, prompt.shape[1] :].tolist()).strip() == wanted
    plain = tl.generate(lm, method, "are bats blind?", max_new_tokens=24).text.strip()
    assert plain == "Bats see well."  # no word was requested


def test_no_word_comes_first_if_the_model_cannot_read_fact_and_question_together(scope, method):
    long = Example(BATS.question, ["Bats see well. " * 200], BATS.wrong_answers, id="long")
    lm = tiny.language_model("gpt2")  # of which a longer text is an error
    assert effect_of_truth(lm, Prompt(), ASKED, long) is None
    scope[:] = [ScopedExample(long, 0.9, 0, 0.9, "are bats blind?")]
    assert tl.generate(lm, method, ASKED, max_new_tokens=4).text.strip().startswith("Bats")


def test_a_server_asks_the_model_in_the_thread_that_has_it(effect, scope, method):
    threads = effect(-2.0)
    lm = tiny.language_model("llama", chat=True)
    app = create_app(lm, {"facts": method.space})
    with in_thread(app) as running, running.client() as client:
        found = client.chat.completions.create(
            model=f"{lm.id}+facts",
            messages=[{"role": "user", "content": ASKED}],
            extra_body={"trueline": {"threshold": 0.0}},
            max_tokens=24,
        )
    assert found.choices[0].message.content.strip() == "No. Bats see well."
    assert threads == ["trueline-engine_0"]
