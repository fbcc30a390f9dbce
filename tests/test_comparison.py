"""Methods side by side: what changed, where, and who did nothing."""

import pytest
import tiny

import trueline as tl
from trueline.errors import SettingError
from trueline.types import Answer


def test_a_method_that_equals_greedy_everywhere_did_nothing(lm):
    questions, seen = tiny.QUESTIONS[:3], []
    methods = {"greedy": tl.Greedy(), "off": tl.CAD(a=0.0), "cad": tl.CAD()}
    found = tl.compare(
        lm, methods, questions, max_new_tokens=6, progress=lambda *done: seen.append(done)
    )
    assert found["off"].did_nothing
    assert found["off"].diverges == [None] * 3
    assert not found["cad"].did_nothing
    assert 0 < found["cad"].changed <= 1
    assert found["cad"].tokens_per_second > 0
    assert found["cad"].answers == tl.generate(lm, tl.CAD(), questions, max_new_tokens=6)
    assert seen[-1] == ("cad", 3, 3)
    alone = tl.compare(lm, [tl.CAD()], questions[:1], max_new_tokens=3)["cad"]
    assert (alone.changed, alone.did_nothing) == (None, False)  # greedy is missing


def test_changed_counts_places_over_the_longer_answer(lm, monkeypatch):
    tokens = {"greedy": (1, 2, 3), "cad": (1, 9, 3, 4)}

    def answer_all(lm, method, *given, **options):
        return [Answer("q", "", tokens[method.name], "stop", method.name, 1)]

    monkeypatch.setattr("trueline.decode.generate.answer_all", answer_all)
    found = tl.compare(lm, [tl.Greedy(), tl.CAD()], ["q"])["cad"]
    assert (found.changed, found.diverges) == (0.5, [1])  # of four places, two are equal


def test_two_methods_of_one_name_and_no_question_are_refused(lm):
    with pytest.raises(SettingError, match="one name"):
        tl.compare(lm, [tl.CAD(), tl.CAD(a=1.0)], ["q?"])
    with pytest.raises(SettingError, match="questions must be a list"):
        tl.compare(lm, [tl.CAD()], [])
