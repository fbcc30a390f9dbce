"""The folder of a run -> its report, in as many formats as are asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, get_args

from trueline.decoders import PLAIN
from trueline.errors import SettingError
from trueline.evaluation.findings import (
    NOT_AN_EFFECT,
    WITHOUT,
    agreement_notes,
    needs_controls,
    warnings,
)
from trueline.evaluation.leaks import leak_note
from trueline.evaluation.lines import plain
from trueline.evaluation.outcomes import CellResults, RunResults, read_results
from trueline.evaluation.samples import Task
from trueline.report.answers import answers_grid
from trueline.report.formats import as_csv, as_html, as_latex, as_markdown
from trueline.report.grids import Document, Figure, Section, grids_of
from trueline.report.output import write_files
from trueline.report.plots import FEWEST, Plot, as_png, as_svg, plots_of
from trueline.report.sweeps import sweeps_of
from trueline.report.tables import Table, tables_of

FORMATS = {"md": "report.md", "html": "report.html", "csv": "report.csv", "latex": "report.tex"}
PLOTS = ("svg", "png")
TORN = (
    "The last line of the results is cut off and does not count: the run was killed, or is "
    "writing it just now. The same `trueline eval` does it again."
)
LEAD = (
    "Below each mean: its 95 % bootstrap interval and the samples it rests on; then the "
    f"difference from {PLAIN} on the same samples with its interval, and p (McNemar's exact "
    "test where a sample is right or wrong, else a paired permutation test). Shares are in "
    "percent.",
    "Controls are the same methods with the truth taken out: answers shuffled over the "
    "questions, wrong answers in their place, unrelated examples, or without the steps at the "
    "boundary of prompt and answer. A gain that one of them shares is marked as "
    f"{NOT_AN_EFFECT}.",
    "Bold is the best mean of a column, where no other is equal; it may be ahead by no more "
    "than chance. Tokens/s is that of decoding, from a chunk's first token on, with traces "
    "kept.",
    "Indicative: the judge's balanced accuracy against people is below 75 %, or not known. "
    "Such a column may rank methods; it says little of how often one is right.",
)
_LONGEST_NAME = 80  # bytes of a plot's file name, without .svg; a file system takes 255
_NAME_BEGIN = 30  # bytes of its beginning that a longer one keeps
_FACTS = (
    "model fingerprint dtype device benchmark data_hash counts ground ground_from test task "
    "max_new_tokens batch_size temperature seed stop prompt_hashes embedder bertscore draw "
    "rule fidelity tokenizer_hash bertscore_hash versions machine"
).split()


def write_report(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    formats: Sequence[str] = ("md", "html"),
    plots: Sequence[str] = ("svg",),
    overwrite: bool = False,
) -> list[Path]:
    """Write the report of a run, beside its results without `out`; returns the files.

    A file that is there already and that no earlier report wrote is replaced only by
    `overwrite`. Where one cannot be written, the files of the earlier report stay.
    """
    for kind, known, given in (("format", FORMATS, formats), ("plot", PLOTS, plots)):
        if bad := [name for name in given if name not in known]:
            raise SettingError(f"there is no {kind} {bad[0]!r}; there are {', '.join(known)}")
    results = read_results(folder)
    tables = tables_of(results)
    target = Path(out) if out is not None else results.folder
    named = named_plots(tables) if plots else []
    figures = [draw_all(group) for group in named]
    document = report_of(results, tables, figures)
    texts = {
        "md": lambda: as_markdown(document, figures=plots[0] if plots else ""),
        "html": lambda: as_html(document),
        "csv": lambda: as_csv(tables),
        "latex": lambda: as_latex(document),
    }
    written = {FORMATS[name]: texts[name]().encode() for name in formats}
    if "svg" in plots:
        written |= svg_files(figure for group in figures for figure in group)
    if "png" in plots:
        each = [plot for group in named for plot in group]
        written |= {f"{name}.png": as_png(draw, name) for name, _, draw in each}
    return write_files(target, written, overwrite=overwrite)


def report_of(
    results: RunResults, tables: Sequence[Table], figures: Sequence[Sequence[Figure]] = ()
) -> Document:
    """Put a report together: a section a table, with its figures if there are any."""
    sections = []
    for index, table in enumerate(tables):
        sections.append(
            Section(
                table.title,
                warnings_of(table),
                (*grids_of(table), *filter(None, [answers_grid(table)])),
                tuple(figures[index]) if figures else (),
                facts_of(table.cells),
                (*judge_notes(table.cells), *_curve_note(table), *leak_notes(results, table)),
            )
        )
    lead = (*LEAD, TORN) if results.torn else LEAD
    return Document(f"Results of {results.folder.resolve().name}", lead, tuple(sections))


def _curve_note(table: Table) -> list[str]:
    """Say why there is no reliability curve, where there are verdicts for one."""
    judged = [len(row.first.labels("truth", x)) for row in table.rows for x in row.first.judges]
    if not judged or max(judged) >= FEWEST or max(judged) == 0:
        return []
    return [f"No reliability curve is drawn: it takes {FEWEST} judged samples or more."]


def named_plots(tables: Sequence[Table]) -> list[list[Plot]]:
    """The plots of each table, every one with a file name that no other has."""
    taken: set[str] = set()
    found = []
    for table in tables:
        parts = [Path(table.benchmark).name, Path(table.model).name, table.apart]
        start = "-".join(filter(None, parts))
        group = []
        for name, title, draw in plots_of(table, sweeps_of(table)):
            file = _file_name(f"{start}-{name}", taken)
            taken.add(file)
            group.append((file, title, draw))
        found.append(group)
    return found


def draw_all(plots: Iterable[Plot]) -> tuple[Figure, ...]:
    """Plots as figures."""
    return tuple(Figure(name, title, as_svg(draw, name)) for name, title, draw in plots)


def _file_name(text: str, taken: Container[str]) -> str:
    """A name that every file system takes and no plot has; of a long one both ends are kept."""
    name = re.sub(r"[^\w.]+", "-", text).strip("-.")
    apart = chain([""], (f"-{number}" for number in count(2)))
    tried = (f"{_cut(name, _LONGEST_NAME - len(end))}{end}" for end in apart)
    return next(one for one in tried if one not in taken)


def _cut(name: str, most: int) -> str:
    """A name of so many bytes at most; one that is cut keeps its end, which tells the plot."""
    data = name.encode()
    if len(data) <= most:
        return name
    begin, end = data[:_NAME_BEGIN], data[_NAME_BEGIN + 1 - most :]
    return f"{begin.decode(errors='ignore')}-{end.decode(errors='ignore')}"


def svg_files(figures: Iterable[Figure]) -> dict[str, bytes]:
    """The files of figures and what they hold."""
    return {f"{figure.name}.svg": figure.svg.encode() for figure in figures}


def warnings_of(table: Table) -> tuple[str, ...]:
    """What is wrong with a table's runs, or makes its rows hard to compare."""
    cells = table.cells
    found = []
    rows = (*table.rows, *table.controls)
    unfinished = [row.label for row in rows if any(cell.done is None for cell in row.cells)]
    if unfinished:
        found.append(f"not finished: {', '.join(unfinished)}; their numbers will change")
    for judge in _judges(cells):
        left = {row.label: _to_be_judged(row.cells, judge, cells) for row in rows}
        late = [f"{label} ({count} to come)" for label, count in left.items() if count]
        if late:
            found.append(
                f"not judged to the end by {judge}: {', '.join(late)}; "
                "their numbers will change"
            )
    if not any(row.is_plain for row in table.rows):
        found.append(f"there is no {PLAIN} row, so no differences from it can be given")
    grounded = [row for row in table.rows if needs_controls(row.first)]
    bare = [row for row in grounded if not table.controls_of(row)]
    if bare:
        found.append(f"{', '.join(row.label for row in bare)}: {WITHOUT}")
    return (*found, *warnings(cells))


