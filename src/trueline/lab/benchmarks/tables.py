"""A table of a benchmark, in a data folder or on the hub -> checked rows -> ground and test."""

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
from trueline.files import capped_lines, open_unpacked, reason
from trueline.lab.samples import Choices, Sample
from trueline.text import has_half_character
from trueline.types import Example

T = TypeVar("T")
Rule = Literal["answered", "all"]  # whether questions without a truthful answer are kept


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
    home: str  # the address of its makers, and the licence


@dataclass(frozen=True, slots=True)
class Line:
    """A row under our field names; errors name its place."""

    where: str  # FILE:LINE
    cells: Mapping[str, Any]
    names: Mapping[str, str]  # our field -> the column it was read from
    home: str

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
        found = f"the field {self.names[field]!r} must be {expected}, got"
        return ExampleError(
            f"{self.where}: {found} {short(self.cells[field])}; {_advice(self.home)}"
        )


def is_text(value: object) -> bool:
    """Whether a value is a text that UTF-8 can encode; JSON can spell half a character."""
    return isinstance(value, str) and not has_half_character(value)


def read_table(table: DataTable, data: Path | None) -> list[Line]:
    """Read a table from the data folder, or from the hub without one."""
    advice = _advice(table.home)
    rows: Iterable[tuple[int, object]]
    if data is not None:
        if (found := find_table(table, data)) is None:
            wanted = " or ".join(f"{stem}.jsonl" for stem, _ in table.files)
            raise ExampleError(f"{data} holds no {wanted} (nor with .gz); {advice}")
        path, promised = found
        name, rows = str(path), _file_rows(path, advice)
    elif table.hub is not None:
        name, promised, rows = table.hub.id, table.hub.rows, _hub_rows(table.hub)
    else:
        raise ExampleError(
            f"{table.files[0][0]}.jsonl is read from a folder: name it with --data; {advice}"
        )
    names = {field: pair[data is None] for field, pair in table.columns.items()}
    lines = [_line(f"{name}:{number}", row, names, table.home) for number, row in rows]
    if len(lines) < promised:
        raise ExampleError(
            f"{name} has {len(lines):,} rows, expected {promised:,}: it is cut or another "
            f"release; {advice}"
        )
    return lines


def find_table(table: DataTable, data: Path) -> tuple[Path, int] | None:
    """The first file of a table in a data folder and its number of rows; None without one."""
    try:
        if not data.is_dir():
            raise ExampleError(f"there is no data folder {data}; {_advice(table.home)}")
        for stem, rows in table.files:
            for path in (data / f"{stem}.jsonl", data / f"{stem}.jsonl.gz"):
                if path.is_file():
                    return path, rows
    except OSError as error:
        raise ExampleError(f"{data} cannot be read ({reason(error)})") from error
    return None


def _advice(home: str) -> str:
    return f"get it from {home}; docs/benchmarks.md shows how a data folder is laid out"


def _line(where: str, row: object, names: Mapping[str, str], home: str) -> Line:
    if not isinstance(row, dict) or not row.keys() >= {*names.values()}:
        found = [*row] if isinstance(row, dict) else short(row)
        raise ExampleError(
            f"{where}: expected an object with the fields {[*names.values()]}, got {found}; "
            f"{_advice(home)}"
        )
    return Line(where, {field: row[name] for field, name in names.items()}, names, home)


