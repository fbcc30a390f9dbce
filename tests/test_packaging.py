"""A release: one version everywhere, a wheel and an sdist with all that belongs in them."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from test_layout import tracked

import trueline as tl

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ONLY_IN_GIT = (".github", ".gitignore", ".ci", "MANIFEST.in")


def names() -> set[str]:
    """The files of the repository that a release has."""
    found = {path.relative_to(ROOT).as_posix() for path in tracked()}
    return {name for name in found if name.split("/")[0] not in ONLY_IN_GIT}


def test_the_version_is_the_same_everywhere_and_has_its_changes():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert PROJECT["version"] == tl.__version__ == citation["version"]
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert heads[0] == "Unreleased"
    assert heads[1].split()[0] == tl.__version__


def test_the_repository_has_one_address():
    source = PROJECT["urls"]["Source"]
    for name in ("CITATION.cff", "SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        text = (ROOT / name).read_text("utf-8")
        assert {*re.findall(r"https://github\.com/[\w-]+/[\w-]+", text)} == {source}


def test_the_workflows_run_every_python_that_the_package_names():
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    matrix = yaml.safe_load(text)["jobs"]["quick"]["strategy"]["matrix"]["python"]
    versions = [
        found for c in PROJECT["classifiers"] if (found := c.rsplit(" ", 1)[1])[:2] == "3."
    ]
    assert matrix == versions


def test_every_file_that_the_guide_for_contributors_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    paths = re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[^`\s]*)`", text)
    assert paths
    example = "tests/test_x.py"  # stands for any
    assert [path for path in paths if path != example and not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_wheel_has_the_whole_package_and_the_sdist_the_whole_repository(tmp_path):
    tree, out = tmp_path / "tree", tmp_path / "dist"  # a copy: building leaves files behind
    for name in [*names(), "MANIFEST.in"]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    package = {name.removeprefix("src/") for name in names() if name.startswith("src/")}
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if ".dist-info/" not in name}
    assert inside == package
    with tarfile.open(sdist) as file:
        members = {member.name.partition("/")[2] for member in file if member.isfile()}
    assert names() - members == set()
    made = {name for name in members - names() if ".egg-info/" not in name}
    assert made == {"MANIFEST.in", "PKG-INFO", "setup.cfg"}
