"""Files, the shipped facts, hub datasets or lists -> examples with ids; files -> questions."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import resources
from io import TextIOWrapper
from itertools import chain, count, islice
from os.path import isdir, lexists  # unlike those of Path, they never raise
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, NoReturn, TextIO, get_args

import msgspec

from trueline.errors import ColumnError, ExampleError, SettingError, import_extra
from trueline.files import (
    capped_lines,
    foreign_encoding,
    open_unpacked,
    read_text,
    reason,
    refusal,
)
from trueline.settings import check_value, whole_number
from trueline.text import half_character, has_half_character, shown
from trueline.types import Example

Row = dict[str, Any]
Found = tuple[int, Row | str]  # the line or number of a row; the row or its problem
Columns = dict[str, tuple[str, ...]]  # our field -> the columns that may hold it, best first
_MOST_JSON = 256_000_000  # characters of a JSON list, which is read as a whole
_SHIPPED = {"facts": "ground", "facts:ground": "ground", "facts:test": "test"}
_COLUMNS: Columns = {
    "id": ("id",),
    "question": ("question",),
    "answers": ("answers", "answer"),
    "wrong_answers": ("wrong_answers", "wrong", "incorrect_answers"),
    "source": ("source",),
}
_SOUNDS_LIKE = {  # what people call the columns of a FAQ
    "question": r"quest|query|\bask|^q$|prompt|title",
    "answers": r"^(?!.*(wrong|incorrect)).*(answer|repl|respon|^a$|solution|\bsay)",
    "wrong_answers": r"wrong|incorrect|false",
}
EXAMPLE_FIELDS = tuple(_COLUMNS)  # in the order of a line; the id is the first
_ID_DIGITS = 12  # of the hash of its content: the id of an example without one


# Rows


def _read_rows(
    source: str | os.PathLike[str],
    split: str = "train",
    config: str | None = None,
    limit: int | None = None,
) -> list[Found]:
    """The rows of a source, or one error that names it."""
    name, path = os.fspath(source), Path(source)
    is_path = not isinstance(source, str) or _format(path) in _FORMATS or lexists(path.parent)
    is_hub = not is_path and re.fullmatch(r"[\w.-]+/[\w.-]+", name)
    try:
        if source in _SHIPPED:
            shipped = resources.files("trueline") / "facts" / f"{_SHIPPED[name]}.jsonl"
            with resources.as_file(shipped) as file:
                return list(islice(_file_rows(file), limit))
        if is_hub or (name and isdir(path)):
            data = name if is_hub and not isdir(path) else str(path.absolute())
            return list(islice(_dataset_rows(data, split, config), limit))
        return list(islice(_file_rows(path), limit))
    except (OSError, EOFError, ValueError, NotImplementedError, zlib.error, csv.Error) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise ExampleError(f"{name} cannot be read: {why}") from error


def _refuse_rows(name: str, problems: Sequence[str], total: int) -> NoReturn:
    raise ExampleError(
        f"{name}: {len(problems)} of {total} rows cannot be used:\n"
        + "".join(f"  {name}:{problem}\n" for problem in problems)
        + "  Mend or remove these rows; docs/examples.md shows how a row is written."
    )


def _format(path: Path) -> str:
    """A file's extension in lower case, without the .gz of a packed file."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _file_rows(path: Path) -> Iterator[Found]:
    if problem := refusal(path):
        if problem == os.strerror(errno.ENOENT) and not lexists(path):
            is_fact, others = path.name.startswith("facts:"), path.parent.glob("*")
            known = _SHIPPED if is_fact else [other.name for other in others]
            near = get_close_matches(path.name, known)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            problem = f"there is no such file{meant}"
        raise ValueError(problem)
    if _format(path) not in _FORMATS:
        raise ValueError(f"its name must end in one of {[*_FORMATS]}, or a text form with .gz")
    if (reader := _FORMATS[_format(path)]) is None:
        with import_extra("pyarrow.parquet", str(path), "data").ParquetFile(path) as table:
            yield from _arrow_rows(table.iter_batches())
        return
    with open_unpacked(path) as data:
        if problem := foreign_encoding(data.peek(4)):
            raise ValueError(problem)
        yield from reader(TextIOWrapper(data, "utf-8-sig", "surrogateescape", newline=""))


