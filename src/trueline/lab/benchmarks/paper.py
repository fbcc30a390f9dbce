"""The paper's benchmarks: TruthfulQA, WikiQA, Alpaca, HaluEval's dialogues and summaries."""

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


def _same(*names: str) -> dict[str, tuple[str, str]]:
    """Columns with one name everywhere: our field, in the file, on the hub."""
    return {name: (name, name) for name in names}


# TruthfulQA (arXiv 2109.07958): the first 400 questions ground, the other 417 test.
_TRUTHFULQA_ROWS, _TRUTHFULQA_GROUND = 817, 400
_TRUTHFULQA_HUB = "truthfulqa/truthful_qa"
_TRUTHFULQA_HOME = (
    "https://github.com/sylinrl/TruthfulQA (Apache-2.0; the file of 817 questions)"
)
_QUESTIONS = DataTable(
    files=(("truthfulqa/truthfulqa_v1", _TRUTHFULQA_ROWS),),
    hub=Hub(_TRUTHFULQA_HUB, "validation", _TRUTHFULQA_ROWS, config="generation"),
    columns={
        "question": ("Question", "question"),
        "best": ("Best Answer", "best_answer"),
        "answers": ("Correct Answers", "correct_answers"),
        "wrong_answers": ("Incorrect Answers", "incorrect_answers"),
        "category": ("Category", "category"),
        "source": ("Source", "source"),
    },
    home=_TRUTHFULQA_HOME,
)
_CHOICES = DataTable(
    files=(("truthfulqa/mc_task_v1", _TRUTHFULQA_ROWS),),
    hub=Hub(_TRUTHFULQA_HUB, "validation", _TRUTHFULQA_ROWS, config="multiple_choice"),
    columns=_same("question", "mc1_targets", "mc2_targets"),
    home=_TRUTHFULQA_HOME,
)


def read_truthfulqa(data: Path | None) -> Pools:
    """Read the questions, each with the choices that have the same question text."""
    choices = {line.text("question"): line for line in read_table(_CHOICES, data)}
    items = []
    for number, line in enumerate(read_table(_QUESTIONS, data), start=1):
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
            category=line.text("category", may_be_empty=True),
        )
        items.append(Item(sample, line.text("source", may_be_empty=True)))
    ground = items[:_TRUTHFULQA_GROUND]
    return Pools(ground, items[len(ground) : _TRUTHFULQA_ROWS], {"rows": len(items)})


def _targets(line: Line, field: str) -> Choices:
    """The candidates of a row: {answer: label} in the file, two lists on the hub."""
    cell = line.cells[field]
    try:
        is_hub = "choices" in cell and "labels" in cell
        texts, labels = (
            (cell["choices"], cell["labels"]) if is_hub else (list(cell), list(cell.values()))
        )
        is_sound = len(texts) == len(labels) and all(map(is_text, texts))
        if not is_sound or not {0, 1}.issuperset(labels) or 1 not in labels:
            raise ValueError
        return Choices(tuple(text.strip() for text in texts), tuple(map(bool, labels)))
    except (AttributeError, KeyError, TypeError, ValueError):
        problem: ExampleError = line.problem(field, "answers with the labels 1 and 0")
        raise problem from None


# WikiQA: 2,118 questions ground, 633 test; a row is a sentence with a label.
def _wikiqa(split: str, rows: int) -> DataTable:
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


_WIKIQA_GROUND, _WIKIQA_TEST = _wikiqa("train", 20_360), _wikiqa("test", 6_165)


def read_wikiqa(data: Path | None) -> Pools:
    """Gather the sentences of each question; those labelled 1 are its truthful answers."""
    test, ground = read_table(_WIKIQA_TEST, data), read_table(_WIKIQA_GROUND, data)
    sides = {"ground": ground, "test": test}
    counts = {f"{side} rows": len(lines) for side, lines in sides.items()}
    for side, lines in sides.items():
        counts[f"{side} sentences labelled 0"] = sum(not _is_answer(line) for line in lines)
    return Pools(_wikiqa_items(ground), _wikiqa_items(test), counts)


def _wikiqa_items(lines: list[Line]) -> list[Item]:
    questions: dict[str, list[Line]] = {}
    for line in lines:
        questions.setdefault(line.text("id"), []).append(line)
    items = []
    for id, rows in questions.items():
        sentences = [(row.text("sentence"), _is_answer(row)) for row in rows]  # checks all
        answers = distinct(text for text, is_answer in sentences if is_answer)
        sample = Sample(id, rows[0].text("question"), answers)
        items.append(Item(sample, rows[0].text("source")))
    return items


