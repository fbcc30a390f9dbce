"""The paper's figures make sense, and every recipe is a plan that runs."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from conftest import EXAMPLES, run_command

import trueline as tl
from trueline.cli import cli
from trueline.errors import SettingError
from trueline.examples import to_lines
from trueline.lab.benchmarks import BENCHMARKS
from trueline.lab.benchmarks.tables import Benchmark
from trueline.lab.cells import benchmark_of
from trueline.lab.judges.offline import agreement
from trueline.lab.measures import MEASURES, Average, Column
from trueline.lab.paper.compare import PARTS, caveats, differences, figure_pairs, row_for
from trueline.lab.paper.recipes import paper, plans_of, recipe_named, recipes
from trueline.lab.paper.reproduce import reproduce
from trueline.lab.paper.spaces import (
    MEASURED,
    SpaceCosts,
    measure_spaces,
    retrieval_seconds,
    space_section,
)
from trueline.lab.plan import plan_from
from trueline.lab.report.tables import MethodRow, tables_of
from trueline.lab.results import read_results, replace_line
from trueline.lab.statistics import rank_correlation
from trueline.types import Example

NAMES = """main halueval ood sizes training-size chunk-size tau alpha embedder exact-match
    interventions reliability latency second-judge lexical cases windows aggregation
    fusion""".split()
JUDGED = ("truth", "info", "truth_info")
TINY = {"benchmarks": ["facts"], "ground": 3, "test": 2, "max_new_tokens": 6}


def figures(recipe):
    """(model, benchmark, row) -> the paper's numbers."""
    return {
        (block.model, block.benchmark, row): numbers
        for block in paper().blocks
        if block.recipe == recipe
        for row, numbers in block.rows.items()
    }


def test_products_and_changes_are_right_but_for_the_misprints():
    found = {}
    for block in paper().blocks:
        for row, numbers in block.rows.items():
            where = (block.recipe, block.model, block.benchmark, row)
            if block.metrics == JUDGED:
                truth, info, both = numbers
                if abs(truth * info / 100 - both) > 0.2:
                    found["product", *where] = truth * info / 100
            for number, change in enumerate(block.changes.get(row, ())):
                worked = numbers[number] - block.rows["greedy"][number]
                if abs(worked - change) > 0.06:
                    found["change", *where] = worked
    known = {
        (one.kind, one.recipe, one.model, one.benchmark, one.row): one.worked
        for one in paper().misprints
        if one.kind in ("product", "change")
    }
    assert found == pytest.approx(known, abs=0.06)


def test_an_average_is_that_of_its_cells_but_for_the_misprint():
    table = figures("ood")
    (one,) = [each for each in paper().misprints if each.kind == "average"]
    gains = {
        (model, benchmark): numbers[2] - table[model, benchmark, "kate"][2]
        for (model, benchmark, row), numbers in table.items()
        if row == "rad"
    }
    on_truthfulqa = [gain for (_, name), gain in gains.items() if name == "truthfulqa"]
    assert sum(gains.values()) / 8 == pytest.approx(one.worked, abs=0.06)
    assert sum(on_truthfulqa) / 4 == pytest.approx(one.printed, abs=0.06)


def test_two_tables_give_the_same_figures_of_one_run():
    main = {**figures("main"), **figures("halueval")}
    same = {"rad ground=100": "rad", "rad context=8": "rad", "rad tau=0.7": "rad",
            "rad alpha=0.5": "rad", "rad embedder=all-minilm-l6-v2": "rad",
            "rad tau=1.0": "greedy", "rad alpha=0.0": "greedy"}  # fmt: skip
    compared = 0
    for recipe in ("training-size", "chunk-size", "tau", "alpha", "embedder", "exact-match"):
        for (model, benchmark, row), numbers in figures(recipe).items():
            if (key := (model, benchmark, same.get(row, row))) in main:
                compared += 1
                assert numbers == main[key], (recipe, key)
    assert compared == 4 * 6 + 1 + 2 + 2 + 1 + 5  # baselines and RAD-100 of four models, ...
    for (model, benchmark, row), numbers in figures("ood").items():
        if row == "dola":  # it reads no examples, so it is the same out of distribution
            assert numbers == main[model, benchmark, row]