def _jsonl_rows(file: TextIO) -> Iterator[Found]:
    for number, line in enumerate(capped_lines(file), start=1):
        if line.strip():
            yield number, _not_utf8(line)[1] or _parse(line)


def _json_rows(file: TextIO) -> Iterator[Found]:
    """The items of a JSON list, by number; an error in the JSON is named by its line."""
    text = file.read(_MOST_JSON + 1)
    if len(text) > _MOST_JSON:
        raise ValueError(f"it has more than {_MOST_JSON:,} characters; write it as .jsonl")
    if not text.lstrip().startswith("["):
        raise ValueError(f"expected a list, got {short(text)}; one object a line is .jsonl")
    down, problem = _not_utf8(text)
    if problem:
        raise ValueError(f"in line {1 + down} {problem}")
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from error
    yield from enumerate(map(_as_row, items), start=1)


def _parse(text: str) -> Row | str:
    """The object that a line of JSON holds, or what is wrong with it."""
    try:
        return _as_row(json.loads(text))
    except (ValueError, RecursionError) as error:
        return f"this is not JSON: {error}".replace(": line 1 ", ": ")


def _as_row(item: object) -> Row | str:
    return item if isinstance(item, dict) else f"expected an object {{...}}, got {short(item)}"


def _not_utf8(text: str) -> tuple[int, str]:
    """The first byte that is not UTF-8: how many lines down it stands, and its problem."""
    bad = half_character(text)  # what such a byte is decoded to
    if bad is None:
        return 0, ""
    problem = f"the byte 0x{ord(bad[0]) & 0xFF:02x} is not UTF-8; save the file as UTF-8"
    return text.count("\n", 0, bad.start()), problem


def _csv_rows(file: TextIO, delimiter: str = ",") -> Iterator[Found]:
    """One row per record below the header, at the line where the record starts.

    Spreadsheets write semicolons where the comma is the decimal sign.
    """
    lines = capped_lines(file)
    first = next(lines, "")
    if delimiter == "," and ";" in first and "," not in first:
        delimiter = ";"
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    header = [name.strip() for name in next(filter(None, reader), [])]
    problem = _not_utf8("".join(header))[1]
    if twice := [name for name in header if name and header.count(name) > 1]:
        problem = problem or f"the column {twice[0]!r} occurs twice"
    if problem:
        raise ValueError(f"in the header, line {reader.line_num}, {problem}")
    cells: list[str] | None = []
    while cells is not None:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield line, f"the cells cannot be separated ({error}); check the quotes"
            continue
        down, problem = _not_utf8(delimiter.join(cells or ()))
        if cells and not problem and len(cells) != len(header):
            problem = f"it has {len(cells)} cells, the header {len(header)}; check the quotes"
        if cells:
            yield line + down, problem or dict(zip(header, cells, strict=True))


def _dataset_rows(name: str, split: str, config: str | None) -> Iterator[Found]:
    """The rows of a dataset on the hub or in a folder."""
    datasets = import_extra("datasets", name, "data")
    failures = (OSError, ValueError, RuntimeError, LookupError)  # the last for the folder /
    has_bars = not datasets.are_progress_bars_disabled()
    is_awaited = sys.stderr.isatty() and not isdir(name)  # somebody waits for a download
    if has_bars and not is_awaited:
        datasets.disable_progress_bars()
    try:
        dataset = datasets.load_dataset(name, config, split=split)
    except (*failures, datasets.exceptions.DatasetsError) as error:
        why = error.__cause__ or error
        why = reason(why) if isinstance(why, OSError) else why
        raise ValueError(f"{why}; check name, split and config, or give a file") from error
    finally:
        if has_bars:
            datasets.enable_progress_bars()
    yield from _arrow_rows(dataset.with_format("arrow").iter(1000))  # decodes no image


def _arrow_rows(parts: Iterable[Any]) -> Iterator[Found]:
    yield from enumerate((row for part in parts for row in part.to_pylist()), start=1)


_FORMATS: dict[str, Callable[[TextIO], Iterator[Found]] | None] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": lambda file: _csv_rows(file, "\t"),
    ".parquet": None,  # not a text form
}


