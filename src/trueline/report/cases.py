"""A plan that was run in; single questions out: the answers, and the tokens that moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueline.evaluation.parts import benchmark_of, model_of
from trueline.evaluation.plan import Plan
from trueline.explain.moves import moves
from trueline.report.grids import Entry, Grid
from trueline.report.measures import labels
from trueline.report.paper import Case as PaperCase
from trueline.report.paper import paper
from trueline.report.results import Cell
from trueline.report.tables import Table

if TYPE_CHECKING:
    from trueline.records import Answer

_SHOWN = 5  # questions a table
_MOVES = 4  # tokens a question
_NONE = Entry("\N{EN DASH}")
_WORDS = {True: "yes", False: "no", None: "unscored"}


@dataclass(frozen=True, slots=True)
class Said:
    """What a method answered to one question, and what each judge said of it."""

    text: str
    verdicts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One question."""

    benchmark: str
    question: str
    answers: Mapping[str, Said]  # by method
    moves: tuple[str, ...]  # the tokens that RAD changed
    is_of_the_paper: bool

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def cases_of(plan: Plan, folder: Path, table: Table) -> list[Case]:
    """The questions the paper shows, then the first on which RAD differs from greedy."""
    cells = {row.row.method: row.row.first for row in table.rows}
    greedy = {line["sample"]: line["text"] for line in cells["greedy"].answers}
    theirs = {_plain(case.question) for case in paper().cases}
    both = [line for line in cells["rad"].answers if line["sample"] in greedy]
    named = [line for line in both if _plain(line["question"]) in theirs]
    moved = [line for line in both if line["text"] != greedy[line["sample"]]]
    shown = [*named, *(line for line in moved if line not in named)][:_SHOWN]
    traced = _traced(plan, folder, table.benchmark, [line["question"] for line in shown])
    return [
        Case(
            table.benchmark,
            line["question"],
            {
                name: said
                for name, cell in cells.items()
                if (said := _said(cell, line["sample"]))
            },
            tuple(moves(answer.trace)),
            line in named,
        )
        for line, answer in zip(shown, traced, strict=True)
    ]


def case_grid(table: Table, cases: Sequence[Case]) -> Grid:
    """A question a row, a method a column."""
    methods = list(dict.fromkeys(row.row.method for row in table.rows))
    rows = []
    for case in cases:
        told = [
            Entry(said.text, said.verdicts) if (said := case.answers.get(name)) else _NONE
            for name in methods
        ]
        more = [f"{len(case.moves) - _MOVES} more"] if len(case.moves) > _MOVES else []
        moved = "; ".join([*case.moves[:_MOVES], *more]) or "none"
        below = ("a case of the paper",) if case.is_of_the_paper else ()
        rows.append((Entry(case.question, below), *told, Entry(moved)))
    note = (
        "Questions the paper shows come first, if they were asked, then those on which RAD's "
        f"answer is not greedy's: at most {_SHOWN}."
    )
    return Grid("Cases", ("question", *methods, "tokens that moved"), tuple(rows), (note,))


def paper_grid() -> Grid:
    """The paper's cases: what each method answered in substance, and how it was judged."""
    methods = list(dict.fromkeys(name for case in paper().cases for name in case.answers))
    rows = tuple(
        (
            Entry(case.question, (case.benchmark,)),
            *(_paper_entry(case, name) for name in methods),
            Entry(case.moved or "not told"),
        )
        for case in paper().cases
    )
    note = "Answers are told in our own words; the paper ran Qwen2.5-7B."
    head = ("question", *methods, "tokens that moved")
    return Grid("The paper's cases", head, rows, (note,))


def _paper_entry(case: PaperCase, method: str) -> Entry:
    told = [f"truth: {_WORDS[case.truth[method]]}"]
    told += [f"info: {_WORDS[case.info[method]]}"] if method in case.info else []
    return Entry(case.answers[method], tuple(told))


def _traced(plan: Plan, folder: Path, benchmark: str, questions: list[str]) -> list[Answer]:
    """RAD's answers once more, with the reason for each token; its space is there already."""
    from trueline.evaluation.cells import cells_of, grounding_space
    from trueline.generation import generate

    if not questions:
        return []
    lm, read = model_of(plan, plan.models[0]), benchmark_of(plan, benchmark)
    (variant,) = (variant for variant in plan.variants if variant.method == "rad")
    assert variant.build is not None
    space = grounding_space(lm, read, variant.build, folder / "spaces", None)
    cell, *_ = cells_of(plan, lm, read, variant, space)
    return generate(lm, cell.decoder, questions, max_new_tokens=plan.max_new_tokens, trace=True)


def _said(cell: Cell, sample: str) -> Said | None:
    """What a cell has for a sample, if it answered it."""
    text = next((line["text"] for line in cell.answers if line["sample"] == sample), None)
    told = []
    for judge in dict.fromkeys(verdict["judge"] for verdict in cell.verdicts):
        for about in ("truth", "info", "hallucination"):
            found = labels(cell, about, judge)
            if sample in found:
                told.append(f"{about}: {_WORDS[found[sample]]} ({judge})")
    return None if text is None else Said(text.strip(), tuple(told))


def _plain(question: str) -> str:
    """A question without what may differ between two copies of it."""
    return "".join(sign for sign in question.lower() if sign.isalnum())
