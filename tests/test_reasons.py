"""Reasons in plain words: of signals and words, or none."""

import torch

from trueline.corrective.scope import Words, missing_words, plain_reasons
from trueline.types import Signal

MEAN = {"question": 0.3, "own_question": 0.1, "answers": 0.2, "wrong": 0.3}
ASKED, OWN = "What does the red light mean?", "What does the blue light mean?"


def signal(name, value, effect):
    return Signal(name, "any words", value, effect)


def reasons(*signals, text=ASKED, own=OWN, missing=()):
    return plain_reasons(text, own, signals, MEAN, missing)


def test_what_is_close_is_named_together():
    near = [signal("question", 0.8, 1.0), signal("answers", 0.7, 2.0)]
    assert reasons(*near)[0][0] == "its question and its answer are close to what you ask"
    all_three = reasons(*near, signal("wrong", 0.7, 1.0))[0][0]
    assert all_three.startswith("its question, its answer and its wrong answers are close")
    assert reasons(near[0])[0][0] == "its question is close to what you ask"


def test_signals_of_one_text_are_added_up():
    """A weight that is negative only to make up for another one is no reason by itself."""
    close = [signal("question", 0.8, -0.6), signal("own_question", 0.7, 3.0)]
    assert reasons(*close) == (
        ("its question is close to what you ask", "both ask for what something is"),
        (),
    )


def test_missing_words_and_another_kind_of_question_are_reasons_against():
    assert reasons(missing=["red"])[1] == ("you say 'red', it does not",)
    assert reasons(missing=["red", "in May"])[1] == ("you say 'red' and 'in May', it does not",)
    assert reasons(signal("words", 0.9, 1.0))[0][0] == "it has most of your words"
    assert reasons(text="When do you open?", own="Where are you?") == (
        (),
        ("you ask for a time, it does not",),
    )


def test_missing_words_are_the_specific_ones_without_a_near_word():
    basis = torch.eye(6)
    words = "what about the red light today".split()
    weights = torch.tensor([2.0, 1.0, 1.0, 2.0, 2.0, 3.0])
    text = Words(basis, weights, tuple(words))
    assert missing_words(text, torch.zeros(0, 6)) == ("red light today",)
    assert missing_words(text, basis[5:]) == ("red light",)
    assert missing_words(text, basis[4:5]) == ("red", "today")
    assert missing_words(text, basis) == ()
