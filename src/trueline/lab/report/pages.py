"""Tables -> a report as Markdown, HTML, LaTeX and CSV, with the answers to some samples."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any, get_args

from trueline.errors import SettingError
from trueline.files import read_regular, reason, scratch_file, sync
from trueline.lab.findings import (
    NOT_AN_EFFECT,
    WITHOUT,
    agreement_notes,
    needs_controls,
    warnings,
)
from trueline.lab.judges.questions import About, Task
from trueline.lab.leaks import leak_note
from trueline.lab.report.plots import plots_of
from trueline.lab.report.tables import (
    MARK,
    Document,
    Grid,
    GridText,
    MethodRow,
    Section,
    Table,
    grids_of,
    one_line,
    tables_of,
)
from trueline.lab.results import AnswerLine, CellResults, RunResults, plain, read_results
from trueline.methods import PLAIN
from trueline.text import visible_line

FORMATS = {"md": "report.md", "html": "report.html", "csv": "report.csv", "latex": "report.tex"}
PLOTS = ("svg", "png")
TORN = (
    "The last line of the results is cut off and does not count: the run was killed, or is "
    "still writing. The same `trueline eval` writes it again."
)
LEAD = (
    "Below each mean: its 95 % bootstrap interval and its number of samples; then the "
    f"difference from {PLAIN} on the same samples with its interval, and p (McNemar's exact "
    "test where a sample is right or wrong, else a paired permutation test). Shares are in "
    "percent.",
    "Controls are the same methods with answers shuffled over the questions, wrong answers, "
    "unrelated examples, or without the steps at the boundary of prompt and answer. A gain "
    f"that one of them shares is marked as {NOT_AN_EFFECT}.",
    "Bold is the best mean of a column, if no other is equal; the lead may be chance. Tokens/s "
    "is that of decoding, from a chunk's first token on, with traces kept.",
    "Indicative: the judge's balanced accuracy against people is below 75 %, or not known. "
    "Such a column may rank methods; it says little of how often one is right.",
)
_FACTS = (
    "model fingerprint dtype device benchmark data_hash counts ground ground_from test task "
    "max_new_tokens batch_size temperature seed stop prompt_hashes embedder bertscore draw "
    "rule fidelity tokenizer_hash bertscore_hash versions machine"
).split()
CSV_HEAD = (
    "model,dtype,benchmark,label,method,measure,judge,unit,mean,low,high,n,unscored,spread,"
    "seeds,difference,difference_low,difference_high,p,p_holm,control,effect,is_best,answered,"
    "failed,skipped,cut_off,to_come,to_be_judged,is_indicative"
)
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after \\ a bracket would be read as a length
    "]": "{]}",
    "\N{MINUS SIGN}": "$-$",
    "\N{EN DASH}": "--",
    "±": r"$\pm$",
}


def write_report(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    formats: Sequence[str] = ("md", "html"),
    plots: Sequence[str] = ("svg",),
    overwrite: bool = False,
) -> list[Path]:
    """Write the report of a run and return its files; without `out`, next to its results.

    An existing file that no report wrote is replaced only with `overwrite`. If a file cannot be
    written, the files of the earlier report stay.
    """
    for kind, known, given in (("format", FORMATS, formats), ("plot", PLOTS, plots)):
        if bad := [name for name in given if name not in known]:
            raise SettingError(f"there is no {kind} {bad[0]!r}; there are {', '.join(known)}")
    results = read_results(folder)
    tables = tables_of(results)
    document = report_of(results, tables, has_plots=bool(plots))
    texts = {
        "md": lambda: as_markdown(document, figures=plots[0] if plots else ""),
        "html": lambda: as_html(document),
        "csv": lambda: as_csv(tables),
        "latex": lambda: as_latex(document),
    }
    written = {FORMATS[name]: texts[name]().encode() for name in formats}
    for plot in document.plots:
        written |= {f"{plot.name}.svg": plot.svg.encode()} if "svg" in plots else {}
        written |= {f"{plot.name}.png": plot.png} if "png" in plots else {}
    target = Path(out) if out is not None else results.folder
    return write_files(target, written, overwrite=overwrite)


def report_of(
    results: RunResults, tables: Sequence[Table], *, has_plots: bool = False
) -> Document:
    """The report of a run: a section a table."""
    sections = []
    plots = plots_of(tables) if has_plots else [()] * len(tables)
    for table, drawn in zip(tables, plots, strict=True):
        hashes = {cell.head.data_hash for cell in table.cells}
        notes = []
        for judge in table.judges:
            lines = [x for cell in table.cells for x in cell.verdicts if x.judge == judge]
            unread = sum(line.label is None for line in lines)
            bought = [line for line in lines if not line.is_cached]
            tokens = sum(line.prompt_tokens + line.answer_tokens for line in bought)
            costs = [line.cost for line in bought if line.cost is not None]
            cost = f", {sum(costs):.4f} US dollars" if costs else ""
            counts = f"{len(lines)} verdicts, {unread} unscored, {tokens} tokens{cost}"
            notes.append(f"Judge {judge}: {counts}.")
        notes += agreement_notes(table.cells)
        notes += [f"{leak_note(x)}." for x in results.leaks if x.data_hash in hashes]
        grids = (*grids_of(table), *filter(None, [answers_grid(table)]))
        warned, facts = warnings_of(table), facts_of(table.cells)
        sections.append(Section(table.title, warned, grids, drawn, facts, tuple(notes)))
    lead = (*LEAD, TORN) if results.torn else LEAD
    return Document(f"Results of {results.folder.resolve().name}", lead, tuple(sections))


def answers_grid(table: Table) -> Grid | None:
    """The answers of every method to 6 samples that all of them have; None without any.

    They are drawn with a seed, so that nobody chose them.
    """
    answers = {row.label: {x.sample: x for x in row.first.answers} for row in table.rows}
    answered = [(row, answers[row.label]) for row in table.rows if answers[row.label]]
    _, first = answered[0] if answered else (None, dict[str, AnswerLine]())
    common = [id for id in first if all(id in lines for _, lines in answered)]
    if not common:
        return None
    drawn = set(Random(0).sample(common, min(6, len(common))))
    rows = []
    for id in filter(drawn.__contains__, common):
        question = first[id].question
        for row, lines in answered:
            mark = _mark(row, lines[id], table.judges)
            texts = (one_line(x, 400) for x in (question, row.label, lines[id].text))
            rows.append((*map(GridText, texts), GridText(mark, is_bold=mark == "wrong")))
            question = ""
    note = (
        f"{len(drawn)} of {len(common)} samples, drawn with the seed 0. The judge decides "
        "what is wrong; without a verdict, whether ROUGE-L is nearer to a wrong answer."
    )
    return Grid("Answers", ("question", "method", "answer", ""), tuple(rows), (note,))


def _mark(row: MethodRow, line: AnswerLine, judges: Sequence[str]) -> str:
    """Whether an answer is right or wrong by the first judge, or else by ROUGE-L."""
    abouts: tuple[tuple[About, bool], ...] = (("truth", True), ("hallucination", False))
    for about, good in abouts:
        for judge in judges:
            if (label := row.first.labels(about, judge).get(line.sample)) is not None:
                return "right" if label == good else "wrong"
    nearer = line.scores.get("rouge_accuracy")
    return "" if nearer is None else "right" if nearer else "wrong"


def warnings_of(table: Table) -> tuple[str, ...]:
    """What is wrong with a table's runs, or makes its rows hard to compare."""
    from trueline.lab.judges import questions_for

    found, rows = [], (*table.rows, *table.controls)
    if late := [row.label for row in rows if any(cell.done is None for cell in row.cells)]:
        found.append(f"not finished: {', '.join(late)}; their numbers will change")
    for judge in table.judges:
        used = {x.about for cell in table.cells for x in cell.verdicts if x.judge == judge}
        sets = map(set, map(questions_for, get_args(Task)))
        questions = set[str]().union(*(one for one in sets if used & one))
        late = []
        for row in rows:
            given = sum(line.judge == judge for cell in row.cells for line in cell.verdicts)
            answers = sum(not line.is_local for cell in row.cells for line in cell.answers)
            if left := len(questions) * answers - given:
                late.append(f"{row.label} ({left} to come)")
        if late:
            text = f"not fully judged by {judge}: {', '.join(late)}"
            found.append(f"{text}; their numbers will change")
    if not any(row.is_plain for row in table.rows):
        found.append(f"there is no {PLAIN} row, so no differences from it can be given")
    grounded = [row for row in table.rows if needs_controls(row.first)]
    bare = [row.label for row in grounded if not table.controls_of(row)]
    found += [f"{', '.join(bare)}: {WITHOUT}"] if bare else []
    return (*found, *warnings(table.cells))


