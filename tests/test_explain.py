"""Explanations: each figure against numbers worked by hand, and text that stays text."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import tiny
from click.testing import CliRunner
from conftest import EXAMPLES
from rich.cells import cell_len as columns

import trueline as tl
from trueline.errors import SettingError
from trueline.explain import explain
from trueline.explain.summary import Quartile, entropy_quartiles, text_parts
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
    said = Neighbor(
        example=name,
        question=f"What of {name}?",
        answer=f"{name} it is.",
        source=f"the book of {name}",
        step=2,
        similarity=0.8,
        weight=weight,
        push=push,
    )
    return replace(said, **changes)


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


def near_example(name, probability, threshold=0.7, text="Is the sky blue?"):
    return NearExample(
        example=name,
        question=f"What of {name}?",
        answer=f"{name} it is.",
        source=f"the book of {name}",
        probability=probability,
        threshold=threshold,
        is_in_scope=probability > threshold,
        text=text,
        signals=(
            Signal("wrong", "cosine with its wrong answers", 0.8, 4.0),
            Signal("back", "share of its question's words that are asked", 0.5, -3.25),
            Signal("answers", "cosine with its truthful answers", 0.6, 2.0),
        ),
        reasons_for=("its answer and its wrong answers are close to what you ask",),
        reasons_against=("you say 'sky', it does not",),
    )


def voted(step):
    """The same step, moved by votes."""
    heard = tuple(replace(one, nearness="probability") for one in step.neighbors)
    return replace(step, neighbors=heard)


SCOPED = replace(
    ANSWER,
    method="corrective",
    trace=tuple(map(voted, ANSWER.trace)),
    is_covered=True,
    sources=(Source("a", "What of a?", "a it is.", "the book of a", 0.8, 0.9),),
    scope=(near_example("a", 0.9), near_example("b", 0.2), near_example("c", 0.0)),
)
UNCOVERED = replace(
    GREEDY,
    method="corrective",
    trace=(ALONE,),
    token_ids=(1,),
    text="It",
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


def test_the_summary_holds_the_figures_worked_by_hand():
    told = ANSWER.explain(GREEDY).summary
    assert (told.tokens, told.grounded, told.grounded_share) == (5, 4, 0.8)
    assert (told.flips, told.flipped_share) == (2, 0.4)
    assert told.mean_entropy == 1.0
    assert told.weight_on_record == pytest.approx((1 + 1 + 0.6 + 1) / 4)


def test_flips_are_counted_by_the_quartiles_of_the_answer_itself():
    # 0, 0.5 | 1 | 1.5 | 2: the cuts lie at 0.5, 1 and 1.5, and a cut belongs to the lower side
    told = explain(ANSWER)
    assert [one.quartile for one in told.steps] == [1, 3, 4, 2, 1]
    assert told.summary.quartiles == (
        Quartile(0.0, 0.5, steps=2, flips=0),
        Quartile(1.0, 1.0, steps=1, flips=1),
        Quartile(1.5, 1.5, steps=1, flips=0),
        Quartile(2.0, 2.0, steps=1, flips=1),
    )


@pytest.mark.parametrize(
    ("entropies", "quartiles"),
    [
        ([], []),
        ([2], [1]),
        ([1, 2], [1, 4]),
        ([3, 1, 2], [4, 1, 2]),
        ([1, 1, 1, 5], [1, 1, 1, 4]),
    ],
)
def test_few_and_equal_entropies_have_quartiles(entropies, quartiles):
    assert entropy_quartiles(entropies) == quartiles


def test_examples_are_cited_with_weight_tokens_and_push():
    first, second = explain(ANSWER).summary.cited
    assert (first.example, first.question, first.answers) == ("a", "What of a?", ("a it is.",))
    assert (first.source, first.steps, first.is_wrong) == ("the book of a", 3, False)
    assert (first.weight, first.push) == pytest.approx((0.75 + 1 + 0.4, 1 + 3.5 + 0.6))
    assert (second.example, second.steps) == ("b", 3)
    assert (second.weight, second.push) == pytest.approx((0.25 + 0.2 + 1, 0.5 + 0.1 + 0.5))


def test_two_entries_of_an_example_in_one_step_are_one_token_and_two_answers():
    twice = [neighbor("a", 0.5, 1.0), neighbor("a", 0.5, 1.0, answer="Another.")]
    (cited,) = explain(
        replace(ANSWER, trace=(replace(WIDENED, neighbors=tuple(twice)),))
    ).summary.cited
    assert (cited.steps, cited.weight, cited.push) == (1, 1.0, 2.0)
    assert cited.answers == ("a it is.", "Another.")


def test_wrong_answers_are_cited_apart_and_weigh_apart():
    both = (neighbor("a", 1.0, 1.0), neighbor("a", 0.5, 0.25, is_wrong=True))
    told = explain(replace(ANSWER, trace=(replace(WIDENED, neighbors=both),))).summary
    assert [(one.is_wrong, one.weight) for one in told.cited] == [(False, 1.0), (True, 0.5)]
    assert told.weight_on_record == 0.75  # all of one side, half of the other


def test_a_logit_that_is_not_finite_is_null_in_json():
    ruled_out = replace(FLIPPED.final[1], logit=-math.inf, probability=0.0)
    told = explain(
        replace(ANSWER, trace=(replace(FLIPPED, final=(FLIPPED.final[0], ruled_out)),))
    )
    assert json.loads(told.json())["steps"][0]["final"][1]["logit"] is None


def test_a_step_tells_what_was_wanted_and_what_was_chosen():
    flipped = explain(ANSWER).steps[2]
    assert (flipped.number, flipped.wanted, flipped.text, flipped.rival) == (
        3,
        " very",
        " not",
        " very",
    )
    end = explain(ANSWER).steps[4]
    assert (end.text, end.rival, end.is_in_text) == ("<eos>", ".", False)


def test_the_first_divergence_has_its_token_and_both_texts():
    parts = ANSWER.explain(GREEDY).summary.divergence
    assert (parts.token, parts.shared) == (3, "It is")
    assert (parts.text, parts.beside) == (" not blue", " very red")


def test_equal_answers_do_not_part_and_a_shorter_one_parts_at_its_end():
    assert ANSWER.explain(replace(ANSWER, trace=None)).summary.divergence is None
    short = replace(GREEDY, text="It is", token_ids=(1, 2))
    parts = ANSWER.explain(short).summary.divergence
    assert (parts.token, parts.text, parts.beside) == (3, " not blue", "")


@pytest.mark.parametrize(
    ("text", "pieces", "placed"),
    [
        ("It is", ["It", " is"], ["It", " is"]),
        ("It is so", ["It", "is", "so"], ["It", " is", " so"]),  # pieces that lost their spaces
        ("It", [" It", "<eos>"], ["It", None]),
        ("a🙂b", ["a", "\ufffd", "\ufffd", "\ufffd", "b"], ["a", "🙂", "", "", "b"]),
        ("🙂", ["\ufffd\ufffd", "\ufffd", "<eos>"], ["🙂", "", None]),
        ("ok\ufffd", ["ok", "\ufffd"], ["ok", "\ufffd"]),  # cut within a character
        ("It is", ["It", " is.\n", "Q"], ["It", " is", None]),  # cut at a stop string
        ("It is", ["It", "", " is"], ["It", "", " is"]),
        ("", ["<eos>"], [None]),
    ],
)
def test_tokens_are_placed_in_the_text(text, pieces, placed):
    assert text_parts(text, pieces) == placed


def test_an_answer_without_a_trace_says_how_to_get_one():
    with pytest.raises(SettingError, match="trace=True"):
        replace(ANSWER, trace=None).explain()


def test_an_answer_to_another_question_cannot_stand_beside():
    with pytest.raises(SettingError, match=r"Is the sky blue.*Is it\?"):
        ANSWER.explain(replace(GREEDY, question="Is it?"))


def test_an_empty_trace_is_told_in_every_form():
    told = explain(replace(ANSWER, trace=(), text="", token_ids=()))
    assert (told.summary.tokens, told.summary.grounded_share, told.summary.mean_entropy) == (
        0,
        0,
        0,
    )
    assert told.text()
    assert json.loads(told.json())["steps"] == []
    assert "<html" in told.html()


@pytest.mark.parametrize("answer", [ANSWER, hostile_answer()], ids=["plain", "hostile"])
def test_json_comes_back_as_it_went(answer):
    told = answer.explain(settings={"alpha": 0.5, "layers": (1, 2), "of": object})
    assert json.loads(told.json()) == told.as_dict()
    assert told.as_dict()["settings"]["layers"] == [1, 2]
    assert told.as_dict()["steps"][0]["text"] == "It"
    assert told.as_dict()["question"] == answer.question


def test_text_tells_the_changed_tokens_and_the_examples():
    text = ANSWER.explain(GREEDY).text()
    lines = text.splitlines()
    assert "rad     It is not blue" in lines
    assert "        they differ from token 3: ' not blue' and ' very red'" in lines
    assert "5 tokens: 4 grounded (80%), 2 changed (40%); mean entropy 1.00 nats" in lines
    assert "changed by entropy quartile, surest first: 0 of 2, 1 of 1, 0 of 1, 1 of 1" in lines
    assert re.search(
        r"^ +3 +' very' +' not' +\+3\.50 +1  a \(cosine 0\.80, push \+3\.50\)$", text, re.M
    )
    assert re.search(r"^ +4 +' red' +' blue' +\+2\.75 +7  a ", text, re.M)
    assert re.search(r"^ +2\.15 +3 +\+5\.10  a: What of a\?$", text, re.M)
    assert "a it is." in text
    assert "[the book of a]" in text
    assert text.isascii()


@pytest.mark.parametrize(
    "filler", [HOSTILE, "字" * 300, "word " * 80, "x" * 300, "e\u0301" * 200]
)
def test_text_fits_a_terminal_and_gives_it_no_orders(filler):
    answer = hostile_answer()
    long = replace(WIDENED.neighbors[0], question=filler, source=filler, example=filler)
    trace = (replace(answer.trace[1], neighbors=(long,), text=filler), *answer.trace)
    text = replace(answer, question=filler, text=filler, trace=trace).explain().text()
    assert max(map(columns, text.split("\n"))) <= 100
    assert all(one.isprintable() for one in text if one != "\n")


def test_the_page_holds_every_text_but_no_markup_of_it():
    told = hostile_answer().explain(replace(GREEDY, question=HOSTILE, text=HOSTILE))
    page = told.html()
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert not re.search("[\x00\x1b\ud800-\udfff]", page)
    blob = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    assert blob.isascii()
    assert not re.search("[<>&]", blob)
    data = json.loads(blob)
    assert data.pop("scale") == 1.0  # of the deepest shade: the furthest move, but not less
    assert data == told.as_dict()


def test_the_page_asks_for_nothing_and_parses_no_text_as_markup():
    page = ANSWER.explain(GREEDY).html()
    assert re.findall(r"<!--\w+-->", page) == []
    assert re.findall(r"(?:src|href)=\"(.*?)\"", page) == ["data:,"]
    assert not re.search(r"https?://|url\(|@import|fetch\(|innerHTML|outerHTML|eval\(", page)
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_page_reads_without_its_script():
    page = ANSWER.explain(GREEDY).html()
    still = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]*>", "", page)
    assert "It is not blue" in still
    assert "It is very red" in still


def test_the_text_tells_sources_and_scope_and_calls_a_probability_one():
    told = SCOPED.explain(GREEDY).text()
    assert '80% from a: What of a?\n  "a it is." [the book of a]\n' in told
    lines = told.splitlines()
    place = lines.index("  a: What of a?")
    assert lines[place + 1 : place + 6] == [
        "    In scope: probability 0.90, above 0.70. For: its answer and its wrong answers are "
        "close to what",
        "    you ask. Against: you say 'sky', it does not.",
        "  b: What of b?",
        "    Out of scope: probability 0.20, not above 0.70. For: its answer and its wrong "
        "answers are close",
        "    to what you ask. Against: you say 'sky', it does not.",
    ]
    assert (
        "    Out of scope: probability 0.00, not above 0.70." in lines
    )  # the reasons are told
    assert "cosine with" not in told
    assert "a (probability 0.80, push +3.50)" in told
    assert "examples cited" not in told  # the sources say it
    assert max(map(len, lines)) <= 100


def test_the_text_tells_the_numbers_below_the_words_where_asked():
    lines = SCOPED.explain(GREEDY).text(with_signals=True).splitlines()
    place = lines.index("  b: What of b?")
    assert lines[place - 3 : place] == [
        "      for       +4.0   0.80  cosine with its wrong answers",
        "                +2.0   0.60  cosine with its truthful answers",
        "      against   -3.2   0.50  share of its question's words that are asked",
    ]


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_table_leaves_figures_out_and_names_the_example_whole(width):
    lines = SCOPED.explain(GREEDY).text(width).splitlines()
    changed = [line for line in lines if line.startswith("    3  ")]
    assert changed
    assert "(" not in changed[0].rpartition("'")[2] or changed[0].endswith(")")
    assert max(map(len, lines)) <= width


def test_an_answer_that_nothing_covers_says_so_in_every_form():
    told = UNCOVERED.explain()
    assert "\nnot covered by your examples\n" in told.text()
    assert told.as_dict()["is_covered"] is False
    silent = replace(SCOPED, sources=()).explain().text()
    assert "covered by your examples, but no token follows them" in silent
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


@pytest.mark.parametrize("suffix", [".html", ".JSON", ".txt"])
def test_save_writes_the_form_of_the_suffix(suffix, tmp_path):
    told = hostile_answer().explain()
    told.save(tmp_path / f"why{suffix}")
    form = {".html": told.html, ".JSON": told.json, ".txt": told.text}[suffix]()
    written = (tmp_path / f"why{suffix}").read_bytes().decode("utf-8")
    assert written.rstrip("\n") == form.encode("utf-8", "replace").decode().rstrip("\n")


def test_save_refuses_other_names_and_says_what_it_cannot_write(tmp_path):
    with pytest.raises(SettingError, match=r"\.html, \.json, \.txt; got 'why.pdf'"):
        ANSWER.explain().save(tmp_path / "why.pdf")
    with pytest.raises(SettingError, match=r"there is no folder .*nowhere to write in"):
        ANSWER.explain().save(tmp_path / "nowhere" / "why.txt")
    (tmp_path / "why.txt").mkdir()
    with pytest.raises(SettingError, match="is a folder"):
        ANSWER.explain().save(tmp_path / "why.txt")


def test_explaining_needs_no_torch():
    code = "import sys, trueline.types, trueline.explain; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_real_trace_is_told_whole(lm, embedder):
    space = tl.build(lm, EXAMPLES, embedder=embedder, context=8)
    asked = dict(questions=tiny.QUESTIONS[1], max_new_tokens=24)
    answer = tl.generate(lm, tl.RAD(space, tau=0.8), trace=True, **asked)
    told = answer.explain(tl.generate(lm, tl.Greedy(space.prompt), **asked))
    assert [one.token for one in told.steps] == list(answer.token_ids)
    assert "".join(one.text for one in told.steps if one.is_in_text) == answer.text
    assert told.summary.grounded == sum(1 for one in answer.trace if one.hits) > 0
    for one, raw in zip(told.steps, answer.trace, strict=True):
        if one.hits == len(one.neighbors):
            assert one.move == pytest.approx(sum(n.push for n in raw.neighbors), abs=1e-3)


@pytest.fixture(scope="module")
def home(tiny_home, tmp_path_factory):
    """A folder with a space, where the default names stand for tiny parts."""
    folder = tmp_path_factory.mktemp("explained")
    tl.build(tl.load("smollm2-135m"), EXAMPLES, context=8).save(folder / "facts.space")
    return folder


def run(home, *options):
    from trueline.cli import cli

    space = ["--space", str(home / "facts.space"), "--max-new-tokens", "8"]
    near = [] if "--method" in options else ["--method", "rad", "--set", "tau=0.5"]
    return CliRunner().invoke(cli, ["explain", "Are bats blind?", *space, *near, *options])


def test_the_command_prints_text_beside_greedy(home):
    ran = run(home)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("Are bats blind?\n\nrad ")
    assert "\ngreedy " in ran.stdout
    assert "8 tokens: " in ran.stdout


def test_the_command_prints_json_with_its_settings(home):
    told = json.loads(run(home, "--json", "--set", "aggregation=mean").stdout)
    assert len(told["steps"]) == told["summary"]["tokens"] == 8
    assert (told["method"], told["beside"]["method"]) == ("rad", "greedy")
    assert told["settings"]["tau"] == 0.5
    assert told["settings"]["aggregation"] == "mean"


def test_the_command_writes_a_page_and_says_so(home, tmp_path):
    ran = run(home, "--out", str(tmp_path / "bats.html"))
    assert ran.stdout.startswith(f"{tmp_path / 'bats.html'}: 8 tokens, ")
    assert len(ran.stdout.splitlines()) == 1
    assert (tmp_path / "bats.html").read_text("utf-8").startswith("<!doctype html>")


def test_the_command_explains_greedy_alone(home):
    assert json.loads(run(home, "--method", "greedy", "--json").stdout)["beside"] is None


def test_the_command_refuses_a_name_before_it_opens_a_model(home, monkeypatch):
    monkeypatch.setattr(
        "trueline.engines.transformers.model.load", lambda *a, **o: pytest.fail("opened")
    )
    assert isinstance(run(home, "--out", "bats.pdf").exception, SettingError)
