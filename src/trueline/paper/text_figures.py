"""Our tables -> the single figures that the paper gives in its text, measured by us."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from trueline.evaluation.measures import Column
from trueline.evaluation.statistics import rank_correlation
from trueline.report.method_rows import MethodRow
from trueline.report.plots import edit_quartiles
from trueline.report.sweeps import sweeps_of
from trueline.report.tables import Table

_MAIN = ("truth_info", "hallucination")  # the measure a ranking of methods goes by


def our_text_figures(show: str, tables: Sequence[Table]) -> dict[str, str]:
    """The figures by the key they have in paper.toml; a table after the first adds its name."""
    found: dict[str, str] = {}
    for table in tables if show in _SHOWN else ():
        for key, text in _SHOWN[show](table).items():
            name = f"{key} ({table.title})" if key in found else key
            found[name] = text
    return found


def _interventions(table: Table) -> dict[str, str]:
    quartiles = edit_quartiles(row) if (row := _row(table, "rad")) else []
    return {
        f"edit_q{number}": f"{100 * (q.share or 0.0):.1f} % of {q.n} tokens "
        f"(entropy {q.low:.2f} to {q.high:.2f})"
        for number, q in enumerate(quartiles, 1)
    }


def _reliability(table: Table) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for method in ("greedy", "rad"):
        row = _row(table, method)
        for column in table.columns:
            value = row.values.get(column.id) if row else None
            if value is not None and column.measure.key == "auroc":
                text = f"{value.mean:.2f} ({column.judge})"
                found.setdefault(f"auroc {method}", []).append(text)
            elif value is not None and column.measure.key == "ece":
                text = f"{method} {value.mean:.3f} ({column.judge})"
                found.setdefault("ece", []).append(text)
    return {key: ", ".join(texts) for key, texts in found.items()}


def _best(table: Table) -> dict[str, str]:
    found: dict[str, str] = {}
    for sweep in sweeps_of(table):
        for column in [c for c in table.columns if c.measure.key in _MAIN]:
            scored = [
                (row.values[column.id].mean * column.measure.better, value)
                for value, row in zip(sweep.values, sweep.rows, strict=True)
                if column.id in row.values
            ]
            top = max((mean for mean, _ in scored), default=0.0)
            best = ", ".join(str(value) for mean, value in scored if mean == top)
            judge = f" ({column.measure.title} by {column.judge})"
            found.setdefault(f"best_{sweep.name}", best + judge)
    return found


def _judges(table: Table) -> dict[str, str]:
    columns = [column for column in table.columns if column.measure.key in _MAIN]
    key = f"rho {table.benchmark}"
    if len(columns) < 2:
        return {key: "needs two judges whose verdicts can be read"}
    pairs = list(combinations(columns, 2))
    keys = [key, *(f"{key}, {one.judge} and {other.judge}" for one, other in pairs[1:])]
    return {key: _correlation(table, *pair) for key, pair in zip(keys, pairs, strict=True)}


def _correlation(table: Table, one: Column, other: Column) -> str:
    methods = [row for row in table.rows if not row.first.head.is_instead]
    rows = [row for row in methods if {one.id, other.id} <= row.values.keys()]
    means = [[row.values[column.id].mean for row in rows] for column in (one, other)]
    if len(rows) < 3:
        return "needs three methods or more"
    rho, p = rank_correlation(means[0], means[1])
    pair = f"{one.judge} and {other.judge}, {len(rows)} methods"
    if rho != rho:
        return f"none: a judge gave every method the same ({pair})"
    return f"{rho:.2f}, p {p:.3f} ({pair})"


def _row(table: Table, method: str) -> MethodRow | None:
    return next(
        (row for row in table.rows if (row.method, row.has_default_settings) == (method, True)),
        None,
    )


_SHOWN: dict[str, Callable[[Table], dict[str, str]]] = {
    "interventions": _interventions,
    "reliability": _reliability,
    "best": _best,
    "judges": _judges,
}
