"""`trueline eval`: what it prints, what its flags mean, and how it fails and stops."""

import json
import os
import re
import tomllib
from pathlib import Path

import click
import pytest
import test_cli
from test_cli import home  # noqa: F401  # default names mean tiny parts, in a folder with facts.jsonl
from tiny_run import lines_in

from trueline.cli import cli
from trueline.cli.eval import with_flags
from trueline.errors import SettingError
from trueline.lab.plan import KEYS, plan_from
from trueline.lab.results import VerdictLine

ROOT = Path(__file__).parents[1]
SMALL = (
    *("--benchmark", "facts.jsonl", "--ground", "2", "--methods", "greedy,rad"),
    *("--max-new-tokens", "3", "--batch-size", "2", "--threads", "1", "--no-controls"),
)


def evaluate(*args):
    return test_cli.run("eval", *args)


def flags(**given):
    return with_flags({}, given)


def test_flags_alone_make_a_run_and_its_table(tmp_path):
    ran = evaluate(*SMALL, "--out", str(tmp_path), "--tasks", "generate,choose")
    assert ran.code == 0, ran.err
    head, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert head == ["model", "benchmark", "method", "task", "seed", "n", "state", "means"]
    assert [(row[2], row[3], row[5], row[6]) for row in rows] == [
        ("greedy", "generate", "2", "done, 2 cut off"),
        ("greedy", "choose", "2", "done"),
        ("rad context=8", "generate", "2", "done, 2 cut off"),
        ("rad context=8", "choose", "2", "done"),
    ]
    assert re.match(r"rouge_l=0\.\d{3} \(0\.\d{3} to [01]\.\d{3}\) bleu=", rows[0][7])
    assert "mc1=" in rows[1][7]
    assert "smollm2-135m facts.jsonl: 8 of 8 samples" in ran.err


def test_a_file_makes_a_run_flags_win_and_json_is_the_outcome(tmp_path):
    plan = tmp_path / "run.toml"
    plan.write_text(
        f'out = "{tmp_path / "out"}"\nbenchmarks = ["facts.jsonl"]\nmethods = ["greedy"]\n'
        "ground = 2\nmax_new_tokens = 50\n",
        "utf-8",
    )
    message = evaluate(str(plan), "--max-new-tokens", "2", "--json").json
    assert [*message] == ["folder", "cells", "warnings", "stopped"]
    (cell,) = message["cells"]
    assert (cell["label"], cell["done"], cell["is_done"]) == ("greedy", 2, True)
    head, *_ = lines_in(tmp_path / "out")
    assert (head.max_new_tokens, head.model) == (2, "smollm2-135m")
    machine = json.dumps(head.machine)
    assert os.uname().nodename not in machine
    assert str(tmp_path) not in machine


def test_a_limit_stops_a_run_and_says_how_to_go_on(tmp_path):
    ran = evaluate(*SMALL, "--out", str(tmp_path), "--max-samples", "1", "--batch-size", "1")
    assert ran.code == 0
    assert "stopped: the number of samples is reached; run the same command again" in ran.err
    assert ran.out.splitlines()[1].split("\t")[6] == "1 of 2, 1 cut off"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--benchmark", "facts", "--out", "x"], "- methods is missing (--methods)"),
        (["--benchmark", "facts", "--methods", "greedy"], "name the folder of the results"),
        ([*SMALL, "--out", "x", "--set", "alpha=1"], "--set takes METHOD.NAME=VALUE"),
        (["missing.toml"], "missing.toml cannot be read"),
    ],
)
def test_a_mistake_shows_before_a_model_is_opened(args, message, monkeypatch):
    def load(*args, **options):
        pytest.fail("a model was opened", pytrace=False)

    monkeypatch.setattr("trueline.engines.transformers.model.load", load)
    ran = evaluate(*args)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("Error: ")
    assert message in ran.err


def test_every_flag_becomes_the_key_of_its_meaning():
    assert flags(methods="greedy, rad", tasks="choose", test="all", ground="5", draw=None) == {
        "methods": ["greedy", "rad"],
        "tasks": ["choose"],
        "test": "all",
        "ground": 5,
    }
    sets = ("rad.alpha=0.3", "rad.matches=only")
    assert flags(settings=sets, context="full", embedder="e", judges=()) == {
        "settings": {"rad": {"alpha": 0.3, "matches": "only"}},
        "build": {"context": "full", "embedder": "e"},
    }
    assert flags(sweep=("rad.alpha=0.1,0.5", "build.context=4,full")) == {
        "sweep": {"rad.alpha": [0.1, 0.5], "build.context": [4, "full"]}
    }
    assert len(flags(methods="all")["methods"]) == 11
    assert flags(stop=("\n", "Q:"), seeds=("0", "1"), temperature="0.5", threads="few") == {
        "stop": ("\n", "Q:"),
        "seeds": (0, 1),
        "temperature": 0.5,
        "threads": "few",  # for the check of the plan to refuse
    }


def test_a_plan_has_a_flag_for_every_key_that_is_not_a_table_of_tables():
    command = cli.commands["eval"]
    known = {option.name for option in command.get_params(click.Context(command))}
    assert {*KEYS} - known == {"variants", "judge", "build"}
    assert {"context", "embedder"} <= known


def test_a_flag_hides_no_mistake_of_the_plan():
    plan = {"benchmarks": ["facts"], "methods": ["rad"], "build": 3, "settings": {"rad": 3}}
    given = {"context": "4", "settings": ("rad.alpha=0.3",)}
    with pytest.raises(
        SettingError, match=r"build must be a table[^$]*settings must be a table"
    ):
        plan_from(with_flags(plan, given))


def test_flags_go_into_the_tables_of_the_plan():
    plan = {"settings": {"rad": {"alpha": 0.1, "tau": 0.5}}, "build": {"window": "answer"}}
    assert with_flags(plan, {"settings": ("rad.alpha=0.3",), "context": "4"}) == {
        "settings": {"rad": {"alpha": 0.3, "tau": 0.5}},
        "build": {"window": "answer", "context": 4},
    }


def test_the_plans_of_the_example_and_of_the_page_are_sound():
    example = tomllib.loads((ROOT / "examples" / "run.toml").read_text("utf-8"))
    assert len(plan_from({**example, "controls": False}).variants) == 5
    page = (ROOT / "docs" / "evaluation.md").read_text("utf-8")
    blocks = page.split("```toml\n")[1:]
    assert blocks
    for block in blocks:
        plan_from(tomllib.loads(block.partition("```")[0]))


def test_the_example_runs(tmp_path):
    ran = evaluate(
        *(str(ROOT / "examples" / "run.toml"), "--benchmark", "facts.jsonl", "--ground", "2"),
        *("--test", "2", "--max-new-tokens", "2", "--out", str(tmp_path), "--no-controls"),
    )
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 1 + 2 * 5  # tasks x variants
    verdicts = lines_in(tmp_path, VerdictLine)
    assert len(verdicts) == 2 * 2 * 5  # truth and info, of two answers, by five variants
    assert "note: offline:all-minilm-l6-v2 agrees with people on " in ran.err
    assert " of truth labels (always giving the more frequent label agrees on " in ran.err


def test_every_key_is_on_the_page():
    page = (ROOT / "docs" / "evaluation.md").read_text("utf-8")
    assert [name for name in KEYS if f"`{name}`" not in page] == []
