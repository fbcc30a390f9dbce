"""The paper's figures make sense, and every recipe is a plan that runs."""

import json

import pytest
from click.testing import CliRunner
from test_docs import fill_home

from trueline.cli import cli
from trueline.errors import SettingError
from trueline.evaluation.benchmarks import BENCHMARKS
from trueline.report.beside import beside, row_for
from trueline.report.measures import MEASURES
from trueline.report.paper import paper
from trueline.report.recipes import plans_of, recipe_named, recipes
from trueline.report.reproduce import reproduce
from trueline.report.results import read_results
from trueline.report.tables import tables_of

NAMES = """main halueval ood sizes training-size chunk-size tau alpha embedder exact-match
    interventions reliability latency second-judge lexical cases""".split()
JUDGED = ("truth", "info", "truth_info")
TINY = {"benchmarks": ["facts"], "ground": 3, "test": 2, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def tiny_home(tmp_path_factory):
    """The default names mean tiny random parts, and nothing is fetched."""
    import torch

    home, threads = tmp_path_factory.mktemp("home"), torch.get_num_threads()
    fill_home(home)
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUELINE_HOME", str(home))
        patch.setenv("PIP_NO_INDEX", "1")
        yield home
    torch.set_num_threads(threads)


def figures(recipe):
    """(model, benchmark, row) -> the paper's numbers."""
    return {
        (block.model, block.benchmark, row): numbers
        for block in paper().blocks
        if block.recipe == recipe
        for row, numbers in block.rows.items()
    }


def misprinted(kind):
    return {
        (one.recipe, one.model, one.benchmark, one.row): one
        for one in paper().misprints
        if one.kind == kind
    }


def test_truth_times_info_is_their_product_but_for_the_misprints():
    found = {
        (block.recipe, block.model, block.benchmark, row): truth * info / 100
        for block in paper().blocks
        if block.metrics == JUDGED
        for row, (truth, info, both) in block.rows.items()
        if abs(truth * info / 100 - both) > 0.2
    }
    known = misprinted("product")
    assert found.keys() == known.keys()
    assert all(found[key] == pytest.approx(known[key].worked, abs=0.06) for key in found)


def test_changes_are_differences_from_greedy_but_for_the_misprints():
    found = {}
    for block in paper().blocks:
        for row, changes in block.changes.items():
            pairs = zip(block.rows[row], block.rows["greedy"], changes, strict=True)
            for ours, greedy, change in pairs:
                if abs(ours - greedy - change) > 0.06:
                    found[block.recipe, block.model, block.benchmark, row] = ours - greedy
    known = misprinted("change")
    assert found.keys() == known.keys()
    assert all(found[key] == pytest.approx(known[key].worked, abs=0.06) for key in found)


def test_what_two_tables_give_of_one_run_is_the_same():
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


def test_what_the_text_says_follows_from_the_tables():
    from trueline.evaluation.statistics import rank_correlation

    main, second = figures("main"), figures("second-judge")
    methods = [row for model, name, row in second if name == "truthfulqa"]
    pairs = [
        [table["Qwen2.5-7B", "truthfulqa", method][2] for method in methods]
        for table in (main, second)
    ]
    assert rank_correlation(*pairs)[0] == pytest.approx(0.96, abs=0.005)
    alpaca = [main[model, "alpaca", "rad"][2] for model in paper().models]
    assert sum(alpaca) / 4 == pytest.approx(55.2, abs=0.06)
    gains = [
        figures("ood")[model, "truthfulqa", "rad"][2]
        - figures("ood")[model, "truthfulqa", "kate"][2]
        for model in paper().models
    ]
    assert sum(gains) / 4 == pytest.approx(7.4, abs=0.06)
    dialogue = figures("halueval")
    drop = [dialogue["Qwen2.5-3B", "halueval-dialogue", row][0] for row in ("greedy", "rad")]
    assert drop[0] - drop[1] == pytest.approx(5.8)


def test_the_paper_is_there_in_full():
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
    shares = [
        x for b in paper().blocks if b.recipe != "sizes" for r in b.rows.values() for x in r
    ]
    assert 0 < min(shares) < max(shares) < 100


def test_every_recipe_is_there_and_named_once():
    assert list(recipes()) == NAMES
    assert {block.recipe for block in paper().blocks} <= set(NAMES)
    assert {one.recipe for one in paper().said} <= set(NAMES)
    assert all(len(recipe.about) < 85 for recipe in recipes().values())
    with pytest.raises(SettingError, match="no recipe 'mian'; there are main"):
        recipe_named("mian")


@pytest.mark.parametrize("is_full", [False, True], ids=["small", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_plan_on_known_benchmarks(name, is_full):
    plans = plans_of(recipe_named(name), {}, is_full=is_full)
    for plan in plans:
        assert set(plan.benchmarks) <= set(BENCHMARKS)
        assert plan.judges
        assert plan.test == (None if is_full else plan.test)
        assert is_full or plan.test <= 32
    wanted = {(b.benchmark) for b in paper().blocks if b.recipe == name}
    if is_full:
        assert wanted <= {benchmark for plan in plans for benchmark in plan.benchmarks}


def test_every_row_of_the_paper_has_a_run_at_full_size():
    for name in ("tau", "alpha", "chunk-size", "exact-match"):
        (plan,) = plans_of(recipe_named(name), {}, is_full=True)
        rows = {row for _, _, row in figures(name)}
        assert len([v for v in plan.variants if v.method == "rad"]) == len(rows)
    plans = plans_of(recipe_named("training-size"), {}, is_full=True)
    rad = [plan.ground for plan in plans if plan.variants[0].method == "rad"]
    assert rad == [10, 50, 100, 200, 400]
    (baselines,) = [plan for plan in plans if plan.variants[0].method != "rad"]
    assert [v.method for v in baselines.variants] == ["greedy", "cad", "dola", "id", "kate"]
    assert baselines.ground == 100


def test_what_is_given_wins_over_the_recipe():
    given = {"ground": 60, "test": 3, "judges": ["gemini"], "models": ["x"]}
    plans = plans_of(recipe_named("training-size"), given)
    assert [plan.ground for plan in plans] == [60, 10, 50]  # the baselines, then up to 60
    assert {(plan.test, plan.judges, plan.models) for plan in plans} == {
        (3, ("gemini",), ("x",))
    }
    ood = plans_of(recipe_named("ood"), {"benchmarks": ["facts"]})
    assert {plan.benchmarks for plan in ood} == {("facts",)}


@pytest.fixture(scope="module")
def alpha(tiny_home, tmp_path_factory):
    """One recipe that was run, and its folder."""
    folder = tmp_path_factory.mktemp("alpha")
    return reproduce("alpha", folder, TINY), folder


def test_a_sweep_is_run_and_stands_beside_the_paper(alpha):
    made, folder = alpha
    rows = {(one["row"], one["metric"]): one for one in made.data["figures"]}
    assert rows["rad alpha=0.2", "truth_info"]["paper"] == {"Qwen2.5-7B, cohere": 53.1}
    (ours,) = rows["rad alpha=0.2", "truth_info"]["ours"]
    assert ours["n"] + ours["unscored"] == 2
    (plain,) = rows["rad alpha=0.0", "truth_info"]["ours"]
    (greedy,) = rows["greedy", "truth_info"]["ours"]
    assert plain["mean"] == greedy["mean"]  # alpha 0 is greedy
    assert plain["difference"] == 0
    assert rows["greedy", "truth_info"]["paper"] == {}
    assert len(read_results(folder).cells) == 6  # greedy, and five weights


def test_why_figures_cannot_be_compared_is_said_plainly(alpha):
    notes = "\n".join(alpha[0].data["notes"])
    assert "Another model: ours is smollm2-135m" in notes
    assert "Another judge: ours is offline:" in notes
    assert "command-a-03-2025" in notes
    assert "Another benchmark: facts is not in the paper" in notes
    assert "Grounded in 3 examples" in notes
    assert "offline judge" in notes


def test_the_same_call_again_runs_nothing_and_says_the_same(alpha):
    made, folder = alpha
    before = (folder / "results.jsonl").read_bytes()
    again = reproduce("alpha", folder, TINY)
    assert (folder / "results.jsonl").read_bytes() == before
    assert again.data == made.data


@pytest.mark.slow
def test_cells_of_another_size_in_the_folder_do_not_mix_in(alpha):
    made, folder = alpha
    other = reproduce("alpha", folder, {**TINY, "test": 1})
    sizes = {ours["n"] + ours["unscored"] for o in other.data["figures"] for ours in o["ours"]}
    assert sizes == {1}
    assert reproduce("alpha", folder, TINY).data == made.data


def test_rows_are_found_by_their_settings(alpha):
    (table,) = [t for t in tables_of(read_results(alpha[1])) if t.benchmark == "facts"]
    assert row_for("rad alpha=0.5", table.rows).row.first["label"] == "rad"
    assert row_for("rad alpha=1.0", table.rows).row.first["settings"]["alpha"] == 1.0
    assert row_for("rad alpha=0.3", table.rows) is None
    assert row_for("kate", table.rows) is None
    found = beside(recipe_named("main"), table)
    assert {one.metric for one in found} == set(JUDGED)
    assert all(metric in MEASURES for one in found for metric in [one.metric])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cases", []),
        pytest.param("interventions", ["edit_q"], marks=pytest.mark.slow),
        pytest.param("reliability", ["ece"], marks=pytest.mark.slow),
        pytest.param("training-size", [], marks=pytest.mark.slow),
        pytest.param("second-judge", ["rho"], marks=pytest.mark.slow),
        pytest.param("exact-match", [], marks=pytest.mark.slow),
        pytest.param("chunk-size", [], marks=pytest.mark.slow),
        pytest.param("tau", ["best"], marks=pytest.mark.slow),
        pytest.param("main", [], marks=pytest.mark.slow),
        pytest.param("lexical", [], marks=pytest.mark.slow),
    ],
)
def test_a_recipe_runs_from_its_name_to_its_page(name, said, tiny_home, tmp_path):
    given = "--benchmark facts --ground 3 --test 2 --max-new-tokens 6".split()
    asked = ["reproduce", name, *given, "--out", str(tmp_path), "--json"]
    run = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert run.exit_code == 0
    data = json.loads(run.stdout)
    assert data["recipe"] == name
    assert data["models"] == ["smollm2-135m"]
    assert data["notes"]
    if said:
        assert any(line["ours"] != "not measured" for line in data["said"])
    for page in ("reproduce.md", "reproduce.html", "results.jsonl"):
        assert (tmp_path / page).stat().st_size > 500


@pytest.mark.slow
def test_an_embedder_that_cannot_be_had_is_named_not_fatal(tiny_home, tmp_path):
    made = reproduce("embedder", tmp_path, TINY)
    left = [note for note in made.data["notes"] if note.startswith("Left out")]
    assert len(left) == 4  # the tiny home holds one
    assert any("mpnet" in note for note in left)


@pytest.mark.parametrize("name", ["sizes", "latency"])
def test_spaces_are_weighed_and_timed(name, tiny_home, tmp_path):
    made = reproduce(name, tmp_path, {"benchmarks": ["facts"], "ground": 3})
    (space,) = made.data["figures"]
    assert (space["benchmark"], space["ground"]) == ("facts", 3)
    assert space["entries"] > 10
    assert 0 < space["size"] < space["as_logits"]
    assert space["build_seconds"] > 0
    assert space["retrieval_ms"] > 0
    said = {line["what"]: line for line in made.data["said"]}
    assert bool(said) == (name == "latency")
    assert all("to" in line["ours"] for line in said.values())


def test_the_paper_s_sizes_stand_beside_ours():
    from trueline.report.space_figures import space_figure, space_grid
    from trueline.report.spaces import SpaceMeasured

    ours = SpaceMeasured("m", "truthfulqa", 100, 3800, 10**7, 10**9, 60.0, 1.5)
    assert space_figure(ours)["paper_entries"] == 3755
    assert space_figure(ours)["paper_gigabytes"] == 12
    (row,) = space_grid([ours]).rows
    assert [entry.text for entry in row][2:7] == [
        "3,800", "3,755", "10.0 MB", "1,000 MB", "12 GB"
    ]  # fmt: skip


def test_the_list_is_one_recipe_a_line():
    run = CliRunner().invoke(cli, ["reproduce", "--list"], catch_exceptions=False)
    lines = [line.split("\t") for line in run.output.splitlines()]
    assert [name for name, _ in lines] == NAMES
    nameless = CliRunner().invoke(cli, ["reproduce"])
    assert nameless.exception.args[0].startswith("name a recipe: main")
