"""Explanations: each figure against numbers worked by hand, and text that stays text."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import tiny
from conftest import EXAMPLES, run_command
from rich.cells import cell_len as columns

import trueline as tl
from trueline.errors import SettingError
from trueline.explain import Quartile, entropy_quartiles, explain, text_parts
from trueline.types import Answer, Candidate, NearExample, Neighbor, Signal, Source, TraceStep

WORDS = ["", "It", " is", " not", " blue", " red", ".", "<eos>", " was", " very"]
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;`${1}"
    "\u2028\u2029<!--data--><!--answer-->\x1b[31m\x00\u202e\udc80"
)


def candidates(logits):
    total = sum(math.exp(logit) for logit in logits.values())
    return tuple(
        Candidate(token, WORDS[token], logit, math.exp(logit) / total)
        for token, logit in logits.items()
    )


def neighbor(name, weight, push, **changes):
    texts = f"What of {name}?", f"{name} it is.", f"the book of {name}"
    return replace(Neighbor(name, *texts, 2, 0.8, weight, push), **changes)


def step(token, base, final=None, *, move=None, entropy=1.0, hits=None, neighbors=()):
    first, second = (*base, token)[:2]
    rival, final = second if token == first else first, base if final is None else final
    if move is None:
        move = (final[token] - final[rival]) - (base[token] - base[rival])
    return TraceStep(
        token=token,
        text=WORDS[token],
        base=candidates(base),
        final=candidates(final),
        rival=rival,
        move=move,
        hits=len(neighbors) if hits is None else hits,
        neighbors=tuple(neighbors),
        entropy=entropy,
        flipped=token != first,
    )


ALONE = step(1, {1: 3.0, 5: 1.0}, entropy=0.5)
WIDENED = step(  # leads by 0.5, then by 2
    2,
    {2: 2.0, 8: 1.5},
    {2: 3.0, 8: 1.0},
    entropy=1.5,
    neighbors=[neighbor("a", 0.75, 1.0), neighbor("b", 0.25, 0.5)],
)
FLIPPED = step(  # trails by 3, then leads by 0.5
    3, {9: 4.0, 3: 1.0}, {3: 5.0, 9: 4.5}, entropy=2.0, neighbors=[neighbor("a", 1.0, 3.5)]
)
UNSEEN = step(  # trails by 2.25, which the best five do not show; leads by 0.5
    4,
    {5: 2.0, 6: 1.0, 9: 0.5, 3: 0.25, 8: 0.0},
    {4: 3.0, 5: 2.5, 6: 1.0, 9: 0.5, 3: 0.25},
    move=2.75,
    hits=7,
    neighbors=[neighbor("a", 0.4, 0.6), neighbor("b", 0.2, 0.1)],
)
END = step(
    7, {7: 1.0, 6: 0.5}, {7: 1.25, 6: 0.25}, entropy=0.0, neighbors=[neighbor("b", 1.0, 0.5)]
)
ANSWER = Answer(
    question="Is the sky blue?",
    text="It is not blue",
    token_ids=(1, 2, 3, 4, 7),
    finish="stop",
    method="rad",
    prompt_tokens=9,
    trace=(ALONE, WIDENED, FLIPPED, UNSEEN, END),
)
GREEDY = replace(
    ANSWER, text="It is very red", token_ids=(1, 2, 9, 5, 7), method="greedy", trace=None
)


def near_example(name, probability, threshold=0.7):
    signals = (
        Signal("wrong", "cosine with its wrong answers", 0.8, 4.0),
        Signal("back", "share of its question's words that occur", 0.5, -3.25),
        Signal("answers", "cosine with its truthful answers", 0.6, 2.0),
    )
    return NearExample(
        *(name, f"What of {name}?", f"{name} it is.", f"the book of {name}"),
        *(probability, threshold, probability > threshold, "Is the sky blue?", signals),
        reasons_for=("its answer and its wrong answers are close to what you ask",),
        reasons_against=("you say 'sky', it does not",),
    )


def voted(step):
    """The same step, moved by votes."""
    votes = tuple(replace(one, nearness="probability") for one in step.neighbors)
    return replace(step, neighbors=votes)


SCOPED = replace(
    ANSWER,
    method="corrective",
    trace=tuple(map(voted, ANSWER.trace)),
    is_covered=True,
    sources=(Source("a", "What of a?", "a it is.", "the book of a", 0.8, 0.9),),
    scope=(near_example("a", 0.9), near_example("b", 0.2), near_example("c", 0.0)),
)
UNCOVERED = replace(
    replace(GREEDY, method="corrective", trace=(ALONE,), token_ids=(1,), text="It"),
    is_covered=False,
    scope=(near_example("b", 0.2),),
)


def hostile_answer():
    """Every text a model, an example or a user gives is hostile."""
    bad = [
        replace(n, example=HOSTILE, question=HOSTILE, answer=HOSTILE, source=HOSTILE)
        for n in WIDENED.neighbors
    ]
    tokens = tuple(replace(c, text=HOSTILE) for c in FLIPPED.base)
    worst = replace(
        FLIPPED, text=HOSTILE, base=tokens, final=tokens, move=0.0, neighbors=tuple(bad)
    )
    named = {"example": HOSTILE, "question": HOSTILE, "answer": HOSTILE, "source": HOSTILE}
    return replace(
        ANSWER,
        question=HOSTILE,
        text=f"It{HOSTILE}",
        trace=(ALONE, worst, END),
        is_covered=True,
        sources=tuple(replace(one, **named) for one in SCOPED.sources),
        scope=tuple(
            replace(one, text=HOSTILE, reasons_against=(HOSTILE,), **named)
            for one in SCOPED.scope
        ),
    )


def explained(*steps):
    return explain(replace(ANSWER, trace=steps))


def test_the_summary_has_the_figures_worked_by_hand():
    made = ANSWER.explain(GREEDY)
    flipped, end, summary = made.steps[2], made.steps[4], made.summary
    assert (flipped.wanted, flipped.rival, flipped.text) == (" very", " very", " not")
    assert (end.text, end.rival, end.is_in_text) == ("<eos>", ".", False)
    assert (summary.tokens, summary.grounded, summary.grounded_share) == (5, 4, 0.8)
    assert (summary.flips, summary.flipped_share, summary.mean_entropy) == (2, 0.4, 1.0)
    assert summary.weight_on_record == pytest.approx((1 + 1 + 0.6 + 1) / 4)
    # 0, 0.5 | 1 | 1.5 | 2: the bounds are 0.5, 1 and 1.5; a bound belongs to the lower side
    assert [one.quartile for one in made.steps] == [1, 3, 4, 2, 1]
    assert summary.quartiles == (
        Quartile(0.0, 0.5, steps=2, flips=0),
        Quartile(1.0, 1.0, steps=1, flips=1),
        Quartile(1.5, 1.5, steps=1, flips=0),
        Quartile(2.0, 2.0, steps=1, flips=1),
    )


def test_few_and_equal_entropies_have_quartiles():
    for entropies, quartiles in {(): [], (1, 2): [1, 4], (1, 1, 1, 5): [1, 1, 1, 4]}.items():
        assert entropy_quartiles(entropies) == quartiles


def test_examples_are_cited_with_weight_tokens_and_push():
    first, second = explain(ANSWER).summary.cited
    assert (first.example, first.question, first.answers) == ("a", "What of a?", ("a it is.",))
    assert (first.source, first.steps, first.is_wrong) == ("the book of a", 3, False)
    assert (first.weight, first.push) == pytest.approx((0.75 + 1 + 0.4, 1 + 3.5 + 0.6))
    assert (second.example, second.steps) == ("b", 3)
    assert (second.weight, second.push) == pytest.approx((0.25 + 0.2 + 1, 0.5 + 0.1 + 0.5))
    # two entries of an example in one step are one token and two answers
    twice = (neighbor("a", 0.5, 1.0), neighbor("a", 0.5, 1.0, answer="Another."))
    (cited,) = explained(replace(WIDENED, neighbors=twice)).summary.cited
    assert (cited.steps, cited.weight, cited.push) == (1, 1.0, 2.0)
    assert cited.answers == ("a it is.", "Another.")
    # wrong answers are cited apart and weigh apart
    both = (neighbor("a", 1.0, 1.0), neighbor("a", 0.5, 0.25, is_wrong=True))
    summary = explained(replace(WIDENED, neighbors=both)).summary
    assert [(one.is_wrong, one.weight) for one in summary.cited] == [(False, 1.0), (True, 0.5)]
    assert summary.weight_on_record == 0.75  # all of one side, half of the other


def test_the_first_divergence_has_its_token_and_both_texts():
    def divergence(other):
        found = ANSWER.explain(other).summary.divergence
        return found and (found.token, found.shared, found.text, found.beside)

    assert divergence(GREEDY) == (3, "It is", " not blue", " very red")
    assert divergence(replace(ANSWER, trace=None)) is None
    short = replace(GREEDY, text="It is", token_ids=(1, 2))
    assert divergence(short) == (3, "It is", " not blue", "")


@pytest.mark.parametrize(
    ("text", "pieces", "placed"),
    [
        ("It is", ["It", " is"], ["It", " is"]),
        ("It is so", ["It", "is", "so"], ["It", " is", " so"]),  # pieces that lost their spaces
        ("It", [" It", "<eos>"], ["It", None]),
        ("a🙂b", ["a", "\ufffd", "\ufffd", "\ufffd", "b"], ["a", "🙂", "", "", "b"]),
        ("🙂", ["\ufffd\ufffd", "\ufffd", "<eos>"], ["🙂", "", None]),
        ("ok\ufffd", ["ok", "\ufffd"], ["ok", "\ufffd"]),  # ended within a character
        ("It is", ["It", " is.\n", "Q"], ["It", " is", None]),  # ended at a stop string
        ("", ["<eos>"], [None]),
    ],
)
def test_tokens_are_placed_in_the_text(text, pieces, placed):
    assert text_parts(text, pieces) == placed


def test_an_answer_needs_a_trace_and_another_one_the_same_question():
    with pytest.raises(SettingError, match="trace=True"):
        replace(ANSWER, trace=None).explain()
    with pytest.raises(SettingError, match=r"Is the sky blue.*Is it\?"):
        ANSWER.explain(replace(GREEDY, question="Is it?"))


@pytest.mark.parametrize("answer", [ANSWER, hostile_answer()], ids=["plain", "hostile"])
def test_json_comes_back_as_it_went(answer):
    made = answer.explain(settings={"alpha": 0.5, "layers": (1, 2), "of": object})
    values = made.as_dict()
    assert json.loads(made.json()) == values
    assert values["settings"]["layers"] == [1, 2]
    assert values["steps"][0]["text"] == "It"
    assert values["question"] == answer.question
    ruled_out = replace(FLIPPED.final[1], logit=-math.inf, probability=0.0)
    made = explained(replace(FLIPPED, final=(FLIPPED.final[0], ruled_out)))
    assert json.loads(made.json())["steps"][0]["final"][1]["logit"] is None


def test_text_has_the_changed_tokens_and_the_examples():
    text = ANSWER.explain(GREEDY).text()
    lines = text.splitlines()
    assert "rad     It is not blue" in lines
    assert "        they differ from token 3: ' not blue' and ' very red'" in lines
    assert "5 tokens: 4 grounded (80%), 2 changed (40%); mean entropy 1.00 nats" in lines
    assert "changed by entropy quartile, surest first: 0 of 2, 1 of 1, 0 of 1, 1 of 1" in lines
    for pattern in (
        r"^ +3 +' very' +' not' +\+3\.50 +1  a \(cosine 0\.80, push \+3\.50\)$",
        r"^ +2\.15 +3 +\+5\.10  a: What of a\?\n +a it is.\n +\[the book of a\]$",
    ):
        assert re.search(pattern, text, re.M)


@pytest.mark.parametrize("filler", [HOSTILE, "字" * 300, "word " * 80, "e\u0301" * 200])
def test_text_fits_a_terminal_and_has_no_escape_sequence(filler):
    answer = hostile_answer()
    long = replace(WIDENED.neighbors[0], question=filler, source=filler, example=filler)
    trace = (replace(answer.trace[1], neighbors=(long,), text=filler), *answer.trace)
    made = replace(answer, question=filler, text=filler, trace=trace).explain()
    for width in (40, 100):
        text = made.text(width)
        assert max(map(columns, text.split("\n"))) <= width
    assert all(one.isprintable() for one in text if one != "\n")


def test_the_page_has_every_text_but_no_markup_of_it_and_loads_nothing():
    made = hostile_answer().explain(replace(GREEDY, question=HOSTILE, text=HOSTILE))
    page = made.html()
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert not re.search("[\x00\x1b\ud800-\udfff]", page)
    blob = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    assert blob.isascii()
    assert not re.search("[<>&]", blob)
    data = json.loads(blob)
    assert data.pop("scale") == 1.0  # of the deepest shade: the furthest move, but not less
    assert data == made.as_dict()
    page = ANSWER.explain(GREEDY).html()
    assert re.findall(r"<!--\w+-->", page) == []
    assert re.findall(r"(?:src|href)=\"(.*?)\"", page) == ["data:,"]
    assert not re.search(r"https?://|url\(|@import|fetch\(|innerHTML|outerHTML|eval\(", page)
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_text_has_sources_and_scope_with_reasons_and_calls_a_probability_one():
    text = SCOPED.explain(GREEDY).text()
    assert '80% from a: What of a?\n  "a it is." [the book of a]\n' in text
    lines = text.splitlines()
    start = lines.index("  a: What of a?")
    assert lines[start + 1 : start + 6] == [
        "    In scope: probability 0.90, above 0.70. For: its answer and its wrong answers are "
        "close to what",
        "    you ask. Against: you say 'sky', it does not.",
        "  b: What of b?",
        "    Out of scope: probability 0.20, not above 0.70. For: its answer and its wrong "
        "answers are close",
        "    to what you ask. Against: you say 'sky', it does not.",
    ]
    assert "    Out of scope: probability 0.00, not above 0.70." in lines  # without reasons
    assert "cosine with" not in text
    assert "a (probability 0.80, push +3.50)" in text
    assert "examples cited" not in text  # the sources have them
    lines = SCOPED.explain(GREEDY).text(with_signals=True).splitlines()
    start = lines.index("  b: What of b?")
    assert lines[start - 3 : start] == [
        "      for       +4.0   0.80  cosine with its wrong answers",
        "                +2.0   0.60  cosine with its truthful answers",
        "      against   -3.2   0.50  share of its question's words that occur",
    ]


def test_an_answer_that_nothing_covers_says_so_in_every_form():
    made = UNCOVERED.explain()
    assert "\nnot covered by your examples\n" in made.text()
    assert made.as_dict()["is_covered"] is False
    without_effect = replace(SCOPED, sources=()).explain().text()
    assert "covered by your examples, but no token follows them" in without_effect
    assert "covered" not in ANSWER.explain().text()


def test_the_effects_of_the_signals_add_up_to_the_log_odds(embedder):
    from trueline.corrective.scope import find_scope, model_for, scope_models

    space = tl.build(None, EXAMPLES, embedder=embedder)
    for one in find_scope(space, "Do bats sleep, and does old gold rust?"):
        model = model_for(space, one.example)
        usual = model.bias + sum(w * model.mean[name] for name, w in model.weights.items())
        effects = sum(signal.effect for signal in model.effects(one.signals))
        assert one.odds == pytest.approx(usual + effects, abs=1e-6)
    fitted = scope_models()["all-minilm-l6-v2"]["full"]
    assert {*fitted.mean} == {*fitted.weights}


def test_save_writes_the_form_of_the_suffix_and_refuses_other_names(tmp_path):
    made = hostile_answer().explain()
    for suffix, form in {".html": made.html, ".JSON": made.json, ".txt": made.text}.items():
        made.save(tmp_path / f"why{suffix}")
        written = (tmp_path / f"why{suffix}").read_bytes().decode("utf-8")
        assert written.rstrip("\n") == form().encode("utf-8", "replace").decode().rstrip("\n")
    for name, problem in (("why.pdf", "got 'why.pdf'"), ("no/why.txt", "there is no folder")):
        with pytest.raises(SettingError, match=problem):
            made.save(tmp_path / name)


def test_explaining_needs_no_torch():
    code = "import sys, trueline.types, trueline.explain; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_real_trace_is_explained_whole(lm, embedder):
    space = tl.build(lm, EXAMPLES, embedder=embedder, context=8)
    given = dict(questions=tiny.QUESTIONS[1], max_new_tokens=24)
    answer = tl.generate(lm, tl.RAD(space, tau=0.8), trace=True, **given)
    made = answer.explain(tl.generate(lm, tl.Greedy(space.prompt), **given))
    assert [one.token for one in made.steps] == list(answer.token_ids)
    assert "".join(one.text for one in made.steps if one.is_in_text) == answer.text
    assert made.summary.grounded == sum(1 for one in answer.trace if one.hits) > 0
    for one, raw in zip(made.steps, answer.trace, strict=True):
        if one.hits == len(one.neighbors):
            assert one.move == pytest.approx(sum(n.push for n in raw.neighbors), abs=1e-3)


def test_the_command_shows_the_settings_of_the_method(tiny_home, tmp_path):
    folder = str(tmp_path / "facts.space")
    tl.build(tl.load("smollm2-135m"), EXAMPLES, context=8).save(folder)
    rad = ["--method", "rad", "--set", "tau=0.5", "--set", "aggregation=mean", "--json"]
    given = ["Are bats blind?", "--space", folder, "--max-new-tokens", "8"]
    values = run_command("explain", *given, *rad).json
    assert len(values["steps"]) == values["summary"]["tokens"] == 8
    assert (values["method"], values["beside"]["method"]) == ("rad", "greedy")
    assert (values["settings"]["tau"], values["settings"]["aggregation"]) == (0.5, "mean")
