"""The documents: their Python runs, their commands exist, and their lists are complete.

`python tests/test_docs.py --write` writes docs/cli.md anew.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from safetensors import safe_open

from trueline.cli import cli

ROOT = Path(__file__).parent.parent
DOCS, README = ROOT / "docs", ROOT / "README.md"
PAGES = sorted(DOCS.glob("*.md"))
NOT_RUN = ("git clone ", "cd ", "pip install ", "python -m pip install ", "python -m venv ")


class Block(NamedTuple):
    language: str
    line: int  # of its first line in the page, from 0
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    return [
        Block(found[1], text.count("\n", 0, found.start(2)), found[2])
        for found in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.M | re.S)
    ]


def run_python(page: Path, block: Block, namespace: dict) -> None:
    """Run a block; its lines keep their numbers, so that a traceback points into the page."""
    exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)


def commands(block: Block) -> list[str]:
    """The commands of a block: lines that start with `$ `, a backslash joins the next one."""
    joined = block.text.replace("\\\n", " ")
    return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]


def run_command(command: str, folder: Path) -> None:
    """Run a command as a reader would; what installs or takes long is only looked up."""
    if command.startswith("make "):
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        assert set(command.split()[1:]) <= set(targets), f"{command}: no such make target"
    elif not command.startswith(NOT_RUN):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"


def run_page(page: Path, folder: Path) -> None:
    """Run the Python and the commands of a page in their order, in one folder."""
    namespace: dict = {"__name__": page.stem}
    for block in blocks(page):
        if block.language == "python":
            run_python(page, block, namespace)
        elif block.language in ("console", "bash"):
            assert commands(block), f"{page.name}:{block.line}: no line starts with `$ `"
            for command in commands(block):
                run_command(command, folder)


def cli_page() -> str:
    """docs/cli.md: the help of every command, in the order of the flow."""
    pages = [["trueline"], *(["trueline", name] for name in cli.commands)]
    parts = [
        "# Command line\n\n"
        "Data goes to stdout, progress to stderr. The exit code is 0, or 1 after a line that "
        "starts with `Error: `,\nor 130 when interrupted.\n\n"
        "This page is written by `python tests/test_docs.py --write` from `--help`.\n"
    ]
    for name, *command in pages:
        run = CliRunner().invoke(
            cli, [*command, "--help"], prog_name=name, terminal_width=96, catch_exceptions=False
        )
        assert run.exit_code == 0
        title = " ".join([name, *command])
        parts.append(f"## {title}\n\n```text\n{run.output.rstrip()}\n```\n")
    return "\n".join(parts)


WITH_PYTHON = [page for page in PAGES if any(b.language == "python" for b in blocks(page))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page, tiny_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": page.stem}
    for block in blocks(page):
        if block.language == "python":
            run_python(page, block, namespace)


@pytest.mark.real
@pytest.mark.slow
def test_the_readme_runs_from_its_first_block_to_its_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copytree(ROOT / "examples", tmp_path / "examples")  # it is read in a clone
    run_page(README, tmp_path)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("python\nassert False, 'wrong'", "wrong"),
        ("console\n$ trueline no-such-command", "No such command"),
        ("bash\n$ make no-such-target", "no such make target"),
        ("bash\ntrueline --version", "no line starts with"),
    ],
    ids=["python", "command", "target", "no command"],
)
def test_a_page_that_does_not_hold_is_found_out(block, reason, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"```{block}\n```\n", "utf-8")
    with pytest.raises(AssertionError, match=reason):
        run_page(page, tmp_path)


def test_the_page_of_the_command_line_is_what_help_prints():
    written = (DOCS / "cli.md").read_text("utf-8")
    assert written == cli_page(), "write it anew: python tests/test_docs.py --write"


def test_every_dependency_is_explained_and_no_other():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]

    def names(requirements):
        found = {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}
        return found - {"trueline"}

    text = (DOCS / "dependencies.md").read_text("utf-8")
    parts = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    rows = {
        title: re.findall(r"^\| `([\w-]+)` \|", part, re.M) for title, part in parts.items()
    }
    assert set(rows["To run"]) == names(project["dependencies"])
    assert set(rows["Extras"]) == names(r for extra in extras.values() for r in extra)


def test_every_field_of_a_space_on_disk_is_described(lm, embedder, tmp_path):
    import trueline as tl

    fact = tl.Example("Are bats blind?", "No.", wrong_answers="Yes.")
    tl.build(lm, [fact], context=8, embedder=embedder, wrong=True).save(
        tmp_path / "facts.space"
    )
    manifest = json.loads((tmp_path / "facts.space" / "space.json").read_text("utf-8"))
    text = (DOCS / "format.md").read_text("utf-8")
    (commit,), files = manifest["history"], manifest["files"]
    file = files["vectors.safetensors"]
    named = [*manifest, *manifest["entries"], *manifest["prompt"], *file, *commit, *files]
    for name in set(files) - {"examples.jsonl"}:
        path = tmp_path / "facts.space" / manifest["folder"] / name
        named += safe_open(path, framework="np").keys()
    assert [name for name in named if f"`{name}`" not in text] == []


def test_the_page_of_the_flow_names_each_file_once_and_all_are_there():
    text = (DOCS / "flow.md").read_text("utf-8")
    source = DOCS.parent / "src" / "trueline"
    named = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    files = [name for name in named if not name.startswith(("src/", "tests/"))]
    assert [name for name in files if not (source / name).exists()] == []
    assert [name for name in files if files.count(name) > 1] == []
    assert len(files) > 30


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    (DOCS / "cli.md").write_text(cli_page(), "utf-8")