def test_figures_in_the_text_follow_from_the_tables():
    main, second = figures("main"), figures("second-judge")
    methods = [row for model, name, row in second if name == "truthfulqa"]
    pairs = [
        [table["Qwen2.5-7B", "truthfulqa", method][2] for method in methods]
        for table in (main, second)
    ]
    assert rank_correlation(*pairs)[0] == pytest.approx(0.96, abs=0.005)
    alpaca = [main[model, "alpaca", "rad"][2] for model in paper().models]
    assert sum(alpaca) / 4 == pytest.approx(55.2, abs=0.06)
    ood = {key: numbers[-1] for key, numbers in figures("ood").items()}
    rad, kate = (
        sum(ood[model, "truthfulqa", x] for model in paper().models) for x in ("rad", "kate")
    )
    assert (rad - kate) / 4 == pytest.approx(7.4, abs=0.06)
    dialogue = figures("halueval")
    drop = [dialogue["Qwen2.5-3B", "halueval-dialogue", row][0] for row in ("greedy", "rad")]
    assert drop[0] - drop[1] == pytest.approx(5.8)


def test_the_paper_is_complete():
    counts = {}
    for block in paper().blocks:
        width = {len(numbers) for numbers in block.rows.values()}
        assert width == {len(block.metrics)}
        assert block.model in paper().models
        assert block.benchmark in paper().tests
        assert block.judge in ("", *paper().judges)
        counts[block.recipe] = counts.get(block.recipe, 0) + sum(map(len, block.rows.values()))
    assert counts == {
        "main": 4 * 7 * 9,
        "halueval": 4 * 2 * 7,
        "ood": 4 * 4 * 6,
        "training-size": 4 * 3 * 10,
        "chunk-size": 4 * 3,
        "tau": 7 * 3,
        "alpha": 5 * 3,
        "embedder": 9,
        "exact-match": 3 * 11,
        "second-judge": 7 * 11,
        "lexical": 7 * 10,
        "sizes": 9 + 5,
    }
    assert sum(len(block.changes) for block in paper().blocks) == 4 * 3 * 6
    shares = [x for b in paper().blocks if b.recipe != "sizes" for x in b.rows.values()]
    assert 0 < min(map(min, shares)) < max(map(max, shares)) < 100


def test_every_recipe_is_named_and_listed_once():
    assert {one.recipe for one in (*paper().blocks, *paper().text_figures)} <= set(NAMES)
    assert all(len(recipe.about) < 85 for recipe in recipes().values())
    with pytest.raises(SettingError, match="no recipe 'mian'; there are main"):
        recipe_named("mian")
    nameless = CliRunner().invoke(cli, ["reproduce"])
    assert nameless.exception.args[0].startswith("name a recipe: main")
    run = CliRunner().invoke(cli, ["reproduce", "--list"], catch_exceptions=False)
    head, *lines = [line.split("\t") for line in run.stdout.splitlines()]
    assert head == ["name", "what it runs", "answers", "minutes"]
    assert [name for name, *_ in lines] == NAMES
    assert "Minutes are estimated from the number of answers" in run.stderr
    listed = CliRunner().invoke(cli, ["reproduce", "--list", "--json"], catch_exceptions=False)
    assert [one["name"] for one in json.loads(listed.stdout)] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_plans_whose_answers_and_examples_it_counts(name):
    recipe = recipe_named(name)
    two = {"judges": ["offline", "local"]} if name == "second-judge" else {}
    plans, whole = plans_of(recipe, {}), plans_of(recipe, two, is_full=True)
    assert all(plan.judges and 8 <= plan.test <= 32 for plan in plans)
    assert {plan.test for plan in whole} == {None}
    answers = examples = 0
    for plan in plans:
        builds = {x.build for x in plan.variants if x.build and x.build.context is not None}
        answers += len(plan.benchmarks) * len(plan.variants) * plan.test
        examples += len(plan.benchmarks) * len(builds) * plan.ground
    assert recipe.answers == (0 if recipe.show == "spaces" else answers)
    assert recipe.examples == examples
    run = {benchmark for plan in (*plans, *whole) for benchmark in plan.benchmarks}
    assert {block.benchmark for block in paper().blocks if block.recipe == name} <= run
    assert run <= set(BENCHMARKS)


