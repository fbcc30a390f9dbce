"""A file, the shipped facts, a hub dataset or a list -> checked examples, each with an id."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from reprlib import repr as short
from typing import Any

from trueline.errors import ColumnError, ExampleError, SettingError
from trueline.examples.rows import TableRow, rows_of
from trueline.files import reason
from trueline.records import Example
from trueline.settings import fits, in_words, whole_number
from trueline.visible import half_character, shown

Columns = dict[str, tuple[str, ...]]  # our field -> the columns that may hold it, best first
_COLUMNS: Columns = {
    "id": ("id",),
    "question": ("question",),
    "answers": ("answers", "answer"),
    "wrong_answers": ("wrong_answers", "wrong", "incorrect_answers"),
    "source": ("source",),
}
_SOUNDS_LIKE = {  # how people call the columns of a FAQ
    "question": r"quest|query|\bask|^q$|prompt|title",
    "answers": r"^(?!.*(wrong|incorrect)).*(answer|repl|respon|^a$|solution|\bsay)",
    "wrong_answers": r"wrong|incorrect|false",
}
EXAMPLE_FIELDS = tuple(_COLUMNS)  # in the order of a line; the id is the first
_NAME_DIGITS = 12  # of the hash of its content, the name of an example without an id


def read_examples(
    source: str | os.PathLike[str] | Iterable[Example],
    *,
    columns: Mapping[str, str | None] | None = None,  # our field -> their column; None: none
    separator: str | None = None,  # splits an answers cell that is one string
    split: str = "train",
    config: str | None = None,
    limit: int | None = None,  # the first rows only; what follows is not looked at
) -> list[Example]:
    """Read and check examples; every row that cannot be used is named in one ExampleError."""
    limit = None if limit is None else min(whole_number(limit, "limit"), sys.maxsize)
    texts = (("separator", separator, str | None), ("config", config, str | None))
    for option, value, hint in (*texts, ("split", split, str)):
        if not fits(value, hint):
            raise SettingError(f"{option} must be {in_words(hint)}; got {shown(value)}")
    if not isinstance(source, str | os.PathLike):
        if isinstance(source, bytes | Mapping) or not isinstance(source, Iterable):
            wanted = "a file, a hub dataset or a list of Example"
            raise ExampleError(f"examples must be {wanted}; got {shown(source)}")
        given = (x if isinstance(x, Example) else f"not an Example: {short(x)}" for x in source)
        return _collect("examples", enumerate(islice(given, limit), start=1))
    name = os.fspath(source)
    if not name:
        raise ExampleError("the name of the examples is empty; give a file, or `facts`")
    try:
        found = list(islice(rows_of(source, split, config), limit))
    except OSError as error:
        raise ExampleError(f"{name} cannot be read: {reason(error)}") from error
    except (EOFError, ValueError, NotImplementedError, zlib.error, csv.Error) as error:
        raise ExampleError(f"{name} cannot be read: {error}") from error
    chosen = _choose(name, [row for _, row in found if isinstance(row, dict)], columns or {})
    return _collect(name, ((line, _example(row, chosen, separator)) for line, row in found))


def to_lines(examples: Iterable[Example]) -> Iterator[str]:
    """Yield each example, checked and with its id, as a line of JSON ending in a newline."""
    for example in read_examples(examples):
        yield json.dumps(as_record(example), ensure_ascii=False) + "\n"


def as_record(example: Example) -> dict[str, Any]:
    """An example as plain values, by field."""
    return {field: getattr(example, field) for field in EXAMPLE_FIELDS}


def digest(examples: Iterable[Example]) -> str:
    """Return the SHA-256 of the examples' lines: the same for equal examples in equal order."""
    return hashlib.sha256("".join(to_lines(examples)).encode("utf-8")).hexdigest()


def content_hash(example: Example) -> str:
    """Return the SHA-256 of all but the id: it tells whether an example changed."""
    content = {field: getattr(example, field) for field in EXAMPLE_FIELDS[1:]}
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def _choose(name: str, rows: list[TableRow], columns: Mapping[str, str | None]) -> Columns:
    """Settle the columns each field is read from; one that no row has is an error."""
    is_map = isinstance(columns, Mapping)
    if not is_map or not all(isinstance(x, str | None) for x in columns.values()):
        raise SettingError(f"columns maps our fields to names of columns, got {shown(columns)}")
    known = [*dict.fromkeys(key for row in rows for key in row)]
    there = f"its columns are {', '.join(map(repr, known))}"
    if unknown := [field for field in columns if field not in _COLUMNS]:
        near = [one for field in unknown for one in get_close_matches(str(field), _COLUMNS, 1)]
        wanted = f"there is no field {' or '.join(map(shown, unknown))}" + (
            f" (did you mean {' or '.join(near)}?)" if near else ""
        )
        wanted += f"; an example has {', '.join(_COLUMNS)}"
        raise SettingError(f"{name}: {wanted}; {there}" if known else f"{name}: {wanted}")
    chosen = _COLUMNS | {field: (name,) if name else () for field, name in columns.items()}
    missing = []
    for field in dict.fromkeys(("question", "answers", *columns)):
        cells = ((row, column) for row in rows for column in chosen[field])
        has = any(column in row or _cell(row, column) is not None for row, column in cells)
        if rows and chosen[field] and not has:
            missing.append(field)
    if missing:
        wanted = " and ".join(
            f"no column {' or '.join(map(repr, chosen[field]))}"
            + (f" for {field}" if field in columns else "")
            for field in missing
        )
        taken = {name for field in columns if field not in missing for name in chosen[field]}
        free = [column for column in known if column not in taken]
        raise ColumnError(f"{name} has {wanted}; {there}", _guesses(missing, free))
    return chosen


