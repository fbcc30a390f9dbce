"""The regimes: what is read, what counts as right, what stays the plain model's."""

import json
import re
from collections import Counter
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import tiny
from conftest import EXAMPLES

from trueline.errors import ExampleError
from trueline.examples import to_lines
from trueline.lab.benchmarks import read_benchmark
from trueline.lab.benchmarks.tables import Probe
from trueline.lab.measures import MEASURES, Column, average
from trueline.lab.metrics import (
    is_run_together,
    keeps_form,
    match_for,
    probe_scores,
    states,
)
from trueline.lab.plan import plan_from
from trueline.lab.results import (
    AnswerLine,
    gather_cells,
    read_results,
    read_written,
    replace_line,
)
from trueline.lab.run import run_plan
from trueline.types import Example

RESULTS = Path(__file__).parent.parent / "docs" / "results"
GUM = Example(
    "What happens to gum you swallow?",
    ["Swallowed gum passes through you within days.", "It leaves the body like other food."],
    ["Swallowed gum stays in you for seven years."],
    id="gum",
)
VOICE = Example("What voice is hers?", ["mezzo soprano"], ["soprano"], id="voice")
LONG = Example("What is it?", [" ".join(f"word{n}" for n in range(80))], id="long")


@pytest.mark.parametrize(
    ("text", "example", "match", "is_stated"),
    [
        ("Swallowed gum passes through you in days.", GUM, "wording", True),
        ("Swallowed gum stays in you for years.", GUM, "wording", False),
        ("Swallowed gum", GUM, "wording", False),
        # Told: 7 of 7 words in order inside a longer text; the wrong one has 5 of 8.
        ("Dear Ann, swallowed gum passes through you within days. Bye.", GUM, "told", True),
        ("Dear Ann, swallowed gum stays in you for seven years. Bye.", GUM, "told", False),
        ("She is a Mezzo-Soprano.", VOICE, "target", True),
        ("She is a soprano.", VOICE, "target", False),
        ("She is no soprano but a mezzo soprano.", VOICE, "target", False),
        ("Mezzo is her soprano.", VOICE, "target", False),
        ("", VOICE, "target", False),
        (" ".join(f"word{n}" for n in range(20, 40)), LONG, "entry", True),
        ("word1 word2", LONG, "entry", False),  # too little to be an answer
        ("word1 one word2 two word3 three word4 four", LONG, "entry", False),
    ],
)
def test_an_answer_is_right_by_the_rule_of_its_set(text, example, match, is_stated):
    assert states(text, example, match) is is_stated


def test_the_scores_of_an_answer_depend_on_its_regime():
    probe = Probe("double", (GUM, EXAMPLES[2]), match="told")
    both = "Swallowed gum passes through you within days. Gold does not rust."
    assert probe_scores(probe, both, False)["right"] == 1.0  # only if both are there
    assert probe_scores(probe, GUM.answers[0], False)["right"] == 0.0
    scores = probe_scores(Probe("near miss"), "Jellyfish sting with cells.", True)
    assert scores == {"repeated": 0.0, "joined": 0.0, "cut": 1.0, "fluent": 0.0}
    joined = [
        probe_scores(Probe(regime, (GUM,)), " ".join(GUM.answers), False)["joined"]
        for regime in ("exact", "paraphrase", "double", "styled", "mid-text")
    ]
    assert joined == [1.0, 1.0, 1.0, 0.0, 0.0]  # where one answer was wanted
    assert match_for("paraphrase", [GUM]) == "wording"
    assert match_for("styled", [GUM]) == "told"
    assert match_for("exact", [VOICE]) == "target"
    assert match_for("exact", [LONG]) == "entry"


def test_repetition_and_polarity_are_found():
    def scores(text, polarity=""):
        return probe_scores(Probe("exact", (GUM,), polarity=polarity), text, False)

    assert scores("The body is a body, and so the body is a head.")["repeated"]
    assert not scores("The body is a body, and the head is a part of it.")["repeated"]
    assert scores("Yes, it does.", "no")["wrong_polarity"]
    assert not scores("No.", "no")["wrong_polarity"]
    assert not scores("It does not.", "yes")["wrong_polarity"]


@pytest.mark.parametrize(
    ("text", "is_joined"),
    [
        (GUM.answers[0], False),
        (f"{GUM.answers[0]} {GUM.answers[1]}", True),
        ("Gum passes through you.It leaves.", True),
        ("GumGumGum is chewed.", True),
        ("Read www.Example.Com, or wait for Murmur and couscous in the U.S. today.", False),
    ],
)
def test_two_answers_run_together_are_found(text, is_joined):
    assert is_run_together(text, GUM.answers) is is_joined