def _is_answer(row: Line) -> bool:
    if str(row.cells["label"]) not in ("0", "1"):
        raise row.problem("label", "0 or 1")
    return str(row.cells["label"]) == "1"


# Alpaca grounds, AlpacaEval tests.
_ALPACA_GROUND = DataTable(
    files=(("alpaca/alpaca_train", 52_002), ("alpaca/alpaca_train_first1000", 1_000)),
    hub=Hub("tatsu-lab/alpaca", "train", 52_002),
    columns=_same("instruction", "input", "output"),
    home="https://github.com/tatsu-lab/stanford_alpaca (CC BY-NC 4.0)",
)
_ALPACA_TEST = DataTable(
    files=(("alpaca/alpaca_eval_text_davinci_003", 805),),
    hub=Hub("tatsu-lab/alpaca_eval", "train", 805, file="alpaca_eval.json"),
    columns=_same("instruction", "output", "dataset"),
    home="https://github.com/tatsu-lab/alpaca_eval (CC BY-NC 4.0)",
)


def read_alpaca(data: Path | None) -> Pools:
    """Read the instructions; an empty output is not an answer."""
    ground, test = [], []
    for number, line in enumerate(read_table(_ALPACA_GROUND, data), start=1):
        # AlpacaEval joins an input to its instruction with an empty line too.
        parts = (line.text("instruction"), line.text("input", may_be_empty=True))
        question = "\n\n".join(filter(None, parts))
        ground.append(Item(Sample(f"alpaca-{number}", question, _output(line))))
    for number, line in enumerate(read_table(_ALPACA_TEST, data), start=1):
        id, question = f"alpaca-eval-{number}", line.text("instruction")
        category = line.text("dataset", may_be_empty=True)
        test.append(Item(Sample(id, question, _output(line), category=category)))
    return Pools(ground, test)


def _output(line: Line) -> tuple[str, ...]:
    output = line.text("output", may_be_empty=True)
    return (output,) if output else ()


# HaluEval (arXiv 2305.11747): the first 100 rows ground, the next 500 test.
LONGEST = 1_500  # characters of a document
_HALUEVAL_GROUND, _HALUEVAL_NEEDED, _HALUEVAL_ALL = 100, 600, 10_000
_HALUEVAL_HOME = "https://github.com/RUCAIBox/HaluEval (MIT)"


def _halueval(name: str, part: str, *columns: str) -> DataTable:
    return DataTable(
        files=(
            (f"halueval/halueval_{name}", _HALUEVAL_ALL),
            (f"halueval/halueval_{part}", 700),
        ),
        hub=Hub("pminervini/HaluEval", "data", _HALUEVAL_ALL, config=name),
        columns=_same(*columns),
        home=_HALUEVAL_HOME,
    )


DIALOGUE = _halueval(
    "dialogue",
    "dialogue_first700",
    *("knowledge", "dialogue_history", "right_response", "hallucinated_response"),
)
SUMMARY = _halueval(
    "summarization",
    "summarization_short700",
    *("document", "right_summary", "hallucinated_summary"),
)


def read_dialogue(data: Path | None) -> Pools:
    """Read the dialogues; model and judge see only the history, as in the paper."""
    lines = read_table(DIALOGUE, data)
    counts = {"rows": len(lines)}
    return _halueval_pools("dialogue", "dialogue_history", "response", lines, counts)


def read_summary(data: Path | None) -> Pools:
    """Read the documents that are short enough."""
    lines = read_table(SUMMARY, data)
    short = [line for line in lines if len(str(line.cells["document"])) <= LONGEST]
    if len(short) < _HALUEVAL_NEEDED:
        raise ExampleError(
            f"{len(short)} of {len(lines):,} documents have at most {LONGEST:,} characters, "
            f"expected {_HALUEVAL_NEEDED} or more; get the whole file from {_HALUEVAL_HOME}"
        )
    counts = {"rows": len(lines), f"over {LONGEST:,} characters": len(lines) - len(short)}
    return _halueval_pools("summary", "document", "summary", short, counts)


def _halueval_pools(
    name: str, question: str, answer: str, lines: list[Line], counts: dict[str, int]
) -> Pools:
    items = []
    for number, line in enumerate(lines[:_HALUEVAL_NEEDED], start=1):
        right, wrong = line.text(f"right_{answer}"), line.text(f"hallucinated_{answer}")
        has_knowledge = "knowledge" in line.cells
        knowledge = line.text("knowledge", may_be_empty=True) if has_knowledge else ""
        id, text = f"{name}-{number}", line.text(question)
        items.append(Item(Sample(id, text, (right,), (wrong,), knowledge=knowledge)))
    return Pools(items[:_HALUEVAL_GROUND], items[_HALUEVAL_GROUND:], counts)
