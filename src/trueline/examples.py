"""Files, the shipped facts, hub datasets or lists -> examples with ids; files -> questions."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from io import TextIOWrapper
from itertools import chain, count, islice
from os.path import isdir, lexists  # unlike those of Path, they never raise
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, TextIO, TypeVar, get_args

import msgspec

from trueline import files
from trueline.errors import ColumnError, ExampleError, SettingError, import_extra
from trueline.settings import check_value, whole_number
from trueline.text import counted, shown
from trueline.types import Example

Row = dict[str, Any]
Rows = Iterator[tuple[int, Row | str]]  # the line or number of a row; the row or its problem
T = TypeVar("T")
Columns = dict[str, tuple[str, ...]]  # our field -> the columns that may hold it, best first
_MOST_JSON = 256_000_000  # characters of a JSON list, which is read as a whole
_FACTS = Path(__file__).parent / "facts"
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
_ID_DIGITS = 12  # of the hash of its content: the id of an example without one


# Rows


def _read_rows(
    source: str | os.PathLike[str],
    split: str = "train",
    config: str | None = None,
    limit: int | None = None,
) -> list[tuple[int, Row | str]]:
    """The rows of a source, or one error that names it."""
    name, path = os.fspath(source), Path(source)
    is_path = not isinstance(source, str) or _format(path) in _FORMATS or lexists(path.parent)
    try:
        if source in _SHIPPED:
            rows = _file_rows(_FACTS / f"{_SHIPPED[name]}.jsonl")
        elif not is_path and re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            rows = _dataset_rows(name, split, config)
        elif isdir(path):
            rows = _dataset_rows(str(path.absolute()), split, config)
        else:
            rows = _file_rows(path)
        return list(islice(rows, limit))
    except (OSError, EOFError, ValueError, NotImplementedError, zlib.error) as error:
        raise ExampleError(f"{name} cannot be read: {files.reason(error)}") from error


def _accepted(name: str, rows: Sequence[tuple[int, T | str]], what: str) -> list[T]:
    """What was made of all rows, or one error that lists the problems."""
    if problems := [f"  {name}:{line}: {row}\n" for line, row in rows if isinstance(row, str)]:
        raise ExampleError(
            f"{name}: {len(problems)} of {len(rows)} rows cannot be used:\n{''.join(problems)}"
            "  Mend or remove these rows; docs/examples.md shows how a row is written."
        )
    if not rows:
        raise ExampleError(f"{name} holds no {what}; see docs/examples.md for its form")
    return [row for _, row in rows if not isinstance(row, str)]


def _format(path: Path) -> str:
    """A file's extension in lower case, without the .gz of a packed file."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _file_rows(path: Path) -> Rows:
    try:
        with files.open_unpacked(path) as data:
            if _format(path) not in _FORMATS:
                wanted = f"one of {[*_FORMATS]}, or a text form with .gz"
                raise ValueError(f"its name must end in {wanted}")
            if (reader := _FORMATS[_format(path)]) is None:
                parquet = import_extra("pyarrow.parquet", str(path), "data")
                with parquet.ParquetFile(data) as table:
                    yield from _arrow_rows(table.iter_batches())
            elif problem := files.foreign_encoding(data.peek(4)):
                raise ValueError(problem)
            else:
                with TextIOWrapper(data, "utf-8-sig", "surrogateescape", newline="") as text:
                    yield from reader(text)
    except FileNotFoundError:
        is_fact, others = path.name.startswith("facts:"), path.parent.glob("*")
        near = get_close_matches(path.name, _SHIPPED if is_fact else [x.name for x in others])
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"there is no such file{meant}") from None


def _jsonl_rows(file: TextIO) -> Rows:
    for number, line in enumerate(files.capped_lines(file), start=1):
        if line.strip():
            try:
                yield number, _as_row(json.loads(line))
            except (ValueError, RecursionError) as error:
                yield number, f"this is not JSON: {error}".replace(": line 1 ", ": ")


def _json_rows(file: TextIO) -> Rows:
    """The items of a JSON list, by number; an error in the JSON is named by its line."""
    text = file.read(_MOST_JSON + 1)
    if len(text) > _MOST_JSON:
        raise ValueError(f"it has more than {_MOST_JSON:,} characters; write it as .jsonl")
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}; one object a line is .jsonl") from error
    if not isinstance(items, list):
        raise ValueError(f"expected a list, got {short(items)}; one object a line is .jsonl")
    yield from enumerate(map(_as_row, items), start=1)


def _as_row(item: object) -> Row | str:
    return item if isinstance(item, dict) else f"expected an object {{...}}, got {short(item)}"


