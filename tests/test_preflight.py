"""What a user can get wrong is refused before anything heavy is imported.

The commands run in another process, which prints after each whether torch was imported.
"""

import os
import re
import subprocess
import sys

import pytest

CHILD = """
import sys
from trueline.cli import main
cases = eval(sys.stdin.read())
for args in cases:
    sys.argv = ["trueline", *args]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    heavy = [name for name in ("torch", "transformers") if name in sys.modules]
    sys.stderr.write(f"=== {code} {heavy}\\n")
"""
ASK = ("ask", "When do you open?")
COLUMNS = (
    "faq.csv has no column 'question' and no column 'answers' or 'answer'; its columns are "
    "'Customer asks', 'We reply'; say which hold them:\n"
    "  --column question='Customer asks' --column answers='We reply'"
)
EVAL = ("eval", "--methods", "greedy", "--out", "results")
MISTAKES = {
    ("build", "faq.csv", "--out", "x.space"): COLUMNS,
    (*EVAL, "--benchmark", "faq.csv"): COLUMNS,
    ("build", "fap.csv", "--out", "x.space"): "there is no such file; did you mean faq.csv?",
    ("build", "faq.csv", "--embedder", "minilm", "--out", "x.space"): "no embedder is called",
    ("add", "none.space", "faq.csv"): "there is no space at none.space",
    (*ASK, "--space", "fap.space"): "no space at fap.space (did you mean faq.space?)",
    (*ASK, "--method", "rda"): "there is no method 'rda'; did you mean rad? there are greedy",
    (*ASK, "--model", "smolm2"): "no language model is called 'smolm2'; take smollm2-135m",
    (*ASK, "--model", "all-minilm-l6-v2"): "all-minilm-l6-v2 is no language model",
    (*ASK, "--max-new-tokens", "0"): "max_new_tokens must be",
    ("compare", "--file", "none.txt"): "none.txt cannot be read",
    ("explain", "Why?", "--out", "why.pdf"): "why.pdf",
    (*EVAL, "--benchmark", "fatcs"): "did you mean facts?",
    ("eval", "--benchmark", "facts", "--methods", "rda", "--out", "r"): "did you mean rad?",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """What each mistaken command prints, its exit code, and what it imports."""
    here = tmp_path_factory.mktemp("here")
    (here / "faq.csv").write_text("Customer asks,We reply\nOpen?,At nine.\n", "utf-8")
    (here / "faq.space").mkdir()
    (here / "faq.space" / "space.json").write_text("{}", "utf-8")
    env = {name: x for name, x in os.environ.items() if not name.startswith("TRUELINE_")}
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=repr(list(MISTAKES)),
        env={**env, "TRUELINE_HOME": str(here / "home")},
        cwd=here,
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""
    parts = re.findall(r"(.*?)=== (\d+) (\[.*?\])\n", done.stderr, re.S)
    assert len(parts) == len(MISTAKES), done.stderr
    return dict(zip(MISTAKES, parts, strict=True))


@pytest.mark.parametrize("args", MISTAKES, ids=" ".join)
def test_a_mistake_is_refused_before_torch_is_imported(args, refusals):
    text, code, heavy = refusals[args]
    assert (code, heavy) == ("1", "[]"), text
    assert text.startswith("Error: ")
    assert MISTAKES[args] in text