# Examples


def read_examples(
    source: str | os.PathLike[str] | Iterable[Example],
    *,
    columns: Mapping[str, str | None] | None = None,  # our field -> their column; None: none
    separator: str | None = None,  # splits an answers cell that is one string
    split: str = "train",
    config: str | None = None,
    limit: int | None = None,  # the first rows only; the rest is not read
) -> list[Example]:
    """Read and check examples; every row that cannot be used is named in one ExampleError."""
    limit = None if limit is None else min(whole_number(limit, "limit"), sys.maxsize)
    check_value("separator", separator, str | None)
    check_value("config", config, str | None)
    check_value("split", split, str)
    if not isinstance(source, str | os.PathLike):
        if isinstance(source, bytes | Mapping) or not isinstance(source, Iterable):
            wanted = "a file, a hub dataset or a list of Example"
            raise ExampleError(f"examples must be {wanted}; got {shown(source)}")
        given = (x if isinstance(x, Example) else f"not an Example: {short(x)}" for x in source)
        return _collect("examples", enumerate(islice(given, limit), start=1))
    name = os.fspath(source)
    if not name:
        raise ExampleError("the name of the examples is empty; give a file, or `facts`")
    found = _read_rows(source, split, config, limit)
    chosen = _choose(name, [row for _, row in found if isinstance(row, dict)], columns or {})
    return _collect(name, ((line, _example(row, chosen, separator)) for line, row in found))


def to_lines(examples: Iterable[Example]) -> Iterator[str]:
    """Each example, checked and with its id, as a line of JSON."""
    for example in read_examples(examples):
        yield json.dumps(as_record(example), ensure_ascii=False) + "\n"


def as_record(example: Example) -> dict[str, Any]:
    """An example as plain values, by field."""
    return {field: getattr(example, field) for field in EXAMPLE_FIELDS}


def digest(examples: Iterable[Example]) -> str:
    """The SHA-256 of the lines of some examples."""
    return hashlib.sha256("".join(to_lines(examples)).encode("utf-8")).hexdigest()