def _csv_rows(file: TextIO, delimiter: str = ",") -> Rows:
    """One row per record below the header, at the line where the record starts.

    Spreadsheets write semicolons where the comma is the decimal sign.
    """
    lines = files.capped_lines(file)
    first = next(lines, "")
    if delimiter == "," and ";" in first and "," not in first:
        delimiter = ";"
    reader, start = csv.reader(chain([first], lines), delimiter=delimiter, strict=True), 1
    try:
        header = [name.strip() for name in next(filter(None, reader), [])]
        if twice := [name for name in header if name and header.count(name) > 1]:
            raise ValueError(f"in its header the column {twice[0]!r} occurs twice")
        start = reader.line_num + 1
        for cells in reader:
            if len(cells) == len(header):
                yield start, dict(zip(header, cells, strict=True))
            elif cells:
                problem = f"it has {len(cells)} cells, the header {len(header)}"
                yield start, f"{problem}; check the quotes"
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"from line {start} on the cells cannot be separated ({error}); check the quotes"
        ) from error


def _dataset_rows(name: str, split: str, config: str | None) -> Rows:
    """The rows of a dataset on the hub or in a folder."""
    datasets = import_extra("datasets", name, "data")
    failures = (OSError, ValueError, RuntimeError, LookupError)  # the last for the folder /
    is_awaited = sys.stderr.isatty() and not isdir(name)  # somebody waits for a download
    is_silenced = not (is_awaited or datasets.are_progress_bars_disabled())
    if is_silenced:
        datasets.disable_progress_bars()
    try:
        dataset = datasets.load_dataset(name, config, split=split)
    except (*failures, datasets.exceptions.DatasetsError) as error:
        why = files.reason(error.__cause__ or error)
        raise ValueError(f"{why}; check name, split and config, or give a file") from error
    finally:
        if is_silenced:
            datasets.enable_progress_bars()
    yield from _arrow_rows(dataset.with_format("arrow").iter(1000))  # decodes no image


def _arrow_rows(parts: Iterable[Any]) -> Rows:
    yield from enumerate((row for part in parts for row in part.to_pylist()), start=1)


