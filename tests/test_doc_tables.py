"""The tables of the documents: what they name is there, and numbers are those of the code."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import trueline as tl
from trueline import errors
from trueline.engines.models import ALIASES
from trueline.lab import metrics, statistics
from trueline.lab.benchmarks import BENCHMARKS
from trueline.lab.judges.models import SERVICES
from trueline.lab.measures import MEASURES
from trueline.lab.paper.recipes import recipes
from trueline.lab.plan import BUILD, JUDGE, KEYS, PAPER, Control
from trueline.lab.report.pages import FORMATS
from trueline.methods import built_in_names, method_class
from trueline.methods.base import Needs, Step
from trueline.rad.retrieve import ROUNDING

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, the head first."""
    found: list[list[list[str]]] = []
    ahead = ""
    for line in (DOCS / page).read_text("utf-8").splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            if not ahead.startswith("|"):
                found.append([])
            if not re.fullmatch(r"[\s|:-]+", line):
                found[-1].append(cells)
        ahead = line
    return found


def table(page: str, head: str) -> list[list[str]]:
    """The rows of the table whose first cell of the head is this."""
    (one,) = [rows for rows in tables(page) if rows[0][0].strip("`") == head]
    return one[1:]


def names(cells) -> list[str]:
    """What stands in backticks."""
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def firsts(rows) -> list[str]:
    return names(row[0] for row in rows)


def test_what_a_step_offers_is_there():
    offered = [f.name for f in fields(Step)] + [n for n in dir(Step) if n[0] != "_"]
    for name in firsts(table("methods.md", "name")):
        assert name.split(".")[0] == "step"
        assert name.split(".")[1] in offered, name
    told = {name.split("=")[0] for name in firsts(table("methods.md", "needs = Needs(...)"))}
    assert told == {field.name for field in fields(Needs)}


def test_the_methods_and_their_classes_are_there():
    rows = table("decoding.md", "name")
    assert set(firsts(rows)) == set(built_in_names())
    for row in rows:
        (name,), (made,) = names(row[:1]), names(row[1:2])
        found = re.fullmatch(r"tl\.(\w+)\((space)?\)", made)
        assert getattr(tl, found[1]) is method_class(name)
        assert bool(found[2]) is method_class(name).needs.space
    for row in table("decoding.md", "option"):
        for name in names(row[:1]):
            assert name in {field.name for field in fields(tl.RAD)}


def test_every_metric_and_test_is_a_function():
    for one in tables("metrics.md"):
        for name in firsts(one[1:]):
            assert hasattr(metrics, name) or hasattr(statistics, name), name


def test_benchmarks_keys_recipes_and_files_are_those_of_the_code():
    told = firsts(table("benchmarks.md", "name"))
    whole = {name if name[0] != "-" else f"covered{name}" for name in told}
    assert whole - {"FILE", "GROUND:TEST", "EXAMPLES:QUESTIONS"} == set(BENCHMARKS)
    assert set(firsts(table("evaluation.md", "key"))) <= set(KEYS)
    assert firsts(table("reproduce.md", "name")) == [*recipes()]
    assert [*FORMATS.values()] == [
        x for x in firsts(table("report.md", "file")) if "*" not in x
    ][:4]
    assert firsts(table("controls.md", "control")) == [*Control]


def test_a_fidelity_setting_has_the_value_the_page_gives():
    for row in table("fidelity.md", "setting"):
        (name,) = names(row[:1])
        key = name.removeprefix("judge.")
        assert key in (JUDGE if name != key else KEYS)
        value = PAPER["judge"][key] if name != key else PAPER.get(key)
        if value is not None:
            assert row[1].strip('`"') == str(value).lower(), name


def test_numbers_in_tables_are_those_of_the_code():
    page = (DOCS / "retrieval.md").read_text("utf-8")
    assert f"at least {1 - ROUNDING[torch.float16]:.4f} with keys in half precision" in page
    assert ROUNDING[torch.float32] == 1e-6


def test_aliases_errors_keys_and_options_are_there():
    assert set(firsts(table("models.md", "alias"))) == set(ALIASES)
    assert all(hasattr(errors, name) for name in firsts(table("models.md", "class")))
    keys = {name for service in SERVICES.values() for name in service.key_variables}
    assert keys <= set(firsts(table("judges.md", "key")))
    assert set(BUILD) <= set(firsts(table("space.md", "option of build")))
    titles = " ".join(row[1] for row in table("report.md", "table"))
    for measure in MEASURES.values():
        short = measure.title.removesuffix(" accuracy").split()[-1]
        assert short.lower().rstrip("s") in titles.lower(), measure.title


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_a_table_names_is_there(page):
    text = page.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    folders = ("src/", "tests/", "benchmarks/", "docs/", "examples/")
    for name in re.findall(r"`([\w/.-]+\.(?:py|toml|md|jsonl?))`", "\n".join(rows)):
        if name.startswith(folders):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_a_table_that_names_what_is_not_there_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.DOCS", tmp_path)
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    wrong = text.replace("| `step.hidden` |", "| `step.windows` |")
    (tmp_path / "methods.md").write_text(wrong, "utf-8")
    with pytest.raises(AssertionError, match=r"step\.windows"):
        test_what_a_step_offers_is_there()