def _file_rows(path: Path, advice: str) -> Iterator[tuple[int, object]]:
    """The number and content of each line that is not empty."""
    number = 0
    try:
        with open_unpacked(path) as file:
            for number, line in enumerate(capped_lines(file), start=1):
                if line.strip():
                    yield number, json.loads(line.decode("utf-8-sig"))
    except (OSError, EOFError, zlib.error) as error:
        raise ExampleError(
            f"{path} cannot be read past line {number}: {reason(error)}; {advice}"
        ) from error
    except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
        raise ExampleError(
            f"{path}:{number}: expected an object {{...}} in UTF-8: {error}; {advice}"
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
class Item:
    """A row of a benchmark, to ground or to test."""

    sample: Sample
    source: str = ""

    @property
    def example(self) -> Example:
        row = self.sample
        return Example(row.question, row.answers, row.wrong_answers, row.id, self.source)


@dataclass(frozen=True, slots=True)
class Pools:
    """All rows that may ground and all that may test, and counts made while reading."""

    ground: Sequence[Item]
    test: Sequence[Item]
    counts: Mapping[str, int] = field(default_factory=dict)


def choose(
    pools: Pools, *, ground: int | None, test: int | None, seed: int | None, rule: Rule
) -> tuple[tuple[Example, ...], tuple[Sample, ...], dict[str, int]]:
    """Apply the rule, then take the first rows or draw some: examples, samples and counts."""
    counts = dict(pools.counts)
    to_ground = _keep("ground", pools.ground, rule, counts)
    to_test = _keep("test", pools.test, rule, counts)
    drawn = draw(to_ground, ground, seed, "ground")
    # An example without a truthful answer has no entries, also if the rule keeps it.
    examples = tuple(item.example for item in drawn if item.sample.answers)
    regimes = _by_regime(to_test, {example.id for example in examples}, counts)
    samples = tuple(x.sample for items in regimes for x in draw(items, test, seed, "test"))
    counts["ground drawn without an answer"] = len(drawn) - len(examples)
    counts |= {"ground used": len(examples), "test used": len(samples)}
    for side, used in (("ground", examples), ("test", samples)):
        if not used:
            raise ExampleError(
                f"nothing is left to {side} with: no row taken has a truthful answer, "
                f"rule={rule!r}; ask for more rows"
            )
    return examples, samples, counts


def _keep(side: str, items: Sequence[Item], rule: Rule, counts: dict[str, int]) -> list[Item]:
    """The rows that the rule keeps; a probe needs no truthful answer."""
    kept = [x for x in items if rule == "all" or x.sample.answers or x.sample.probe]
    counts[f"{side} read"] = len(items)
    counts[f"{side} without an answer"] = sum(not item.sample.answers for item in items)
    counts[f"{side} left out"] = len(items) - len(kept)
    return kept


def _by_regime(
    items: Sequence[Item], used: set[str], counts: dict[str, int]
) -> Iterable[list[Item]]:
    """The questions of each regime, without those about examples that are not used."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        probe = item.sample.probe
        if probe is None or used.issuperset(probe.about):
            groups.setdefault("" if probe is None else probe.regime, []).append(item)
    if left_out := len(items) - sum(map(len, groups.values())):
        counts["test about other examples"] = left_out
    return groups.values()


def draw(rows: Sequence[T], number: int | None, seed: int | None, side: str) -> list[T]:
    """The first rows, or as many drawn with the seed, in their order; all if there are fewer.

    `side` is part of the seed: another number of ground rows does not change the test rows.
    """
    if number is None or number >= len(rows):
        return list(rows)
    if seed is None:
        return list(rows[:number])
    indices = random.Random(f"{seed} {side}").sample(range(len(rows)), number)
    return [rows[index] for index in sorted(indices)]


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """The different texts, in order."""
    return tuple(dict.fromkeys(texts))


def choices(truthful: Sequence[str], wrong: Sequence[str]) -> Choices | None:
    """Candidates to score, the truthful ones first; None without both kinds."""
    if not truthful or not wrong:
        return None
    return Choices((*truthful, *wrong), (True,) * len(truthful) + (False,) * len(wrong))


def data_hash(ground: Sequence[Example], test: Sequence[Sample]) -> str:
    """The SHA-256 of the examples and the samples, in their order."""
    rows = (asdict(sample) for sample in test)
    parts = ({name: x for name, x in row.items() if name != "probe" or x} for row in rows)
    lines = (json.dumps(part, ensure_ascii=False) + "\n" for part in parts)
    content = "".join([*to_lines(ground), "\n", *lines])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