def test_every_row_of_the_paper_has_a_run_at_full_size():
    for name in ("tau", "alpha", "chunk-size", "exact-match"):
        (plan,) = plans_of(recipe_named(name), {}, is_full=True)
        rows = {row for _, _, row in figures(name)}
        assert len([v for v in plan.variants if v.method == "rad"]) == len(rows)
    plans = plans_of(recipe_named("training-size"), {"controls": False}, is_full=True)
    rad = [plan.ground for plan in plans if plan.variants[0].method == "rad"]
    assert rad == [10, 50, 100, 200, 400]
    (baselines,) = [plan for plan in plans if plan.variants[0].method != "rad"]
    assert [v.method for v in baselines.variants] == ["greedy", "cad", "dola", "id", "kate"]
    assert baselines.ground == 100


def test_what_is_given_wins_over_the_recipe():
    given = {"ground": 60, "test": 3, "judges": ["gemini"], "models": ["x"]}
    plans = plans_of(recipe_named("training-size"), given)
    assert [plan.ground for plan in plans] == [60, 10, 50, 60]  # the baselines, then RAD
    others = {(plan.test, plan.judges, plan.models) for plan in plans}
    assert others == {(3, ("gemini",), ("x",))}
    kate = plans_of(recipe_named("training-size"), {"ground": 250})[0]
    assert kate.ground == 100  # as in the paper, whatever RAD has
    with pytest.raises(SettingError, match="ground must"):
        plans_of(recipe_named("sizes"), {"ground": 0})
    (every,) = plans_of(recipe_named("sizes"), {"ground": "all"})
    assert every.ground is None
    ood = plans_of(recipe_named("ood"), {"benchmarks": ["facts"]})
    assert {plan.benchmarks for plan in ood} == {("facts",)}


@pytest.fixture(scope="module")
def alpha(tiny_home, tmp_path_factory):
    """One recipe that was run, and its folder."""
    folder = tmp_path_factory.mktemp("alpha")
    return reproduce("alpha", folder, TINY), folder


def test_a_sweep_is_run_and_stands_next_to_the_paper(alpha):
    made, folder = alpha
    rows = {(one["row"], one["metric"]): one for one in made.data["figures"]}
    theirs = {"Qwen2.5-7B, cohere, on truthfulqa": 53.1}  # ours is on facts
    assert rows["rad alpha=0.2", "truth_info"]["paper"] == theirs
    (ours,) = rows["rad alpha=0.2", "truth_info"]["ours"]
    assert ours["n"] + ours["unscored"] == 2
    (plain,) = rows["rad alpha=0.0", "truth_info"]["ours"]
    (greedy,) = rows["greedy", "truth_info"]["ours"]
    assert plain["mean"] == greedy["mean"]  # alpha 0 is greedy
    assert plain["difference"] == 0
    assert rows["greedy", "truth_info"]["paper"] == {}
    assert len(read_results(folder).cells) == 6  # greedy, and five weights


def test_the_notes_give_the_reasons_why_figures_cannot_be_compared(alpha):
    made, folder = alpha
    first, *more = made.data["notes"]
    assert first == (
        "The figures cannot be compared with the paper's, only the direction in which a method "
        f"moves them. What differs: {', '.join(x for x in PARTS if x != 'documents')}."
    )
    notes = "\n".join(more)
    assert "Another model: ours is smollm2-135m" in notes
    assert "Another judge: ours is offline:" in notes
    assert "command-a-03-2025" in notes
    assert "Another benchmark: facts is not in the paper" in notes
    assert "Grounded in 3 examples" in notes
    share = agreement()["truth_signals"]["accuracy"][0]
    assert f"agrees with people on {share:.0%} of truth labels" in notes
    assert made.document.title.startswith("Recipe alpha, N = 2 (a smoke test")
    (table,) = tables_of(read_results(folder))
    scored = replace(table, columns=(*table.columns, Column(MEASURES["bertscore"])))
    noted = ("\n".join(caveats(recipe_named("lexical"), [one])) for one in (table, scored))
    assert ["not rescaled" in text for text in noted] == [False, True]


ITS_JUDGE = "cohere:command-a-03-2025"