def content_hash(example: Example) -> str:
    """The SHA-256 of all fields but the id: it shows whether an example changed."""
    content = as_record(example)
    del content["id"]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def _choose(name: str, rows: list[Row], columns: Mapping[str, str | None]) -> Columns:
    """The columns that each field is read from; one that no row has is an error."""
    is_map = isinstance(columns, Mapping)
    if not is_map or not all(isinstance(x, str | None) for x in columns.values()):
        raise SettingError(f"columns maps our fields to names of columns, got {shown(columns)}")
    if unknown := [field for field in columns if field not in _COLUMNS]:
        near = get_close_matches(str(unknown[0]), _COLUMNS, 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise SettingError(
            f"{name}: there is no field {shown(unknown[0])}{meant}; an example has "
            f"{', '.join(_COLUMNS)}"
        )
    chosen = _COLUMNS | {field: (name,) if name else () for field, name in columns.items()}
    known = dict.fromkeys(key for row in rows for key in row)

    def is_missing(field: str) -> bool:
        cells = (_cell(row, column) for row in rows for column in chosen[field])
        is_known = any(column in known for column in chosen[field])
        return bool(rows and chosen[field]) and not is_known and all(x is None for x in cells)

    required = dict.fromkeys(("question", "answers", *columns))
    if missing := [field for field in required if is_missing(field)]:
        wanted = " and ".join(
            f"no column {' or '.join(map(repr, chosen[field]))}"
            + (f" for {field}" if field in columns else "")
            for field in missing
        )
        taken = {name for field in columns if field not in missing for name in chosen[field]}
        guesses = _guesses(missing, [column for column in known if column not in taken])
        listed = ", ".join(map(repr, known))
        raise ColumnError(f"{name} has {wanted}; its columns are {listed}", guesses)
    return chosen


def _guesses(fields: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """The column that each field may be in, by its name; `...` if none sounds like it."""
    guesses: dict[str, str] = {}
    for field in fields:
        sounds = re.compile(_SOUNDS_LIKE.get(field, re.escape(field)), re.IGNORECASE)
        likely = [column for column in columns if sounds.search(column)]
        free = (column for column in likely if column not in guesses.values())
        guesses[field] = next(free, "...")
    return guesses


def _cell(row: Row, column: str) -> Any:
    """A cell; the column `answers.text` is the part `text` of the column `answers`."""
    value: Any = row
    for part in [column] if column in row else column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _example(row: Row | str, chosen: Columns, separator: str | None) -> Example | str:
    """The example in a row, or what is wrong with it."""
    if isinstance(row, str):
        return row
    fields: Row = {}
    for field, columns in chosen.items():
        cells = [cell for column in columns if (cell := _cell(row, column)) is not None]
        if not cells and field in ("question", "answers"):
            return f"{' or '.join(columns) or field} is missing"
        fields[field] = next((cell for cell in cells if cell not in ("", [])), "")
    fields["id"] = _text_of_id(fields["id"])
    try:
        for field in ("answers", "wrong_answers"):
            fields[field] = _texts(fields[field], field, separator)
        return Example(**fields)
    except ExampleError as problem:
        return str(problem)


def _texts(cell: Any, field: str, separator: str | None) -> list[str]:
    """The texts of a cell: a list, a JSON list of texts in a string, or one string."""
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


def _collect(name: str, rows: Iterable[tuple[int, Example | str]]) -> list[Example]:
    """The examples, each with an id, or one error that lists every problem."""
    examples: list[Example] = []
    problems: list[str] = []
    first_seen: dict[str, str] = {"": ""}  # id -> where it was first seen
    for line, row in rows:
        problem = row if isinstance(row, str) else _flaw(row, first_seen)
        if problem:
            problems.append(f"{line}: {problem}")
        elif isinstance(row, Example):
            examples.append(row)
            first_seen.setdefault(row.id, f"{name}:{line}")
    if problems:
        _refuse_rows(name, problems, len(problems) + len(examples))
    if not examples:
        raise ExampleError(f"{name} holds no examples; see docs/examples.md for its form")
    return _with_ids(examples, set(first_seen))


def _with_ids(examples: list[Example], taken: set[str]) -> list[Example]:
    """An example without an id gets a hash of its content; of equal ones the second has -2."""
    for index, example in enumerate(examples):
        if not example.id:
            name = content_hash(example)[:_ID_DIGITS]
            names = chain([name], (f"{name}-{number}" for number in count(2)))
            id = next(name for name in names if name not in taken)
            taken.add(id)
            examples[index] = replace(example, id=id)
    return examples


def _flaw(example: Example, first_seen: Mapping[str, str]) -> str:
    texts = (example.question, example.id, example.source)
    if half := half_character("".join((*texts, *example.answers, *example.wrong_answers))):
        return f"the text holds {half[0]!r}, half of a character, which UTF-8 cannot keep"
    first = first_seen.get(example.id)
    return f"the id {example.id!r} is also that of {first}" if first else ""


Regime = Literal[
    "exact", "paraphrase", "styled", "double", "mid-text", "near miss", "unrelated"
]
COVERED: tuple[Regime, ...] = ("exact", "paraphrase", "styled", "double", "mid-text")
LOCAL: tuple[Regime, ...] = ("near miss", "unrelated")  # no example answers: nothing may change
_NO_ID = ("", "none")  # cells of a question that no example answers
_TABLES = tuple(ending for ending, reader in _FORMATS.items() if reader)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A user's question, and the id of the example that answers it."""

    question: str
    id: str = ""  # empty: no example does
    regime: Regime | None = None
    also: tuple[str, ...] = ()  # ids of the other examples that a double question means


def read_questions(path: Path, *, needs_ids: bool) -> list[AskedQuestion]:
    """Read a file of questions, one a line, or a table of them as `read_asked` does."""
    if _format(path) in _TABLES:
        return read_asked(path, needs_ids=needs_ids)
    lines = read_text(path, "--file").split("\n")
    questions = [AskedQuestion(line.strip()) for line in lines if line.strip()]
    if not questions:
        raise ExampleError(f"{path} holds no questions; write one a line")
    return questions


def read_asked(path: str | os.PathLike[str], *, needs_ids: bool = True) -> list[AskedQuestion]:
    """Read a table with the columns `question` and `id`; bad rows are all named.

    If no ids are needed, `question` is the only column that is read.
    """
    name = os.fspath(path)
    if _format(Path(name)) not in _TABLES:
        raise ExampleError(
            f"{name}: questions come in a file that ends in {', '.join(_TABLES)}"
        )
    rows = [(line, _question(row, needs_ids)) for line, row in _read_rows(Path(name))]
    if problems := [f"{line}: {row}" for line, row in rows if isinstance(row, str)]:
        _refuse_rows(name, problems, len(rows))
    if not rows:
        raise ExampleError(
            f"{name} holds no questions; write one a row, in the column question"
        )
    return [row for _, row in rows if isinstance(row, AskedQuestion)]


def holds_questions(path: Path) -> bool:
    """Whether a file holds questions with ids: a table whose rows have no answers."""
    if _format(path) not in _TABLES:
        return False
    try:
        rows = [row for _, row in _read_rows(path, limit=1) if isinstance(row, dict)]
    except ExampleError:
        return False  # its reader reports the problem
    first = rows[0] if rows else {}
    return "id" in first and not {"answers", "answer"} & first.keys()


def check_meant(questions: Sequence[AskedQuestion], known: Collection[str], where: str) -> None:
    """Refuse ids that no example has, with names near to them."""
    meant = [(row.question, id) for row in questions for id in (row.id, *row.also) if id]
    if unknown := [(question, id) for question, id in meant if id not in known]:
        question, id = unknown[0]
        near = ", ".join(map(shown, get_close_matches(id, known))) or "none"
        raise ExampleError(
            f"{where}: no example has the id {shown(id)} of the question {shown(question)} "
            f"({len(unknown)} of {len(questions)} questions have an unknown id); near names: "
            f"{near}; leave the id empty where no example answers"
        )


def _question(row: Row | str, needs_ids: bool) -> AskedQuestion | str:
    """The question in a row, or what is wrong with it."""
    if isinstance(row, str):
        return row
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        return "question is missing or empty"
    if needs_ids and "id" not in row:
        return "id is missing; leave it empty where no example answers"
    cells = row["id"] if needs_ids else []
    ids = [_text_of_id(cell) for cell in (cells if isinstance(cells, list) else [cells])]
    if not all(isinstance(id, str) for id in ids):
        return f"id must be a text, got {shown(cells)}"
    if has_half_character("".join([question, *ids])):
        return "the text holds half of a character, which UTF-8 cannot keep"
    regime = row.get("regime") or None if needs_ids else None
    ids = [id.strip() for id in ids if id.strip().lower() not in _NO_ID]
    if needs_ids and (problem := _regime_problem(regime, ids)):
        return problem
    first, *others = ids or [""]
    return AskedQuestion(question.strip(), first, regime, tuple(others))


def _text_of_id(cell: Any) -> Any:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    return "" if cell is None else cell


def _regime_problem(regime: Any, ids: Sequence[str]) -> str:
    if regime is not None and regime not in get_args(Regime):
        return f"regime must be one of {', '.join(get_args(Regime))}; got {shown(regime)}"
    if regime in LOCAL and ids:
        return f"a question of the regime {regime} means no example, but its id is {ids[0]}"
    if regime in COVERED and not ids:
        return f"a question of the regime {regime} means an example; its id is empty"
    if len(ids) > 1 and regime != "double":
        return "id names several examples, which only the regime double does"
    return ""


Side = Literal["ground", "test"]  # questions about facts that are fitted to, or reported on


@dataclass(frozen=True, slots=True)
class ShippedQuestion:
    """A question about the shipped facts."""

    id: str
    regime: Regime
    question: str
    means: tuple[str, ...]  # ids of the facts that answer it; none for a near miss
    about: tuple[str, ...]  # ids of the facts it is about
    instruction: str  # the requested form, in words
    check: Mapping[str, Any]  # what a program can check of that form
    polarity: Literal["", "yes", "no"]  # the true answer to a yes-or-no question


def shipped_questions(side: Side) -> list[ShippedQuestion]:
    """The questions about the grounding facts, or about the test facts."""
    file = resources.files("trueline") / "facts" / f"{side}_questions.jsonl"
    lines = file.read_text("utf-8").splitlines()
    return [msgspec.json.decode(line, type=ShippedQuestion) for line in lines]
