"""A recipe's name -> its run, and a document with the paper's figures next to ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trueline.errors import ModelError, SettingError
from trueline.lab.paper.compare import (
    case_grid,
    cases_of,
    caveats,
    figure_pairs,
    our_text_figures,
    pair_grid,
    paper_grid,
)
from trueline.lab.paper.recipes import PaperRecipe, PlanKeys, paper, plans_of, recipe_named
from trueline.lab.paper.spaces import (
    measure_spaces,
    our_times,
    space_caveats,
    space_figure,
    space_section,
)
from trueline.lab.plan import Plan
from trueline.lab.report.pages import LEAD, facts_of, warnings_of
from trueline.lab.report.plots import plots_of
from trueline.lab.report.tables import Document, Grid, GridText, Section, Table, tables_of
from trueline.lab.results import RunResults, plain, read_results
from trueline.lab.run import OnLabelledProgress, run_plan

_ENOUGH = 100  # questions with which an interval is about twenty points wide


@dataclass(frozen=True, slots=True)
class Reproduced:
    """The result of a recipe: for people, and for programs."""

    recipe: PaperRecipe
    document: Document
    data: dict[str, Any]


def reproduce(
    name: str,
    folder: str | Path,
    given: PlanKeys | None = None,
    *,
    is_full: bool = False,
    progress: OnLabelledProgress | None = None,
) -> Reproduced:
    """Run a recipe into a folder, or resume it there; `given` are keys of a run.toml."""
    recipe = recipe_named(name)
    plans = plans_of(recipe, given or {}, is_full=is_full)
    if recipe.show == "spaces":
        measured = measure_spaces(plans, Path(folder), progress)
        ours = our_times(measured) if recipe.name == "latency" else {}
        data: dict[str, Any] = {"figures": [space_figure(one) for one in measured]}
        data |= {"warnings": {}, "models": sorted({one.model for one in measured})}
        sections = [space_section(measured)]
        return _reproduced(recipe, recipe.name, ours, space_caveats(measured), sections, data)
    results, left_out = run_all(plans, Path(folder), progress)
    tables = tables_of(results)
    data = {"figures": []}
    if has_cases := recipe.show == "cases":
        data |= {"cases": [], "paper_cases": [asdict(case) for case in paper().cases]}
    sections = []
    for table, plots in zip(tables, plots_of(tables), strict=True):
        pairs = figure_pairs(recipe, table)
        data["figures"] += [pair.plain() for pair in pairs]
        if has_cases and (cases := cases_of(plans[0], results.folder, table)):
            data["cases"] += cases
            grid = case_grid(cases)
        else:
            grid = pair_grid(table, pairs)
        grids, facts = (grid,) if grid.rows else (), facts_of(table.cells)
        sections.append(Section(table.title, warnings_of(table), grids, plots, facts))
    data |= {
        "models": sorted({table.model for table in tables}),
        "judges": list(dict.fromkeys(j for cell in results.cells for j in cell.judges)),
        "warnings": {section.title: list(section.warnings) for section in sections},
        "cells": [plain(cell.head) for cell in results.cells],  # settings, hashes, versions
    }
    title, ours = f"{recipe.name}{_size(tables)}", our_text_figures(recipe.show, tables)
    notes = (*left_out, *caveats(recipe, tables))
    return _reproduced(recipe, title, ours, notes, sections, data)


def _reproduced(
    recipe: PaperRecipe,
    title: str,
    ours: dict[str, str],
    notes: Sequence[str],
    sections: Sequence[Section],
    data: dict[str, Any],
) -> Reproduced:
    """The sections after a summary of how far the figures can be compared."""
    figures = _text_figures(recipe, ours)
    grids = [paper_grid()] if recipe.show == "cases" else []
    if figures:
        rows = tuple(tuple(GridText(text) for text in line.values()) for line in figures)
        grids.append(Grid("Figures in the paper's text", ("what", "paper", "ours"), rows))
    summary = Section("How far it can be compared", (), tuple(grids), notes=tuple(notes))
    lead = () if recipe.show == "spaces" else LEAD[:1]
    document = Document(f"Recipe {title}: {recipe.about}", lead, (summary, *sections))
    named = {"recipe": recipe.name, "about": recipe.about}
    more = {"text_figures": figures, "notes": list(notes)}
    return Reproduced(recipe, document, named | more | data)


def _text_figures(recipe: PaperRecipe, ours: dict[str, str]) -> list[dict[str, str]]:
    """The figures of the paper's text with ours, then those that only we have."""
    theirs = {one.key: one for one in paper().text_figures if one.recipe == recipe.name}
    rows = [
        {"what": one.what, "paper": one.printed, "ours": ours.get(key, "not measured")}
        for key, one in theirs.items()
    ]
    more = {key: text for key, text in ours.items() if key not in theirs}
    return rows + [{"what": key, "paper": "", "ours": text} for key, text in more.items()]


def _size(tables: Sequence[Table]) -> str:
    """The number of questions of a run, for its title."""
    counts = [row.counts["generate"].answered for table in tables for row in table.rows]
    low, high = min(counts), max(counts)
    size = f", N = {high}" if low == high else f", N = {low} to {high}"
    return size if low >= _ENOUGH else f"{size} (a smoke test: that it runs, no more)"


def run_all(
    plans: Sequence[Plan], folder: Path, progress: OnLabelledProgress | None
) -> tuple[RunResults, list[str]]:
    """Run plans into one folder; a model or embedder that is not available is left out."""
    ids: list[str] = []
    left_out: list[str] = []
    for plan in plans:
        try:
            outcome = run_plan(plan, folder, progress=progress)
        except ModelError as error:
            left_out.append(f"Left out: {error}")
            if len(left_out) == len(plans):
                raise
        else:
            ids += [summary.cell for summary in outcome.cells]
    results = read_results(folder)
    cells = tuple(cell for cell in results.cells if cell.id in ids)
    if not cells:
        raise SettingError(f"nothing of the recipe could be run into {folder}")
    return replace(results, cells=cells), left_out
