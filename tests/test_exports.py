"""The public names: all of them, only them, and none that makes `trueline --help` slow."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import trueline
from trueline.methods import method_class, method_names

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "numpy", "tokenizers", "safetensors", "rich"}
PROMISED = """Answer Corrective Example Greedy GroundingSpace LanguageModel Prompt RAD
    TruelineError build generate load merge open score stream""".split()


def modules_after(code: str) -> set[str]:
    """The top-level packages that are imported once the code has run in a fresh Python."""
    tell = (
        "import sys; sys.stderr.write(' '.join({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stderr.split()}


def declared() -> dict[str, str]:
    """Where a type checker is told that each public name lives."""
    tree = ast.parse(Path(trueline.__file__).read_text("utf-8"))
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    (block,) = (node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_public_names_are_exactly_all():
    assert dir(trueline) == trueline.__all__ == sorted(set(trueline.__all__))
    assert sorted(declared()) == trueline.__all__
    assert len(trueline.__all__) <= 30


def test_the_promised_names_and_every_method_are_public():
    assert set(PROMISED) <= set(trueline.__all__)
    for method in map(method_class, method_names()):
        assert getattr(trueline, method.__name__) is method


@pytest.mark.parametrize("name", trueline.__all__)
def test_a_public_name_is_what_type_checkers_are_told(name):
    module, _, there = declared()[name].partition(":")
    home = __import__(module, fromlist=[there])
    assert getattr(trueline, name) is getattr(home, there)


def test_a_name_that_is_not_there_is_an_attribute_error_that_lists_those_that_are():
    with pytest.raises(AttributeError, match=r"no 'nothing'; it has .*RAD.*stream"):
        _ = trueline.nothing


def test_importing_trueline_imports_nothing_heavy():
    assert not modules_after("import trueline") & HEAVY


def test_help_imports_nothing_heavy():
    loaded = modules_after(
        "from trueline.cli import cli\n"
        "for name in ['', *cli.commands]:\n"
        "    cli.main([*name.split(), '--help'], standalone_mode=False)\n"
    )
    assert not loaded & HEAVY


def test_the_version_is_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    done = subprocess.run(
        [sys.executable, "-m", "trueline", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"trueline {trueline.__version__}\n"
    assert trueline.__version__ == project["version"]


def test_importing_trueline_changes_nothing_in_the_process():
    code = (
        "import os, trueline; before = dict(os.environ); "
        "trueline.RAD, trueline.generate, trueline.load, trueline.build; "
        "assert dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "20000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, "None"),
    ],
)
def test_a_command_tells_torch_how_long_to_wait_unless_the_user_has(given, wanted):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    code = (
        "import os, sys; from trueline.cli import main; sys.argv = ['trueline', '--version']; "
        "main(); print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=bare | given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == wanted
