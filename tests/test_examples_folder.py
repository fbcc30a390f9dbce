"""The scripts of examples/ run as they stand, on tiny parts, and stay short."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def variables(filled_home, tmp_path_factory):
    given = {**os.environ, "TRUELINE_HOME": str(filled_home), "OMP_NUM_THREADS": "1"}
    if given.pop("PYTHONDONTWRITEBYTECODE", ""):  # each would compile 2,500 modules anew
        given["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.mktemp("compiled"))
    return given


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs(script, variables, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_at_most_forty_lines_long(script):
    assert len(script.read_text("utf-8").splitlines()) <= 40