@pytest.mark.parametrize(
    ("check", "text", "is_kept"),
    [
        ({"starts_with": ["No"]}, '"No, it passes."', True),
        ({"ends_with": ["Bye."]}, "It passes. Bye.", True),
        ({"contains": ["days", "gum"]}, "Gum passes.", False),
        ({"max_words": 3}, "It passes through you.", False),
        ({"min_sentences": 2, "max_sentences": 2}, "It passes. It leaves.", True),
        ({"uppercase": True}, "IT PASSES.", True),
    ],
)
def test_a_form_is_checked(check, text, is_kept):
    assert keeps_form(text, check) is is_kept


FILES = {
    "nq_open/nq_open_dev": [{"question": f"who was nq {n}"} for n in range(3_610)],
    "popqa/popqa_1k": [{"question": f"What is pop {n}?"} for n in range(1_000)],
}


def write(folder, stem, rows):
    path = folder / f"{stem}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def regimes_of(read):
    return dict(Counter(sample.probe.regime for sample in read.test))


def test_the_shipped_regimes_need_no_folder_and_have_no_unrelated_questions_then():
    read = read_benchmark("regimes", ground=None)
    wanted = {"exact": 68, "paraphrase": 204, "near miss": 136}
    assert regimes_of(read) == wanted | dict.fromkeys(("styled", "double", "mid-text"), 60)
    double = next(sample for sample in read.test if sample.probe.regime == "double")
    assert len(double.probe.meant) == 2
    assert all(sample.answers or sample.probe.regime == "near miss" for sample in read.test)


def test_unrelated_questions_come_in_turn_and_a_number_is_taken_of_each_regime(tmp_path):
    for stem, rows in FILES.items():
        write(tmp_path, stem, rows)
    local = [x for x in read_benchmark("regimes", data=tmp_path).test if not x.answers]
    unrelated = [x for x in local if x.probe.regime == "unrelated"]
    assert [x.category for x in unrelated[:4]] == ["nq", "popqa", "nq", "popqa"]
    assert len(unrelated) == 400
    first, drawn = (
        read_benchmark("regimes", data=tmp_path, test=3, seed=seed) for seed in (None, 1)
    )
    assert [*regimes_of(first).values()] == [*regimes_of(drawn).values()] == [3] * 7
    assert [sample.id for sample in drawn.test] != [sample.id for sample in first.test]


def user_files(folder, rows):
    examples = folder / "faq.jsonl"
    examples.write_text("".join(to_lines(EXAMPLES)), "utf-8")
    return f"{examples}:{write(folder, 'asked', rows)}"


def test_questions_of_the_user_probe_with_their_own_regimes(tmp_path):
    rows = [
        {"question": "can bats see", "id": "fact-2"},
        {"question": "how do bats fly", "id": ""},
        {"question": "Shout: does gold rust?", "id": "fact-3", "regime": "styled"},
        {"question": "bats and gold?", "id": ["fact-2", "fact-3"], "regime": "double"},
        {"question": "who wrote it", "id": "none", "regime": "unrelated"},
        {"question": "Can bats see?", "id": "fact-2"},  # the first once more
        {"question": "Are bats blind?", "id": None},  # an example answers it
    ]
    read = read_benchmark(user_files(tmp_path, rows))
    once = ("paraphrase", "near miss", "styled", "double", "unrelated")
    assert regimes_of(read) == {"exact": 4} | dict.fromkeys(once, 1)
    assert read.counts["repeated question"] == 1
    assert read.counts["no example meant, but one answers"] == 1
    double = next(sample for sample in read.test if sample.probe.regime == "double")
    assert [one.id for one in double.probe.meant] == ["fact-2", "fact-3"]
    assert read.counts["questions"] == 7


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"regime": "near miss", "id": "fact-1"}, "near miss has 1 id; near miss"),
        ({"regime": "hard", "id": ""}, "regime must be one of exact, paraphrase, "),
        ({"id": ["fact-1", "fact-9"], "regime": "double"}, "no example has the id 'fact-9'"),
    ],
)
def test_a_question_that_contradicts_its_regime_is_refused(tmp_path, row, problem):
    with pytest.raises(ExampleError) as caught:
        read_benchmark(user_files(tmp_path, [{"question": "what?", **row}]))
    assert problem in str(caught.value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, embedder):
    """A run of two methods on the regimes of a user's file, with a tiny model."""
    folder = tmp_path_factory.mktemp("run")
    rows = [
        {"question": "can bats see", "id": "fact-2"},
        {"question": "does water boil on a mountain", "id": ""},
        {"question": "is air gold", "id": ""},
    ]
    table = {"models": ["tiny"], "benchmarks": [user_files(folder, rows)], "controls": False}
    table |= {"methods": ["greedy", "rad", "kate"], "settings": {"kate": {"k": 1}}}
    plan = plan_from({**table, "max_new_tokens": 4})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "trueline.engines.transformers.model.load",
            lambda name, **options: tiny.language_model("llama"),
        )
        patch.setattr("trueline.space.load_embedder", lambda name, device: embedder)
        run_plan(plan, folder / "out")
    return folder / "out"


