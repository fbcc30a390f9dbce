"""Cells in; the rows of each table out: seeds and tasks of one method together, labelled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trueline.report.results import Cell

_TABLE = ("model", "fingerprint", "dtype", "benchmark")
_VARIED = ("ground", "ground_from", "test")  # what may differ beside the label
_SPACE = ("context", "window", "embedder")  # told in the label where it is not the default
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
    space = {name: cell[name] for name in _SPACE + _VARIED if cell[name] is not None}
    return {**space, **(cell["settings"] or {})}


def _rows(cells: Sequence[Cell]) -> list[Row]:
    groups: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        is_choice = cell["task"] == "choose"  # how answers are generated is nothing to it
        inner = "" if is_choice else _key(cell, _ANSWERED)
        groups.setdefault(_key(cell, ("label", *_VARIED)), {}).setdefault(inner, []).append(
            cell
        )
    together = [part for group in groups.values() for part in _with_choices(group)]
    names = [
        name
        for name in _VARIED + _ANSWERED
        if len({_key(some[0], (name,)) for some in together}) > 1
    ]
    rows = [Row(_label(some[0], names), some[0]["method"], tuple(some)) for some in together]
    return sorted(rows, key=lambda row: row.method != "greedy")


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
