"""Runs: their lines, that a kill costs nothing, and the notes on doubtful results."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from conftest import EXAMPLES, fill_home
from tiny_run import LOAD, OPEN_JUDGE, TEST, FakeJudge, lines_in, steady

from trueline.errors import ModelError, SettingError
from trueline.examples import to_lines
from trueline.lab.cells import benchmark_of, cells_of
from trueline.lab.findings import warnings
from trueline.lab.judges import Limits
from trueline.lab.judges.questions import Verdict
from trueline.lab.plan import plan_from
from trueline.lab.report.pages import report_of, write_report
from trueline.lab.report.tables import tables_of
from trueline.lab.results import (
    AnswerLine,
    CellLine,
    ChoiceLine,
    LeaksLine,
    StopRule,
    VerdictLine,
    gather_cells,
    open_journal,
    plain,
    read_results,
    replace_line,
)
from trueline.lab.run import run_plan
from trueline.types import Example

pytestmark = pytest.mark.usefixtures("parts")


def run(table, folder, **options):
    return run_plan(plan_from(table), folder, **options)


def kinds(lines) -> str:
    """The kinds of lines by their first letter, in order."""
    return "".join(plain(line)["kind"][0] for line in lines)


def test_a_run_writes_the_lines_of_the_format(table, tmp_path):
    outcome = run({**table, "tasks": ["generate", "choose"], "judges": ["fake"]}, tmp_path)
    # Each cell: its head, five answers or choices ("choice" also begins with c), done; then
    # the leaks of the benchmark, and two questions to the judge about the five answers of the
    # two generating cells.
    assert kinds(lines_in(tmp_path)) == 2 * ("caaaaad" + "ccccccd") + "l" + 20 * "v"
    heads = [(head.label, head.task) for head in lines_in(tmp_path, CellLine)]
    assert heads == [(m, task) for m in ("greedy", "rad") for task in ("generate", "choose")]
    texts = (tmp_path / "results.jsonl").read_bytes().splitlines()
    first = {"answer": 1, "choice": 8, "done": 6, "verdict": -1}
    fields = {kind: " ".join(json.loads(texts[at])) for kind, at in first.items()}
    assert fields == {
        "answer": "kind cell sample index question text tokens finish prompt_tokens "
        "prompt_hashes seconds decoding_seconds scores confidence hits flipped entropy "
        "regime token_hash time",
        "choice": "kind cell sample index single multiple mc1 mc2 mc3 seconds time",
        "done": "kind cell seconds time",
        "verdict": "kind cell sample judge about label basis raw prompt_tokens answer_tokens "
        "cost is_cached is_answered judge_hash time",
    }
    assert {(cell.done, cell.failed, cell.is_done) for cell in outcome.cells} == {(5, 0, True)}
    assert outcome.stopped is None


def test_answers_and_choices_are_those_of_the_library(table, embedder, tmp_path):
    import trueline as tl

    run({**table, "tasks": ["generate", "choose"]}, tmp_path)
    lm, heads = tiny.language_model("llama"), lines_in(tmp_path, CellLine)
    (space,) = (tmp_path / "spaces").iterdir()
    rad = tl.RAD(tl.open(space, embedder=embedder), alpha=0.5, tau=0.7)
    questions = [example.question for example in TEST]
    direct = tl.generate(lm, rad, questions, max_new_tokens=4, batch_size=2, trace=True)
    lines = [x for x in lines_in(tmp_path, AnswerLine) if x.cell == heads[2].cell]
    assert [line.text for line in lines] == [answer.text for answer in direct]
    steps = direct[0].trace
    assert lines[0].hits == tuple(step.hits for step in steps)
    assert lines[0].flipped == tuple(int(step.flipped) for step in steps)
    picked = [best.probability for x in steps for best in x.final if best.token == x.token]
    product = picked[0] * picked[1] * picked[2] * picked[3]
    assert lines[0].confidence == pytest.approx(product**0.25, abs=1e-5)
    choices = [x for x in lines_in(tmp_path, ChoiceLine) if x.cell == heads[3].cell]
    right, wrong = tl.score(lm, rad, questions[0], [TEST[0].answers[0], *TEST[0].wrong_answers])
    assert choices[0].multiple == pytest.approx((right, wrong), abs=1e-4)
    assert choices[0].mc1 == float(right > wrong)


def test_a_finished_run_adds_nothing_and_another_plan_adds_its_cells(table, tmp_path):
    run(table, tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    run(table, tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == before
    run({**table, "variants": [{"method": "rad", "beta": 0.5}]}, tmp_path)
    after = (tmp_path / "results.jsonl").read_bytes()
    assert after.startswith(before)
    added = lines_in(tmp_path)[len(before.splitlines()) :]
    assert kinds(added) == "caaaaad"  # rad without beta is known, though its space is new
    assert added[0].label == "rad beta=0.5"


@pytest.mark.parametrize("many", [4, pytest.param(15, marks=pytest.mark.slow)])
def test_a_run_cut_at_any_byte_resumes_to_the_same_lines(many, table, tmp_path):
    plan = {**table, "tasks": ["generate", "choose"], "judges": ["fake"], "max_new_tokens": 2}
    run(plan, tmp_path)
    path = tmp_path / "results.jsonl"
    whole, wanted = path.read_bytes(), steady(lines_in(tmp_path))
    ends = [place + 1 for place, sign in enumerate(whole) if sign == ord("\n")]
    draw = random.Random(0)
    for cut in [0, 1, *draw.sample(ends, many), *draw.sample(range(len(whole)), many)]:
        path.write_bytes(whole[:cut])
        run(plan, tmp_path)
        assert steady(lines_in(tmp_path)) == wanted, f"cut at byte {cut}"


def test_a_judge_answers_each_question_once_until_it_changes(table, tmp_path, monkeypatch):
    plan = {**table, "methods": ["greedy"], "judges": ["fake"]}
    outcome = run(plan, tmp_path)
    assert FakeJudge.judged == 10  # five answers, truth and info
    labels = [line.label for line in lines_in(tmp_path, VerdictLine)]
    texts = [line.text for line in lines_in(tmp_path, AnswerLine)]
    one = [None if len(text) % 5 == 0 else len(text) % 2 == 0 for text in texts]
    assert labels == one + one
    scored = [label for label in one if label is not None]
    (cell,) = outcome.cells
    assert cell.means.get("truth@fake:1") == (sum(scored) / len(scored) if scored else None)
    assert cell.unscored.get("truth@fake:1", 0) == one.count(None)
    run(plan, tmp_path)
    assert FakeJudge.judged == 10
    monkeypatch.setattr(FakeJudge, "hash", "two")  # a prompt, a limit or weights
    run(plan, tmp_path)
    assert FakeJudge.judged == 20
    assert {(x.judge_hash, x.raw) for x in lines_in(tmp_path, VerdictLine)} == {("two", "two")}
    monkeypatch.setattr(FakeJudge, "hash", "three")
    run({**plan, "stop": ["."]}, tmp_path)
    write_report(tmp_path, formats=["md"], plots=())
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "fake:1 judged with different settings, prompts or weights" in text


def test_a_question_without_a_response_is_repeated_in_the_next_run(
    table, tmp_path, monkeypatch
):
    class SilentJudge(FakeJudge):
        judged, silent = 0, 3

        def judge(self, task, about, items):
            verdicts = super().judge(task, about, items)
            for place in range(min(len(items), self.silent)):
                type(self).silent -= 1
                verdicts[place] = replace(verdicts[place], label=None, is_answered=False)
            return verdicts

    monkeypatch.setattr(OPEN_JUDGE, lambda name, **options: SilentJudge())
    plan = {**table, "methods": ["greedy"], "judges": ["fake"]}
    first = run(plan, tmp_path)
    assert "fake:1: 3 questions got no response; the next run tries again" in first.warnings
    second = run(plan, tmp_path)
    assert SilentJudge.judged == 10 + 3
    assert not any("no response" in warning for warning in second.warnings)
    verdicts = lines_in(tmp_path, VerdictLine)
    assert all(line.is_answered for line in verdicts)
    assert len(verdicts) == len({(x.sample, x.about) for x in verdicts}) == 10


def test_a_judge_gets_many_answers_at_once_and_the_options_of_the_plan(
    table, tmp_path, monkeypatch
):
    sizes, bought = [], {"prompt_tokens": 10, "answer_tokens": 1, "cost": 0.5}

    def judge(self, task, about, items):
        sizes.append(len(items))
        return [
            Verdict(self.id, about, True, "Yes", **bought, is_cached=place > 0)
            for place, _ in enumerate(items)
        ]

    monkeypatch.setattr(FakeJudge, "judge", judge)
    plan = {**table, "methods": ["greedy"], "judges": ["fake"], "batch_size": 1}
    plan["judge"] = {"per_minute": 30, "concurrency": 2, "backoff": 3, "max_tokens": 9}
    run(plan, tmp_path)
    assert sizes == [5, 5]
    assert FakeJudge.options == {
        "limits": Limits(per_minute=30, concurrency=2, backoff=3),
        "max_tokens": 9,
    }
    results = read_results(tmp_path)
    (section,) = report_of(results, tables_of(results)).sections
    bill = "Judge fake:1: 10 verdicts, 0 unscored, 22 tokens, 1.0000 US dollars."
    assert section.notes[0] == bill  # without what was in the cache


def test_a_judge_on_this_machine_shares_the_model_of_the_run(table, tmp_path, monkeypatch):
    loaded = []

    def load(name, **options):
        loaded.append((name, options["dtype"]))
        return tiny.language_model("llama", positions=4096)

    monkeypatch.setattr(LOAD, load)
    run({**table, "judges": ["local:tiny"], "dtype": "float32", "test": 1}, tmp_path)
    assert loaded == [("tiny", "float32")]
    assert FakeJudge.options["lm"].id == "tiny-llama"


def test_what_grounding_gives_away_is_found_once_and_noted(table, data, tmp_path):
    near = replace(TEST[0], question=EXAMPLES[0].question, id="near")
    test = tmp_path / "test.jsonl"
    test.write_text("".join(to_lines([near, *TEST[1:]])), "utf-8")
    plan = {**table, "benchmarks": [f"{data / 'ground.jsonl'}:{test}"]}
    outcome = run(plan, tmp_path / "out")
    (line,) = lines_in(tmp_path / "out", LeaksLine)
    assert (line.counts["samples"], line.counts["question equal"]) == (5, 1)
    assert (line.nearest[0].sample, line.nearest[0].example) == ("near", EXAMPLES[0].id)
    (note,) = (warning for warning in outcome.warnings if "grounding examples" in warning)
    assert f"near and {EXAMPLES[0].id} (question equal, 1.00)" in note
    assert f"by text and by {line.embedder}" in note
    results = read_results(tmp_path / "out")
    (section,) = report_of(results, tables_of(results)).sections
    assert f"{note}." in section.notes
    again = run({**plan, "methods": ["greedy"]}, tmp_path / "out")
    assert note in again.warnings
    assert len(lines_in(tmp_path / "out", LeaksLine)) == 1


def test_a_missing_encoder_shows_before_a_model_is_opened(table, tmp_path, monkeypatch):
    monkeypatch.setattr(LOAD, None)
    with pytest.raises(ModelError, match=r"must hold its weights as .* and has none"):
        run({**table, "bertscore": str(tmp_path), "bertscore_layers": 1}, tmp_path / "out")


def test_a_second_run_on_a_folder_is_refused_until_the_first_ends(table, tmp_path):
    with (
        open_journal(tmp_path),
        pytest.raises(SettingError, match=r"another run is writing to .*; wait for it"),
    ):
        run(table, tmp_path)
    with open_journal(tmp_path):
        pass


def test_a_sample_without_an_answer_is_a_counted_failure(table, data, tmp_path):
    long = Example("Is it " + "so very true " * 40 + "?", "No.", "Yes.", id="long")
    test = tmp_path / "test.jsonl"
    test.write_text("".join(to_lines([TEST[0], long, *TEST[1:3]])), "utf-8")
    plan = {
        **table,
        "models": ["short"],
        "benchmarks": [f"{data / 'ground.jsonl'}:{test}"],
        "methods": ["greedy"],
        "tasks": ["generate", "choose"],
    }
    outcome = run(plan, tmp_path / "out")
    lines = lines_in(tmp_path / "out")
    assert kinds(lines) == "cafaad" + "ccfccd" + "l"
    assert [*plain(lines[2])] == ["kind", "cell", "sample", "index", "reason", "time"]
    assert (lines[2].sample, lines[2].index) == ("long", 1)
    assert "reads 96 at most" in lines[2].reason
    assert [(cell.done, cell.failed) for cell in outcome.cells] == [(3, 1), (3, 1)]
    assert any("1 of 4 samples failed (long)" in warning for warning in outcome.warnings)


def test_limits_stop_a_run_that_then_goes_on(table, tmp_path):
    first = run(table, tmp_path, max_samples=3)  # two chunks of two are begun
    assert (first.stopped, kinds(lines_in(tmp_path))) == (
        "the number of samples is reached",
        "caaaa",
    )
    assert [(cell.done, cell.is_done) for cell in first.cells] == [(4, False)]
    late = run(table, tmp_path, minutes=1e-9)
    assert (late.stopped, late.cells) == ("the time is up", [])
    rest = run(table, tmp_path)
    assert (rest.stopped, kinds(lines_in(tmp_path))) == (None, "caaaaad" * 2 + "l")
    for limit in ({"minutes": 0.0}, {"max_samples": 0}):
        with pytest.raises(SettingError, match=f"{next(iter(limit))} must be "):
            run(table, tmp_path, **limit)


def test_seeds_are_cells_where_there_is_sampling_and_draws_go_with_the_sample(table, tmp_path):
    plan = {**table, "methods": ["greedy"], "temperature": 1.0, "seeds": [0, 1]}
    outcome = run({**plan, "tasks": ["generate", "choose"]}, tmp_path / "two")
    found = [(cell.task, cell.seed) for cell in outcome.cells]
    assert found == [("generate", 0), ("generate", 1), ("choose", None)]
    run({**plan, "batch_size": 3}, tmp_path / "three")
    two, three = (
        [x.text for x in lines_in(tmp_path / name, AnswerLine)] for name in ("two", "three")
    )
    assert two == three
    assert two[:5] != two[5:]
    drawn = lines_in(tmp_path / "two", AnswerLine)
    assert sum(sum(line.flipped) for line in drawn) == 0  # a draw is no change by a method
    assert all(0 < line.confidence < 1 for line in drawn)  # also beyond the best five


def test_the_settings_of_a_benchmark_hold_for_every_method_that_has_them(table):
    plan = plan_from({**table, "methods": ["greedy", "dola"]})
    read = benchmark_of(plan, plan.benchmarks[0])
    benchmark = replace(read, settings={"repetition_penalty": 1.5, "by": 0.0})
    lm = tiny.language_model("llama")
    heads = [cells_of(plan, lm, benchmark, x, None)[0].head for x in plan.variants]
    assert heads[0].settings == {}
    assert heads[1].settings["repetition_penalty"] == 1.5
    assert [head.label for head in heads] == ["greedy", "dola"]  # they are its defaults there


def test_examples_can_come_from_another_benchmark(table, data, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text("".join(to_lines(EXAMPLES[:2])), "utf-8")
    plan = {**table, "methods": ["rad"], "ground_from": f"{other}:{data / 'test.jsonl'}"}
    run(plan, tmp_path / "out")
    run({**plan, "ground_from": table["benchmarks"][0]}, tmp_path / "out")
    one, two = lines_in(tmp_path / "out", CellLine)
    assert (one.ground, two.ground) == (2, 4)
    assert one.data_hash != two.data_hash
    assert one.benchmark == two.benchmark
    counted = ("ground read", "ground used", "test used")
    assert [one.counts[name] for name in counted] == [2, 2, 5]
    assert [two.counts[name] for name in counted] == [4, 4, 5]


def test_what_cannot_be_run_is_left_out_and_noted(table, tmp_path):
    plain = [replace(example, wrong_answers=()) for example in [*EXAMPLES, *TEST]]
    path = tmp_path / "plain.jsonl"
    path.write_text("".join(to_lines(plain)), "utf-8")
    plan = {**table, "benchmarks": [str(path)], "ground": 4, "tasks": ["generate", "choose"]}
    plan |= {"variants": [{"method": "rad", "beta": 0.5}], "test": 1, "controls": True}
    outcome = run(plan, tmp_path / "out")
    labels = {(cell.label.split()[0], cell.task) for cell in outcome.cells}
    assert labels == {(name, "generate") for name in ("greedy", "rad", "kate", "lookup")}
    notes = "\n".join(outcome.warnings)
    assert "has no choices; the task choose is left out" in notes
    assert "rad with beta=0.5 is left out: no grounding example has a wrong answer" in notes
    assert "rad has no control `wrong answers`: its examples give none" in notes


def test_unequal_rules_and_prompts_are_noted(table, tmp_path):
    run({**table, "methods": ["greedy", "cad"]}, tmp_path)
    lines = lines_in(tmp_path)
    lines[7] = replace_line(
        lines[7],
        max_new_tokens=5,
        stop=StopRule((".",), (2,)),
        prompt_hashes=("another", "two"),
    )
    notes = "\n".join(warnings(gather_cells(lines)))
    for name in ("max_new_tokens", "stop", "base prompt"):
        assert f"the methods ran with different values of {name}" in notes
    assert "cad (generate): 5 answers were generated with another prompt" in notes


KILLED = """
models = ["smollm2-135m"]
benchmarks = ["facts"]
methods = ["greedy", "rad"]
tasks = ["generate", "choose"]
judges = ["offline"]
ground = 6
test = 6
max_new_tokens = 3
batch_size = 1
threads = 1
"""


# Importing takes many times longer than a run this small. So one process imports, runs no
# tensor and starts no thread, and forks a child for every run: a process as any other, whose
# command is `trueline eval`, and which dies at the given change of the disk.
RUNS = """
import os, sys
import sacrebleu, torch
import rouge_score.rouge_scorer
import transformers.models.bert.modeling_bert, transformers.models.llama.modeling_llama
import trueline.lab.judges.offline, trueline.lab.run, trueline.decode.generate
import trueline.space
from kill_points import KillPoints
from trueline.cli import main

