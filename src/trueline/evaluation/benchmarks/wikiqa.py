"""WikiQA (Yang et al. 2015): questions with sentences of a page, each labelled 1 or 0.

A sentence labelled 0 does not answer its question. It is not untrue for that, so it is nobody's
wrong answer: such sentences are counted and left out.
"""

from __future__ import annotations

from pathlib import Path

from trueline.evaluation.benchmarks.data_files import DataTable, Hub, Line, read_table
from trueline.evaluation.benchmarks.pools import Item, Pools, distinct
from trueline.evaluation.samples import Sample


def _table(split: str, rows: int) -> DataTable:
    return DataTable(
        files=((f"wikiqa/wikiqa_{split}", rows),),
        hub=Hub("microsoft/wiki_qa", split, rows),
        columns={
            "id": ("QuestionID", "question_id"),
            "question": ("Question", "question"),
            "source": ("DocumentTitle", "document_title"),
            "sentence": ("Sentence", "answer"),
            "label": ("Label", "label"),
        },
        home="https://aka.ms/WikiQA (Microsoft's research licence)",
    )


_GROUND = _table("train", 20_360)  # 2,118 questions
_TEST = _table("test", 6_165)  # 633 questions


def read_wikiqa(data: Path | None) -> Pools:
    """Gather the sentences of each question; those labelled 1 are its truthful answers."""
    test, ground = read_table(_TEST, data), read_table(_GROUND, data)
    sides = {"ground": ground, "test": test}
    counts = {f"{side} rows": len(lines) for side, lines in sides.items()}
    for side, lines in sides.items():
        counts[f"{side} sentences labelled 0"] = sum(not _answers(line) for line in lines)
    return Pools(_items(ground), _items(test), counts)


def _items(lines: list[Line]) -> list[Item]:
    questions: dict[str, list[Line]] = {}
    for line in lines:
        questions.setdefault(line.text("id"), []).append(line)
    return [_item(id, rows) for id, rows in questions.items()]


def _item(id: str, rows: list[Line]) -> Item:
    sentences = [(row.text("sentence"), _answers(row)) for row in rows]  # all are checked
    right = distinct(text for text, answers in sentences if answers)
    return Item(Sample(id, rows[0].text("question"), right), rows[0].text("source"))


def _answers(row: Line) -> bool:
    """Whether a sentence answers its question."""
    if str(row.cells["label"]) not in ("0", "1"):
        raise row.problem("label", "0 or 1")
    return str(row.cells["label"]) == "1"
