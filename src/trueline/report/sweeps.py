"""A table -> the settings that were varied, each with its rows in order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from trueline.report.method_rows import MethodRow, swept_settings
from trueline.report.tables import Table

_FEWEST = 3  # values that make a curve


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of one method that differ in one setting only."""

    method: str
    name: str
    values: tuple[Any, ...]
    rows: tuple[MethodRow, ...]
    plain: MethodRow | None  # the model as it is
    rest: str  # what else was set, where there is more than one such curve


def sweeps_of(table: Table) -> list[Sweep]:
    """Every setting that takes three values or more while the others stand still."""
    plain = next((row for row in table.rows if row.is_plain), None)
    varied = [row for row in table.rows if not row.is_plain]
    found = []
    for method in dict.fromkeys(row.method for row in varied):
        rows = [row for row in varied if row.method == method]
        names = dict.fromkeys(name for row in rows for name in swept_settings(row.first))
        for name in names:
            found += _curves(method, name, rows, plain)
    return found


def _curves(
    method: str, name: str, rows: list[MethodRow], plain: MethodRow | None
) -> list[Sweep]:
    groups: dict[str, dict[str, tuple[Any, MethodRow]]] = {}
    rests: dict[str, dict[str, Any]] = {}  # the other settings of each group
    for row in rows:
        settings = swept_settings(row.first)
        if name in settings:
            value = settings.pop(name)
            key = json.dumps(settings, sort_keys=True)
            rests.setdefault(key, settings)
            groups.setdefault(key, {}).setdefault(json.dumps(value), (value, row))
    others = list(rests.values())
    curves = []
    for rest, points in zip(others, groups.values(), strict=True):
        if len(points) >= _FEWEST:
            ordered = sorted(points.values(), key=lambda point: _order(point[0]))
            values, curve = zip(*ordered, strict=True)
            curves.append(Sweep(method, name, values, curve, plain, _differing(rest, others)))
    return curves


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    is_number = isinstance(value, int | float)
    return (not is_number, value if is_number else 0.0, str(value))


def _differing(settings: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """The settings in which one curve differs from another."""
    return ", ".join(
        f"{name}={value}"
        for name, value in settings.items()
        if any(other.get(name) != value for other in others)
    )
