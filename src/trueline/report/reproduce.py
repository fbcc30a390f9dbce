"""A recipe's name in; it is run, and the paper's figures come out beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trueline.errors import ModelError, SettingError
from trueline.evaluation.plan import Plan
from trueline.report.beside import Beside, beside, beside_grid
from trueline.report.cases import Case, case_grid, cases_of, paper_grid
from trueline.report.checks import warnings_of
from trueline.report.comparable import comparable_notes, space_notes
from trueline.report.grids import Document, Entry, Grid, Section
from trueline.report.paper import paper
from trueline.report.plots import Plot
from trueline.report.recipes import Options, Recipe, plans_of, recipe_named
from trueline.report.report import drawn, facts_of, named_plots
from trueline.report.results import Results, read_results
from trueline.report.said import said_by_us
from trueline.report.space_figures import space_facts, space_figure, space_grid, times_said
from trueline.report.spaces import SpaceMeasured, measure_spaces
from trueline.report.tables import Table, tables_of

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Reproduced:
    """What a recipe came to: for people, and for programs."""

    recipe: Recipe
    document: Document
    data: dict[str, Any]


def reproduce(
    name: str,
    folder: str | Path,
    given: Options | None = None,
    *,
    is_full: bool = False,
    progress: Progress | None = None,
) -> Reproduced:
    """Run a recipe into a folder, resuming what is there; `given` are keys of a run.toml."""
    recipe = recipe_named(name)
    plans = plans_of(recipe, given or {}, is_full=is_full)
    if recipe.show == "spaces":
        return _spaces(recipe, measure_spaces(plans, Path(folder), progress))
    results, told = run_all(plans, Path(folder), progress)
    tables = tables_of(results)
    figures = [beside(recipe, table) for table in tables]
    cases = [
        cases_of(plans[0], results.folder, table) if recipe.show == "cases" else []
        for table in tables
    ]
    parts = zip(tables, figures, cases, named_plots(tables), strict=True)
    sections = [_section(*part) for part in parts]
    ours = said_by_us(recipe.show, tables)
    notes = (*told, *comparable_notes(recipe, tables))
    data = {
        "recipe": name,
        "about": recipe.about,
        "models": sorted({table.model for table in tables}),
        "judges": list(results.judges),
        "figures": [one.plain() for some in figures for one in some],
        "said": _said(recipe, ours),
        "notes": list(notes),
        "warnings": {section.title: list(section.warnings) for section in sections},
        "cells": [dict(cell.info) for cell in results.cells],  # settings, hashes, versions
    }
    if recipe.show == "cases":
        data["cases"] = [case.plain() for some in cases for case in some]
        data["paper_cases"] = [asdict(case) for case in paper().cases]
    summary = _summary(recipe, ours, notes)
    return Reproduced(recipe, _document(recipe, [summary, *sections]), data)


def run_all(
    plans: Sequence[Plan], folder: Path, progress: Progress | None
) -> tuple[Results, list[str]]:
    """Run plans into one folder; a model or embedder that cannot be had is told, not fatal."""
    from trueline.evaluation.run import run_plan

    ids: list[str] = []
    told: list[str] = []
    errors: list[ModelError] = []
    for plan in plans:
        try:
            outcome = run_plan(plan, folder, progress=progress)
        except ModelError as error:
            errors.append(error)
            told.append(f"Left out: {error}")
            continue
        ids += [summary.cell for summary in outcome.cells]
    if not ids and errors:
        raise errors[-1]
    results = read_results(folder)
    cells = tuple(cell for cell in results.cells if cell.id in ids)
    if not cells:
        raise SettingError(f"nothing of the recipe could be run into {folder}")
    return replace(results, cells=cells), told


def _section(
    table: Table, figures: Sequence[Beside], cases: Sequence[Case], plots: Sequence[Plot]
) -> Section:
    grid = case_grid(table, cases) if cases else beside_grid(table, figures)
    return Section(
        table.title,
        warnings_of(table),
        (grid,) if grid.rows else (),
        drawn(plots),
        facts_of(table.cells),
    )


def _summary(recipe: Recipe, ours: dict[str, str], notes: Sequence[str]) -> Section:
    said = _said(recipe, ours)
    rows = tuple(tuple(Entry(text) for text in line.values()) for line in said)
    grids = (
        [Grid("What the paper's text says", ("what", "paper", "ours"), rows)] if said else []
    )
    if recipe.show == "cases":
        grids.append(paper_grid())
    return Section("How far it can be compared", (), tuple(grids), notes=tuple(notes))


def _said(recipe: Recipe, ours: dict[str, str]) -> list[dict[str, str]]:
    """The figures of the paper's text beside ours; those of ours it does not have come last."""
    theirs = {one.key: one for one in paper().said if one.recipe == recipe.name}
    rows = [
        {"what": one.what, "paper": one.printed, "ours": ours.get(key, "not measured")}
        for key, one in theirs.items()
    ]
    more = {key: text for key, text in ours.items() if key not in theirs}
    return rows + [{"what": key, "paper": "", "ours": text} for key, text in more.items()]


def _document(recipe: Recipe, sections: Sequence[Section]) -> Document:
    return Document(f"Recipe {recipe.name}: {recipe.about}", (), tuple(sections))


def _spaces(recipe: Recipe, measured: Sequence[SpaceMeasured]) -> Reproduced:
    notes = space_notes(measured)
    ours = times_said(measured) if recipe.name == "latency" else {}
    grid, facts = space_grid(measured), space_facts(measured)
    sections = [_summary(recipe, ours, notes), Section("Spaces", (), (grid,), facts=facts)]
    data = {
        "recipe": recipe.name,
        "about": recipe.about,
        "models": sorted({one.model for one in measured}),
        "figures": [space_figure(one) for one in measured],  # with hashes, machine, versions
        "said": _said(recipe, ours),
        "notes": list(notes),
        "warnings": {},
    }
    return Reproduced(recipe, _document(recipe, sections), data)
