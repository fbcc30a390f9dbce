"""A file, the shipped facts, a hub dataset or a list -> checked examples, each with an id."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import resources
from itertools import islice
from pathlib import Path
from reprlib import repr as short
from typing import Any, TextIO

from trueline.errors import ExampleError, SettingError, import_extra
from trueline.records import Example

Row = dict[str, Any]
Found = tuple[int | str, Row | str]  # the line, else the row's number; the row or its problem
Columns = dict[str, tuple[str, ...]]  # our field -> the columns that may hold it, best first
_COLUMNS: Columns = {
    "id": ("id",),
    "question": ("question",),
    "answers": ("answers", "answer"),
    "wrong_answers": ("wrong_answers", "wrong", "incorrect_answers"),
    "source": ("source",),
}
_SHIPPED = {"facts": "ground", "facts:ground": "ground", "facts:test": "test"}
_NAME_DIGITS = 12  # of the hash of its content, the name of an example without an id
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # how a byte that is not UTF-8 comes through


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
    if limit is not None and limit < 1:
        raise SettingError(f"limit must be 1 or more, got {limit}; leave it out for all rows")
    if not isinstance(source, str | os.PathLike):
        given = (x if isinstance(x, Example) else f"not an Example: {short(x)}" for x in source)
        return _collect("examples", enumerate(islice(given, limit), start=1))
    name = os.fspath(source)
    try:
        found = list(islice(_rows(source, split, config), limit))
    except (OSError, EOFError, ValueError, NotImplementedError, zlib.error, csv.Error) as error:
        raise ExampleError(f"{name} cannot be read: {error}") from error
    chosen = _choose(name, [row for _, row in found if isinstance(row, dict)], columns or {})
    return _collect(name, ((line, _example(row, chosen, separator)) for line, row in found))


def to_lines(examples: Iterable[Example]) -> Iterator[str]:
    """Yield each example, checked and with its id, as a line of JSON ending in a newline."""
    for example in read_examples(examples):
        record = {field: getattr(example, field) for field in _COLUMNS}
        yield json.dumps(record, ensure_ascii=False) + "\n"


def digest(examples: Iterable[Example]) -> str:
    """Return the SHA-256 of the examples' lines: the same for equal examples in equal order."""
    return hashlib.sha256("".join(to_lines(examples)).encode("utf-8")).hexdigest()


def from_lines(text: str) -> list[Example]:
    """Read back what `to_lines` wrote; a line that it did not write is a ValueError."""
    records = [json.loads(line) for line in text.split("\n")[:-1]]
    if any([*record] != [*_COLUMNS] for record in records):
        raise ValueError(f"a line of the examples has other fields than {[*_COLUMNS]}")
    return [Example(**record) for record in records]


def content_hash(example: Example) -> str:
    """Return the SHA-256 of all but the id: it tells whether an example changed."""
    content = {field: getattr(example, field) for field in _COLUMNS if field != "id"}
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def _rows(source: str | os.PathLike[str], split: str, config: str | None) -> Iterator[Found]:
    """Find the reader for a source and yield what it finds."""
    name, path = os.fspath(source), Path(source)
    is_path = not isinstance(source, str) or _format(path) in _FORMATS or path.parent.is_dir()
    if source in _SHIPPED:
        shipped = resources.files("trueline") / "facts" / f"{_SHIPPED[name]}.jsonl"
        with resources.as_file(shipped) as file:
            yield from _file_rows(file)
    elif name and path.is_dir():
        yield from _dataset_rows(str(path.absolute()), split, config)
    elif not is_path and re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        yield from _dataset_rows(name, split, config)
    else:
        yield from _file_rows(path)


