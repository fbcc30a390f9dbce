"""Model, space and methods opened together: mistakes first, and nothing twice."""

import pytest
import tiny
from conftest import EXAMPLES

import trueline as tl
from trueline import session as sessions
from trueline.errors import SettingError, SpaceMismatchError
from trueline.session import open_session


@pytest.fixture
def folder(lm, embedder, tmp_path):
    tl.build(lm, EXAMPLES, embedder=embedder, context=8, out=tmp_path / "facts.space")
    return tmp_path / "facts.space"


def opened(folder, embedder, names, **options):
    space = tl.open(folder, embedder=embedder)
    return open_session(names, model=tiny.language_model("llama"), space=space, **options)


@pytest.mark.parametrize(
    ("names", "settings", "reason"),
    [
        (["magic"], {}, "there is no method 'magic'"),
        (["rad"], {"rad.alpha": 2}, r"alpha must lie in \[0, 1\]"),
        (["rad"], {"cad.a": 1}, "cad.a is set, but cad is not among the methods"),
        (["rad"], {"magic.a": 1}, "there is no method 'magic'"),
        (["rad", "cad"], {"beat": 1}, "rad has no setting 'beat'"),
        ([], {"beat": 1}, "greedy has no setting 'beat'"),
    ],
)
def test_mistakes_show_before_a_model_is_opened(names, settings, reason, monkeypatch):
    monkeypatch.setattr(sessions, "load", lambda *given, **options: pytest.fail("opened"))
    with pytest.raises(SettingError, match=reason):
        open_session(names, settings=settings)


def test_a_setting_goes_to_every_method_that_has_it_unless_it_names_one(folder, embedder):
    settings = {"k": 3, "kate.k": 1, "dola.candidates": [0, 1]}  # a list, as JSON has it
    methods = opened(folder, embedder, ["kate", "knn-lm", "dola"], settings=settings).methods
    assert (methods["kate"].k, methods["knn-lm"].k) == (1, 3)
    assert methods["dola"].candidates == (0, 1)


@pytest.fixture
def built(monkeypatch, tmp_path, embedder):
    """What was built of the shipped facts: the folder, and the context of the entries."""
    found, real = [], tl.build
    monkeypatch.setattr(sessions, "home", lambda: tmp_path)

    def build(lm, examples, *, out, context=None, **options):
        found.append((out.name, context))
        return real(lm, EXAMPLES, embedder=embedder, context=context)

    monkeypatch.setattr("trueline.space.build", build)
    return found


def test_the_shipped_facts_get_entries_only_for_a_method_that_needs_them(lm, built):
    assert open_session(["greedy"], model=lm).space is None
    assert built == []
    open_session(["corrective", "kate"], model=lm)
    assert built == [("facts.space", None)]
    both = open_session(["corrective", "rad"], model=lm)
    assert both.methods["corrective"].space is both.methods["rad"].space is both.space
    assert built[1:] == [(f"facts-{lm.fingerprint[:12]}.space", 8)]


def test_a_space_without_entries_is_refused_before_a_model_is_opened(embedder, monkeypatch):
    monkeypatch.setattr(sessions, "load", lambda *given, **options: pytest.fail("opened"))
    space = tl.build(None, EXAMPLES, embedder=embedder)
    with pytest.raises(SpaceMismatchError, match=r"rad needs entries.*--context 8"):
        open_session(["corrective", "rad"], space=space)


def test_a_space_whose_model_cannot_be_had_by_its_name_says_so(folder, embedder):
    with pytest.raises(SpaceMismatchError, match=r"built with the model 'tiny-llama'.*--model"):
        open_session(["rad"], space=tl.open(folder, embedder=embedder))
