"""Control flows the way imports do: no stage calls into a later one while answers are made."""

import sys
from pathlib import Path

import tiny
from conftest import EXAMPLES
from test_layout import FRONTS, SOURCE, STAGES

import trueline as tl
from trueline.decoders import make_method, method_names

PACKAGE = str(SOURCE)


def stage_of(code):
    """The stage a function belongs to, or nothing for what is not ours."""
    if not code.co_filename.startswith(PACKAGE):
        return None
    return Path(code.co_filename).relative_to(SOURCE).with_suffix("").parts[0]


def calls_while(work):
    """Every direct call from one of our stages into another, with the two functions."""
    found = {}

    def watch(frame, event, _):
        if event != "call" or (caller := frame.f_back) is None:
            return
        pair = stage_of(caller.f_code), stage_of(frame.f_code)
        if None not in pair and pair[0] != pair[1]:
            names = (caller.f_code.co_qualname, frame.f_code.co_qualname)
            found.setdefault(pair, names)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def upward(found):
    return {
        names
        for (caller, called), names in found.items()
        if STAGES.index(called) > STAGES.index(caller)
        and (caller, called) not in FRONTS
        and not names[1].endswith("<lambda>")  # what a value is mapped or sorted with
    }


def test_no_stage_calls_a_later_one_while_a_space_is_built_and_every_method_answers(embedder):
    lm = tiny.language_model("llama", chat=True)

    def work():
        space = tl.build(lm, EXAMPLES, context=8, embedder=embedder)
        for name in method_names():
            method = make_method(name, space=space)
            answer = tl.generate(lm, method, "Are bats blind?", max_new_tokens=2, trace=True)
            answer.explain().text()
            list(tl.stream(lm, method, "Are bats blind?", max_new_tokens=2))
            tl.score(lm, method, "Are bats blind?", ["No.", "Yes."])

    found = calls_while(work)
    assert len(found) > 20  # it does watch
    assert ("decoding", "engines") in found
    assert upward(found) == set()


def test_a_call_upward_would_be_seen(lm, monkeypatch):
    """An engine that asks a method something is found."""
    method = tl.Greedy()
    forward = type(lm).forward

    def nosy(self, *given, **options):
        return forward(self, *given, **options) if method.layers(self) == () else None

    code = type(lm).__init__.__code__
    monkeypatch.setattr(nosy, "__code__", nosy.__code__.replace(co_filename=code.co_filename))
    monkeypatch.setattr(type(lm), "forward", nosy)
    found = calls_while(lambda: tl.generate(lm, method, "Are bats blind?", max_new_tokens=2))
    assert len(upward(found)) == 1
