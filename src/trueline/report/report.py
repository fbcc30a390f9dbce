"""The folder of a run in; a report out, in as many formats as are asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trueline.errors import SettingError
from trueline.evaluation.checks import agreement_notes
from trueline.evaluation.leaks import leak_note
from trueline.report.checks import warnings_of
from trueline.report.formats import as_csv, as_html, as_latex, as_markdown
from trueline.report.grids import Document, Figure, Section, grids_of
from trueline.report.plots import Plot, as_png, as_svg, plots_of
from trueline.report.results import Cell, Results, read_results
from trueline.report.sweeps import sweeps_of
from trueline.report.tables import Table, tables_of

FORMATS = {"md": "report.md", "html": "report.html", "csv": "report.csv", "latex": "report.tex"}
PLOTS = ("svg", "png")
LEAD = (
    "Below each mean: its 95 % bootstrap interval and the samples it rests on; then the "
    "difference from greedy on the same samples with its interval, and p (McNemar's exact "
    "test where a sample is right or wrong, else a paired permutation test). Shares are in "
    "percent.",
    "Bold is the best mean of a column; it may be ahead of the others by no more than chance. "
    "Tokens/s is taken while traces are kept, so it is below what decoding alone reaches. Peak "
    "memory is that of the whole process while a row was run; what earlier rows left counts.",
)
_FACTS = (
    "model fingerprint dtype device benchmark data_hash counts ground ground_from test task "
    "max_new_tokens batch_size temperature seed stop prompt_hashes embedder bertscore draw "
    "rule versions machine"
).split()


def write_report(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    formats: Sequence[str] = ("md", "html"),
    plots: Sequence[str] = ("svg",),
) -> list[Path]:
    """Write the report of a run, beside its results without `out`; returns the files."""
    for kind, known, asked in (("format", FORMATS, formats), ("plot", PLOTS, plots)):
        if bad := [name for name in asked if name not in known]:
            raise SettingError(f"there is no {kind} {bad[0]!r}; there are {', '.join(known)}")
    results = read_results(folder)
    tables = tables_of(results)
    target = Path(out) if out is not None else results.folder
    named = named_plots(tables) if plots else []
    figures = [drawn(some) for some in named]
    document = report_of(results, tables, figures)
    texts = {
        "md": lambda: as_markdown(document, figures=plots[0] if plots else ""),
        "html": lambda: as_html(document),
        "csv": lambda: as_csv(tables),
        "latex": lambda: as_latex(document),
    }
    written = {target / FORMATS[name]: texts[name]().encode() for name in formats}
    if "svg" in plots:
        written |= svg_files(target, (figure for some in figures for figure in some))
    if "png" in plots:
        each = [plot for some in named for plot in some]
        written |= {target / f"{name}.png": as_png(draw, name) for name, _, draw in each}
    return write_files(written)


def report_of(
    results: Results, tables: Sequence[Table], figures: Sequence[Sequence[Figure]] = ()
) -> Document:
    """Put a report together: a section a table, with its figures if there are any."""
    sections = []
    for place, table in enumerate(tables):
        sections.append(
            Section(
                table.title,
                warnings_of(table),
                grids_of(table),
                tuple(figures[place]) if figures else (),
                facts_of(table.cells),
                (*judge_notes(table.cells), *leak_notes(results, table)),
            )
        )
    return Document(f"Results of {results.folder.resolve().name}", LEAD, tuple(sections))


def named_plots(tables: Sequence[Table]) -> list[list[Plot]]:
    """The plots of each table, every one with a file name that no other has."""
    taken: set[str] = set()
    found = []
    for table in tables:
        parts = [Path(table.benchmark).name, Path(table.model).name, table.apart]
        start = "-".join(filter(None, parts))
        own = []
        for name, title, draw in plots_of(table, sweeps_of(table)):
            file = re.sub(r"[^\w.]+", "-", f"{start}-{name}").strip("-")
            while file in taken:
                file += "-more"
            taken.add(file)
            own.append((file, title, draw))
        found.append(own)
    return found


def drawn(plots: Iterable[Plot]) -> tuple[Figure, ...]:
    """Plots as figures."""
    return tuple(Figure(name, title, as_svg(draw, name)) for name, title, draw in plots)


def svg_files(folder: Path, figures: Iterable[Figure]) -> dict[Path, bytes]:
    """The files of figures and what they hold."""
    return {folder / f"{figure.name}.svg": figure.svg.encode() for figure in figures}


def write_files(contents: dict[Path, bytes]) -> list[Path]:
    """Write files, making their folders."""
    for path, content in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise SettingError(f"{path} cannot be written ({error.strerror})") from error
    return list(contents)


def judge_notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Who judged, how much was read, what it cost; and how far the offline judge is right."""
    lines = [line for cell in cells for line in cell.verdicts]
    notes = []
    for judge in dict.fromkeys(line["judge"] for line in lines):
        own = [line for line in lines if line["judge"] == judge]
        unread = [line for line in own if line["label"] is None]
        bought = [line for line in own if not line.get("is_cached")]
        tokens = sum(
            (line.get(k) or 0) for line in bought for k in ("prompt_tokens", "answer_tokens")
        )
        costs = [line["cost"] for line in bought if line.get("cost") is not None]
        cost = f", {sum(costs):.4f} US dollars" if costs else ""
        told = f"{len(own)} verdicts, {len(unread)} unscored, {tokens} tokens{cost}"
        notes.append(f"Judge {judge}: {told}.")
    return (*notes, *agreement_of(cells))


def leak_notes(results: Results, table: Table) -> list[str]:
    """What the grounding examples of a table's cells give away of its samples."""
    hashes = {cell["data_hash"] for cell in table.cells}
    return [f"{leak_note(line)}." for line in results.leaks if line["data_hash"] in hashes]


def agreement_of(cells: Sequence[Cell]) -> list[str]:
    """How far the offline judge agrees with people on what it was asked about these cells."""
    lines = [line for cell in cells for line in cell.lines]
    return agreement_notes(lines, [cell.id for cell in cells])


def facts_of(cells: Sequence[Cell]) -> tuple[tuple[str, str], ...]:
    """Settings, versions and hashes: what is needed to run the same again."""
    facts = []
    for name in _FACTS:
        values = dict.fromkeys(_fact(cell[name]) for cell in cells if cell[name] is not None)
        if values:
            facts.append((name.replace("_", " "), "; ".join(values)))
    for cell in cells:
        space = (
            f", space {cell['space_hash']} of {cell['entries']} entries, context "
            f"{cell['context']}"
        )
        told = f"{_fact(cell['settings'] or {})}{space if cell['space_hash'] else ''}"
        facts.append((f"{cell['label']} ({cell['task']}, cell {cell.id})", told))
    times = sorted(str(cell["time"]) for cell in cells if cell["time"])
    if times:
        facts.append(
            ("begun", times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}")
        )
    return tuple(facts)


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(item)}" for name, item in value.items()) or "none"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
