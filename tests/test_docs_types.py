"""The Python of the documents is typed: a wrong option is found before it runs."""

import re
from pathlib import Path

import pytest
from mypy import api
from test_docs import PAGES, README, ROOT, blocks


def module_of(page: Path) -> str:
    """The Python of a page as one module, whose lines keep their numbers."""
    lines = [""] * len(page.read_text("utf-8").splitlines())
    for block in blocks(page):
        if block.language == "python":
            text = block.text.splitlines()
            lines[block.line : block.line + len(text)] = text
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    """A function that checks pages with mypy; later calls use the cache of the first."""
    folder = tmp_path_factory.mktemp("types")
    config = folder / "mypy.ini"
    # Only the types of trueline are read: those of torch alone would take half a minute.
    # `make check` reports what is wrong inside trueline.
    config.write_text(
        f"[mypy]\nmypy_path = {ROOT / 'src'}\nfollow_imports = skip\n"
        "ignore_missing_imports = true\ncheck_untyped_defs = true\n"
        "[mypy-trueline.*]\nfollow_imports = normal\nignore_errors = true\n",
        "utf-8",
    )

    def check(pages: dict[str, str]) -> list[str]:
        paths = []
        for name, text in pages.items():
            paths.append(folder / f"{name}.py")
            paths[-1].write_text(text, "utf-8")
        options = ["--config-file", str(config), "--cache-dir", str(folder / "cache")]
        out, error, _ = api.run([*options, "--no-error-summary", *map(str, paths)])
        assert not error
        return [line.removeprefix(f"{folder}/") for line in out.splitlines()]

    return check


@pytest.mark.slow
def test_the_examples_of_the_documents_pass_a_type_checker(problems):
    texts = {
        f"page_{re.sub('[^a-z]', '_', page.stem.lower())}": module_of(page)
        for page in [README, *PAGES]
    }
    assert problems({name: text for name, text in texts.items() if text.strip()}) == []


def test_a_wrong_option_in_an_example_is_found_at_its_line(problems, tmp_path):
    page = tmp_path / "page.md"
    call = 'tl.generate(tl.load("smollm2-135m"), tl.Greedy(), "q", max_new_token=3)'
    page.write_text(f"# Page\n\n```python\nimport trueline as tl\n\n{call}\n```\n", "utf-8")
    found, *_ = problems({"wrong": module_of(page)})  # an overload adds its variants
    assert re.match(r"wrong\.py:6: error: .*\[call-(arg|overload)\]", found)