def as_in_the_paper(table, *, judge=f"{ITS_JUDGE}+paper", n=500, **changed):
    """A table of RAD on HaluEval's dialogues whose every part is the paper's."""
    parts = {"model": "Qwen/Qwen2.5-7B-Instruct", "fidelity": {"prompts": "one-line"}}
    parts |= {"max_new_tokens": 256, "ground": 100, "draw": None, "rule": "all", **changed}
    column = Column(MEASURES["hallucination"], judge)
    rows = []
    for row in table.rows:
        (cell,) = row.cells
        lines = [replace_line(x, judge=judge, about="hallucination") for x in cell.verdicts]
        cell = replace(cell, head=replace_line(cell.head, **parts), verdicts=tuple(lines))
        rows.append(MethodRow(row.label, (cell,), {column.id: Average(0.5, n=n)}))
    changes = {"benchmark": "halueval-dialogue", "columns": (column,), "rows": tuple(rows)}
    return replace(table, **changes)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({}, None),
        ({"model": "smollm2-135m"}, "model"),
        ({"judge": "gemini:gemini-2.0-flash+paper"}, "judge"),
        ({"judge": ITS_JUDGE}, "the judge's question"),
        ({"n": 499}, "questions judged"),
        ({"fidelity": {}}, "generation prompt"),
        ({"max_new_tokens": 64}, "token limit"),
        ({"ground": 99}, "examples"),
        ({"draw": 1}, "examples"),
        ({"judge": f"{ITS_JUDGE}@http://127.0.0.1:8000/v1+paper"}, "judge"),
        ({"counts": {"rows": 10_000, "over 1,500 characters": 300}}, "documents"),
    ],
)
def test_figures_can_be_compared_only_if_every_part_agrees(changed, part, alpha):
    (table,) = tables_of(read_results(alpha[1]))
    recipe, made = recipe_named("halueval"), as_in_the_paper(table, **changed)
    assert [name for name, _ in differences(recipe, [made])] == ([part] if part else [])
    end = f"What differs: {part}." if part else "the figures can be compared."
    assert caveats(recipe, [made])[0].endswith(end)


def test_figures_of_one_of_several_sizes_are_not_those_of_all(alpha):
    (table,) = tables_of(read_results(alpha[1]))
    recipe = recipe_named("training-size")
    tables = [
        as_in_the_paper(table, ground=count, n=417, judge=f"{ITS_JUDGE}+paper")
        for count in recipe.grounds
    ]
    found = [dict(differences(recipe, some)) for some in (tables, tables[:1])]
    assert ["examples" in one for one in found] == [False, True]
    assert "Grounded in 10 examples" in found[1]["examples"]


@pytest.mark.parametrize("name", ["reliability", "interventions", "cases"])
def test_a_recipe_without_figures_of_a_table_names_its_judge_and_not_its_benchmark(name, alpha):
    (table,) = tables_of(read_results(alpha[1]))
    recipe = recipe_named(name)
    made = replace(table, benchmark=recipe.plan["benchmarks"][0])
    found = dict(differences(recipe, [made]))
    assert "benchmark" not in found
    assert "Another judge: ours is offline:" in found["judge"]


def test_options_win_over_a_recipe_and_all_of_its_parts():
    plans = plans_of(recipe_named("training-size"), {"methods": ["greedy", "sled"]})
    assert {plan.methods for plan in plans} == {("greedy", "sled")}
    (plan,) = plans_of(recipe_named("main"), {"seeds": [3], "device": "cpu", "batch_size": 2})
    assert (plan.seeds, plan.device, plan.batch_size) == ((3,), "cpu", 2)


def test_two_judges_at_the_papers_size_are_named_by_the_user():
    recipe = recipe_named("second-judge")
    with pytest.raises(SettingError, match="name both with --judge; the paper's are cohere:"):
        plans_of(recipe, {}, is_full=True)
    judges = ("offline", "local:smollm2-135m")
    assert plans_of(recipe, {"judges": [*judges]}, is_full=True)[0].judges == judges


def test_the_windows_of_each_reading_are_printed_with_what_all_questions_share(
    tiny_home, tmp_path
):
    command = ["reproduce", "windows", "--benchmark", "facts", "--ground", "4", "--test", "3"]
    options = ["--max-new-tokens", "4", "--no-controls", "--json", "--out", str(tmp_path)]
    found = {
        one["reading"]: one["steps"] for one in run_command(*command, *options).json["windows"]
    }
    assert [*found] == ["template", "text", "answer"]
    question = read_results(tmp_path).cells[0].answers[0].question
    first = {name: steps[0] for name, steps in found.items()}
    assert first["text"]["window"].strip()
    assert question.endswith(first["text"]["window"].strip())
    assert first["answer"]["window"] == ""
    # Without the question the first window is the same for all, and so is all that is near.
    for name in ("template", "answer"):
        assert question[-8:] not in first[name]["window"]
        assert first[name]["shared"] in (1.0, None)
    assert all(0 <= x["flipped"] <= 1 and x["hits"] >= 0 for one in found.values() for x in one)


