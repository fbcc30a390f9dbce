"""A recipe and our tables -> which parts of a run are not the paper's, and one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from trueline.evaluation.plan import PAPER
from trueline.paper.figure_pairs import blocks_for
from trueline.paper.figures import paper
from trueline.paper.recipes import EXAMPLES, PaperRecipe
from trueline.report.tables import Table

_IN_OUR_WORDS = ("truth", "info", "truth_info")  # what is asked as the paper does, but not so


def comparable_sentence(recipe: PaperRecipe, tables: Sequence[Table]) -> str:
    """Whether figures can be compared with the paper's: only if every part agrees."""
    parts = agreement_with_paper(recipe, tables)
    differing = [name for name, agrees in parts.items() if not agrees]
    if not differing:
        return (
            f"Every part agrees with the paper's ({', '.join(parts)}): the figures can be "
            "compared."
        )
    return (
        "The figures cannot be compared with the paper's, only which way a method moves them. "
        f"What differs: {', '.join(differing)}."
    )


def agreement_with_paper(recipe: PaperRecipe, tables: Sequence[Table]) -> dict[str, bool]:
    """Every part that has to agree, and whether it does in all cells."""
    heads = [cell.head for table in tables for row in table.rows for cell in row.cells]
    grounded = [head for head in heads if head.space is not None]
    asked = [head for head in heads if head.task == "generate"]
    return {
        "model": all(is_of_the_paper(head.model) for head in heads),
        "benchmark": all(_has_blocks(recipe, table) for table in tables),
        "judge": all(_has_its_judges(recipe, table) for table in tables),
        "the judge's question": all(_asks_its_question(recipe, table) for table in tables),
        "generation prompt": all(
            head.fidelity.get("prompts") == PAPER["prompts"] for head in asked
        ),
        "token limit": all(head.max_new_tokens == PAPER["max_new_tokens"] for head in asked),
        "questions judged": all(_judges_all(recipe, table) for table in tables),
        "examples": bool(recipe.grounds)
        or all((x.ground, x.draw, x.rule) == (EXAMPLES, None, "all") for x in grounded),
    }


def is_of_the_paper(model: str) -> bool:
    """Whether the paper ran a model; folders and owners in its name do not count."""
    short = model.lower().rpartition("/")[2]
    return short in {name.lower().rpartition("/")[2] for name in paper().models.values()}


def _has_blocks(recipe: PaperRecipe, table: Table) -> bool:
    blocks = blocks_for(recipe, table.benchmark)
    return bool(blocks) and all(block.benchmark == table.benchmark for block in blocks)


def _judges(recipe: PaperRecipe, table: Table) -> list[str]:
    """The judges of the paper's figures of a table; none where none was asked."""
    names = [block.judge for block in blocks_for(recipe, table.benchmark) if block.judge]
    return [paper().judges[name] for name in dict.fromkeys(names)]


def _has_its_judges(recipe: PaperRecipe, table: Table) -> bool:
    ours = {judge for cell in table.cells for judge in cell.judges}
    wanted = _judges(recipe, table)
    if not wanted:
        return True
    return bool(ours) and all(any(name in judge for name in wanted) for judge in ours)


def _asks_its_question(recipe: PaperRecipe, table: Table) -> bool:
    """Whether judges were asked in the paper's words, which for truth they never are."""
    if not _judges(recipe, table):
        return True
    ours = {judge for cell in table.cells for judge in cell.judges}
    shown = {column.measure.key for column in table.columns}
    return not shown & set(_IN_OUR_WORDS) and all(judge.endswith("+paper") for judge in ours)


def _judges_all(recipe: PaperRecipe, table: Table) -> bool:
    """Whether every row rests on as many questions as the paper's: judged, not asked."""
    wanted = paper().tests.get(table.benchmark)
    keys = {metric for block in blocks_for(recipe, table.benchmark) for metric in block.metrics}
    columns = [x for x in table.columns if x.measure.key in keys]
    counts = {
        value.n
        for row in table.rows
        for column in columns
        if (value := row.values.get(column.id)) is not None
    }
    if not columns:  # figures that are no means: what was answered counts
        counts = {sum(len(cell.answers) for cell in row.cells) for row in table.rows}
    return counts == {wanted}