_FORMATS: dict[str, Callable[[TextIO], Rows] | None] = {
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
    rows = _read_rows(source, split, config, limit)
    chosen = _choose(name, [row for _, row in rows if isinstance(row, dict)], columns or {})
    return _collect(name, ((line, _example(row, chosen, separator)) for line, row in rows))


def to_lines(examples: Iterable[Example]) -> Iterator[str]:
    """Each example, checked and with its id, as a line of JSON."""
    for example in read_examples(examples):
        yield json.dumps(as_record(example), ensure_ascii=False) + "\n"


def as_record(example: Example) -> dict[str, Any]:
    """An example as plain values, by field."""
    return {field: getattr(example, field) for field in _COLUMNS}


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
    check_value("columns", columns, dict[str, str | None])
    if unknown := [field for field in columns if field not in _COLUMNS]:
        raise SettingError(
            f"{name}: there is no field {shown(unknown[0])}; an example has "
            f"{', '.join(_COLUMNS)}"
        )
    chosen = _COLUMNS | {field: (name,) if name else () for field, name in columns.items()}
    missing = []
    for ours in dict.fromkeys(("question", "answers", *columns)):
        cells = [(row, x) for row in rows for x in chosen[ours]]
        if cells and not any(x in row or _cell(row, x) is not None for row, x in cells):
            missing.append(ours)
    if not missing:
        return chosen
    known = dict.fromkeys(key for row in rows for key in row)
    taken = {name for ours in columns if ours not in missing for name in chosen[ours]}
    guesses: dict[str, str] = {}  # for each of them a column that sounds like it
    wanted = []
    for ours in missing:
        sounds = re.compile(_SOUNDS_LIKE.get(ours, re.escape(ours)), re.IGNORECASE)
        free = (x for x in known if x not in taken and sounds.search(x))
        guesses[ours] = next(free, "...")
        taken.add(guesses[ours])
        reader = f" for {ours}" if ours in columns else ""
        wanted.append(f"no column {' or '.join(map(repr, chosen[ours]))}{reader}")
    listed = ", ".join(map(repr, known))
    raise ColumnError(f"{name} has {' and '.join(wanted)}; its columns are {listed}", guesses)


def _not_utf8(text: str) -> str:
    """What is wrong with a text that UTF-8 cannot hold."""
    for half in re.findall("[\ud800-\udfff]", text):
        if "\udc80" <= half <= "\udcff":  # what another byte is decoded to
            return f"the byte 0x{ord(half) & 0xFF:02x} is not UTF-8; save the file as UTF-8"
        return f"the text holds {half!r}, half of a character, which UTF-8 cannot keep"
    return ""


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
    for name, columns in chosen.items():
        cells = [cell for column in columns if (cell := _cell(row, column)) is not None]
        if not cells and name in ("question", "answers"):
            return f"{' or '.join(columns) or name} is missing"
        fields[name] = next((cell for cell in cells if cell not in ("", [])), "")
    fields["id"] = _text_of_id(fields["id"])
    try:
        for name in ("answers", "wrong_answers"):
            fields[name] = _texts(fields[name], name, separator)
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
    checked: list[tuple[int, Example | str]] = []
    first_seen: dict[str, int] = {}  # id -> the line where it was first seen
    for line, row in rows:
        if isinstance(row, Example):
            given = (row.question, row.id, row.source, *row.answers, *row.wrong_answers)
            if problem := _not_utf8("".join(given)):
                row = problem
            elif row.id and (first := first_seen.setdefault(row.id, line)) != line:
                row = f"the id {row.id!r} is also that of {name}:{first}"
        checked.append((line, row))
    examples = _accepted(name, checked, "examples")
    for index, example in enumerate(examples):
        if not example.id:  # of equal examples the second gets -2
            hash = content_hash(example)[:_ID_DIGITS]
            names = chain([hash], (f"{hash}-{number}" for number in count(2)))
            id = next(name for name in names if name not in first_seen)
            first_seen[id] = 0
            examples[index] = replace(example, id=id)
    return examples


# Questions


Regime = Literal[
    "exact", "paraphrase", "styled", "double", "mid-text", "near miss", "unrelated"
]
COVERED: tuple[Regime, ...] = ("exact", "paraphrase", "styled", "double", "mid-text")
LOCAL: tuple[Regime, ...] = ("near miss", "unrelated")  # no example answers: nothing may change
_TABLES = tuple(ending for ending, reader in _FORMATS.items() if reader)


@dataclass(frozen=True, slots=True)
class UserQuestion:
    """A user's question, and the id of the example that answers it."""

    question: str
    id: str = ""  # empty: no example does
    regime: Regime | None = None
    also: tuple[str, ...] = ()  # ids of the other examples that a double question means


def read_questions(path: Path, *, needs_ids: bool) -> list[UserQuestion]:
    """Read a file of questions, one a line, or a table of them as `read_labeled` does."""
    if _format(path) in _TABLES:
        return read_labeled(path, needs_ids=needs_ids)
    lines = files.read_text(path, "--file").split("\n")
    questions = [UserQuestion(line.strip()) for line in lines if line.strip()]
    if not questions:
        raise ExampleError(f"{path} holds no questions; write one a line")
    return questions


def read_labeled(path: Path, *, needs_ids: bool = True) -> list[UserQuestion]:
    """Read a table with the columns `question` and `id`; bad rows are all named.

    If no ids are needed, `question` is the only column that is read.
    """
    if _format(path) not in _TABLES:
        kinds = ", ".join(_TABLES)
        raise ExampleError(f"{path}: questions come in a file that ends in {kinds}")
    rows = [(line, _question(row, needs_ids)) for line, row in _read_rows(path)]
    return _accepted(str(path), rows, "questions")


def holds_questions(path: Path) -> bool:
    """Whether a file holds questions with ids: a table whose rows have no answers."""
    rows = []
    if _format(path) in _TABLES:
        with suppress(ExampleError):  # its reader reports the problem
            rows = [row for _, row in _read_rows(path, limit=1) if isinstance(row, dict)]
    return any("id" in row and not {"answers", "answer"} & row.keys() for row in rows)


def check_meant(questions: Sequence[UserQuestion], known: Collection[str], where: str) -> None:
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


def _question(row: Row | str, needs_ids: bool) -> UserQuestion | str:
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
    if problem := _not_utf8("".join([question, *ids])):
        return problem
    regime = row.get("regime") or None if needs_ids else None
    if regime not in (None, *get_args(Regime)):
        return f"regime must be one of {', '.join(get_args(Regime))}; got {shown(regime)}"
    ids = [id.strip() for id in ids if id.strip().lower() not in ("", "none")]
    fits = {0: regime not in COVERED, 1: regime not in LOCAL}
    if not fits.get(len(ids), regime == "double"):
        return (
            f"a question of the regime {regime} has {counted(len(ids), 'id')}; near miss and "
            "unrelated mean no example, double one or more, the others one"
        )
    first, *others = ids or [""]
    return UserQuestion(question.strip(), first, regime, tuple(others))


def _text_of_id(cell: Any) -> Any:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    return "" if cell is None else cell


Side = Literal["ground", "test"]  # questions about facts that are fitted to, or reported on


@dataclass(frozen=True, slots=True)
class ProbeQuestion:
    """A question, its regime, and the examples it means and is about."""

    regime: Regime
    question: str
    means: tuple[str, ...] = ()  # ids of the examples that answer it
    about: tuple[str, ...] = ()  # ids; empty: those it means
    id: str = ""  # empty: made of its example and regime
    instruction: str = ""  # the requested form, in words
    check: Mapping[str, Any] = field(default_factory=dict)  # what a program can check of it
    polarity: Literal["", "yes", "no"] = ""  # the true answer to a question of yes or no
    category: str = ""


def shipped_questions(side: Side) -> list[ProbeQuestion]:
    """The questions about the grounding facts, or about the test facts."""
    lines = (_FACTS / f"{side}_questions.jsonl").read_text("utf-8").splitlines()
    return [msgspec.json.decode(line, type=ProbeQuestion) for line in lines]
