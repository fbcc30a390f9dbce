"""The public names: all of them, only them, and none that makes `trueline --help` slow."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import trueline
from trueline.methods import method_class, method_names

HEAVY = {"torch", "transformers", "numpy", "tokenizers", "safetensors", "rich"}
PROMISED = """Answer Corrective Example Greedy GroundingSpace LanguageModel Prompt RAD
    TruelineError build generate load merge open score stream""".split()


def python(*arguments: str, **variables: str) -> tuple[str, str]:
    """What a fresh Python prints, without the user's settings for threads."""
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    bare = {name: value for name, value in os.environ.items() if name not in ours}
    command, env = [sys.executable, *arguments], bare | variables
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def modules_after(code: str) -> set[str]:
    """The top-level packages that are imported once the code has run in a fresh Python."""
    _, names = python("-c", f"{code}\nimport sys; sys.stderr.write(' '.join(sys.modules))")
    return {name.split(".")[0] for name in names.split()}


def declared() -> dict[str, tuple[str, str]]:
    """Where a type checker finds each public name."""
    tree = ast.parse(Path(trueline.__file__).read_text("utf-8"))
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    (block,) = (node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    return {
        alias.asname or alias.name: (node.module, alias.name)
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


def test_a_public_name_is_what_type_checkers_find():
    for name, (module, attribute) in declared().items():
        assert getattr(trueline, name) is getattr(import_module(module), attribute), name


def test_an_unknown_name_is_an_attribute_error_that_lists_the_names():
    with pytest.raises(AttributeError, match=r"no 'nothing'; it has .*RAD.*stream"):
        _ = trueline.nothing


def test_importing_trueline_imports_nothing_heavy_and_changes_no_variable():
    assert not modules_after("import trueline") & HEAVY
    modules_after(
        "import os, trueline; before = dict(os.environ); "
        "trueline.RAD, trueline.generate, trueline.load, trueline.build; "
        "assert dict(os.environ) == before"
    )


def test_help_imports_nothing_heavy():
    loaded = modules_after(
        "from trueline.cli import cli\n"
        "for name in ['', *cli.commands]:\n"
        "    cli.main([*name.split(), '--help'], standalone_mode=False)\n"
    )
    assert not loaded & HEAVY


def test_the_version_is_printed():
    assert python("-m", "trueline", "--version") == (f"trueline {trueline.__version__}\n", "")


def test_a_command_sets_how_long_threads_wait_unless_the_user_has():
    code = (
        "import os, sys; from trueline.cli import main; sys.argv = ['trueline', '--version']; "
        "main(); print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    for given, wanted in [
        ({}, "20000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, "None"),
    ]:
        assert python("-c", code, **given)[0].split()[-1] == wanted