def judge_notes(cells: Sequence[CellResults]) -> tuple[str, ...]:
    """Who judged, how much was read, what it cost; and how far the offline judge is right."""
    notes = []
    for judge in _judges(cells):
        lines = [line for cell in cells for line in cell.verdicts if line.judge == judge]
        unread = [line for line in lines if line.label is None]
        bought = [line for line in lines if not line.is_cached]
        tokens = sum(line.prompt_tokens + line.answer_tokens for line in bought)
        costs = [line.cost for line in bought if line.cost is not None]
        cost = f", {sum(costs):.4f} US dollars" if costs else ""
        counts = f"{len(lines)} verdicts, {len(unread)} unscored, {tokens} tokens{cost}"
        notes.append(f"Judge {judge}: {counts}.")
    return (*notes, *agreement_notes(cells))


def leak_notes(results: RunResults, table: Table) -> list[str]:
    """What the grounding examples of a table's cells give away of its samples."""
    hashes = {cell.head.data_hash for cell in table.cells}
    return [f"{leak_note(line)}." for line in results.leaks if line.data_hash in hashes]


def facts_of(cells: Sequence[CellResults]) -> tuple[tuple[str, str], ...]:
    """Settings, versions and hashes: what is needed to run the same again."""
    facts = []
    for name in _FACTS:
        found = [getattr(cell.head, name) for cell in cells]
        values = dict.fromkeys(_fact(value) for value in found if value not in (None, ""))
        if values:
            facts.append((name.replace("_", " "), "; ".join(values)))
    for cell in cells:
        head, space = cell.head, ""
        if head.space is not None:
            made = "without entries"
            if head.context is not None:
                made = f"of {head.space.entries} entries, context {head.context}"
            space = f", space {head.space.hash} {made}"
        key = f"{head.label} ({head.task}, cell {cell.id})"
        facts.append((key, f"{_fact(head.settings)}{space}"))
    times = sorted(cell.head.time for cell in cells if cell.head.time)
    if times:
        facts.append(
            ("begun", times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}")
        )
    return tuple(facts)


def _judges(cells: Sequence[CellResults]) -> list[str]:
    return list(dict.fromkeys(judge for cell in cells for judge in cell.judges))


def _to_be_judged(row: Sequence[CellResults], judge: str, cells: Sequence[CellResults]) -> int:
    """How many verdicts of a judge a row still lacks; a judge is asked about every row."""
    from trueline.evaluation.judges import questions_for

    used = {x.about for cell in cells for x in cell.verdicts if x.judge == judge}
    sets = [questions_for(task) for task in get_args(Task)]
    questions = {about for one in sets if used & set(one) for about in one}
    given = sum(line.judge == judge for cell in row for line in cell.verdicts)
    answers = sum(not line.is_local for cell in row for line in cell.answers)
    return len(questions) * answers - given


def _fact(value: Any) -> str:
    if not isinstance(value, dict | str | int | float | tuple | list):
        value = plain(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(item)}" for name, item in value.items()) or "none"
    is_list = isinstance(value, tuple | list)
    return json.dumps(value, ensure_ascii=False) if is_list else str(value)
