"""TruthfulQA (arXiv 2109.07958): 817 questions; 400 to ground with, 417 to test on."""

from __future__ import annotations

from pathlib import Path

from trueline.errors import ExampleError
from trueline.lab.benchmarks.tables import (
    DataTable,
    Hub,
    Item,
    Line,
    Pools,
    distinct,
    is_text,
    read_table,
)
from trueline.lab.samples import Choices, Sample

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
    return [_item_wikiqa(id, rows) for id, rows in questions.items()]


def _item_wikiqa(id: str, rows: list[Line]) -> Item:
    sentences = [(row.text("sentence"), _answers(row)) for row in rows]  # all are checked
    right = distinct(text for text, answers in sentences if answers)
    return Item(Sample(id, rows[0].text("question"), right), rows[0].text("source"))


def _answers(row: Line) -> bool:
    """Whether a sentence answers its question."""
    if str(row.cells["label"]) not in ("0", "1"):
        raise row.problem("label", "0 or 1")
    return str(row.cells["label"]) == "1"


_LICENCE = "(CC BY-NC 4.0)"
_GROUND_alpaca = DataTable(
    files=(("alpaca/alpaca_train", 52_002), ("alpaca/alpaca_train_first1000", 1_000)),
    hub=Hub("tatsu-lab/alpaca", "train", 52_002),
    columns={name: (name, name) for name in ("instruction", "input", "output")},
    home=f"https://github.com/tatsu-lab/stanford_alpaca {_LICENCE}",
)
_TEST_alpaca = DataTable(
    files=(("alpaca/alpaca_eval_text_davinci_003", 805),),
    hub=Hub("tatsu-lab/alpaca_eval", "train", 805, file="alpaca_eval.json"),
    columns={name: (name, name) for name in ("instruction", "output", "dataset")},
    home=f"https://github.com/tatsu-lab/alpaca_eval {_LICENCE}",
)


def read_alpaca(data: Path | None) -> Pools:
    """Read the instructions; an output that is empty is no answer."""
    ground = [_ground(*row) for row in enumerate(read_table(_GROUND_alpaca, data), start=1)]
    test = [_test(*row) for row in enumerate(read_table(_TEST_alpaca, data), start=1)]
    return Pools(ground, test)


def _ground(number: int, line: Line) -> Item:
    # AlpacaEval joins an input to its instruction with an empty line, so both sides are alike.
    parts = (line.text("instruction"), line.text("input", blank=True))
    return Item(
        Sample(f"alpaca-{number}", "\n\n".join(filter(None, parts)), _answers_alpaca(line))
    )


def _test(number: int, line: Line) -> Item:
    category = line.text("dataset", blank=True)
    return Item(
        Sample(
            f"alpaca-eval-{number}",
            line.text("instruction"),
            _answers_alpaca(line),
            category=category,
        )
    )


def _answers_alpaca(line: Line) -> tuple[str, ...]:
    output = line.text("output", blank=True)
    return (output,) if output else ()


LONGEST = 1_500  # characters of a document
_GROUND, _TEST = 100, 500
_NEEDED, _ALL = _GROUND + _TEST, 10_000
_HUB, _HOME = "pminervini/HaluEval", "https://github.com/RUCAIBox/HaluEval (MIT)"
DIALOGUE = DataTable(
    files=(("halueval/halueval_dialogue", _ALL), ("halueval/halueval_dialogue_first700", 700)),
    hub=Hub(_HUB, "data", _ALL, config="dialogue"),
    columns={
        name: (name, name)
        for name in ("knowledge", "dialogue_history", "right_response", "hallucinated_response")
    },
    home=_HOME,
)
SUMMARY = DataTable(
    files=(
        ("halueval/halueval_summarization", _ALL),
        ("halueval/halueval_summarization_short700", 700),
    ),
    hub=Hub(_HUB, "data", _ALL, config="summarization"),
    columns={
        name: (name, name) for name in ("document", "right_summary", "hallucinated_summary")
    },
    home=_HOME,
)


def read_dialogue(data: Path | None) -> Pools:
    """Read the dialogues; model and judge see the history alone, as in the paper."""
    lines = read_table(DIALOGUE, data)
    return _pools("dialogue", "dialogue_history", "response", lines, {"rows": len(lines)})


def read_summary(data: Path | None) -> Pools:
    """Read the documents that are short enough; the first of them ground."""
    lines = read_table(SUMMARY, data)
    brief = [line for line in lines if len(str(line.cells["document"])) <= LONGEST]
    if len(brief) < _NEEDED:
        raise ExampleError(
            f"{len(brief)} of {len(lines):,} documents have at most {LONGEST:,} characters, "
            f"expected {_NEEDED} or more; get the whole file from {_HOME}"
        )
    counts = {"rows": len(lines), f"over {LONGEST:,} characters": len(lines) - len(brief)}
    return _pools("summary", "document", "summary", brief, counts)


def _pools(
    name: str, question: str, answer: str, lines: list[Line], counts: dict[str, int]
) -> Pools:
    """The first rows, each with its right and its hallucinated answer."""
    items = [
        Item(
            Sample(
                f"{name}-{number}",
                line.text(question),
                (line.text(f"right_{answer}"),),
                (line.text(f"hallucinated_{answer}"),),
                knowledge=line.text("knowledge", blank=True)
                if "knowledge" in line.cells
                else "",
            )
        )
        for number, line in enumerate(lines[:_NEEDED], start=1)
    ]
    return Pools(items[:_GROUND], items[_GROUND:], counts)
