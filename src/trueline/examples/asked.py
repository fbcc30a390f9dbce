"""A file of questions in, each with the id of the example that is to answer it, or none."""

from __future__ import annotations

import csv
import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from trueline.errors import ExampleError
from trueline.examples.rows import TableRow, rows_of
from trueline.files import reason
from trueline.visible import has_half_character, shown

NONE = "none"  # may stand for no id
_LISTED = 10  # problems that an error lists
_FORMS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question as somebody asked it, and the example that answers it."""

    question: str
    id: str = ""  # empty: no example does


def is_asked_file(path: Path) -> bool:
    """Whether a file's name says that it is a table, with ids perhaps."""
    return path.name.lower().removesuffix(".gz").endswith(_FORMS)


def read_asked(path: str | os.PathLike[str]) -> list[AskedQuestion]:
    """Read a JSONL or CSV file with the columns `question` and `id`; bad rows are all named."""
    name = os.fspath(path)
    if not is_asked_file(Path(name)):
        raise ExampleError(f"{name}: questions come in a file that ends in {', '.join(_FORMS)}")
    try:
        rows = list(rows_of(Path(name), "", None))
    except OSError as error:
        raise ExampleError(f"{name} cannot be read: {reason(error)}") from error
    except (EOFError, ValueError, zlib.error, csv.Error) as error:
        raise ExampleError(f"{name} cannot be read: {error}") from error
    found = [(line, _asked(row)) for line, row in rows]
    problems = [f"  {name}:{line}: {one}" for line, one in found if isinstance(one, str)]
    if problems:
        head = f"{name}: {len(problems)} of {len(found)} rows cannot be used:"
        more = len(problems) - _LISTED
        tail = [f"  and {more} more"] if more > 0 else []
        raise ExampleError("\n".join([head, *problems[:_LISTED], *tail]))
    if not found:
        raise ExampleError(f"{name} holds no questions")
    return [one for _, one in found if isinstance(one, AskedQuestion)]


def check_meant(asked: Sequence[AskedQuestion], known: Collection[str], where: str) -> None:
    """Refuse ids that no example has, with names near to them."""
    if unknown := [one for one in asked if one.id and one.id not in known]:
        near = get_close_matches(unknown[0].id, known)
        raise ExampleError(
            f"{where}: no example has the id {shown(unknown[0].id)}, which "
            f"{shown(unknown[0].question)} is to mean (as {len(unknown)} of {len(asked)} "
            f"questions); near names: {', '.join(map(shown, near)) or 'none'}; leave the "
            "id empty where no example answers"
        )


def _asked(row: TableRow | str) -> AskedQuestion | str:
    """A question from a row, or what is wrong with it."""
    if isinstance(row, str):
        return row
    question, id = row.get("question"), row.get("id")
    if isinstance(id, int) and not isinstance(id, bool):
        id = str(id)
    if not isinstance(question, str) or not question.strip():
        return "question is missing or empty"
    if "id" not in row:
        return "id is missing; leave it empty where no example answers"
    if not isinstance(id, str | None):
        return f"id must be a text, got {shown(id)}"
    if has_half_character(question + (id or "")):
        return "the text holds half of a character, which UTF-8 cannot keep"
    meant = (id or "").strip()
    return AskedQuestion(question.strip(), "" if meant.lower() == NONE else meant)
