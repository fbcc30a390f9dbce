"""A table of a benchmark, in a data folder or on the hub -> its rows, each with its place."""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, TypeVar

from trueline.errors import ExampleError, import_extra
from trueline.examples import to_lines
from trueline.files import UnreadableError, capped_lines, open_unpacked, reason
from trueline.lab.samples import Choices, Sample
from trueline.text import has_half_character
from trueline.types import Example

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


Rule = Literal["answered", "all"]  # what becomes of a question without a truthful answer
Side = Literal["ground", "test"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """A row of a benchmark, before it is known whether it grounds or tests."""

    sample: Sample
    source: str = ""

    @property
    def example(self) -> Example:
        """The row as an example to ground with."""
        row = self.sample
        return Example(row.question, row.answers, row.wrong_answers, row.id, self.source)


@dataclass(frozen=True, slots=True)
class Pools:
    """All rows that may ground and all that may test, and what was counted on the way."""

    ground: Sequence[Item]
    test: Sequence[Item]
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is used of the pools."""

    ground: tuple[Example, ...]
    test: tuple[Sample, ...]
    counts: Mapping[str, int]
    hash: str


def choose(
    pools: Pools, *, ground: int | None, test: int | None, seed: int | None, rule: Rule
) -> Chosen:
    """Apply the rule, then take the first rows or draw some; every row is counted."""
    counts = dict(pools.counts)
    kept = {
        side: _kept(side, items, rule, counts)
        for side, items in (("ground", pools.ground), ("test", pools.test))
    }
    drawn = draw(kept["ground"], ground, seed, "ground")
    examples = tuple(item.example for item in drawn if item.sample.answers)
    asked = _asked_of(kept["test"], examples, counts)
    samples = tuple(item.sample for group in asked for item in draw(group, test, seed, "test"))
    # An example without a truthful answer makes no entries, also where the rule keeps it.
    counts["ground drawn without an answer"] = len(drawn) - len(examples)
    counts |= {"ground used": len(examples), "test used": len(samples)}
    for side, used in (("ground", examples), ("test", samples)):
        if not used:
            raise ExampleError(
                f"nothing is left to {side} with: no row taken has a truthful answer, "
                f"rule={rule!r}; ask for more rows"
            )
    return Chosen(examples, samples, counts, data_hash(examples, samples))


def _asked_of(
    items: Sequence[Item], examples: Sequence[Example], counts: dict[str, int]
) -> list[list[Item]]:
    """The questions about examples in use, regime by regime; as many are taken of each."""
    used = {example.id for example in examples}
    groups: dict[str, list[Item]] = {}
    for item in items:
        probe = item.sample.probe
        if probe is None or used.issuperset(probe.about):
            groups.setdefault("" if probe is None else probe.regime, []).append(item)
    left_out = len(items) - sum(map(len, groups.values()))
    if left_out:
        counts["test about other examples"] = left_out
    return list(groups.values())


def draw(rows: Sequence[T], number: int | None, seed: int | None, side: Side) -> list[T]:
    """The first rows, or as many drawn with the seed, in their order; all if there are fewer.

    Ground and test are drawn apart: asking for more of one leaves the other as it was.
    """
    if number is None or number >= len(rows):
        return list(rows)
    if seed is None:
        return list(rows[:number])
    places = random.Random(f"{seed} {side}").sample(range(len(rows)), number)
    return [rows[index] for index in sorted(places)]


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """The different texts, in order."""
    return tuple(dict.fromkeys(texts))


def choices(truthful: Sequence[str], wrong: Sequence[str]) -> Choices | None:
    """Candidates to score, the truthful ones first; none where one kind is missing."""
    if not truthful or not wrong:
        return None
    return Choices((*truthful, *wrong), (True,) * len(truthful) + (False,) * len(wrong))


def data_hash(ground: Sequence[Example], test: Sequence[Sample]) -> str:
    """The SHA-256 of the examples and the samples, in their order."""
    lines = (json.dumps(_content(sample), ensure_ascii=False) + "\n" for sample in test)
    content = "".join([*to_lines(ground), "\n", *lines])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _content(sample: Sample) -> dict[str, Any]:
    """A sample as its hash sees it; where there is no probe, none is told."""
    found = asdict(sample)
    return {name: value for name, value in found.items() if name != "probe" or value}


def _kept(side: str, items: Sequence[Item], rule: Rule, counts: dict[str, int]) -> list[Item]:
    """The rows the rule keeps."""
    answered = [item for item in items if item.sample.answers]
    # A question that no example answers probes a method all the same.
    usable = [item for item in items if item.sample.answers or item.sample.probe]
    kept = list(items) if rule == "all" else usable
    counts[f"{side} read"] = len(items)
    counts[f"{side} without an answer"] = len(items) - len(answered)
    counts[f"{side} left out"] = len(items) - len(kept)
    return kept
