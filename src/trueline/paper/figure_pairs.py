"""A recipe and our tables -> the paper's figures and ours in pairs, and a grid of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trueline.evaluation.measures import MEASURES, Average, Column
from trueline.paper.figures import PaperBlock, paper
from trueline.paper.recipes import PaperRecipe
from trueline.report.grids import Grid, GridText, interval_lines, number, p_text
from trueline.report.method_rows import MethodRow, swept_settings
from trueline.report.tables import Table

_NONE = GridText("\N{EN DASH}")


@dataclass(frozen=True, slots=True)
class FigurePair:
    """One figure: ours by judge, and the paper's by model and judge."""

    benchmark: str
    row: str
    metric: str
    ours: dict[str, Average]  # by judge; "" where none is needed
    paper: dict[str, float]

    def plain(self) -> dict[str, Any]:
        """As JSON: shares in percent, as the paper gives them."""
        scale = 100 if MEASURES[self.metric].is_percent else 1

        def shown(number: float | None) -> float | None:
            return None if number is None else round(scale * number, 3)

        ours = [
            {
                "judge": judge,
                **{name: shown(getattr(value, name)) for name in ("mean", "low", "high")},
                **{name: getattr(value, name) for name in ("n", "unscored", "to_come", "p")},
                "difference": shown(value.difference.mean if value.difference else None),
            }
            for judge, value in self.ours.items()
        ]
        where = {"benchmark": self.benchmark, "row": self.row, "metric": self.metric}
        return {**where, "ours": ours, "paper": self.paper}


def blocks_for(recipe: PaperRecipe, benchmark: str) -> list[PaperBlock]:
    """The paper's figures for a recipe on a benchmark, or on its first one if it has none."""
    blocks = [block for block in paper().blocks if block.recipe == recipe.name]
    if recipe.show == "judges":  # the other judge's figures stand in the main tables
        models = {block.model for block in blocks}
        others = [b for b in paper().blocks if b.recipe in ("main", "halueval")]
        blocks = [*(b for b in others if b.model in models), *blocks]
    found = [block for block in blocks if block.benchmark == benchmark]
    first = recipe.plan["benchmarks"][0]
    return found or [block for block in blocks if block.benchmark == first]


def figure_pairs(recipe: PaperRecipe, table: Table) -> list[FigurePair]:
    """Every figure of a table that is the paper's, ours, or both."""
    blocks = blocks_for(recipe, table.benchmark)
    matched: dict[str, MethodRow | None] = {
        key: row_for(key, table.rows) for block in blocks for key in block.rows
    }
    taken = {id(row) for row in matched.values()}
    keys = {**matched, **{row.label: row for row in table.rows if id(row) not in taken}}
    metrics = dict.fromkeys(metric for block in blocks for metric in block.metrics)
    found = []
    for key, row in keys.items():
        for metric in metrics or _judged(table):
            of_paper = {
                _paper_column(block, table): block.rows[key][block.metrics.index(metric)]
                for block in blocks
                if metric in block.metrics and key in block.rows
            }
            found.append(
                FigurePair(table.benchmark, key, metric, _ours(row, metric, table), of_paper)
            )
    return [one for one in found if one.ours or one.paper]


def row_for(key: str, rows: Sequence[MethodRow]) -> MethodRow | None:
    """Our row for a row of the paper, as in `rad tau=0.1`; the plainest if several fit."""
    method, *settings = key.split()
    wanted = dict(text.split("=", 1) for text in settings)
    fitting = [
        row
        for row in rows
        if row.method == method
        and all(_same(swept_settings(row.first).get(k), v) for k, v in wanted.items())
    ]
    if not wanted:
        fitting = [row for row in fitting if row.has_default_settings]
    return min(fitting, key=lambda row: len(row.label), default=None)


def pair_grid(table: Table, figures: Sequence[FigurePair]) -> Grid:
    """Ours and the paper's in columns; below ours its interval and its change from greedy."""
    judges = list(dict.fromkeys(judge for one in figures for judge in one.ours)) or [""]
    columns = list(dict.fromkeys(name for one in figures for name in one.paper))
    rows = []
    for one in figures:
        column = Column(MEASURES[one.metric])
        ours = [_entry(one.ours.get(judge), column) for judge in judges]
        of_paper = [
            GridText(f"{one.paper[name]:.1f}") if name in one.paper else _NONE
            for name in columns
        ]
        rows.append((GridText(one.row), GridText(column.measure.title), *ours, *of_paper))
    head = [f"ours{f' ({judge})' if judge else ''}" for judge in judges]
    return Grid(
        f"{table.title} beside the paper",
        ("method", "measure", *head, *(f"paper: {name}" for name in columns)),
        tuple(rows),
    )


def _judged(table: Table) -> dict[str, None]:
    keys = ("truth", "info", "truth_info", "hallucination")
    return dict.fromkeys(c.measure.key for c in table.columns if c.measure.key in keys)


def _ours(row: MethodRow | None, metric: str, table: Table) -> dict[str, Average]:
    if row is None:
        return {}
    columns = [column for column in table.columns if column.measure.key == metric]
    return {c.judge: row.values[c.id] for c in columns if c.id in row.values}


def _paper_column(block: PaperBlock, table: Table) -> str:
    """The model and judge of the paper, and its benchmark where that is another than ours."""
    on = "" if block.benchmark == table.benchmark else f"on {block.benchmark}"
    return ", ".join(filter(None, (block.model, block.judge, on)))


def _entry(value: Average | None, column: Column) -> GridText:
    if value is None:
        return _NONE
    below = interval_lines(value, column)
    below += [f"{value.unscored} unscored"] if value.unscored else []
    below += [f"{value.to_come} to come"] if value.to_come else []
    if value.difference is not None:
        change = number(value.difference.mean, column, sign=True)
        below.append(f"{change} from greedy, {p_text(value.p)}")
    return GridText(number(value.mean, column), tuple(below))


def _same(ours: object, of_paper: str) -> bool:
    """Whether a setting of ours is the paper's; an embedder may stand with its owner's name."""
    try:
        return float(str(ours)) == float(of_paper)
    except ValueError:
        return str(ours).lower().rpartition("/")[2] == of_paper.lower()
