"""HaluEval (arXiv 2305.11747): dialogues to go on with, documents to summarise."""

from __future__ import annotations

from pathlib import Path

from trueline.errors import ExampleError
from trueline.evaluation.benchmarks.data_files import DataTable, Hub, Line, read_table
from trueline.evaluation.benchmarks.pools import Item, Pools
from trueline.evaluation.samples import Sample

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