def test_the_cases_are_the_six_questions_of_the_paper():
    (plan,) = plans_of(recipe_named("cases"), {})
    assert plan.questions == tuple(case.question for case in paper().cases)
    assert set(plan.benchmarks) == {case.benchmark for case in paper().cases}
    (own,) = plans_of(recipe_named("cases"), {"benchmarks": ["facts"]})
    assert own.questions == ()


def test_only_named_questions_are_run_and_an_unknown_one_is_refused():
    plan = {"benchmarks": ["facts"], "methods": ["greedy"]}
    every = benchmark_of(plan_from(plan), "facts").test
    wanted = [every[3].question.upper(), every[1].question.replace("?", " ?")]
    found = benchmark_of(plan_from({**plan, "questions": wanted}), "facts")
    assert (found.test, found.counts["test used"]) == ((every[1], every[3]), 2)
    with pytest.raises(SettingError, match="facts has no sample to test on"):
        benchmark_of(plan_from({**plan, "questions": ["Who?"]}), "facts")


def test_a_recipe_runs_again_without_work_and_apart_from_cells_of_another_size(alpha, tmp_path):
    made, folder = alpha[0], shutil.copytree(alpha[1], tmp_path / "copy")
    other = reproduce("alpha", folder, {**TINY, "test": 1})
    sizes = {ours["n"] + ours["unscored"] for o in other.data["figures"] for ours in o["ours"]}
    assert sizes == {1}
    before = (folder / "results.jsonl").read_bytes()
    assert reproduce("alpha", folder, TINY).data == made.data
    assert (folder / "results.jsonl").read_bytes() == before


def test_rows_are_found_by_their_settings(alpha):
    (table,) = [t for t in tables_of(read_results(alpha[1])) if t.benchmark == "facts"]
    assert row_for("rad alpha=0.5", table.rows).label == "rad"
    assert row_for("rad alpha=1.0", table.rows).first.head.settings["alpha"] == 1.0
    assert row_for("rad alpha=0.3", table.rows) is None
    assert row_for("kate", table.rows) is None
    found = figure_pairs(recipe_named("main"), table)
    assert {one.metric for one in found} == set(JUDGED)


def check_cases(data):
    methods = ["greedy", "cad", "dola", "id", "kate", "rad"]
    assert data["cases"]
    for case in data["cases"]:
        assert [*case["answers"]] == methods
        assert case["answers"]["greedy"]["verdicts"][0].startswith("truth: ")
    assert [[*case["answers"]] for case in data["paper_cases"]] == [methods] * 6
    assert any("printed 55.2, worked 54.8" in note for note in data["notes"])


def check_reliability(data):
    (gap,) = [line["ours"] for line in data["text_figures"] if "ECE" in line["what"]]
    assert re.match(r"greedy \d\.\d+ \(offline:.*\), rad \d\.\d+ \(offline:", gap)
    assert any("geometric mean" in note for note in data["notes"])


def check_second_judge(data):
    assert [judge.split(":")[0] for judge in data["judges"]] == ["offline", "local"]
    paper, ours = data["text_figures"]
    assert (paper["what"][:3], ours["what"][:3]) == ("ran", "rho")
    assert re.match("[01]|-[01]|none: a judge|needs two judges", ours["ours"])


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("cases", check_cases),
        pytest.param("reliability", check_reliability, marks=pytest.mark.slow),
        pytest.param("second-judge", check_second_judge, marks=pytest.mark.slow),
    ],
)
def test_a_recipe_runs_from_its_name_to_its_page(name, check, tiny_home, tmp_path):
    given = "--benchmark facts --ground 3 --test 2 --max-new-tokens 6".split()
    flags = [*given, "--out", str(tmp_path), "--json"]
    run = CliRunner().invoke(cli, ["reproduce", name, *flags], catch_exceptions=False)
    assert run.exit_code == 0
    data = json.loads(run.stdout)
    assert (data["recipe"], data["models"]) == (name, ["smollm2-135m"])
    assert [*data["warnings"]] == ["facts, smollm2-135m"]
    check(data)
    page = (tmp_path / "reproduce.md").read_text("utf-8")
    assert all(note.split("`")[0][:40] in page.replace("\\", "") for note in data["notes"])
    linked = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert linked
    assert {path.name for path in tmp_path.glob("*.svg")} == set(linked)
    assert (tmp_path / "reproduce.html").read_text("utf-8").count("<svg") == len(linked)


