"""A recipe's name -> its run, and a document with the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trueline.errors import ModelError, SettingError
from trueline.lab.paper.compare import (
    AnsweredCase,
    FigurePair,
    case_grid,
    cases_of,
    caveats,
    figure_pairs,
    our_text_figures,
    pair_grid,
    paper_grid,
    space_caveats,
)
from trueline.lab.paper.recipes import PaperRecipe, PlanKeys, paper, plans_of, recipe_named
from trueline.lab.paper.spaces import (
    SpaceCosts,
    measure_spaces,
    our_times,
    space_facts,
    space_figure,
    space_grid,
)
from trueline.lab.plan import Plan
from trueline.lab.report.pages import draw_all, facts_of, named_plots, warnings_of
from trueline.lab.report.plots import Plot
from trueline.lab.report.tables import Document, Grid, GridText, Section, Table, tables_of
from trueline.lab.results import RunResults, plain, read_results
from trueline.lab.run import OnLabelledProgress, run_plan

_TELLING = 100  # questions from which on an interval is about twenty points wide


@dataclass(frozen=True, slots=True)
class Reproduced:
    """What a recipe came to: for people, and for programs."""

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
    """Run a recipe into a folder, resuming what is there; `given` are keys of a run.toml."""
    recipe = recipe_named(name)
    plans = plans_of(recipe, given or {}, is_full=is_full)
    if recipe.show == "spaces":
        return _spaces(recipe, measure_spaces(plans, Path(folder), progress))
    results, left_out = run_all(plans, Path(folder), progress)
    tables = tables_of(results)
    figures = [figure_pairs(recipe, table) for table in tables]
    cases = [
        cases_of(plans[0], results.folder, table) if recipe.show == "cases" else []
        for table in tables
    ]
    parts = zip(tables, figures, cases, named_plots(tables), strict=True)
    sections = [_section(*part) for part in parts]
    ours = our_text_figures(recipe.show, tables)
    notes = (*left_out, *caveats(recipe, tables))
    data = {
        "recipe": name,
        "about": recipe.about,
        "models": sorted({table.model for table in tables}),
        "judges": list(dict.fromkeys(j for cell in results.cells for j in cell.judges)),
        "figures": [pair.plain() for pairs in figures for pair in pairs],
        "text_figures": _text_figures(recipe, ours),
        "notes": list(notes),
        "warnings": {section.title: list(section.warnings) for section in sections},
        "cells": [plain(cell.head) for cell in results.cells],  # settings, hashes, versions
    }
    if recipe.show == "cases":
        data["cases"] = [asdict(case) for group in cases for case in group]
        data["paper_cases"] = [asdict(case) for case in paper().cases]
    summary = _summary(recipe, ours, notes)
    return Reproduced(recipe, _document(recipe, [summary, *sections], _size(tables)), data)


def run_all(
    plans: Sequence[Plan], folder: Path, progress: OnLabelledProgress | None
) -> tuple[RunResults, list[str]]:
    """Run plans into one folder; a model or embedder that cannot be had is named, not fatal."""
    ids: list[str] = []
    left_out: list[str] = []
    errors: list[ModelError] = []
    for plan in plans:
        try:
            outcome = run_plan(plan, folder, progress=progress)
        except ModelError as error:
            errors.append(error)
            left_out.append(f"Left out: {error}")
            continue
        ids += [summary.cell for summary in outcome.cells]
    if not ids and errors:
        raise errors[-1]
    results = read_results(folder)
    cells = tuple(cell for cell in results.cells if cell.id in ids)
    if not cells:
        raise SettingError(f"nothing of the recipe could be run into {folder}")
    return replace(results, cells=cells), left_out


def _section(
    table: Table,
    pairs: Sequence[FigurePair],
    cases: Sequence[AnsweredCase],
    plots: Sequence[Plot],
) -> Section:
    grid = case_grid(table, cases) if cases else pair_grid(table, pairs)
    return Section(
        table.title,
        warnings_of(table),
        (grid,) if grid.rows else (),
        draw_all(plots),
        facts_of(table.cells),
    )


def _summary(recipe: PaperRecipe, ours: dict[str, str], notes: Sequence[str]) -> Section:
    figures = _text_figures(recipe, ours)
    rows = tuple(tuple(GridText(text) for text in line.values()) for line in figures)
    grids = (
        [Grid("What the paper's text says", ("what", "paper", "ours"), rows)] if figures else []
    )
    if recipe.show == "cases":
        grids.append(paper_grid())
    return Section("How far it can be compared", (), tuple(grids), notes=tuple(notes))


def _text_figures(recipe: PaperRecipe, ours: dict[str, str]) -> list[dict[str, str]]:
    """The figures of the paper's text beside ours; those of ours it does not have come last."""
    of_paper = {one.key: one for one in paper().text_figures if one.recipe == recipe.name}
    rows = [
        {"what": one.what, "paper": one.printed, "ours": ours.get(key, "not measured")}
        for key, one in of_paper.items()
    ]
    more = {key: text for key, text in ours.items() if key not in of_paper}
    return rows + [{"what": key, "paper": "", "ours": text} for key, text in more.items()]


def _size(tables: Sequence[Table]) -> str:
    """How many questions a run rests on, for its title; few are called what they are."""
    counts = [row.counts["generate"].answered for table in tables for row in table.rows]
    low, high = min(counts), max(counts)
    told = f", N = {high}" if low == high else f", N = {low} to {high}"
    return told if low >= _TELLING else f"{told} (a smoke test: that it runs, no more)"


def _document(recipe: PaperRecipe, sections: Sequence[Section], size: str = "") -> Document:
    return Document(f"Recipe {recipe.name}{size}: {recipe.about}", (), tuple(sections))


def _spaces(recipe: PaperRecipe, measured: Sequence[SpaceCosts]) -> Reproduced:
    notes = space_caveats(measured)
    ours = our_times(measured) if recipe.name == "latency" else {}
    grid, facts = space_grid(measured), space_facts(measured)
    sections = [_summary(recipe, ours, notes), Section("Spaces", (), (grid,), facts=facts)]
    data = {
        "recipe": recipe.name,
        "about": recipe.about,
        "models": sorted({one.model for one in measured}),
        "figures": [space_figure(one) for one in measured],  # with hashes, machine, versions
        "text_figures": _text_figures(recipe, ours),
        "notes": list(notes),
        "warnings": {},
    }
    return Reproduced(recipe, _document(recipe, sections), data)
