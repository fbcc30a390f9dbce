"""A recipe and what was run -> sentences on why figures cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trueline.evaluation.findings import agreement_notes
from trueline.evaluation.outcomes import CellResults
from trueline.paper.comparability import comparable_sentence, is_of_the_paper
from trueline.paper.figure_pairs import blocks_for
from trueline.paper.figures import paper
from trueline.paper.recipes import EXAMPLES, PaperRecipe
from trueline.paper.space_costs import SpaceCosts
from trueline.report.tables import Table

_RULES = {  # by which examples are taken, as the plan has it
    "answered": "Rule `answered`: questions without an answer are left out before examples are "
    "taken, so there are as many as were asked for if the benchmark holds them.",
    "all": "Rule `all`, as in the paper: examples are taken among all questions, and those "
    "without an answer cannot ground, so there may be fewer than were asked for.",
}
_BERTSCORE = (
    "BERTScore: ours is F1 as the encoder gives it, not rescaled by a baseline; the authors' "
    "code rescales that of deberta-xlarge-mnli (bertscore_baseline)."
)
_CONFIDENCE = (
    "Confidence: the paper takes the mean of the tokens' probabilities, ours is their "
    "geometric mean, so the levels of ECE and AUROC cannot be compared (confidence)."
)


def caveats(recipe: PaperRecipe, tables: Sequence[Table]) -> tuple[str, ...]:
    """Why our figures are not the paper's: model, judge, questions, examples, misprints."""
    cells = [cell for table in tables for cell in table.cells]
    notes = [
        comparable_sentence(recipe, tables),
        _models({table.model for table in tables}),
        *_judges(recipe, tables, cells),
    ]
    for table in tables:
        notes += [_benchmark(recipe, table), _questions(table)]
    notes += [_ground(cells), *_measures(recipe, tables), *_misprints(recipe)]
    return tuple(note for note in notes if note)


def space_caveats(measured: Sequence[SpaceCosts]) -> tuple[str, ...]:
    """What to know before sizes and times are compared."""
    notes = [
        _models({one.model for one in measured}),
        *dict.fromkeys(_RULES[one.rule] for one in measured),
        "The paper keeps logits and ran on an H100; ours keeps hidden states, from which those "
        "logits follow, so only the numbers of entries can be compared.",
        "The paper's sizes do not follow from its entries: 3,755 entries of Qwen2.5-7B are "
        "2.3 GB as 32-bit logits of 152,064 tokens, and it gives 12.",
    ]
    return tuple(note for note in notes if note)


def _models(models: set[str]) -> str:
    others = sorted(model for model in models if not is_of_the_paper(model))
    if not others:
        return ""
    return (
        f"Another model: ours is {', '.join(others)}, the paper's are "
        f"{', '.join(paper().models)}."
    )


def _judges(
    recipe: PaperRecipe, tables: Sequence[Table], cells: Sequence[CellResults]
) -> list[str]:
    blocks = [block for table in tables for block in blocks_for(recipe, table.benchmark)]
    of_paper = dict.fromkeys(paper().judges[block.judge] for block in blocks if block.judge)
    ours = list(dict.fromkeys(judge for cell in cells for judge in cell.judges))
    notes = []
    others = [judge for judge in ours if not any(name in judge for name in of_paper)]
    if of_paper and others:
        notes.append(
            f"Another judge: ours is {', '.join(others)}, the paper's {', '.join(of_paper)}. "
            "Shares by different judges cannot be compared."
        )
    if of_paper and not ours:
        notes.append("No judge was asked: the paper's judged figures stand alone.")
    return notes + agreement_notes(cells)


def _benchmark(recipe: PaperRecipe, table: Table) -> str:
    blocks = blocks_for(recipe, table.benchmark)
    others = dict.fromkeys(b.benchmark for b in blocks if b.benchmark != table.benchmark)
    if not others:
        return ""
    where = (
        "" if table.benchmark in paper().tests else f"{table.benchmark} is not in the paper; "
    )
    return (
        f"Another benchmark: {where}the paper's figures beside {table.benchmark} are for "
        f"{', '.join(others)} and cannot be compared."
    )


def _measures(recipe: PaperRecipe, tables: Sequence[Table]) -> list[str]:
    """What is measured in another way than the paper's, and is shown here."""
    shown = {column.measure.key for table in tables for column in table.columns}
    heads = [cell.head for table in tables for cell in table.cells]
    is_raw = any("bertscore_baseline" not in head.fidelity for head in heads)
    is_geometric = any("confidence" not in head.fidelity for head in heads)
    notes = [_BERTSCORE] if "bertscore" in shown and is_raw else []
    return [*notes, _CONFIDENCE] if recipe.show == "reliability" and is_geometric else notes


def _questions(table: Table) -> str:
    of_paper = paper().tests.get(table.benchmark)
    counts = {row.counts["generate"].answered for row in table.rows if "generate" in row.counts}
    if of_paper is None or not counts or counts == {of_paper}:
        return ""
    ours = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts))
    return (
        f"Other numbers of questions on {table.benchmark}: ours {ours}, the paper's {of_paper}."
    )


def _ground(cells: Iterable[CellResults]) -> str:
    counts = sorted({cell.head.ground for cell in cells if cell.head.space})
    if not counts or counts == [EXAMPLES]:
        return ""
    listed = ", ".join(map(str, counts))
    return f"Grounded in {listed} examples; the paper takes {EXAMPLES} unless a row says else."


def _misprints(recipe: PaperRecipe) -> list[str]:
    return [
        f"A misprint of the paper: {one.model}, {one.benchmark}, {one.row}, "
        f"{one.metric}: {one.about} (printed {one.printed:g}, worked {one.worked:g})."
        for one in paper().misprints
        if one.recipe == recipe.name
    ]
