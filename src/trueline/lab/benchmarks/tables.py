"""A table of a benchmark, in a data folder or on the hub -> checked rows and samples."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Literal

from trueline.errors import ExampleError, import_extra
from trueline.examples import Regime
from trueline.files import capped_lines, open_unpacked, reason
from trueline.prompts import Layout, Prompt, prompt_sets
from trueline.text import has_half_character
from trueline.types import Example

if TYPE_CHECKING:
    from trueline.lab.judges.questions import Task


Match = Literal["wording", "told", "target", "entry"]  # when an answer counts as right


@dataclass(frozen=True, slots=True)
class Choices:
    """Candidate answers to score, and which of them are truthful."""

    texts: tuple[str, ...]
    is_true: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """The regime of a question, and when its answer is right."""

    regime: Regime
    meant: tuple[Example, ...] = ()  # they answer it; empty: the answer must not change
    about: tuple[str, ...] = ()  # ids of examples; without them it is left out
    match: Match = "wording"
    check: Mapping[str, Any] = field(default_factory=dict)  # the requested form
    polarity: Literal["", "yes", "no"] = ""  # the true answer to a question of yes or no


@dataclass(frozen=True, slots=True)
class Sample:
    """A question to evaluate on, with its known right and wrong answers."""

    id: str
    question: str  # what goes into the prompt; for a summary, the document
    answers: tuple[str, ...] = ()  # truthful, the best one first
    wrong_answers: tuple[str, ...] = ()
    single: Choices | None = None  # MC1: one of them is truthful
    multiple: Choices | None = None  # MC2 and MC3: several are
    knowledge: str = ""  # HaluEval's; only for the hash of the data
    category: str = ""  # its authors'; only for the hash of the data
    probe: Probe | None = None  # None: a question without a regime
    source: str = ""  # of an example; not in the hash of the data


def bare_letters(question: str) -> str:
    """A question in lower case without signs and spaces, to compare two copies of it."""
    return "".join(sign for sign in question.lower() if sign.isalnum())


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Examples to ground with and samples to test on, as they were read."""

    name: str
    task: Task
    ground: tuple[Example, ...]
    test: tuple[Sample, ...]
    hash: str  # of examples and samples, in order
    settings: Mapping[str, Any] = field(default_factory=dict)  # for methods that have them
    counts: Mapping[str, int] = field(default_factory=dict)  # rows read, kept, left out
    layout: Layout = "lines"  # of the prompt

    @property
    def prompt(self) -> Prompt:
        """The paper's prompt for its task."""
        return prompt_sets(self.layout)[self.task].base


@dataclass(frozen=True, slots=True)
class Hub:
    """The place of a table on the hub."""

    id: str
    split: str
    rows: int  # at least this many
    config: str | None = None
    file: str | None = None  # read this file alone, if the hub's own loader is a script


@dataclass(frozen=True, slots=True)
class DataTable:
    """One table: its files in a data folder, its place on the hub, and its columns there."""

    files: tuple[tuple[str, int], ...]  # path without suffix, number of rows; the first is used
    hub: Hub | None  # None: it is read only from a folder
    columns: Mapping[str, tuple[str, str]]  # our field -> its name in the file, on the hub
    home: str  # its makers' address, and the licence

    @property
    def advice(self) -> str:
        return (
            f"get it from {self.home}; docs/benchmarks.md shows how a data folder is laid out"
        )


@dataclass(frozen=True, slots=True)
class Line:
    """A row under our field names; errors name its place."""

    where: str  # FILE:LINE
    cells: Mapping[str, Any]
    names: Mapping[str, str]  # our field -> the column it was read from
    advice: str

    def text(self, field: str, *, may_be_empty: bool = False) -> str:
        """The text of a field without the space around it; empty only with `may_be_empty`."""
        cell = self.cells[field]
        if not is_text(cell) or not (may_be_empty or cell.strip()):
            raise self.problem(field, "a text" if may_be_empty else "a text that is not empty")
        return str(cell).strip()

    def texts(self, field: str) -> list[str]:
        """The texts of a field: a list, or one string split at "; "."""
        cell = self.cells[field]
        parts = cell.strip().removesuffix(";").split("; ") if isinstance(cell, str) else cell
        if not isinstance(parts, list) or not all(map(is_text, parts)):
            raise self.problem(field, 'a list of texts, or one text with "; " between them')
        return [part.strip() for part in parts if part.strip()]

    def problem(self, field: str, expected: str) -> ExampleError:
        found = f"must be {expected}, got {short(self.cells[field])}"
        text = f"{self.where}: the field {self.names[field]!r} {found}; {self.advice}"
        return ExampleError(text)


