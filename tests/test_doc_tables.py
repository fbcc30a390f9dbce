"""The tables of the documents: all they name exists, and numbers are those of the code."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

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
from trueline.types import Candidate, Neighbor, TraceStep

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, the head first."""
    found: list[list[list[str]]] = []
    before = ""
    for line in (DOCS / page).read_text("utf-8").splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            if not before.startswith("|"):
                found.append([])
            if not re.fullmatch(r"[\s|:-]+", line):
                found[-1].append(cells)
        before = line
    return found


def table(page: str, head: str) -> list[list[str]]:
    """The rows of the table whose first cell of the head is this."""
    (one,) = [rows for rows in tables(page) if rows[0][0].strip("`") == head]
    return one[1:]


def names(cells) -> list[str]:
    """The names in backticks."""
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def firsts(rows) -> list[str]:
    return names(row[0] for row in rows)


def test_the_listed_fields_of_a_step_and_its_needs_exist():
    offered = [f.name for f in fields(Step)] + [n for n in dir(Step) if n[0] != "_"]
    for name in firsts(table("methods.md", "name")):
        assert name.split(".")[0] == "step"
        assert name.split(".")[1] in offered, name
    needs = {name.split("=")[0] for name in firsts(table("methods.md", "needs = Needs(...)"))}
    assert needs == {field.name for field in fields(Needs)}


def test_methods_their_classes_and_options_are_those_of_the_code():
    rows = table("decoding.md", "name")
    assert set(firsts(rows)) == set(built_in_names())
    for row in rows:
        (name,), (made,) = names(row[:1]), names(row[1:2])
        found = re.fullmatch(r"tl\.(\w+)\((space)?\)", made)
        assert getattr(tl, found[1]) is method_class(name)
        assert bool(found[2]) is method_class(name).needs.space
    options = {field.name for field in fields(tl.RAD)} - {"space"}
    assert set(firsts(table("decoding.md", "option"))) == options


def test_every_option_of_build_and_field_of_an_answer_is_described():
    space = (DOCS / "space.md").read_text("utf-8")
    options = [*inspect.signature(tl.build).parameters][2:]
    assert [name for name in options if f"`{name}`" not in space] == []
    generation = (DOCS / "generation.md").read_text("utf-8")
    kinds = (tl.Answer, TraceStep, Neighbor, Candidate, tl.Sampling)
    listed = [field.name for kind in kinds for field in fields(kind)]
    listed += [*inspect.signature(tl.generate).parameters][3:-1]  # without **options
    assert [name for name in listed if f"`{name}`" not in generation] == []


def test_every_metric_and_test_is_a_function():
    for one in tables("metrics.md"):
        for name in firsts(one[1:]):
            assert hasattr(metrics, name) or hasattr(statistics, name), name


def test_benchmarks_keys_recipes_and_files_are_those_of_the_code():
    listed = firsts(table("benchmarks.md", "name"))
    whole = {name if name[0] != "-" else f"covered{name}" for name in listed}
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


def test_aliases_errors_keys_and_options_exist():
    assert set(firsts(table("models.md", "alias"))) == set(ALIASES)
    assert all(hasattr(errors, name) for name in firsts(table("models.md", "class")))
    keys = {name for service in SERVICES.values() for name in service.key_variables}
    assert keys <= set(firsts(table("judges.md", "key")))
    assert set(BUILD) <= set(firsts(table("space.md", "option of build")))
    titles = " ".join(row[1] for row in table("report.md", "table"))
    for measure in MEASURES.values():
        short = measure.title.removesuffix(" accuracy").split()[-1]
        assert short.lower().rstrip("s") in titles.lower(), measure.title


def test_every_file_in_a_table_exists():
    folders = ("src/", "tests/", "benchmarks/", "docs/", "examples/")
    for page in DOCS.glob("*.md"):
        lines = page.read_text("utf-8").splitlines()
        rows = "\n".join(line for line in lines if line.startswith("|"))
        for name in re.findall(r"`([\w/.-]+\.(?:py|toml|md|jsonl?))`", rows):
            assert not name.startswith(folders) or (ROOT / name).exists(), (page.name, name)
