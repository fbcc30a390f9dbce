"""Methods side by side: what changed, where, and who did nothing."""

import pytest
import tiny

import trueline as tl
from trueline.decode.generate import first_difference
from trueline.errors import SettingError


@pytest.fixture(scope="module")
def lm():
    return tiny.language_model("llama")


def test_a_method_that_equals_greedy_everywhere_did_nothing(lm):
    found = tl.compare(
        lm, {"greedy": tl.Greedy(), "off": tl.CAD(a=0.0), "cad": tl.CAD()}, tiny.QUESTIONS[:3],
        max_new_tokens=6,
    )  # fmt: skip
    assert found["off"].did_nothing
    assert found["off"].diverges == [None] * 3
    assert not found["cad"].did_nothing
    assert 0 < found["cad"].changed <= 1
    assert found["cad"].tokens_per_second > 0


def test_answers_are_those_that_generate_gives(lm):
    found = tl.compare(lm, [tl.Greedy(), tl.DoLa()], tiny.QUESTIONS, max_new_tokens=5)
    assert found["dola"].answers == tl.generate(lm, tl.DoLa(), tiny.QUESTIONS, max_new_tokens=5)


def test_without_greedy_there_is_nothing_to_count_against(lm):
    found = tl.compare(lm, [tl.CAD()], tiny.QUESTIONS[:1], max_new_tokens=3)
    assert (found["cad"].changed, found["cad"].did_nothing) == (None, False)


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([], [], None)],
)
def test_the_first_difference_is_found(one, other, place):
    assert first_difference(one, other) == place


def test_changed_counts_places_over_the_longer_answer():
    from trueline.decode.generate import _compared
    from trueline.types import Answer

    def answer(tokens):
        return Answer("q", "", tuple(tokens), "stop", "m", 1)

    found = _compared("m", [answer([1, 2, 3])], 1.0, [answer([1, 9, 3, 4])])
    assert found.changed == pytest.approx(0.5)  # of four places, two are equal


def test_two_methods_of_one_name_and_no_question_are_refused(lm):
    with pytest.raises(SettingError, match="one name"):
        tl.compare(lm, [tl.CAD(), tl.CAD(a=1.0)], ["q?"])
    with pytest.raises(SettingError, match="questions must be a list"):
        tl.compare(lm, [tl.CAD()], [])


def test_progress_names_the_method(lm):
    seen = []
    tl.compare(
        lm, [tl.Greedy()], ["q?"], max_new_tokens=2, progress=lambda *told: seen.append(told)
    )
    assert seen[-1] == ("greedy", 1, 1)


def test_an_answer_names_every_prompt_its_method_read(lm):
    greedy = tl.generate(lm, tl.Greedy(), "q?", max_new_tokens=1)
    cad = tl.generate(lm, tl.CAD(), "q?", max_new_tokens=1)
    noisy = tl.generate(lm, tl.Instructive(), "q?", max_new_tokens=1)
    assert greedy.prompt_hashes == (tl.Prompt().hash,)
    assert cad.prompt_hashes == (tl.Prompt().hash, tl.Prompt("Q: {question} A:").hash)
    assert noisy.prompt_hashes[0] == tl.Prompt().hash
    assert noisy.prompt_hashes[1].startswith(tl.Prompt().hash + "-")