for line in sys.stdin:
    folder, fatal, kept = line.split()
    sys.argv = ["trueline", "eval", "run.toml", "--out", folder]
    if (child := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        points = KillPoints(folder, int(fatal), float(kept))
        try:
            sys.exit(main())
        finally:
            with open("points", "w") as file:
                file.write(str(points.count))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def run_until(tmp_path):
    """A function that runs the plan in a folder, to its end or a kill: the exit code."""
    fill_home(tmp_path / "home")
    (tmp_path / "run.toml").write_text(KILLED, "utf-8")
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PIP_NO_INDEX": "1"}
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", RUNS],
        cwd=tmp_path,
        env={
            **os.environ,
            **alone,
            "TRUELINE_HOME": str(tmp_path / "home"),
            "PYTHONPATH": paths,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:

        def run_until(folder: Path, fatal: int = 0, kept: float = 1.0) -> int:
            process.stdin.write(f"{folder} {fatal} {kept}\n".encode())
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run_until
        process.stdin.close()
        assert process.wait() == 0
    shutil.rmtree(tmp_path / "home")


@pytest.mark.slow
def test_a_run_killed_ten_times_ends_with_the_lines_of_one_that_was_not(run_until, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run_until(whole) == 0
    wanted = steady(lines_in(whole))
    points = int((tmp_path / "points").read_text())
    assert points > 60
    draw, kills, ends = random.Random(7), 0, 0
    while kills < 10:
        ended = run_until(killed, draw.randint(1, points // 2), draw.random())
        if ended == -signal.SIGKILL:
            kills += 1
        else:  # it came to its end first: one more run, killed from its beginning
            assert ended == 0
            assert steady(lines_in(killed)) == wanted
            shutil.rmtree(killed)
            ends += 1
    assert run_until(killed) == 0
    assert steady(lines_in(killed)) == wanted
    assert [*(killed / "spaces").iterdir()]
    assert ends > 0
