"""What a run costs: its number of answers is that of the run, and prices are worked by hand."""

import json

import pytest
from conftest import run_command

from trueline.lab.cost import costs_of
from trueline.lab.paper.recipes import plans_of, recipe_named
from trueline.lab.plan import plan_from
from trueline.lab.results import AnswerLine, FailedLine, read_written

PLAN = {"benchmarks": ["facts"], "methods": ["greedy", "kate"], "ground": 4, "test": 2}


def test_as_many_answers_as_are_counted_are_made(tiny_home, tmp_path):
    (cost,) = costs_of([plan_from({**PLAN, "max_new_tokens": 3})], rate=lambda *_: 2.0)
    assert (cost.answers, cost.control_answers) == (4, 12)  # 3 controls, 3 baselines
    assert (cost.tokens, cost.hours) == (48, 24 / 3600)
    flags = ["--benchmark", "facts", "--methods", "greedy,kate", "--ground", "4", "--test", "2"]
    command = ["eval", *flags, "--max-new-tokens", "3", "--out", str(tmp_path)]
    assert run_command(*command).code == 0
    lines, *_ = read_written(tmp_path / "results.jsonl")
    assert sum(isinstance(line, AnswerLine | FailedLine) for line in lines) == 16


@pytest.mark.parametrize(
    ("judges", "price", "calls", "dollars"),
    [
        (["offline"], None, 0, 0.0),
        (["cohere:command-a-03-2025"], None, 8, 8 * (300 * 2.5 + 3 * 10) / 1e6),
        (["cohere:command-a-03-2025", "local"], (1.0, 0.0), 16, 8 * 300 / 1e6),
        (["openai:nobody-knows"], None, 8, None),
    ],
)
def test_judges_cost_what_their_prices_say(judges, price, calls, dollars):
    plan = plan_from({**PLAN, "judges": judges, "controls": False})
    (cost,) = costs_of([plan], price=price)
    assert (cost.judge_calls, cost.dollars) == (calls, dollars and pytest.approx(dollars))


def test_the_main_table_of_the_paper_is_counted_without_its_data():
    costs = costs_of(plans_of(recipe_named("main"), {"controls": False}, is_full=True))
    assert sum(one.answers for one in costs) == 7 * (417 + 633 + 805)
    assert {one.control_answers for one in costs} == {0}


def test_a_dry_run_runs_nothing(tiny_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (
        ["reproduce", "main", "--full", "--dry-run", "--json"],
        ["eval", "--benchmark", "facts", "--methods", "greedy", "--dry-run", "--json"],
    ):
        assert json.loads(run_command(*command).out)[0]["hours"] > 0
    assert list(tmp_path.iterdir()) == []
    for price in ("a lot", "1", "-1,2"):
        ran = run_command("reproduce", "tau", "--dry-run", "--price", price)
        assert ran.code == 1
        assert "--price takes two numbers" in ran.err
