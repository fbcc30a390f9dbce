"""A plan that was run -> single questions: the answers, and the tokens that moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from trueline.evaluation.outcomes import CellResults
from trueline.evaluation.parts import benchmark_of, model_of
from trueline.evaluation.plan import Plan
from trueline.evaluation.samples import About, bare_letters
from trueline.explain.moves import moves
from trueline.paper.figures import PaperCase, paper
from trueline.report.grids import Grid, GridText
from trueline.report.tables import Table

if TYPE_CHECKING:
    from trueline.records import Answer

_SHOWN = 6  # questions a table
_MOVES = 4  # tokens a question
_NONE = GridText("\N{EN DASH}")
_WORDS = {True: "yes", False: "no", None: "unscored"}


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """What a method answered to one question, and what each judge said of it."""

    text: str
    verdicts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnsweredCase:
    """One question."""

    benchmark: str
    question: str
    answers: Mapping[str, MethodAnswer]  # by method
    moves: tuple[str, ...]  # the tokens that RAD changed
    is_of_the_paper: bool


def cases_of(plan: Plan, folder: Path, table: Table) -> list[AnsweredCase]:
    """The questions the paper shows, then the first on which RAD differs from greedy."""
    cells = {row.method: row.first for row in table.rows if not row.first.head.is_instead}
    greedy = {line.sample: line.text for line in cells["greedy"].answers}
    shown_by_paper = {bare_letters(case.question) for case in paper().cases}
    both = [line for line in cells["rad"].answers if line.sample in greedy]
    named = [line for line in both if bare_letters(line.question) in shown_by_paper]
    moved = [line for line in both if line.text != greedy[line.sample]]
    shown = [*named, *(line for line in moved if line not in named)][:_SHOWN]
    again = _traced(plan, folder, table.benchmark, [line.question for line in shown])
    return [
        AnsweredCase(
            table.benchmark,
            line.question,
            {
                name: answer
                for name, cell in cells.items()
                if (answer := _answer(cell, line.sample))
            },
            tuple(moves(traced.trace)),
            line in named,
        )
        for line, traced in zip(shown, again, strict=True)
    ]


def case_grid(table: Table, cases: Sequence[AnsweredCase]) -> Grid:
    """A question a row, a method a column."""
    methods = list(dict.fromkeys(row.method for row in table.rows))
    rows = []
    for case in cases:
        answers = [
            GridText(one.text, one.verdicts) if (one := case.answers.get(name)) else _NONE
            for name in methods
        ]
        more = [f"{len(case.moves) - _MOVES} more"] if len(case.moves) > _MOVES else []
        moved = "; ".join([*case.moves[:_MOVES], *more]) or "none"
        below = ("a case of the paper",) if case.is_of_the_paper else ()
        rows.append((GridText(case.question, below), *answers, GridText(moved)))
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
            GridText(case.question, (case.benchmark,)),
            *(_paper_entry(case, name) for name in methods),
            GridText(case.moved or "not given"),
        )
        for case in paper().cases
    )
    note = "Answers are given in our words; the paper ran Qwen2.5-7B."
    head = ("question", *methods, "tokens that moved")
    return Grid("The paper's cases", head, rows, (note,))


def _paper_entry(case: PaperCase, method: str) -> GridText:
    verdicts = [f"truth: {_WORDS[case.truth[method]]}"]
    verdicts += [f"info: {_WORDS[case.info[method]]}"] if method in case.info else []
    return GridText(case.answers[method], tuple(verdicts))


def _traced(plan: Plan, folder: Path, benchmark: str, questions: list[str]) -> list[Answer]:
    """RAD's answers once more, with the reason for each token; its space is there already."""
    from trueline.evaluation.cells import cells_of, grounding_space
    from trueline.generation import generate

    if not questions:
        return []
    lm, read = model_of(plan, plan.models[0]), benchmark_of(plan, benchmark)
    own = (one for one in plan.variants if one.control is None)
    (variant,) = (variant for variant in own if variant.method == "rad")
    assert variant.build is not None
    space = grounding_space(lm, read, variant.build, folder / "spaces", None)
    cell, *_ = cells_of(plan, lm, read, variant, space)
    return generate(lm, cell.decoder, questions, max_new_tokens=plan.max_new_tokens, trace=True)


def _answer(cell: CellResults, sample: str) -> MethodAnswer | None:
    """What a cell has for a sample, if it answered it."""
    text = next((line.text for line in cell.answers if line.sample == sample), None)
    verdicts = []
    for judge in cell.judges:
        for about in get_args(About):
            labels = cell.labels(about, judge)
            if sample in labels:
                verdicts.append(f"{about}: {_WORDS[labels[sample]]} ({judge})")
    return None if text is None else MethodAnswer(text.strip(), tuple(verdicts))