@pytest.mark.slow
def test_an_embedder_that_is_not_available_is_left_out_and_named(tiny_home, tmp_path):
    made = reproduce("embedder", tmp_path, TINY)
    left = [note for note in made.data["notes"] if note.startswith("Left out")]
    assert len(left) == 4  # the tiny home holds one
    assert any("mpnet" in note for note in left)


@pytest.mark.parametrize("name", ["sizes", "latency"])
def test_spaces_are_weighed_and_timed(name, tiny_home, tmp_path, monkeypatch):
    clock = iter(range(1000))  # a second at every look
    monkeypatch.setattr(f"{measure_spaces.__module__}.perf_counter", lambda: next(clock))
    given = {"benchmarks": ["facts"], "ground": 3}
    made = reproduce(name, tmp_path, given)
    (space,) = made.data["figures"]
    assert (space["benchmark"], space["wanted"], space["ground"]) == ("facts", 3, 3)
    assert reproduce(name, tmp_path, given).data == made.data  # measured once, times and all
    facts = dict(made.document.sections[1].facts)
    assert f"threads {torch.get_num_threads()}" in facts["machine"]
    assert "trueline " in facts["versions"]
    assert space["space_hash"] in facts["facts, smollm2-135m, 3 examples"]
    assert any(note.startswith("Rule `answered`") for note in made.data["notes"])
    assert space["entries"] > 10
    assert 0 < space["size"] < space["as_logits"]
    assert (space["build_seconds"], space["retrieval_ms"]) == (1.0, 1000.0)
    texts = [line["ours"] for line in made.data["text_figures"]]
    assert bool(texts) == (name == "latency")
    assert all("to" in text for text in texts)


def test_the_sizes_of_the_paper_stand_next_to_ours():
    # of the 100 the paper wants, 90 have an answer: it is still the paper's row
    known = {"benchmark": "truthfulqa", "wanted": 100, "ground": 90, "entries": 3800}
    known |= {"size": 10**7, "as_logits": 10**9, "machine": {}, "versions": {}, "model": "m"}
    ours = SpaceCosts(**dict.fromkeys(SpaceCosts.__struct_fields__, 0) | known)
    assert (ours.plain()["paper_entries"], ours.plain()["paper_gigabytes"]) == (3755, 12)
    (row,) = space_section([ours]).grids[0].rows
    texts = "90 of 100 wanted|3,800|3,755|10.0 MB|1,000 MB|12 GB"
    assert "|".join(entry.text for entry in row[1:7]) == texts


def test_equal_spaces_are_measured_once_by_the_rule_of_their_plan(tiny_home, tmp_path):
    examples = [Example(f"Is {n} odd?", "Yes." if n % 2 else "No.") for n in range(4)]
    (tmp_path / "own.jsonl").write_text("".join(to_lines(examples)), "utf-8")
    files = f"{tmp_path / 'own.jsonl'}:{tmp_path / 'own.jsonl'}"
    table = {"benchmarks": [files], "methods": ["rad"], "rule": "all"}
    plans = [plan_from({**table, "ground": count}) for count in (2, 4, 8)]  # there are 4
    found = [(one.wanted, one.ground, one.rule) for one in measure_spaces(plans, tmp_path)]
    assert found == [(2, 2, "all"), (4, 4, "all")]
    assert len(json.loads((tmp_path / MEASURED).read_text("utf-8"))) == 2


def test_retrieving_is_timed_without_the_head(lm, embedder, monkeypatch):
    benchmark = Benchmark("own", "question", tuple(EXAMPLES), (), "h", {"tau": -1.0})
    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder, prompt=benchmark.prompt)
    monkeypatch.setattr(type(lm.head), "__call__", lambda *a: pytest.fail("the head was paid"))
    assert retrieval_seconds(lm, space, benchmark) > 0


def test_the_worked_example_adds_up_but_for_the_misprint():
    (case,) = [case for case in paper().cases if case.logits]
    wrong = {
        token: base + 0.5 * retrieved
        for token, (base, retrieved, fused) in case.logits.items()
        if abs(base + 0.5 * retrieved - fused) > 0.06
    }
    (known,) = [one for one in paper().misprints if one.kind == "sum"]
    assert wrong == {"0": pytest.approx(known.worked)}
    assert case.logits["0"][2] == known.printed
    for one in paper().cases:
        assert one.truth.keys() == one.answers.keys()
        assert one.truth["rad"]
