"""The threshold of a space: chosen as worked by hand, stored, seen and undone."""

from dataclasses import replace

import pytest
from conftest import EXAMPLES

import trueline as tl
from trueline.corrective import tune as tuning
from trueline.corrective.scope import MeasuredScope, ScopeModel
from trueline.corrective.tune import FEWEST, share_of, tune
from trueline.errors import ExampleError, SettingError
from trueline.examples import UserQuestion
from trueline.types import ScopedExample

FITTED = 0.7


@pytest.fixture
def space(embedder):
    return tl.build(None, EXAMPLES, embedder=embedder)


@pytest.fixture(autouse=True)
def fitted(monkeypatch):
    """Weights whose threshold no other fit changes."""
    model = ScopeModel(0.0, {}, FITTED, FITTED)
    monkeypatch.setattr(tuning, "model_for", lambda space, example: model)


@pytest.fixture
def scope(monkeypatch):
    """Probabilities by question, as a test sets them: {question: {id: probability}}."""
    known = {}
    by_id = {example.id: example for example in EXAMPLES}

    def find(space, question):
        found = sorted(known.get(question, {}).items(), key=lambda one: -one[1])
        return [ScopedExample(by_id[id], p, 0, p, question) for id, p in found]

    monkeypatch.setattr(tuning, "find_scope", find)
    return known


def questions(*pairs):
    return [UserQuestion(question, id) for question, id in pairs]


def test_other_examples_only_raise_the_threshold(space, scope):
    own = {example.question: {example.id: 0.99} for example in EXAMPLES}
    scope.update(own)
    found = tune(space)
    assert (found.threshold, found.false_scope.mean, found.false_scope.n) == (FITTED, 0.0, 4)
    scope[EXAMPLES[0].question] = {"fact-1": 0.99, "fact-2": 0.8}
    found = tune(space)
    assert (found.threshold, found.false_scope.mean) == (0.8, 0.0)  # 0.8 is not above it
    found = tune(space, false_scope=0.25)  # one of four may
    assert (found.threshold, found.false_scope.mean) == (FITTED, 0.25)
    assert [(one.example, one.probability) for one in found.worst] == [("fact-2", 0.8)]
    assert found.recall is None
    assert found.shipped_recall is None  # of this embedder none was measured


def test_the_recall_of_the_shipped_questions_is_that_of_the_next_measured_threshold(
    space, scope, monkeypatch
):
    rows = (MeasuredScope(0.6, 0.1, 0.9), MeasuredScope(0.7, 0.02, 0.8))
    model = ScopeModel(0.0, {}, 0.65, 0.65, measured=rows)
    monkeypatch.setattr(tuning, "scope_models", lambda: {space.embedder_id: {}})
    monkeypatch.setattr(tuning, "model_for", lambda space, example: model)
    scope |= {example.question: {} for example in EXAMPLES}
    assert tune(space).shipped_recall == 0.8  # at 0.65
    scope[EXAMPLES[0].question] = {"fact-2": 0.71}
    assert tune(space, false_scope=0.0).shipped_recall is None


def test_an_example_with_the_same_answer_or_question_is_no_near_miss(embedder, scope):
    by_answer = tl.Example("Can bats see?", EXAMPLES[1].answers, id="answer")
    question = f"{EXAMPLES[0].question.upper()}!"
    by_question = replace(EXAMPLES[0], question=question, answers=("Other.",), id="question")
    space = tl.build(None, [*EXAMPLES, by_answer, by_question], embedder=embedder)
    scope |= {
        by_answer.question: {"fact-2": 0.99, "fact-3": 0.1},
        by_question.question: {"fact-1": 0.99, "fact-3": 0.1},
    }
    assert tune(space).threshold == FITTED


def test_the_threshold_stays_below_1(space, scope):
    scope["Are bats blind?"] = {"fact-2": 1.0}
    found = tune(space, questions(("Are bats blind?", "")))
    assert found.threshold == 0.9999
    assert found.false_scope.mean == 1.0


def test_few_questions_never_lower_the_threshold_and_many_do(space, scope):
    scope |= {"right": {"fact-1": 0.5}, "none": {"fact-2": 0.3}}
    few = tune(space, questions(("right", "fact-1"), ("none", "")))
    assert (few.threshold, few.recall.mean) == (FITTED, 0.0)
    many = tune(space, questions(("right", "fact-1"), *[("none", "")] * FEWEST))
    scope["right"] = {"fact-1": 0.9}
    same = tune(space, questions(("right", "fact-1"), *[("none", "")] * FEWEST))
    assert same.threshold == FITTED  # nothing is against it
    assert many.threshold == 0.4999  # the highest that the right one is above
    assert (many.recall.mean, many.false_scope.mean) == (1.0, 0.0)


def test_a_wrong_example_that_comes_first_is_false_scope_and_no_recall(space, scope):
    scope |= {"q": {"fact-1": 0.8, "fact-2": 0.95}, "r": {"fact-3": 0.97}}
    found = tune(space, questions(("q", "fact-1"), ("r", "fact-3")))
    assert found.threshold == 0.95
    assert (found.false_scope.mean, found.recall.mean) == (0.0, 0.5)
    loose = tune(space, questions(("q", "fact-1"), ("r", "fact-3")), false_scope=0.5)
    assert (loose.false_scope.mean, loose.recall.mean) == (0.5, 0.5)


def test_an_impossible_tuning_is_refused(space, embedder):
    with pytest.raises(SettingError, match="no questions"):
        tune(space, [])
    with pytest.raises(ExampleError, match="has the id 'fact-9'"):
        tune(space, questions(("q", "fact-9")))
    with pytest.raises(SettingError, match="one example"):
        tune(tl.build(None, EXAMPLES[:1], embedder=embedder))
    with pytest.raises(SettingError, match="false_scope"):
        tune(space, false_scope=None)


@pytest.mark.parametrize(
    ("found", "n", "low", "high"),
    [(0, 50, 0.0, 0.0713), (2, 100, 0.0055, 0.0700), (3, 3, 0.4385, 1)],
)
def test_wilsons_interval_is_that_of_the_textbook(found, n, low, high):
    share = share_of(found, n)
    assert (share.mean, share.n) == (found / n, n)
    assert (share.low, share.high) == pytest.approx((low, high), abs=1e-4)