def is_text(value: object) -> bool:
    """Whether a value is a text that UTF-8 can encode; JSON can spell half a character."""
    return isinstance(value, str) and not has_half_character(value)


def read_table(table: DataTable, data: Path | None) -> list[Line]:
    """Read a table from the data folder, or from the hub without one."""
    rows: Iterable[tuple[int, object]]
    if data is not None:
        if (found := find_table(table, data)) is None:
            wanted = " or ".join(f"{stem}.jsonl" for stem, _ in table.files)
            raise ExampleError(f"{data} holds no {wanted} (nor with .gz); {table.advice}")
        path, promised = found
        name, rows = str(path), _file_rows(path, table.advice)
    elif table.hub is not None:
        name, promised, rows = table.hub.id, table.hub.rows, _hub_rows(table.hub)
    else:
        raise ExampleError(
            f"{table.files[0][0]}.jsonl is read from a folder: name it with --data; "
            f"{table.advice}"
        )
    names = {field: pair[data is None] for field, pair in table.columns.items()}
    lines = []
    for number, row in rows:
        if not isinstance(row, dict) or not row.keys() >= {*names.values()}:
            raise ExampleError(
                f"{name}:{number}: expected an object with the fields {[*names.values()]}, got "
                f"{[*row] if isinstance(row, dict) else short(row)}; {table.advice}"
            )
        cells = {field: row[name] for field, name in names.items()}
        lines.append(Line(f"{name}:{number}", cells, names, table.advice))
    if len(lines) < promised:
        raise ExampleError(
            f"{name} has {len(lines):,} rows, expected {promised:,}: it is cut or another "
            f"release; {table.advice}"
        )
    return lines


def find_table(table: DataTable, data: Path) -> tuple[Path, int] | None:
    """The first file of a table in a data folder and its number of rows; None without one."""
    if not data.is_dir():
        raise ExampleError(f"there is no data folder {data}; {table.advice}")
    ends = (".jsonl", ".jsonl.gz")
    paths = ((data / f"{stem}{end}", rows) for stem, rows in table.files for end in ends)
    return next((found for found in paths if found[0].is_file()), None)


def _file_rows(path: Path, advice: str) -> Iterator[tuple[int, object]]:
    """The number and content of each line that is not empty."""
    number = 1
    try:
        with open_unpacked(path) as file:
            for line in capped_lines(file):
                if line.strip():
                    yield number, json.loads(line.decode("utf-8-sig"))
                number += 1
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ExampleError(
            f"{path}:{number}: expected an object {{...}} in UTF-8: {reason(error)}; {advice}"
        ) from error


def _hub_rows(hub: Hub) -> Iterable[tuple[int, object]]:
    """The number and content of each row of a dataset on the hub."""
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


@dataclass(frozen=True, slots=True)
class Pools:
    """All rows that may ground and all that may test, and counts made while reading."""

    ground: Sequence[Sample]
    test: Sequence[Sample]
    counts: Mapping[str, int] = field(default_factory=dict)


def row_of(example: Example, category: str = "") -> Sample:
    """An example as a row; its choices are the best answer, or all, against the wrong ones."""
    answers, wrong = tuple(example.answers), tuple(example.wrong_answers)
    single, multiple = (
        Choices((*true, *wrong), (True,) * len(true) + (False,) * len(wrong)) if wrong else None
        for true in (answers[:1], answers)
    )
    id, question, source = example.id, example.question, example.source
    return Sample(id, question, answers, wrong, single, multiple, "", category, None, source)


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """The different texts, in order."""
    return tuple(dict.fromkeys(texts))
