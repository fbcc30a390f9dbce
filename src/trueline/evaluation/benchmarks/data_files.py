"""A table of a benchmark, in a data folder or on the hub -> its rows, each with its place."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from trueline.errors import ExampleError, import_extra
from trueline.files import UnreadableError, capped_lines, open_unpacked, reason
from trueline.visible import has_half_character

_ENDS = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a table stands on the hub."""

    id: str
    split: str
    rows: int  # at least so many are there
    config: str | None = None
    file: str | None = None  # read alone, where the hub's own loader is a script


@dataclass(frozen=True, slots=True)
class DataTable:
    """One table: its files in a data folder, its place on the hub, and its columns there."""

    files: tuple[tuple[str, int], ...]  # path without its end, rows it has; the first is taken
    hub: Hub | None  # None: it is read from a folder alone
    columns: Mapping[str, tuple[str, str]]  # our field -> its name in the file, on the hub
    home: str  # where its makers give it away, and under which licence


@dataclass(frozen=True, slots=True)
class Line:
    """A row under our field names; what is wrong with a cell is said with its place."""

    where: str  # FILE:LINE
    cells: Mapping[str, Any]
    names: Mapping[str, str]  # our field -> the column it was read from
    home: str

    def text(self, field: str, *, blank: bool = False) -> str:
        """The text of a field without the blanks around it; an empty one only where said."""
        cell = self.cells[field]
        if not is_text(cell) or not (blank or cell.strip()):
            raise self.problem(field, "a text" if blank else "a text that is not empty")
        return str(cell).strip()

    def texts(self, field: str) -> list[str]:
        """The texts of a field: a list, or one string cut at each semicolon and blank."""
        cell = self.cells[field]
        parts = cell.strip().removesuffix(";").split("; ") if isinstance(cell, str) else cell
        if not isinstance(parts, list) or not all(map(is_text, parts)):
            raise self.problem(field, 'a list of texts, or one text with "; " between them')
        return [part.strip() for part in parts if part.strip()]

    def problem(self, field: str, expected: str) -> ExampleError:
        """The error that a cell is not what was expected."""
        found = f"the field {self.names[field]!r} must be {expected}, got"
        return ExampleError(
            f"{self.where}: {found} {short(self.cells[field])}; {_advice(self.home)}"
        )


def is_text(value: object) -> bool:
    """Whether a value is a text that UTF-8 can hold; JSON can spell half a character."""
    return isinstance(value, str) and not has_half_character(value)


def read_table(table: DataTable, data: Path | None) -> list[Line]:
    """Read a table from the data folder, or from the hub where there is none."""
    rows: Iterable[tuple[int, object]]
    if data is not None:
        path, promised = _find(table, data)
        name, rows = str(path), _file_rows(path, table.home)
    elif table.hub is not None:
        name, promised, rows = table.hub.id, table.hub.rows, _hub_rows(table.hub)
    else:
        raise ExampleError(
            f"{table.files[0][0]}.jsonl is read from a folder: name it with --data; "
            f"{_advice(table.home)}"
        )
    names = {field: pair[data is None] for field, pair in table.columns.items()}
    lines = [_line(f"{name}:{number}", row, names, table.home) for number, row in rows]
    if len(lines) < promised:
        raise ExampleError(
            f"{name} has {len(lines):,} rows, expected {promised:,}: it is cut or another "
            f"release; {_advice(table.home)}"
        )
    return lines


def holds_table(table: DataTable, data: Path) -> bool:
    """Whether a data folder has a file of a table; a folder that is not there is refused."""
    return _file_of(table, data) is not None


def _find(table: DataTable, data: Path) -> tuple[Path, int]:
    """The first file of a table that is there, and how many rows it promises."""
    if (found := _file_of(table, data)) is not None:
        return found
    wanted = " or ".join(f"{stem}.jsonl" for stem, _ in table.files)
    raise ExampleError(f"{data} holds no {wanted} (nor with .gz); {_advice(table.home)}")


def _file_of(table: DataTable, data: Path) -> tuple[Path, int] | None:
    try:
        if not data.is_dir():
            raise ExampleError(f"there is no data folder {data}; {_advice(table.home)}")
        for stem, rows in table.files:
            for path in (data / f"{stem}{end}" for end in _ENDS):
                if path.is_file():
                    return path, rows
    except OSError as error:
        raise ExampleError(f"{data} cannot be read ({reason(error)})") from error
    return None


def _advice(home: str) -> str:
    return f"get it from {home}; docs/benchmarks.md shows how a data folder is laid out"


def _line(where: str, row: object, names: Mapping[str, str], home: str) -> Line:
    """Put a row under our names; a column that is not there is an error."""
    wanted = f"expected an object with the fields {[*names.values()]}"
    if not isinstance(row, dict):
        raise ExampleError(f"{where}: {wanted}, got {short(row)}; {_advice(home)}")
    for name in names.values():
        if name not in row:
            raise ExampleError(
                f"{where}: the field {name!r} is missing; {wanted}, found {[*row]}; "
                f"{_advice(home)}"
            )
    return Line(where, {field: row[name] for field, name in names.items()}, names, home)


def _file_rows(path: Path, home: str) -> Iterator[tuple[int, object]]:
    """Yield the number and content of each line that is not blank."""
    number = 0
    try:
        with open_unpacked(path) as file:
            for number, line in enumerate(capped_lines(file), start=1):
                if line.strip():
                    yield number, json.loads(line.decode("utf-8-sig"))
    except (OSError, EOFError, zlib.error, UnreadableError) as error:
        raise ExampleError(
            f"{path} cannot be read past line {number}: {reason(error)}; {_advice(home)}"
        ) from error
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8
        raise ExampleError(
            f"{path}:{number}: expected an object {{...}} in UTF-8: {error}; {_advice(home)}"
        ) from error


def _hub_rows(hub: Hub) -> Iterable[tuple[int, object]]:
    """Yield the number and content of each row of a dataset on the hub."""
    datasets = import_extra("datasets", f"{hub.id}, without a folder (--data),", "data")
    try:
        if hub.file:
            address = f"hf://datasets/{hub.id}/{hub.file}"
            dataset = datasets.load_dataset("json", data_files=address, split=hub.split)
        else:
            dataset = datasets.load_dataset(hub.id, hub.config, split=hub.split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        why = error.__cause__ or error
        raise ExampleError(
            f"{hub.id} cannot be read from the hub ({type(why).__name__}: {why}); where there "
            "is no network, give a folder with --data (docs/benchmarks.md shows its layout)"
        ) from error
    return enumerate(dataset, start=1)
