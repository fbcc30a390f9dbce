"""A file, the shipped facts or a hub dataset in, its rows out, each with its line."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import resources
from io import TextIOWrapper
from itertools import chain
from os.path import isdir, lexists  # unlike those of Path, they never raise
from pathlib import Path
from reprlib import repr as short
from typing import Any, TextIO

from trueline.errors import import_extra
from trueline.files import capped_lines, foreign_encoding, open_unpacked, reason, refusal
from trueline.visible import half_character

TableRow = dict[str, Any]
Found = tuple[
    int | str, TableRow | str
]  # the line, else the row's number; the row or its problem
_MOST_JSON = 256_000_000  # characters of a JSON list, which is read as a whole
_SHIPPED = {"facts": "ground", "facts:ground": "ground", "facts:test": "test"}


def rows_of(source: str | os.PathLike[str], split: str, config: str | None) -> Iterator[Found]:
    """Find the reader for a source and yield what it finds."""
    name, path = os.fspath(source), Path(source)
    is_path = not isinstance(source, str) or _format(path) in _FORMATS or lexists(path.parent)
    if source in _SHIPPED:
        shipped = resources.files("trueline") / "facts" / f"{_SHIPPED[name]}.jsonl"
        with resources.as_file(shipped) as file:
            yield from _file_rows(file)
    elif name and isdir(path):
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
    if _is_missing(path):
        is_fact, others = path.name.startswith("facts:"), path.parent.glob("*")
        near = get_close_matches(path.name, _SHIPPED if is_fact else [x.name for x in others])
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"there is no such file{meant}")
    if problem := refusal(path):
        raise ValueError(problem)
    if _format(path) not in _FORMATS:
        raise ValueError(f"its name must end in one of {[*_FORMATS]}, or a text form with .gz")
    if (reader := _FORMATS[_format(path)]) is None:
        with import_extra("pyarrow.parquet", str(path), "data").ParquetFile(path) as table:
            parts = table.iter_batches()
            yield from enumerate((row for part in parts for row in part.to_pylist()), start=1)
        return
    with open_unpacked(path) as data:
        if problem := foreign_encoding(data.peek(4)):
            raise ValueError(problem)
        yield from reader(TextIOWrapper(data, "utf-8-sig", "surrogateescape", newline=""))


def _is_missing(path: Path) -> bool:
    """Whether nothing has that name, in a folder that can be looked into."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # the system does not take it for a name
        return False
    return False


def _jsonl_rows(file: TextIO) -> Iterator[Found]:
    """Yield one row per line; blank lines only count."""
    for number, line in enumerate(capped_lines(file), start=1):
        if line.strip():
            yield number, _not_utf8(line)[1] or _parse(line)


def _json_rows(file: TextIO) -> Iterator[Found]:
    """Yield one row per item of a JSON list, at the line where the item starts."""
    text = file.read(_MOST_JSON + 1)
    if len(text) > _MOST_JSON:
        raise ValueError(f"it has more than {_MOST_JSON:,} characters; write it as .jsonl")
    if not text.lstrip().startswith("["):
        raise ValueError(f"expected a list, got {short(text)}; one object a line is .jsonl")
    line, at, end, number = 1, 0, text.find("[") + 1, 0
    try:
        while (solid := re.compile(r"[^\s,]").search(text, end)) and solid[0] != "]":
            end = json.JSONDecoder().raw_decode(text, start := solid.start())[1]
            lines, at, number = text.count("\n", at, start), start, number + 1
            line += lines
            down, problem = _not_utf8(text[start:end])
            where = line + down if lines or number == 1 else f"{line} (item {number})"
            yield where, problem or _parse(text[start:end])
        json.loads(text)  # finds what the search skips: stray commas, a missing end
    except (ValueError, RecursionError) as error:
        yield getattr(error, "lineno", line), f"this is not JSON: {error}"


def _parse(text: str) -> TableRow | str:
    """Return the object that a piece of JSON holds, or say what is wrong with it."""
    try:
        item = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"this is not JSON: {error}".replace(": line 1 ", ": ")
    return item if isinstance(item, dict) else f"expected an object {{...}}, got {short(item)}"


def _not_utf8(text: str) -> tuple[int, str]:
    """Return how many lines down the first byte that is not UTF-8 stands, and its problem."""
    bad = half_character(text)  # as such a byte comes through
    if bad is None:
        return 0, ""
    problem = f"the byte 0x{ord(bad[0]) & 0xFF:02x} is not UTF-8; save the file as UTF-8"
    return text.count("\n", 0, bad.start()), problem


def _csv_rows(file: TextIO, delimiter: str = ",") -> Iterator[Found]:
    """Yield one row per record below the header, at the line where the record starts.

    Where the comma is a decimal sign, spreadsheets write a semicolon in its place.
    """
    lines = capped_lines(file)
    first = next(lines, "")
    if delimiter == "," and ";" in first and "," not in first:
        delimiter = ";"
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
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
        with _hidden_bars(datasets, isdir(name) or not sys.stderr.isatty()):
            dataset = datasets.load_dataset(name, config, split=split)
    except (
        OSError,
        ValueError,
        RuntimeError,
        LookupError,  # what it makes of the folder /
        datasets.exceptions.DatasetsError,
    ) as error:
        why = error.__cause__ or error
        why = reason(why) if isinstance(why, OSError) else why
        raise ValueError(f"{why}; check name, split and config, or give a file") from error
    parts = dataset.with_format("arrow").iter(1000)  # as Arrow tables, no image is decoded
    yield from enumerate((row for part in parts for row in part.to_pylist()), start=1)


@contextmanager
def _hidden_bars(datasets: Any, is_hidden: bool) -> Iterator[None]:
    """Let the library draw its bars only where somebody waits for a download."""
    if not is_hidden or datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


_FORMATS: dict[str, Callable[[TextIO], Iterator[Found]] | None] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": lambda file: _csv_rows(file, "\t"),
    ".parquet": None,  # not a text form
}
