"""A file of questions in, each with the id of the example that is to answer it, or none.

A question may also say its regime: how it stands to the examples.
"""

from __future__ import annotations

import csv
import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from trueline.errors import ExampleError
from trueline.examples.rows import TableRow, rows_of
from trueline.files import read_text, reason
from trueline.visible import has_half_character, shown

Regime = Literal[
    "exact", "paraphrase", "styled", "double", "mid-text", "near miss", "unrelated"
]
COVERED: tuple[Regime, ...] = ("exact", "paraphrase", "styled", "double", "mid-text")
LOCAL: tuple[Regime, ...] = ("near miss", "unrelated")  # no example answers: nothing may change
NONE = "none"  # may stand for no id
_LISTED = 10  # problems that an error lists
_FORMS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question as somebody asked it, and the example that answers it."""

    question: str
    id: str = ""  # empty: no example does
    regime: Regime | None = None  # None: not said
    also: tuple[str, ...] = ()  # ids of the other examples that a double question means


def is_asked_file(path: Path) -> bool:
    """Whether a file's name says that it is a table, with ids perhaps."""
    return path.name.lower().removesuffix(".gz").endswith(_FORMS)


def read_questions(path: Path, *, needs_ids: bool) -> list[AskedQuestion]:
    """Read a file of questions, one a line, or a table of them as `read_asked` does."""
    if is_asked_file(path):
        return read_asked(path, needs_ids=needs_ids)
    lines = read_text(path, "--file").split("\n")
    asked = [AskedQuestion(line.strip()) for line in lines if line.strip()]
    if not asked:
        raise ExampleError(f"{path} holds no questions; write one a line")
    return asked


def read_asked(path: str | os.PathLike[str], *, needs_ids: bool = True) -> list[AskedQuestion]:
    """Read a JSONL or CSV file with the columns `question` and `id`; bad rows are all named.

    Where no ids are needed, `question` is the only column that is read.
    """
    name = os.fspath(path)
    if not is_asked_file(Path(name)):
        raise ExampleError(f"{name}: questions come in a file that ends in {', '.join(_FORMS)}")
    try:
        rows = list(rows_of(Path(name), "", None))
    except OSError as error:
        raise ExampleError(f"{name} cannot be read: {reason(error)}") from error
    except (EOFError, ValueError, zlib.error, csv.Error) as error:
        raise ExampleError(f"{name} cannot be read: {error}") from error
    found = [(line, _asked(row, needs_ids)) for line, row in rows]
    problems = [f"  {name}:{line}: {one}" for line, one in found if isinstance(one, str)]
    if problems:
        head = f"{name}: {len(problems)} of {len(found)} rows cannot be used:"
        more = len(problems) - _LISTED
        tail = [f"  and {more} more"] if more > 0 else []
        raise ExampleError("\n".join([head, *problems[:_LISTED], *tail]))
    if not found:
        raise ExampleError(
            f"{name} holds no questions; write one a row, in the column question"
        )
    return [one for _, one in found if isinstance(one, AskedQuestion)]


def holds_questions(path: Path) -> bool:
    """Whether a file holds questions with ids: a table whose rows have no answers."""
    if not is_asked_file(path):
        return False
    try:
        rows = (row for _, row in rows_of(path, "", None) if isinstance(row, dict))
        first = next(rows, {})
    except (OSError, EOFError, ValueError, zlib.error, csv.Error):
        return False  # whoever reads it says what is wrong with it
    return "id" in first and not {"answers", "answer"} & first.keys()


def check_meant(asked: Sequence[AskedQuestion], known: Collection[str], where: str) -> None:
    """Refuse ids that no example has, with names near to them."""
    meant = ((one, id) for one in asked for id in (one.id, *one.also))
    if unknown := [(one, id) for one, id in meant if id and id not in known]:
        one, id = unknown[0]
        near = get_close_matches(id, known)
        raise ExampleError(
            f"{where}: no example has the id {shown(id)}, which "
            f"{shown(one.question)} is to mean (as {len(unknown)} of {len(asked)} "
            f"questions); near names: {', '.join(map(shown, near)) or 'none'}; leave the "
            "id empty where no example answers"
        )


def _asked(row: TableRow | str, needs_ids: bool) -> AskedQuestion | str:
    """A question from a row, or what is wrong with it."""
    if isinstance(row, str):
        return row
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        return "question is missing or empty"
    if needs_ids and "id" not in row:
        return "id is missing; leave it empty where no example answers"
    ids = _ids(row["id"]) if needs_ids else []
    if ids is None:
        return f"id must be a text, got {shown(row['id'])}"
    if has_half_character("".join([question, *ids])):
        return "the text holds half of a character, which UTF-8 cannot keep"
    if not needs_ids:
        return AskedQuestion(question.strip())
    regime = row.get("regime") or None
    if problem := _regime_problem(regime, ids):
        return problem
    first, *others = ids or [""]
    return AskedQuestion(question.strip(), first, regime, tuple(others))


def _ids(cell: Any) -> list[str] | None:
    """The ids in a cell: a text, a number, nothing, or a list of them; None: it is no such."""
    found = []
    for id in cell if isinstance(cell, list) else [cell]:
        if isinstance(id, int) and not isinstance(id, bool):
            id = str(id)
        if not isinstance(id, str | None):
            return None
        meant = (id or "").strip()
        found += [meant] if meant and meant.lower() != NONE else []
    return found


def _regime_problem(regime: Any, ids: Sequence[str]) -> str:
    """What is wrong with a regime and the ids of its question, in words."""
    if regime is not None and regime not in get_args(Regime):
        return f"regime must be one of {', '.join(get_args(Regime))}; got {shown(regime)}"
    if regime in LOCAL and ids:
        return f"a question of the regime {regime} means no example, but its id is {ids[0]}"
    if regime in COVERED and not ids:
        return f"a question of the regime {regime} means an example; its id is empty"
    if len(ids) > 1 and regime != "double":
        return "id names several examples, which only the regime double does"
    return ""
