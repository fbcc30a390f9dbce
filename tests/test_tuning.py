"""The threshold of a space: chosen as worked by hand, and kept, seen and undone."""

from dataclasses import replace

import pytest
from conftest import EXAMPLES

import trueline as tl
from trueline.corrective import tune as tuning
from trueline.corrective.scope import MeasuredScope, ScopeModel
from trueline.corrective.tune import FEWEST, share_of, tune
from trueline.errors import ExampleError, SettingError, SpaceConflictError, SpaceFormatError
from trueline.examples import AskedQuestion, read_asked
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


def asked(*pairs):
    return [AskedQuestion(question, id) for question, id in pairs]


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


def test_an_example_with_the_same_answer_is_no_near_miss(embedder, scope):
    twin = tl.Example("Can bats see?", EXAMPLES[1].answers, id="twin")
    space = tl.build(None, [*EXAMPLES, twin], embedder=embedder)
    scope[EXAMPLES[1].question] = {"fact-2": 0.99, "fact-3": 0.1}
    assert tune(space).threshold == FITTED


def test_an_example_with_the_same_question_is_no_near_miss(embedder):
    twin = replace(EXAMPLES[0], answers=("Another answer.",), id="twin")
    twin = replace(twin, question=f"{twin.question.upper()}!")
    space = tl.build(None, [*EXAMPLES, twin], embedder=embedder)
    pairs = {(one.question, one.example) for one in tune(space, false_scope=1.0).worst}
    assert not pairs & {(EXAMPLES[0].question, "twin"), (twin.question, EXAMPLES[0].id)}


def test_what_speaks_in_any_case_leaves_others_a_threshold(space, scope):
    """A question in an example's own words that is said to mean none."""
    scope["Are bats blind?"] = {"fact-2": 1.0}
    found = tune(space, asked(("Are bats blind?", "")))
    assert found.threshold == 0.9999
    assert found.false_scope.mean == 1.0


def test_few_questions_never_lower_the_threshold_and_many_do(space, scope):
    scope |= {"right": {"fact-1": 0.5}, "none": {"fact-2": 0.3}}
    few = tune(space, asked(("right", "fact-1"), ("none", "")))
    assert (few.threshold, few.recall.mean) == (FITTED, 0.0)
    many = tune(space, asked(("right", "fact-1"), *[("none", "")] * FEWEST))
    assert many.threshold == 0.4999  # the highest that the right one is above
    assert (many.recall.mean, many.false_scope.mean) == (1.0, 0.0)


def test_the_fitted_threshold_stays_where_nothing_speaks_against_it(space, scope):
    scope |= {"right": {"fact-1": 0.9}, "none": {"fact-2": 0.3}}
    found = tune(space, asked(("right", "fact-1"), *[("none", "")] * FEWEST))
    assert found.threshold == FITTED


def test_a_wrong_example_ahead_is_false_scope_and_no_recall(space, scope):
    scope |= {"q": {"fact-1": 0.8, "fact-2": 0.95}, "r": {"fact-3": 0.97}}
    found = tune(space, asked(("q", "fact-1"), ("r", "fact-3")))
    assert found.threshold == 0.95
    assert (found.false_scope.mean, found.recall.mean) == (0.0, 0.5)
    loose = tune(space, asked(("q", "fact-1"), ("r", "fact-3")), false_scope=0.5)
    assert (loose.false_scope.mean, loose.recall.mean) == (0.5, 0.5)


def test_what_is_kept_is_plain_and_can_be_seen_and_undone(embedder, tmp_path, scope):
    tl.build(None, EXAMPLES, embedder=embedder, out=tmp_path / "facts.space")
    space = tl.open(tmp_path / "facts.space", embedder=embedder)
    tuned = space.tune(tune(space).settings)
    again = tl.open(tmp_path / "facts.space", embedder=embedder)
    assert again.tuned == tuned.tuned == tuned.info()["tuned"]
    assert space.tuned == {}  # the old object goes on as it was
    assert space.current().tuned == tuned.tuned
    assert tuned.tune(tuned.tuned) is tuned  # nothing to commit
    added = tuned.remove("fact-4")
    assert added.tuned == tuned.tuned
    with pytest.raises(SpaceConflictError, match="another commit"):
        tuned.tune({})
    undone = added.tune({})
    assert (undone.tuned, undone.info()["tuned"]) == ({}, None)


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": 2},
        {"threshold": True},
        {"strength": "x"},
        {"a": [1]},
        {1: 2},
        {"a": 1e999},
    ],
)
def test_settings_that_no_method_can_go_by_are_refused(space, settings):
    with pytest.raises(SettingError, match="tuned"):
        space.tune(settings)


def test_a_manifest_with_such_settings_is_refused(embedder, tmp_path, monkeypatch):
    space = tl.build(None, EXAMPLES, embedder=embedder)
    with monkeypatch.context() as patch:
        patch.setattr("trueline.store.check_tuned", lambda given: None)
        space.tune({"threshold": -1}).save(tmp_path / "bad.space")
    with pytest.raises(SpaceFormatError, match=r"tuned threshold must lie in \[0, 1\]"):
        tl.open(tmp_path / "bad.space", embedder=embedder)


def test_what_cannot_be_tuned_is_refused(space, embedder):
    with pytest.raises(SettingError, match="no questions"):
        tune(space, [])
    with pytest.raises(ExampleError, match="has the id 'fact-9'"):
        tune(space, asked(("q", "fact-9")))
    with pytest.raises(SettingError, match="one example"):
        tune(tl.build(None, EXAMPLES[:1], embedder=embedder))
    with pytest.raises(SettingError, match="false_scope"):
        tune(space, false_scope=None)


def test_real_probabilities_are_asked_for_once_a_question(space):
    seen = []
    found = tune(space, progress=lambda *told: seen.append(told))
    assert seen == [(n, 4) for n in (1, 2, 3, 4)]
    assert FITTED <= found.threshold <= 1


def test_questions_are_read_with_the_ids_they_mean(tmp_path):
    file = tmp_path / "asked.csv"
    file.write_text("question,id\nWhy?,7\n Who? ,None\nWhere?,\n", "utf-8")
    assert read_asked(file) == asked(("Why?", "7"), ("Who?", ""), ("Where?", ""))
    file.write_text("question,id\n,7\nWho?\n", "utf-8")
    with pytest.raises(ExampleError, match=r"(?s)2 of 2 rows.*csv:2: .*csv:3: "):
        read_asked(file)


@pytest.mark.parametrize(
    ("found", "n", "low", "high"),
    [(0, 50, 0.0, 0.0713), (2, 100, 0.0055, 0.0700), (3, 3, 0.4385, 1)],
)
def test_wilsons_interval_is_that_of_the_textbook(found, n, low, high):
    told = share_of(found, n)
    assert (told.mean, told.n) == (found / n, n)
    assert (told.low, told.high) == (
        pytest.approx(low, abs=1e-4),
        pytest.approx(high, abs=1e-4),
    )