def share(cell, key):
    found = average([cell], Column(MEASURES[key]))
    return None if found is None else found.mean


def test_locality_is_the_share_of_answers_that_are_the_plain_models_token_for_token(finished):
    cells = {cell.head.method: cell for cell in read_results(finished).cells}
    own = {line.sample: line for line in cells["greedy"].answers}
    assert share(cells["greedy"], "near_miss") == 1.0
    for name in ("rad", "kate"):
        local = [line for line in cells[name].answers if line.regime == "near miss"]
        assert len(local) == 2
        same = [line.token_hash == own[line.sample].token_hash for line in local]
        assert share(cells[name], "near_miss") == sum(same) / 2
        assert [line.text == own[line.sample].text for line in local] == same
    assert share(cells["kate"], "near_miss") == 0.0  # another prompt, another answer
    assert share(cells["kate"], "unrelated") is None
    lines = read_written(finished / "results.jsonl")[0]
    plain = cells["greedy"].id
    for cell in gather_cells(line for line in lines if getattr(line, "cell", "") != plain):
        assert share(cell, "near_miss") is None  # there is no plain row to compare with


def test_planted_answers_give_the_worked_shares(finished):
    """Of four own questions one is answered as verified; both near misses are changed."""
    lines = []
    for line in read_written(finished / "results.jsonl")[0]:
        if isinstance(line, AnswerLine) and line.regime == "exact":
            right = float(line.sample.startswith("fact-1"))
            scores = {**line.scores, "right": right, "fluent": 1.0 - right}
            line = replace_line(line, scores=scores)
        elif isinstance(line, AnswerLine) and line.regime == "near miss":
            line = replace_line(line, token_hash=line.cell)
        lines.append(line)
    cell = next(cell for cell in gather_cells(lines) if cell.head.method == "rad")
    assert share(cell, "efficacy") == 0.25
    assert share(cell, "near_miss") == 0.0
    assert 0.0 <= share(cell, "generalisation") <= 1.0


def table_rows(text):
    """{(head, first cell): the other cells} of the rows of every Markdown table of a text."""
    rows, head = {}, None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = cells
        elif set(cells) != {"---"}:
            rows[tuple(head), cells[0]] = cells[1:]
    return rows


def test_the_page_of_the_regimes_has_the_shares_of_the_kept_answers(kept):
    text = (RESULTS / "regimes.md").read_text("utf-8")
    shares = kept.shares("smollm2-135m")
    wanted = {}
    for group in kept.GROUPS:
        columns = [one for one in MEASURES.values() if one.group == group]
        head = ("method", *(one.title for one in columns))
        for method in kept.METHODS:
            wanted[head, method] = [kept.cell(shares.get((one.key, method))) for one in columns]
    assert table_rows(text.split("## Every method")[0]) == wanted


@pytest.mark.parametrize("method", ["greedy", "in-prompt", "lookup", "corrective"])
def test_what_is_right_is_what_another_program_counted(kept, method):
    """The tables of docs/results/covered.md, which benchmarks/covered.py prints."""
    text = (RESULTS / "covered.md").read_text("utf-8").split("### smollm2-135m+")[0]
    counts = {
        measure: re.search(rf"^\| {regime} \| {method} \| [^|]*; (\d+) of (\d+)\)", text, re.M)
        for measure, regime in (("efficacy", "exact"), ("generalisation", "paraphrase"))
    } | {
        measure: re.search(  # the third column: facts stated
            rf"^\| {method} (?:\| [^|]*){{2}}\| [^|]*; (\d+) of (\d+)\)",
            text.partition(f"**{regime}**")[2],
            re.M,
        )
        for measure, regime in (
            ("styled", "styled"),
            ("double", "double"),
            ("mid_text", "mid-text"),
        )
    }
    shares = kept.shares("smollm2-135m")
    assert {key: tuple(map(int, found.groups())) for key, found in counts.items()} == {
        key: shares[key, method] for key in counts
    }


def test_what_stays_and_what_form_is_kept_is_what_another_program_counted(kept):
    shares = kept.shares("smollm2-135m")
    found = {key: shares[key, "corrective"] for key in ("near_miss", "unrelated", "form")}
    # 5 of 136 near misses were changed; forms are those of styled and mid-text questions
    assert found == {"near_miss": (131, 136), "unrelated": (500, 500), "form": (39, 72)}


@pytest.fixture(scope="module")
def kept():
    """benchmarks/regimes.py, which works the measures out from the kept answers, once."""
    path = Path(__file__).parent.parent / "benchmarks" / "regimes.py"
    spec = spec_from_file_location("benchmarks_regimes", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.shares = cache(module.shares)
    return module
