"""A plan that was run in; single questions out: greedy, RAD, and the tokens that moved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trueline.evaluation.plan import Plan
from trueline.report.grids import Entry, Grid
from trueline.report.measures import labels
from trueline.report.results import Cell
from trueline.report.tables import Table

if TYPE_CHECKING:
    from trueline.answers import Answer

_SHOWN = 5  # questions a table
_MOVES = 4  # tokens a question


def case_grid(plan: Plan, folder: Path, table: Table) -> Grid:
    """The first few questions on which RAD's answer is another than greedy's."""
    cells = {row.row.method: row.row.first for row in table.rows}
    greedy = {line["sample"]: line for line in cells["greedy"].answers}
    other = [
        line
        for line in cells["rad"].answers
        if line["sample"] in greedy and line["text"] != greedy[line["sample"]]["text"]
    ]
    shown = other[:_SHOWN]
    traced = _traced(plan, folder, table, [line["question"] for line in shown])
    rows = tuple(
        (
            Entry(line["question"]),
            Entry(greedy[line["sample"]]["text"].strip(), _said(cells["greedy"], line)),
            Entry(line["text"].strip(), _said(cells["rad"], line)),
            Entry("; ".join(_moves(answer)) or "none"),
        )
        for line, answer in zip(shown, traced, strict=True)
    )
    note = f"{len(other)} of {len(greedy)} answers differ; the first {len(shown)} are shown."
    return Grid("Cases", ("question", "greedy", "rad", "tokens that moved"), rows, (note,))


def _traced(plan: Plan, folder: Path, table: Table, questions: list[str]) -> list[Answer]:
    """RAD's answers once more, with the reason for each token; its space is there already."""
    from trueline.evaluation.benchmarks import read_benchmark
    from trueline.evaluation.cells import cells_of, grounding_space
    from trueline.generation import generate
    from trueline.models.language import load

    if not questions:
        return []
    lm = load(
        plan.models[0],
        dtype=plan.dtype,
        device=plan.device,
        trust_remote_code=plan.trust_remote_code,
    )
    benchmark = read_benchmark(
        table.benchmark,
        data=plan.data,
        ground=plan.ground,
        test=plan.test,
        seed=plan.draw,
        rule=plan.rule,
    )
    (variant,) = (variant for variant in plan.variants if variant.method == "rad")
    assert variant.build is not None
    space = grounding_space(lm, benchmark, variant.build, folder / "spaces", None)
    cell, *_ = cells_of(plan, lm, benchmark, variant, space)
    return generate(lm, cell.decoder, questions, max_new_tokens=plan.max_new_tokens, trace=True)


def _said(cell: Cell, line: object) -> tuple[str, ...]:
    """What each judge said of an answer."""
    assert isinstance(line, dict)
    words = {True: "yes", False: "no", None: "unscored"}
    told = []
    for judge in dict.fromkeys(verdict["judge"] for verdict in cell.verdicts):
        for about in ("truth", "info", "hallucination"):
            found = labels(cell, about, judge)
            if line["sample"] in found:
                told.append(f"{about}: {words[found[line['sample']]]} ({judge})")
    return tuple(told)


def _moves(answer: Answer) -> list[str]:
    """The tokens that are not the model's own choice, and the example that pushed most."""
    moved = []
    for step in answer.trace or ():
        if step.flipped and step.neighbors:
            best = max(step.neighbors, key=lambda neighbor: neighbor.push)
            moved.append(
                f"{step.base[0].text!r} became {step.text!r} by {best.example} "
                f"(cosine {best.similarity:.2f})"
            )
    more = [f"{len(moved) - _MOVES} more"] if len(moved) > _MOVES else []
    return moved[:_MOVES] + more
