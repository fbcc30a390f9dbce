"""A method from another package works wherever the built-in ones do."""

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tiny

import trueline as tl
from trueline import methods as decoders
from trueline.cli import cli
from trueline.errors import SettingError

PACKAGE = Path(__file__).parent.parent / "examples" / "plugin"
QUESTION = "Are bats blind?"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The example package, installed by pip into a folder of its own."""
    folder, copy = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("copy") / "x"
    shutil.copytree(PACKAGE, copy)  # a build leaves files behind
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--disable-pip-version-check", "--target", str(folder)]
    subprocess.run([*command, *options, str(copy)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        decoders._plugged_in.cache_clear()
        yield folder
    decoders._plugged_in.cache_clear()


def ran(capsys, *args):
    cli.main(list(args), standalone_mode=False)
    return capsys.readouterr().out


def test_its_method_is_found_by_its_name_and_checked_as_any_other(installed, lm):
    assert decoders.method_names()[-1] == "hesitant"
    method = decoders.make_method("hesitant", settings={"margin": 0.5})
    assert decoders.make_method(method.name, settings=method.settings()) == method
    assert tl.generate(lm, method, QUESTION, max_new_tokens=4).method == "hesitant"
    with pytest.raises(SettingError, match="margin must be 0 or more, got -1"):
        decoders.make_method("hesitant", settings={"margin": -1})


@pytest.mark.slow
def test_it_works_in_every_command_in_eval_and_in_reports(
    installed, tiny_home, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    short = ["--max-new-tokens", "3"]
    assert ran(capsys, "ask", "--method", "hesitant", "--set", "margin=9", *short, QUESTION)
    shown = ran(capsys, "compare", "--methods", "greedy,hesitant", *short, QUESTION)
    assert "hesitant\t3" in shown
    assert "hesitant" in ran(capsys, "explain", "--method", "hesitant", *short, QUESTION)
    plan = ["--benchmark", "facts", "--methods", "greedy,hesitant", "--test", "2", *short]
    sweep = ["--sweep", "hesitant.margin=0,9", "--out", "run"]
    cells = ran(capsys, "eval", *plan, *sweep, "--judge", "offline").splitlines()
    assert [line.split("\t")[2] for line in cells[1:]] == [
        "greedy", "hesitant margin=0", "hesitant margin=9"
    ]  # fmt: skip
    decoders._plugged_in.cache_clear()
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])  # a report needs no package
    ran(capsys, "report", "run", "--format", "md", "--plots", "none")
    report = (tmp_path / "run" / "report.md").read_text("utf-8")
    assert "hesitant margin=9" in report
    decoders._plugged_in.cache_clear()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nothing_there:Method", r"'broken' of nothing_there:Method cannot be imported"),
        ("tiny:language_model", "tiny:language_model, which must be a dataclass and subclass"),
    ],
)
def test_a_package_that_brings_no_method_is_named(value, message, monkeypatch):
    assert tiny
    point = metadata.EntryPoint("broken", value, decoders.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    decoders._plugged_in.cache_clear()
    try:
        with pytest.raises(SettingError, match=message):
            decoders.make_method("broken")
    finally:
        decoders._plugged_in.cache_clear()
