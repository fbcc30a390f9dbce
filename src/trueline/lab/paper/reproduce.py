"""A recipe's name -> its run, and a document with the paper's figures next to ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trueline.cluster import Cluster
from trueline.errors import ModelError
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
from trueline.lab.paper.spaces import measure_spaces, our_times, space_caveats, space_section
from trueline.lab.paper.windows import window_steps
from trueline.lab.plan import Plan
from trueline.lab.report.pages import LEAD, facts_of, warnings_of
from trueline.lab.report.plots import plots_of
from trueline.lab.report.tables import Document, Grid, GridText, Section, grids_of, tables_of
from trueline.lab.results import RunResults, plain, read_results
from trueline.lab.run import OnLabelledProgress, run_plan

_ENOUGH = 100  # questions with which an interval is about twenty points wide


class Reproduced(NamedTuple):
    """The result of a recipe: for people, and for programs."""

    document: Document
    data: dict[str, Any]


def reproduce(
    name: str,
    folder: str | Path,
    given: PlanKeys | None = None,
    *,
    is_full: bool = False,
    on: Cluster | None = None,
    progress: OnLabelledProgress | None = None,
) -> Reproduced:
    """Run a recipe into a folder, or resume it there; `given` are keys of a run.toml."""
    recipe = recipe_named(name)
    plans, title = plans_of(recipe, given or {}, is_full=is_full), name
    if recipe.show == "spaces":
        measured = measure_spaces(plans, Path(folder), progress)
        notes, sections = space_caveats(measured), [space_section(measured)]
        ours = our_times(measured) if name == "latency" else {}
        models = sorted({one.model for one in measured})
        data = {"figures": [one.plain() for one in measured], "models": models, "warnings": {}}
    else:
        results, left_out = _run(plans, Path(folder), on, progress)
        tables = tables_of(results)
        notes = [*left_out, *caveats(recipe, tables)]
        ours = our_text_figures(recipe.show, tables)
        sections, data = _compare(recipe, plans, results)
        counts = [x.counts["generate"].answered for table in tables for x in table.rows]
        title += ", N = " + " to ".join(map(str, sorted({min(counts), max(counts)})))
        title += "" if min(counts) >= _ENOUGH else " (a smoke test: that it runs, no more)"
    figures = [
        {"what": one.what, "paper": one.printed, "ours": ours.pop(one.key, "not measured")}
        for one in paper().text_figures
        if one.recipe == name
    ]
    figures += [{"what": key, "paper": "", "ours": text} for key, text in ours.items()]
    grids = [paper_grid()] if recipe.show == "cases" else []
    if figures:
        rows = tuple(tuple(map(GridText, line.values())) for line in figures)
        grids.append(Grid("Figures in the paper's text", ("what", "paper", "ours"), rows))
    summary = Section("How far it can be compared", grids=tuple(grids), notes=tuple(notes))
    about = {"recipe": name, "about": recipe.about}
    lead = () if recipe.show == "spaces" else LEAD[:1]
    document = Document(f"Recipe {title}: {recipe.about}", lead, (summary, *sections))
    return Reproduced(document, {**about, "text_figures": figures, "notes": [*notes], **data})


def _run(
    plans: Sequence[Plan],
    folder: Path,
    on: Cluster | None,
    progress: OnLabelledProgress | None,
) -> tuple[RunResults, list[str]]:
    """Run plans into one folder; a model or embedder that is not available is left out."""
    ids, left_out = set[str](), list[str]()
    for plan in plans:
        try:
            outcome = run_plan(plan, folder, on=on, progress=progress)
            ids |= {summary.cell for summary in outcome.cells}
        except ModelError as error:
            left_out.append(f"Left out: {error}")
            if len(left_out) == len(plans):
                raise
    results = read_results(folder)
    cells = tuple(cell for cell in results.cells if cell.id in ids)
    return replace(results, cells=cells), left_out


def _compare(
    recipe: PaperRecipe, plans: Sequence[Plan], results: RunResults
) -> tuple[list[Section], dict[str, Any]]:
    """The tables of a run next to the paper's, as sections and as JSON."""
    tables, sections = tables_of(results), []
    figures, cases = list[dict[str, Any]](), list[dict[str, Any]]()
    looked_up = list[dict[str, Any]]()
    for table, plots in zip(tables, plots_of(tables), strict=True):
        pairs = figure_pairs(recipe, table)
        figures += [pair.plain() for pair in pairs]
        shown = cases_of(plans[0], results.folder, table) if recipe.show == "cases" else []
        cases += shown
        grid = case_grid(shown) if shown else pair_grid(table, pairs)
        facts, grids = facts_of(table.cells), [grid] if grid.rows else []
        if recipe.show == "windows":
            steps = [window_steps(one, results.folder, table) for one in plans]
            looked_up += [{"benchmark": table.benchmark, **one.plain()} for one in steps]
            grids = [*(one.grid() for one in steps), *grids_of(table)]
        sections.append(Section(table.title, warnings_of(table), tuple(grids), plots, facts))
    data = {
        "figures": figures,
        "models": sorted({table.model for table in tables}),
        "judges": list(dict.fromkeys(j for cell in results.cells for j in cell.judges)),
        "warnings": {section.title: list(section.warnings) for section in sections},
        "cells": [plain(cell.head) for cell in results.cells],  # settings, hashes, versions
    }
    if recipe.show == "windows":
        data |= {"windows": looked_up}
    if recipe.show == "cases":
        data |= {"cases": cases, "paper_cases": msgspec.to_builtins(paper().cases)}
    return sections, data
