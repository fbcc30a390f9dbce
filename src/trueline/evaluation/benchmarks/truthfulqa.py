"""TruthfulQA (arXiv 2109.07958): 817 questions; 400 to ground with, 417 to test on."""

from __future__ import annotations

from pathlib import Path

from trueline.errors import ExampleError
from trueline.evaluation.benchmarks.data_files import DataTable, Hub, Line, is_text, read_table
from trueline.evaluation.benchmarks.pools import Item, Pools, distinct
from trueline.evaluation.samples import Choices, Sample

_HUB = "truthfulqa/truthful_qa"
_HOME = "https://github.com/sylinrl/TruthfulQA (Apache-2.0; the file of 817 questions)"
_ROWS, _GROUND = 817, 400
_QUESTIONS = DataTable(
    files=(("truthfulqa/truthfulqa_v1", _ROWS),),
    hub=Hub(_HUB, "validation", _ROWS, config="generation"),
    columns={
        "question": ("Question", "question"),
        "best": ("Best Answer", "best_answer"),
        "answers": ("Correct Answers", "correct_answers"),
        "wrong_answers": ("Incorrect Answers", "incorrect_answers"),
        "category": ("Category", "category"),
        "source": ("Source", "source"),
    },
    home=_HOME,
)
_CHOICES = DataTable(
    files=(("truthfulqa/mc_task_v1", _ROWS),),
    hub=Hub(_HUB, "validation", _ROWS, config="multiple_choice"),
    columns={name: (name, name) for name in ("question", "mc1_targets", "mc2_targets")},
    home=_HOME,
)


def read_truthfulqa(data: Path | None) -> Pools:
    """Read the questions, and join the choices to score on the question's text."""
    choices = {line.text("question"): line for line in read_table(_CHOICES, data)}
    items = [
        _item(number, line, choices)
        for number, line in enumerate(read_table(_QUESTIONS, data), start=1)
    ]
    return Pools(items[:_GROUND], items[_GROUND:_ROWS], {"rows": len(items)})


def _item(number: int, line: Line, choices: dict[str, Line]) -> Item:
    question = line.text("question")
    if question not in choices:
        raise line.problem("question", "one that mc_task_v1 has too")
    targets = choices[question]
    single, multiple = _targets(targets, "mc1_targets"), _targets(targets, "mc2_targets")
    if sum(single.is_true) != 1:
        raise targets.problem("mc1_targets", "answers of which one is true")
    sample = Sample(
        f"truthfulqa-{number}",
        question,
        distinct([line.text("best"), *line.texts("answers")]),
        distinct(line.texts("wrong_answers")),
        single,
        multiple,
        category=line.text("category", blank=True),
    )
    return Item(sample, line.text("source", blank=True))


def _targets(line: Line, field: str) -> Choices:
    """The candidates of a row: {answer: label} in the file, two lists on the hub."""
    cell = line.cells[field]
    try:
        texts, labels = (
            (cell["choices"], cell["labels"])
            if "choices" in cell and "labels" in cell
            else (list(cell), list(cell.values()))
        )
        is_sound = len(texts) == len(labels) and all(map(is_text, texts))
        if not is_sound or not {0, 1}.issuperset(labels) or 1 not in labels:
            raise ValueError
        return Choices(tuple(text.strip() for text in texts), tuple(map(bool, labels)))
    except (AttributeError, KeyError, TypeError, ValueError):
        problem: ExampleError = line.problem(field, "answers with the labels 1 and 0")
        raise problem from None
