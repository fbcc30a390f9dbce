"""The word that is true: said where the truth moves the model's own, and nowhere else."""

from threading import current_thread
from types import SimpleNamespace

import pytest
import tiny
import torch
from server import in_thread

import trueline as tl
from trueline.corrective import method as polarity
from trueline.corrective.method import LEAST_EFFECT, effect_of_truth, mean_log_probs, true_word
from trueline.prompts import Prompt
from trueline.serve.app import create_app
from trueline.types import Example, ScopedExample

BATS = Example("Are bats blind?", ["Bats see well."], ["Bats see nothing."], id="bats")
ASKED = "are bats blind? yes or no first"


def test_the_effect_is_what_the_truth_adds_to_yes_over_no():
    lm, prompt = tiny.language_model("llama"), Prompt()
    ways = {
        fact: mean_log_probs(
            lm,
            prompt,
            [
                (
                    f"Fact: {fact}\nQuestion: {ASKED}\n"
                    "Going by the fact, is the answer to the question yes or no?",
                    word,
                )
                for word in ("Yes", "No")
            ],
        )
        for fact in ("Bats see well.", "Bats see nothing.")
    }
    (yes, no), (wrong_yes, wrong_no) = ways.values()
    expected = yes - no - wrong_yes + wrong_no
    assert effect_of_truth(lm, prompt, ASKED, BATS) == pytest.approx(expected, abs=1e-5)
    assert expected != 0


@pytest.mark.parametrize(
    ("effect", "word"),
    [
        (2.0, "Yes"),
        (-2.0, "No"),
        (LEAST_EFFECT, ""),
        (-LEAST_EFFECT, ""),
        (0.0, ""),
        (float("nan"), ""),
    ],
)
def test_a_word_is_said_where_the_truth_moves_it_far_enough(monkeypatch, effect, word):
    monkeypatch.setattr(polarity, "effect_of_truth", lambda *_: effect)
    lm = SimpleNamespace(limit=None)
    assert true_word(lm, Prompt(), ASKED, BATS) == word


@pytest.mark.parametrize(
    ("lm", "example"),
    [
        (SimpleNamespace(limit=None), Example("Are bats blind?", ["Bats see."])),
        (SimpleNamespace(limit=None), Example("Are bats blind?", ["No, they see."], ["Yes."])),
    ],
)
def test_no_word_is_said_where_it_cannot_be_told_or_is_told_anyway(monkeypatch, lm, example):
    monkeypatch.setattr(polarity, "effect_of_truth", lambda *_: pytest.fail("it was asked"))
    assert true_word(lm, Prompt(), ASKED, example) == ""


@pytest.mark.parametrize("effect", [-2.0, 0.0])
def test_the_word_opens_the_verified_answer(monkeypatch, embedder, effect):
    lm = tiny.language_model("llama")
    space = tl.build(None, [BATS], embedder=embedder)
    monkeypatch.setattr(polarity, "effect_of_truth", lambda *_: effect)
    found = [ScopedExample(BATS, 0.9, 0, 0.9, "are bats blind?")]
    monkeypatch.setattr("trueline.corrective.method.find_scope", lambda *_: found)
    method = tl.Corrective(space, threshold=0.0)
    said = tl.generate(lm, method, ASKED, max_new_tokens=24).text.strip()
    assert said == ("No. Bats see well." if effect else "Bats see well.")
    plain = tl.generate(lm, method, "are bats blind?", max_new_tokens=24).text.strip()
    assert plain == "Bats see well."  # nobody asked for a word


def test_the_word_is_said_in_the_loop_of_transformers_too(monkeypatch, embedder):
    lm = tiny.language_model("llama")
    space = tl.build(None, [BATS], embedder=embedder)
    monkeypatch.setattr(polarity, "effect_of_truth", lambda *_: -2.0)
    found = [ScopedExample(BATS, 0.9, 0, 0.9, "are bats blind?")]
    monkeypatch.setattr("trueline.corrective.method.find_scope", lambda *_: found)
    processor = tl.Corrective(space, threshold=0.0).processor(lm.model, lm.tokenizer)
    prompt = torch.tensor([space.prompt.encode(ASKED, lm.tokenizer)])
    made = lm.model.generate(
        prompt, max_new_tokens=24, do_sample=False, logits_processor=[processor]
    )
    assert lm.decode(made[0, prompt.shape[1] :].tolist()).strip() == "No. Bats see well."


def test_no_word_is_said_where_the_model_cannot_read_fact_and_question_together(embedder):
    long = Example(BATS.question, ["Bats see well. " * 200], BATS.wrong_answers, id="long")
    lm = tiny.language_model("gpt2")  # of which a longer text is an error
    space = tl.build(None, [long], embedder=embedder)
    assert true_word(lm, space.prompt, ASKED, long) == ""
    method = tl.Corrective(space, threshold=0.0)
    assert tl.generate(lm, method, ASKED, max_new_tokens=4).text.strip().startswith("Bats")


def test_a_word_of_one_example_is_not_put_ahead_of_anothers_answer(monkeypatch, embedder):
    lm = tiny.language_model("llama")
    other = Example(
        "Do bats see?", ["No, bats are not blind."], ["Bats are blind."], id="other"
    )
    space = tl.build(None, [BATS, other], embedder=embedder)
    monkeypatch.setattr(polarity, "effect_of_truth", lambda *_: 2.0)
    found = [ScopedExample(one, 0.9, 0, 0.9, "are bats blind?") for one in (BATS, other)]
    monkeypatch.setattr("trueline.corrective.method.find_scope", lambda *_: found)
    method = tl.Corrective(space, threshold=0.0)
    said = tl.generate(lm, method, ASKED, max_new_tokens=24).text
    assert "Yes" not in said


def test_a_server_asks_the_model_in_the_thread_that_has_it(monkeypatch, embedder):
    lm = tiny.language_model("llama", chat=True)
    space = tl.build(None, [BATS], embedder=embedder)
    threads = []

    def effect(*_):
        threads.append(current_thread().name)
        return -2.0

    monkeypatch.setattr(polarity, "effect_of_truth", effect)
    with in_thread(create_app(lm, {"facts": space})) as running, running.client() as client:
        said = client.chat.completions.create(
            model=f"{lm.id}+facts",
            messages=[{"role": "user", "content": ASKED}],
            extra_body={"trueline": {"threshold": 0.0}},
            max_tokens=24,
        )
    assert said.choices[0].message.content.strip() == "No. Bats see well."
    assert threads == ["trueline-engine"]