def _format(path: Path) -> str:
    """Return a file's extension in lower case, without the .gz of a packed file."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _file_rows(path: Path) -> Iterator[Found]:
    """Yield the rows of one file, read in the format its name tells."""
    if not path.exists():
        is_fact, beside = path.name.startswith("facts:"), path.parent.glob("*")
        near = get_close_matches(path.name, _SHIPPED if is_fact else [x.name for x in beside])
        raise ValueError(f"there is no such file; names close to it: {near or 'none'}")
    if _format(path) not in _FORMATS:
        raise ValueError(f"its name must end in one of {[*_FORMATS]}, or a text form with .gz")
    if (reader := _FORMATS[_format(path)]) is None:
        with import_extra("pyarrow.parquet", str(path), "data").ParquetFile(path) as table:
            parts = table.iter_batches()
            yield from enumerate((row for part in parts for row in part.to_pylist()), start=1)
        return
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        yield from reader(file)


def _jsonl_rows(file: TextIO) -> Iterator[Found]:
    """Yield one row per line; blank lines only count."""
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield number, _not_utf8(line)[1] or _parse(line)


def _json_rows(file: TextIO) -> Iterator[Found]:
    """Yield one row per item of a JSON list, at the line where the item starts."""
    text = file.read()
    if not text.lstrip().startswith("["):
        raise ValueError(f"expected a list, got {short(text)}; one object a line is .jsonl")
    line, at, end, number = 1, 0, text.find("[") + 1, 0
    try:
        while (solid := re.compile(r"[^\s,]").search(text, end)) and solid[0] != "]":
            end = json.JSONDecoder().raw_decode(text, start := solid.start())[1]
            lines, at, number = text.count("\n", at, start), start, number + 1
            line += lines
            down, problem = _not_utf8(text[start:end])
            place = line + down if lines or number == 1 else f"{line} (item {number})"
            yield place, problem or _parse(text[start:end])
        json.loads(text)  # finds what the search skips: stray commas, a missing end
    except (ValueError, RecursionError) as error:
        yield getattr(error, "lineno", line), f"this is not JSON: {error}"


def _parse(text: str) -> Row | str:
    """Return the object that a piece of JSON holds, or say what is wrong with it."""
    try:
        item = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"this is not JSON: {error}".replace(": line 1 ", ": ")
    return item if isinstance(item, dict) else f"expected an object {{...}}, got {short(item)}"


def _not_utf8(text: str) -> tuple[int, str]:
    """Return how many lines down the first byte that is not UTF-8 stands, and its problem."""
    if not (bad := _SURROGATE.search(text)):
        return 0, ""
    problem = f"the byte 0x{ord(bad[0]) & 0xFF:02x} is not UTF-8; save the file as UTF-8"
    return text.count("\n", 0, bad.start()), problem


def _csv_rows(file: TextIO, delimiter: str = ",") -> Iterator[Found]:
    """Yield one row per record below the header, at the line where the record starts."""
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    header = [name.strip() for name in next(filter(None, reader), [])]
    twice = [f"{name!r} is there twice" for name in header if name and header.count(name) > 1]
    if problem := _not_utf8("".join(header))[1] or "".join(twice[:1]):
        raise ValueError(f"in the header, line {reader.line_num}, {problem}")
    cells: list[str] | None = []
    while cells is not None:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield line, f"the cells cannot be told apart ({error}); check the quotes"
            continue
        down, problem = _not_utf8(delimiter.join(cells or ()))
        if cells and not problem and len(cells) != len(header):
            problem = f"it has {len(cells)} cells, the header {len(header)}; check the quotes"
        if cells:
            yield line + down, problem or dict(zip(header, cells, strict=True))


def _dataset_rows(name: str, split: str, config: str | None) -> Iterator[Found]:
    """Yield the rows of a dataset on the hub or in a folder."""
    datasets = import_extra("datasets", name, "data")
    try:
        dataset = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        why = error.__cause__ or error
        raise ValueError(f"{why}; check name, split and config, or give a file") from error
    parts = dataset.with_format("arrow").iter(1000)  # as Arrow tables, no image is decoded
    yield from enumerate((row for part in parts for row in part.to_pylist()), start=1)


_FORMATS: dict[str, Callable[[TextIO], Iterator[Found]] | None] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": lambda file: _csv_rows(file, "\t"),
    ".parquet": None,  # not a text form
}


def _choose(name: str, rows: list[Row], columns: Mapping[str, str | None]) -> Columns:
    """Settle the columns each field is read from; one that no row has is an error."""
    there = f"the columns of {name} are {[*dict.fromkeys(key for row in rows for key in row)]}"
    if unknown := [field for field in columns if field not in _COLUMNS]:
        raise SettingError(f"columns maps {[*_COLUMNS]}, not {unknown}; {there}")
    chosen = _COLUMNS | {field: (name,) if name else () for field, name in columns.items()}
    for field in ("question", "answers", *columns):
        cells = ((row, column) for row in rows for column in chosen[field])
        has = any(column in row or _cell(row, column) is not None for row, column in cells)
        if rows and chosen[field] and not has:
            advice = f"say which to read with columns={{{field!r}: ...}}"
            raise ExampleError(f"{name}: no row has {[*chosen[field]]}; {there}: {advice}")
    return chosen


def _cell(row: Row, column: str) -> Any:
    """Return a cell; the column `answers.text` is the part text of the column answers."""
    value: Any = row
    for part in [column] if column in row else column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _example(row: Row | str, chosen: Columns, separator: str | None) -> Example | str:
    """Make an example of a row, or say why it is none."""
    if isinstance(row, str):
        return row
    fields: Row = {}
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
    places: dict[str, str] = {"": ""}  # id -> where it was first seen
    for line, row in rows:
        problem = row if isinstance(row, str) else _flaw(row, places)
        if problem:
            problems.append(f"  {name}:{line}: {problem}")
        elif isinstance(row, Example):
            examples.append(row)
            places.setdefault(row.id, f"{name}:{line}")
    if problems:
        bad, total = len(problems), len(problems) + len(examples)
        head = f"{name}: {bad} of {total} rows cannot be used:"
        tail = "Mend or remove these rows; docs/examples.md shows how a row is written."
        raise ExampleError("\n".join([head, *problems, tail]))
    if not examples:
        raise ExampleError(f"{name} holds no examples; see docs/examples.md for its form")
    return _named(examples, set(places))


def _named(examples: list[Example], taken: set[str]) -> list[Example]:
    """Name each example without an id by its content; of equal ones the second ends in -2."""
    named = []
    for example in examples:
        if not example.id:
            short_hash = id = content_hash(example)[:_NAME_DIGITS]
            number = 1
            while id in taken:
                number += 1
                id = f"{short_hash}-{number}"
            taken.add(id)
            example = replace(example, id=id)
        named.append(example)
    return named


def _flaw(example: Example, places: Mapping[str, str]) -> str:
    """Say what keeps an example from joining those whose ids have a place, or nothing."""
    texts = (example.question, example.id, example.source)
    if half := _SURROGATE.search("".join((*texts, *example.answers, *example.wrong_answers))):
        return f"the text holds {half[0]!r}, half of a character, which UTF-8 cannot keep"
    place = places.get(example.id)
    return f"the id {example.id!r} is also that of {place}" if place else ""
