"""A table in; the settings that were varied out, each with its rows in order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from trueline.report.rows import settings_of
from trueline.report.tables import Table, TableRow

_FEWEST = 3  # values that make a curve


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of one method that differ in one setting only."""

    method: str
    name: str
    values: tuple[Any, ...]
    rows: tuple[TableRow, ...]
    greedy: TableRow | None
    rest: str  # what else was set, where there is more than one such curve


def sweeps_of(table: Table) -> list[Sweep]:
    """Every setting that takes three values or more while the others stand still."""
    greedy = next((row for row in table.rows if row.row.method == "greedy"), None)
    found = []
    for method in dict.fromkeys(row.row.method for row in table.rows):
        rows = [row for row in table.rows if row.row.method == method != "greedy"]
        names = dict.fromkeys(name for row in rows for name in settings_of(row.row.first))
        for name in names:
            found += _curves(method, name, rows, greedy)
    return found


def _curves(
    method: str, name: str, rows: list[TableRow], greedy: TableRow | None
) -> list[Sweep]:
    groups: dict[str, dict[str, tuple[Any, TableRow]]] = {}
    for row in rows:
        settings = settings_of(row.row.first)
        if name in settings:
            value = settings.pop(name)
            key = json.dumps(settings, sort_keys=True, default=str)
            groups.setdefault(key, {}).setdefault(json.dumps(value), (value, row))
    curves = []
    for key, points in groups.items():
        if len(points) >= _FEWEST:
            ordered = sorted(points.values(), key=lambda point: _order(point[0]))
            values, some = zip(*ordered, strict=True)
            rest = "" if len(groups) == 1 else _rest(json.loads(key))
            curves.append(Sweep(method, name, values, some, greedy, rest))
    return curves


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    is_number = isinstance(value, int | float)
    return (not is_number, value if is_number else 0.0, str(value))


def _rest(settings: dict[str, Any]) -> str:
    told = ("alpha", "tau", "beta", "context", "ground")
    return ", ".join(f"{name}={settings[name]}" for name in told if name in settings)
