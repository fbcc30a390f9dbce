"""A table -> some of its answers side by side, the wrong ones marked: what the means are of."""

from __future__ import annotations

from random import Random

from trueline.evaluation.lines import AnswerLine
from trueline.evaluation.measures import Column
from trueline.report.grids import Grid, GridText
from trueline.report.method_rows import MethodRow
from trueline.report.tables import Table

SHOWN = 6  # samples; drawn with a seed, so that nobody picked them
_SEED = 0
_WRONG = "wrong"
_LONGEST = 400  # characters of an answer or a question


def answers_grid(table: Table) -> Grid | None:
    """The answers of every method to a few samples that all of them have; None without any."""
    answers = {row.label: {x.sample: x for x in row.first.answers} for row in table.rows}
    found = [lines for lines in answers.values() if lines]
    common = [id for id in found[0] if all(id in lines for lines in found)] if found else []
    if not common:
        return None
    drawn = set(Random(_SEED).sample(common, min(SHOWN, len(common))))
    rows = []
    for id in (id for id in common if id in drawn):
        asked = [row for row in table.rows if id in answers[row.label]]
        for row in asked:
            line = answers[row.label][id]
            question = line.question if row is asked[0] else ""
            mark = _mark(row, line, table.columns)
            texts = [GridText(_cut(text)) for text in (question, row.label, line.text)]
            rows.append((*texts, GridText(mark, is_bold=mark == _WRONG)))
    note = (
        f"{len(drawn)} of {len(common)} samples, drawn with the seed {_SEED}. The judge says "
        "what is wrong; where there is none, what ROUGE-L finds nearer to a wrong answer is."
    )
    return Grid("Answers", ("question", "method", "answer", ""), tuple(rows), (note,))


def _mark(row: MethodRow, line: AnswerLine, columns: tuple[Column, ...]) -> str:
    """Whether an answer is right or wrong, if anything says so."""
    judges = dict.fromkeys(column.judge for column in columns if column.judge)
    for about, is_good in (("truth", True), ("hallucination", False)):
        for judge in judges:
            label = row.first.labels(about, judge).get(line.sample)  # type: ignore[arg-type]
            if label is not None:
                return "right" if label == is_good else _WRONG
    nearer = line.scores.get("rouge_accuracy")
    if nearer is None:
        return ""
    return "right" if nearer else _WRONG


def _cut(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= _LONGEST else f"{short[: _LONGEST - 3]}..."