def facts_of(cells: Sequence[CellResults]) -> tuple[tuple[str, str], ...]:
    """Settings, versions and hashes: what is needed to run the same again."""

    def shown(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{name} {shown(item)}" for name, item in value.items()) or "none"
        is_list = isinstance(value, tuple | list)
        return json.dumps(value, ensure_ascii=False) if is_list else str(value)

    facts, heads = [], [cell.head for cell in cells]
    for name in _FACTS:
        values = [plain(getattr(head, name)) for head in heads]
        if different := dict.fromkeys(shown(x) for x in values if x not in (None, "")):
            facts.append((name.replace("_", " "), "; ".join(different)))
    for head in heads:
        text = shown(plain(head.settings))
        if head.space is not None:
            made = f"of {head.space.entries} entries, context {head.context}"
            made = "without entries" if head.context is None else made
            text += f", space {head.space.hash} {made}"
        facts.append((f"{head.label} ({head.task}, cell {head.cell})", text))
    if times := sorted(head.time for head in heads if head.time):
        facts.append(("begun", " to ".join(dict.fromkeys([times[0], times[-1]]))))
    return tuple(facts)


def as_markdown(document: Document, figures: str = "") -> str:
    """Markdown; with `figures` the plots are shown from files with that suffix."""
    text = _render("page.md.j2", escape_markdown, document=document, suffix=figures)
    return f"{text.rstrip()}\n\n<!-- {MARK} -->\n"


def as_html(document: Document) -> str:
    """One page that needs no other file, plots included; fit for dark mode and phones."""
    return _render("page.html", visible_line, document=document) + "\n"


def as_latex(document: Document) -> str:
    """The grids as LaTeX tables for the booktabs package; intervals are in small type."""
    return _render("page.tex.j2", escape_latex, document=document)


def _render(template: str, escape: Callable[[str], str], **values: Any) -> str:
    """A template filled in; `escape` makes every text safe that is not marked as safe."""
    from jinja2 import Environment

    def safe(value: object) -> object:
        is_text = isinstance(value, str) and not hasattr(value, "__html__")
        return escape(str(value)) if is_text else value

    environment = Environment(
        autoescape=template == "page.html", trim_blocks=True, lstrip_blocks=True, finalize=safe
    )
    environment.filters["one_line"] = one_line
    if template == "page.tex.j2":  # braces belong to LaTeX
        environment = environment.overlay(
            block_start_string="<%",
            block_end_string="%>",
            variable_start_string="<<",
            variable_end_string=">>",
            comment_start_string="<#",
        )
    source = files("trueline.lab.report").joinpath(template).read_text("utf-8")
    return environment.from_string(source).render(mark=MARK, **values)


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", one_line(text))


def escape_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in one_line(text))


