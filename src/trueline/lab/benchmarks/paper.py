"""The paper's benchmarks: TruthfulQA, WikiQA, Alpaca, HaluEval's dialogues and summaries."""

from __future__ import annotations

from pathlib import Path

from trueline.errors import ExampleError
from trueline.lab.benchmarks.tables import (
    Choices,
    DataTable,
    Hub,
    Line,
    Pools,
    Sample,
    distinct,
    is_text,
    read_table,
)


def _same(*names: str) -> dict[str, tuple[str, str]]:
    """Columns with one name everywhere: our field, in the file, on the hub."""
    return {name: (name, name) for name in names}


# TruthfulQA (arXiv 2109.07958): the first 400 questions ground, the other 417 test.
def _truthfulqa(file: str, config: str, columns: dict[str, tuple[str, str]]) -> DataTable:
    return DataTable(
        files=((f"truthfulqa/{file}", 817),),
        hub=Hub("truthfulqa/truthful_qa", "validation", 817, config),
        columns=columns,
        home="https://github.com/sylinrl/TruthfulQA (Apache-2.0; the file of 817 questions)",
    )


_QUESTIONS = _truthfulqa(
    "truthfulqa_v1",
    "generation",
    {
        "question": ("Question", "question"),
        "best": ("Best Answer", "best_answer"),
        "answers": ("Correct Answers", "correct_answers"),
        "wrong_answers": ("Incorrect Answers", "incorrect_answers"),
        "category": ("Category", "category"),
        "source": ("Source", "source"),
    },
)
_CHOICES = _truthfulqa(
    "mc_task_v1", "multiple_choice", _same("question", "mc1_targets", "mc2_targets")
)


def read_truthfulqa(data: Path | None) -> Pools:
    """Read the questions, each with the choices that have the same question text."""
    choices = {line.text("question"): line for line in read_table(_CHOICES, data)}
    rows = []
    for number, line in enumerate(read_table(_QUESTIONS, data), start=1):
        question = line.text("question")
        if question not in choices:
            raise line.problem("question", "one that mc_task_v1 has too")
        targets = choices[question]
        single, multiple = _targets(targets, "mc1_targets"), _targets(targets, "mc2_targets")
        if sum(single.is_true) != 1:
            raise targets.problem("mc1_targets", "answers of which one is true")
        rows.append(
            Sample(
                f"truthfulqa-{number}",
                question,
                distinct([line.text("best"), *line.texts("answers")]),
                distinct(line.texts("wrong_answers")),
                single,
                multiple,
                category=line.text("category", may_be_empty=True),
                source=line.text("source", may_be_empty=True),
            )
        )
    return Pools(rows[:400], rows[400:817], {"rows": len(rows)})


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
    ground, test = read_table(_WIKIQA_GROUND, data), read_table(_WIKIQA_TEST, data)
    counts = {"ground rows": len(ground), "test rows": len(test)}
    counts["ground sentences labelled 0"] = sum(not _is_answer(line) for line in ground)
    counts["test sentences labelled 0"] = sum(not _is_answer(line) for line in test)
    return Pools(_wikiqa_rows(ground), _wikiqa_rows(test), counts)


def _is_answer(line: Line) -> bool:
    if str(line.cells["label"]) not in ("0", "1"):
        raise line.problem("label", "0 or 1")
    return str(line.cells["label"]) == "1"


def _wikiqa_rows(lines: list[Line]) -> list[Sample]:
    questions: dict[str, list[Line]] = {}
    for line in lines:
        questions.setdefault(line.text("id"), []).append(line)
    rows = []
    for id, group in questions.items():
        sentences = [(line.text("sentence"), _is_answer(line)) for line in group]  # checks all
        answers = distinct(text for text, is_answer in sentences if is_answer)
        question, source = group[0].text("question"), group[0].text("source")
        rows.append(Sample(id, question, answers, source=source))
    return rows


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
    ground = [
        _instruction(f"alpaca-{number}", line, line.text("input", may_be_empty=True), "")
        for number, line in enumerate(read_table(_ALPACA_GROUND, data), start=1)
    ]
    test = [
        _instruction(f"alpaca-eval-{number}", line, "", line.text("dataset", may_be_empty=True))
        for number, line in enumerate(read_table(_ALPACA_TEST, data), start=1)
    ]
    return Pools(ground, test)


def _instruction(id: str, line: Line, given: str, category: str) -> Sample:
    """A row; AlpacaEval, too, joins an input to its instruction with an empty line."""
    question = "\n\n".join(filter(None, (line.text("instruction"), given)))
    output = line.text("output", may_be_empty=True)
    return Sample(id, question, (output,) if output else (), category=category)


# HaluEval (arXiv 2305.11747): the first 100 rows ground, the next 500 test.
def _halueval(name: str, part: str, *columns: str) -> DataTable:
    return DataTable(
        files=((f"halueval/halueval_{name}", 10_000), (f"halueval/halueval_{part}", 700)),
        hub=Hub("pminervini/HaluEval", "data", 10_000, config=name),
        columns=_same(*columns),
        home="https://github.com/RUCAIBox/HaluEval (MIT)",
    )


_DIALOGUE = _halueval(
    "dialogue",
    "dialogue_first700",
    *("knowledge", "dialogue_history", "right_response", "hallucinated_response"),
)
_SUMMARY = _halueval(
    "summarization",
    "summarization_short700",
    *("document", "right_summary", "hallucinated_summary"),
)


def read_dialogue(data: Path | None) -> Pools:
    """Read the dialogues; model and judge see only the history, as in the paper."""
    lines = read_table(_DIALOGUE, data)
    counts = {"rows": len(lines)}
    return _halueval_pools("dialogue", "dialogue_history", "response", lines, counts)


def read_summary(data: Path | None) -> Pools:
    """Read the documents of at most 1,500 characters."""
    lines = read_table(_SUMMARY, data)
    short = [line for line in lines if len(str(line.cells["document"])) <= 1_500]
    if len(short) < 600:
        raise ExampleError(
            f"{len(short)} of {len(lines):,} documents have at most 1,500 characters, expected "
            f"600 or more; get the whole file from {_SUMMARY.home}"
        )
    counts = {"rows": len(lines), "over 1,500 characters": len(lines) - len(short)}
    return _halueval_pools("summary", "document", "summary", short, counts)


def _halueval_pools(
    name: str, question: str, answer: str, lines: list[Line], counts: dict[str, int]
) -> Pools:
    rows = [
        Sample(
            f"{name}-{number}",
            line.text(question),
            (line.text(f"right_{answer}"),),
            (line.text(f"hallucinated_{answer}"),),
            knowledge=line.text("knowledge", may_be_empty=True) if name == "dialogue" else "",
        )
        for number, line in enumerate(lines[:600], start=1)
    ]
    return Pools(rows[:100], rows[100:], counts)