def _guesses(fields: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """The column that each field may be in, by its name; `...` where none sounds like it."""
    found: dict[str, str] = {}
    for field in fields:
        sounds = re.compile(_SOUNDS_LIKE.get(field, re.escape(field)), re.IGNORECASE)
        likely = [column for column in columns if sounds.search(column)]
        found[field] = next((one for one in likely if one not in found.values()), "...")
    return found


def _cell(row: TableRow, column: str) -> Any:
    """Return a cell; the column `answers.text` is the part text of the column answers."""
    value: Any = row
    for part in [column] if column in row else column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _example(row: TableRow | str, chosen: Columns, separator: str | None) -> Example | str:
    """Make an example of a row, or say why it is none."""
    if isinstance(row, str):
        return row
    fields: TableRow = {}
    for field, columns in chosen.items():
        cells = [cell for column in columns if (cell := _cell(row, column)) is not None]
        if not cells and field in ("question", "answers"):
            return f"{' or '.join(columns) or field} is missing"
        fields[field] = next((cell for cell in cells if cell not in ("", [])), "")
    if isinstance(fields["id"], int) and not isinstance(fields["id"], bool):
        fields["id"] = str(fields["id"])
    try:
        for field in ("answers", "wrong_answers"):
            fields[field] = _texts(fields[field], field, separator)
        return Example(**fields)
    except ExampleError as problem:
        return str(problem)


def _texts(cell: Any, field: str, separator: str | None) -> list[str]:
    """Return the texts of a cell: a list, a JSON list of texts in a string, or one string."""
    if isinstance(cell, str) and re.fullmatch(r"\s*\[\s*(['\"].*)?\]\s*", cell, re.DOTALL):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            raise ExampleError(f'{field} is no JSON list ["a", "b"]: {short(cell)}') from None
    if isinstance(cell, str):
        whole = cell.strip().removesuffix(separator.strip()) if separator else cell
        parts = [part.strip() for part in whole.split(separator)] if separator else [cell]
        cell = [part for part in parts if part.strip()]
    if not isinstance(cell, list | tuple) or not all(isinstance(text, str) for text in cell):
        raise ExampleError(f"{field} must be a text or a list of texts, got {short(cell)}")
    return list(cell)


def _collect(name: str, rows: Iterable[tuple[int | str, Example | str]]) -> list[Example]:
    """Return the examples, each with an id, or raise one error that lists every problem."""
    examples: list[Example] = []
    problems: list[str] = []
    first_seen: dict[str, str] = {"": ""}  # id -> where it was first seen
    for line, row in rows:
        problem = row if isinstance(row, str) else _flaw(row, first_seen)
        if problem:
            problems.append(f"  {name}:{line}: {problem}")
        elif isinstance(row, Example):
            examples.append(row)
            first_seen.setdefault(row.id, f"{name}:{line}")
    if problems:
        bad, total = len(problems), len(problems) + len(examples)
        head = f"{name}: {bad} of {total} rows cannot be used:"
        tail = "  Mend or remove these rows; docs/examples.md shows how a row is written."
        raise ExampleError("\n".join([head, *problems, tail]))
    if not examples:
        raise ExampleError(f"{name} holds no examples; see docs/examples.md for its form")
    return _named(examples, set(first_seen))


def _named(examples: list[Example], taken: set[str]) -> list[Example]:
    """Name each example without an id by its content; of equal ones the second ends in -2."""
    for index, example in enumerate(examples):
        if not example.id:
            name = id = content_hash(example)[:_NAME_DIGITS]
            number = 1
            while id in taken:
                id = f"{name}-{(number := number + 1)}"
            taken.add(id)
            examples[index] = replace(example, id=id)
    return examples


def _flaw(example: Example, first_seen: Mapping[str, str]) -> str:
    """Say what keeps an example from joining those whose ids were seen before, or nothing."""
    texts = (example.question, example.id, example.source)
    if half := half_character("".join((*texts, *example.answers, *example.wrong_answers))):
        return f"the text holds {half[0]!r}, half of a character, which UTF-8 cannot keep"
    first = first_seen.get(example.id)
    return f"the id {example.id!r} is also that of {first}" if first else ""
