"""Cells in; the rows of each table out: seeds and tasks of one method together, labelled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trueline.evaluation.plan import Task, default_build
from trueline.report.results import Cell

_TABLE = ("model", "fingerprint", "dtype", "benchmark")
_VARIED = ("ground", "ground_from", "test")  # what may differ beside the label
_SPACE = ("context", "embedder")  # the same, where a method has more than one of them
_BUILT = ("window", "end", "values", "dtype")  # in the label where it is not the default
_ANSWERED = ("temperature", "max_new_tokens", "stop")  # the same, where answers are generated


@dataclass(frozen=True, slots=True)
class Row:
    """One method with its settings: the cells that differ only in seed or task."""

    label: str
    method: str
    cells: tuple[Cell, ...]

    @property
    def first(self) -> Cell:
        """The cell that speaks for the others: one with answers, if there is any."""
        return next((cell for cell in self.cells if cell["task"] == "generate"), self.cells[0])

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What was asked of the method."""
        return tuple(dict.fromkeys(cell["task"] for cell in self.cells))

    @property
    def seeds(self) -> tuple[object, ...]:
        """The different seeds, in the order they were run."""
        return tuple(dict.fromkeys(cell["seed"] for cell in self.cells))


def rows_by_table(cells: Sequence[Cell]) -> list[list[Row]]:
    """The rows of each model and benchmark, greedy first, then in the order they were run."""
    tables: dict[str, list[Cell]] = {}
    for cell in cells:
        tables.setdefault(_key(cell, _TABLE), []).append(cell)
    return [_rows(some) for some in tables.values()]


def baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """The greedy row most like a row in everything else; None for a greedy row itself."""
    if row.method == "greedy":
        return None

    def likeness(other: Row) -> int:
        names = _VARIED + _ANSWERED
        return sum(_key(other.first, (n,)) == _key(row.first, (n,)) for n in names)

    return max((r for r in rows if r.method == "greedy"), key=likeness, default=None)


def settings_of(cell: Cell) -> dict[str, object]:
    """What can be swept: the settings of the method, and how its space was built."""
    found = {name: cell[name] for name in _SPACE + _VARIED if cell[name] is not None}
    if cell["space_hash"]:
        plain = default_build(str(cell["method"]))
        told = dict(word.partition("=")[::2] for word in str(cell["label"]).split())
        found |= {name: told.get(name, str(getattr(plain, name))) for name in _BUILT}
    return {**found, **(cell["settings"] or {})}


def _rows(cells: Sequence[Cell]) -> list[Row]:
    groups: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        is_choice = cell["task"] == "choose"  # how answers are generated is nothing to it
        inner = "" if is_choice else _key(cell, _ANSWERED)
        group = groups.setdefault(_key(cell, ("label", *_VARIED, *_SPACE)), {})
        group.setdefault(inner, []).append(cell)
    together = [part for group in groups.values() for part in _with_choices(group)]
    firsts = [some[0] for some in together]
    names = _differing(firsts, _VARIED + _ANSWERED)
    rows = []
    for some in together:
        method = some[0]["method"]
        own = _differing([cell for cell in firsts if cell["method"] == method], _SPACE)
        rows.append(Row(_label(some[0], own + names), method, tuple(some)))
    return sorted(rows, key=lambda row: row.method != "greedy")


def _differing(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    return [name for name in names if len({_key(cell, (name,)) for cell in cells}) > 1]


def _with_choices(group: dict[str, list[Cell]]) -> list[list[Cell]]:
    """The choices of a method go with its first way of answering."""
    choices = group.pop("", [])
    parts = list(group.values())
    return [parts[0] + choices, *parts[1:]] if parts else [choices]


def _label(cell: Cell, names: Sequence[str]) -> str:
    told = [f"{name}={_short(cell[name])}" for name in names if cell[name] is not None]
    return " ".join([str(cell["label"] or cell["method"]), *told])


def _short(value: Any) -> object:
    return ",".join(value["strings"]) or "none" if isinstance(value, dict) else value


def _key(cell: Cell, names: Sequence[str]) -> str:
    return json.dumps([cell[name] for name in names], sort_keys=True, default=str)
