"""A folder with results.jsonl in; its cells out, each with all that was written for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueline.errors import SettingError
from trueline.evaluation.results import RESULTS, read_lines

Line = Mapping[str, Any]
_LISTS = {
    "answer": "answers",
    "choice": "choices",
    "failed": "failed",
    "verdict": "verdicts",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a run: how it was run, and every line that was written for it."""

    id: str
    info: Line  # model, benchmark, method, settings, label, task, seed, hashes, versions
    answers: tuple[Line, ...]  # in the order of the samples
    choices: tuple[Line, ...]
    failed: tuple[Line, ...]  # samples that could not be answered, with the reason
    verdicts: tuple[Line, ...]
    done: Line | None  # None: the cell has not come to its end

    def __getitem__(self, name: str) -> Any:
        return self.info.get(name)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Every line of the cell, its head first."""
        own = (self.info, *self.answers, *self.choices, *self.failed, *self.verdicts)
        return [dict(line) for line in (own if self.done is None else (*own, self.done))]


@dataclass(frozen=True, slots=True)
class Results:
    """What a run has written so far."""

    folder: Path
    cells: tuple[Cell, ...]  # in the order they were begun
    leaks: tuple[Line, ...] = ()  # what the grounding examples of a benchmark give away

    @property
    def judges(self) -> tuple[str, ...]:
        """The judges that gave verdicts, in the order they first did."""
        found = (line["judge"] for cell in self.cells for line in cell.verdicts)
        return tuple(dict.fromkeys(found))


def read_results(folder: str | Path) -> Results:
    """Read a run, also one that is still going; a last line that was cut off does not count."""
    path = Path(folder)
    path = path / RESULTS if path.is_dir() or not path.suffix else path
    if not path.is_file():
        raise SettingError(
            f"there is no {path}; give the folder of a run that `trueline eval` has begun"
        )
    lines = read_lines(path)
    cells = _cells(lines)
    if not cells:
        raise SettingError(f"{path} holds no results yet; run `trueline eval` first")
    leaks = tuple(line for line in lines if line["kind"] == "leaks")
    return Results(path.parent, cells, leaks)


def _cells(lines: Sequence[Line]) -> tuple[Cell, ...]:
    infos = {line["cell"]: line for line in lines if line["kind"] == "cell"}
    kept: dict[str, dict[str, dict[Any, Line]]] = {
        cell: {kind: {} for kind in [*_LISTS, "done"]} for cell in infos
    }
    for line in lines:
        if line["kind"] == "cell" or line["kind"] not in kept.get(line["cell"], {}):
            continue
        key = (line.get("sample"), line.get("judge"), line.get("about"))
        kept[line["cell"]][line["kind"]][key] = line  # a line written again replaces the first
    return tuple(_cell(id, info, kept[id]) for id, info in infos.items())


def _cell(id: str, info: Line, kept: dict[str, dict[Any, Line]]) -> Cell:
    places = {line["sample"]: line["place"] for line in kept["answer"].values()}
    lists = {
        name: tuple(
            sorted(
                kept[kind].values(),
                key=lambda line: line.get("place", places.get(line["sample"], 0)),
            )
        )
        for kind, name in _LISTS.items()
    }
    done = next(iter(kept["done"].values()), None)
    return Cell(id, info, done=done, **lists)