def as_csv(tables: Sequence[Table]) -> str:
    """Every number of every table on a line of its own, percent where the unit says so."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_HEAD.split(","), lineterminator="\n")
    writer.writeheader()
    every = ((table, row) for table in tables for row in (*table.rows, *table.controls))
    for table, row in every:
        for column in (one for one in table.columns if one.id in row.values):
            value, measure = row.values[column.id], column.measure
            counts, change = row.counts[measure.task], value.difference
            numbers = {name: getattr(value, name) for name in ("mean", "low", "high", "spread")}
            if change is not None:
                numbers |= {"difference": change.mean}
                numbers |= {"difference_low": change.low, "difference_high": change.high}
            scale = 100 if measure.is_percent else 1
            line = {
                "model": table.model,
                "dtype": row.first.head.dtype,
                "benchmark": table.benchmark,
                "label": row.label,
                "method": row.method,
                "measure": measure.key,
                "judge": column.judge,
                "unit": "percent" if measure.is_percent else "",
                "seeds": len({cell.head.seed for cell in row.cells}),
                "control": row.control,
                "is_best": int(value.is_best),
                "to_come": counts.left,
                "to_be_judged": value.to_come,
                "is_indicative": int(column.id in table.indicative),
                **{name: None if x is None else scale * x for name, x in numbers.items()},
                **{x: getattr(value, x) for x in "n unscored p p_holm effect".split()},
                **{x: getattr(counts, x) for x in "answered failed skipped cut_off".split()},
            }
            writer.writerow({name: _csv_text(x) for name, x in line.items()})
    return out.getvalue()


def _csv_text(value: str | float | None) -> str:
    """A field; a text that begins like a formula gets a quote, for spreadsheets."""
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}" if text.startswith(tuple("=+-@\uff1d\uff0b\uff0d\uff20")) else text
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def write_files(
    folder: Path, contents: Mapping[str, bytes], *, overwrite: bool = False
) -> list[Path]:
    """Write files into a folder; if the disk is full, all stay as they were."""
    outcome = "the old files are unchanged"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_free(folder, contents, overwrite=overwrite)
        with ExitStack() as stack:
            scratches = {}
            for name, content in contents.items():
                scratches[name] = stack.enter_context(scratch_file(folder / name))
                scratches[name].write_bytes(content)
                sync(scratches[name])
            for name, scratch in scratches.items():
                os.replace(scratch, folder / name)
                outcome = "some files are replaced and some are not; write the report again"
    except OSError as error:
        raise SettingError(
            f"{folder} cannot be written to ({reason(error)}); {outcome}"
        ) from error
    return [folder / name for name in contents]


def check_free(folder: Path, names: Iterable[str], *, overwrite: bool = False) -> None:
    """Refuse to replace a folder, or a file without the mark of a report.

    `overwrite` replaces any file, but no folder.
    """
    for path in (folder / name for name in names):
        if path.is_dir():
            problem = "should be a file and is a folder"
        elif not overwrite and os.path.lexists(path) and not _is_report(path):
            problem = "would be replaced, and no earlier report wrote that"
        else:
            continue
        raise SettingError(
            f"{path} {problem}; move it away, name another folder with --out, or replace a "
            "file with --overwrite"
        )


def _is_report(path: Path) -> bool:
    if not path.is_file():
        return False
    content = read_regular(path)
    return MARK.encode() in content or content.startswith(CSV_HEAD.encode())
