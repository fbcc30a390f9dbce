"""A table -> some of its answers side by side, the wrong ones marked: what the means are of."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Any, get_args

from trueline.errors import SettingError
from trueline.files import open_regular, reason, scratch_beside, sync
from trueline.lab.findings import (
    NOT_AN_EFFECT,
    WITHOUT,
    agreement_notes,
    needs_controls,
    warnings,
)
from trueline.lab.leaks import leak_note
from trueline.lab.measures import Average, Column
from trueline.lab.report.plots import FEWEST, Plot, as_png, as_svg, inline_svg, plots_of
from trueline.lab.report.tables import (
    MARK,
    Document,
    Figure,
    Grid,
    GridText,
    MethodRow,
    Section,
    Table,
    grids_of,
    sweeps_of,
    tables_of,
)
from trueline.lab.results import AnswerLine, CellResults, RunResults, plain, read_results
from trueline.lab.samples import Task
from trueline.methods import PLAIN
from trueline.text import visible_line

SHOWN = 6  # samples; drawn with a seed, so that nobody picked them
_SEED = 0
_WRONG = "wrong"
_LONGEST = 400  # characters of an answer or a question


def answers_grid(table: Table) -> Grid | None:
    """The answers of every method to a few samples that all of them have; None without any."""
    answers = {row.label: {x.sample: x for x in row.first.answers} for row in table.rows}
    found = [lines for lines in answers.values() if lines]
    common = [id for id in found[0] if all(id in lines for lines in found)] if found else []
    if not common:
        return None
    drawn = set(Random(_SEED).sample(common, min(SHOWN, len(common))))
    rows = []
    for id in (id for id in common if id in drawn):
        asked = [row for row in table.rows if id in answers[row.label]]
        for row in asked:
            line = answers[row.label][id]
            question = line.question if row is asked[0] else ""
            mark = _mark(row, line, table.columns)
            texts = [GridText(_cut(text)) for text in (question, row.label, line.text)]
            rows.append((*texts, GridText(mark, is_bold=mark == _WRONG)))
    note = (
        f"{len(drawn)} of {len(common)} samples, drawn with the seed {_SEED}. The judge says "
        "what is wrong; where there is none, what ROUGE-L finds nearer to a wrong answer is."
    )
    return Grid("Answers", ("question", "method", "answer", ""), tuple(rows), (note,))


def _mark(row: MethodRow, line: AnswerLine, columns: tuple[Column, ...]) -> str:
    """Whether an answer is right or wrong, if anything says so."""
    judges = dict.fromkeys(column.judge for column in columns if column.judge)
    for about, is_good in (("truth", True), ("hallucination", False)):
        for judge in judges:
            label = row.first.labels(about, judge).get(line.sample)  # type: ignore[arg-type]
            if label is not None:
                return "right" if label == is_good else _WRONG
    nearer = line.scores.get("rouge_accuracy")
    if nearer is None:
        return ""
    return "right" if nearer else _WRONG


def _cut(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= _LONGEST else f"{short[: _LONGEST - 3]}..."


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
CSV_HEAD = (
    "model,dtype,benchmark,label,method,measure,judge,unit,mean,low,high,n,unscored,spread,"
    "seeds,difference,difference_low,difference_high,p,p_holm,control,effect,is_best,answered,"
    "failed,skipped,cut_off,to_come,to_be_judged,is_indicative"
)
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # how a formula begins, also full width


def as_markdown(document: Document, figures: str = "") -> str:
    """Markdown; with `figures` the plots are shown from files of that suffix beside it."""
    lines = [
        f"# {_escape(document.title)}",
        "",
        *(f"{_escape(x)}  " for x in document.lead),
        "",
    ]
    for section in document.sections:
        lines += _markdown_section(section, figures)
    return "\n".join(lines).rstrip() + f"\n\n<!-- {MARK} -->\n"


def _markdown_section(section: Section, figures: str) -> list[str]:
    lines = [f"## {_escape(section.title)}", ""]
    for warning in section.warnings:
        lines += [f"> **Warning:** {_escape(warning)}", ""]
    for grid in section.grids:
        lines += [f"### {_escape(grid.title)}", "", *_markdown_grid(grid), ""]
        lines += [line for note in grid.notes for line in (_escape(note), "")]
    if figures:
        for figure in section.figures:
            lines += [f"![{_escape(figure.title)}]({figure.name}.{figures})", ""]
    lines += [line for note in section.notes for line in (_escape(note), "")]
    lines += [f"- {_escape(name)}: {_escape(value)}" for name, value in section.facts]
    return [*lines, ""]


def _markdown_grid(grid: Grid) -> list[str]:
    def line(texts: Sequence[str]) -> str:
        return f"| {' | '.join(texts)} |"

    head = [line([_escape(name) for name in grid.head]), line(["---"] * len(grid.head))]
    return [*head, *(line([_markdown_entry(entry) for entry in row]) for row in grid.rows)]


def _markdown_entry(entry: GridText) -> str:
    text = f"**{_escape(entry.text)}**" if entry.is_bold else _escape(entry.text)
    return "<br>".join([text, *(_escape(line) for line in entry.below)])


def _escape(text: str) -> str:
    """Text that Markdown leaves as it is, on one line."""
    text = one_line(text)
    for sign in "\\`*_[]<>|#~$":
        text = text.replace(sign, f"\\{sign}")
    return text


def one_line(text: str) -> str:
    """Text on one line, with what steers a terminal or a page spelled out, as in \\x1b."""
    return visible_line(" ".join(text.split()))


def as_html(document: Document) -> str:
    """One page that needs no other file, plots included; fit for dark mode and phones."""
    from jinja2 import Environment

    source = files("trueline.lab.report").joinpath("page.html").read_text("utf-8")
    page = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_in_page
    ).from_string(source)
    return page.render(document=document, inline=inline_svg, mark=MARK) + "\n"


def _in_page(value: object) -> object:
    """What a page shows: text is spelled out, and a plot, which is drawn by us, stays."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return visible_line(str(value)) if is_text else value


def as_latex(document: Document) -> str:
    """The grids as LaTeX tables for the booktabs package; intervals stand in small type."""
    lines = [
        f"% {MARK}",
        r"% \usepackage{booktabs}",
        *(f"% {one_line(text)}" for text in (document.title, *document.lead)),
    ]
    for section in document.sections:
        lines += [f"% Warning: {one_line(text)}" for text in section.warnings]
        for grid in section.grids:
            lines += ["", *_latex_grid(section.title, grid)]
        for note in section.notes:
            lines += ["", f"{escape_latex(note)}\\par"]
    return "\n".join(lines) + "\n"


def _latex_grid(title: str, grid: Grid) -> list[str]:
    caption = escape_latex(f"{title}: {grid.title}. " + " ".join(grid.notes)).strip()
    rows = [line for row in grid.rows for line in _latex_row(row)]
    return [
        r"\begin{table}[ht]",
        r"\centering",
        f"\\caption{{{caption}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(grid.head) - 1)}}}",
        r"\toprule",
        " & ".join(escape_latex(name) for name in grid.head) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def _latex_row(row: Sequence[GridText]) -> list[str]:
    """The main line, then a line for each of the smaller ones."""
    first = [
        f"\\textbf{{{escape_latex(entry.text)}}}" if entry.is_bold else escape_latex(entry.text)
        for entry in row
    ]
    lines = [first]
    for line in range(max(len(entry.below) for entry in row)):
        below = [entry.below[line] if line < len(entry.below) else "" for entry in row]
        lines.append(
            [f"{{\\scriptsize {escape_latex(text)}}}" if text else "" for text in below]
        )
    return [" & ".join(line) + r" \\" for line in lines]


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(sign, sign) for sign in one_line(text))


def as_csv(tables: Sequence[Table]) -> str:
    """Every number of every table on a line of its own, percent where the unit says so."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_HEAD.split(","), lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for row in (*table.rows, *table.controls):
            for column in table.columns:
                if (value := row.values.get(column.id)) is not None:
                    writer.writerow(_csv_line(table, row, column, value))
    return out.getvalue()


def _csv_line(table: Table, row: MethodRow, column: Column, value: Average) -> dict[str, Any]:
    scale = 100 if column.measure.is_percent else 1
    change = value.difference
    counts = row.counts[column.measure.task]

    def shown(number: float | None) -> str:
        return "" if number is None else f"{scale * number:.6g}"

    return {
        "model": _csv_text(table.model),
        "dtype": _csv_text(row.first.head.dtype),
        "benchmark": _csv_text(table.benchmark),
        "label": _csv_text(row.label),
        "method": _csv_text(row.method),
        "measure": column.measure.key,
        "judge": _csv_text(column.judge),
        "unit": "percent" if column.measure.is_percent else "",
        **{name: shown(getattr(value, name)) for name in ("mean", "low", "high", "spread")},
        "n": value.n,
        "unscored": value.unscored,
        "seeds": len(row.seeds),
        "difference": shown(change.mean if change else None),
        "difference_low": shown(change.low if change else None),
        "difference_high": shown(change.high if change else None),
        "p": "" if value.p is None else f"{value.p:.6g}",
        "p_holm": "" if value.p_holm is None else f"{value.p_holm:.6g}",
        "control": row.control,
        "effect": value.effect,
        "is_best": int(value.is_best),
        "answered": counts.answered,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "cut_off": counts.cut_off,
        "to_come": counts.left,
        "to_be_judged": value.to_come,
        "is_indicative": int(column.id in table.indicative),
    }


def _csv_text(text: str) -> str:
    """Text that no spreadsheet takes for a formula: one that begins like it gets a quote."""
    text = one_line(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def write_files(
    folder: Path, contents: Mapping[str, bytes], *, overwrite: bool = False
) -> list[Path]:
    """Write files into a folder; a full disk leaves all of them as they were."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"{folder} cannot be written to ({reason(error)})") from error
    check_free(folder, contents, overwrite=overwrite)
    _write_all(folder, contents)
    return [folder / name for name in contents]


def check_free(folder: Path, names: Iterable[str], *, overwrite: bool = False) -> None:
    """Refuse to replace a folder, or a file without the mark of a report.

    `overwrite` replaces any file, but no folder.
    """
    paths = [folder / name for name in names]
    try:
        taken = [path for path in paths if path.is_dir()]
        foreign = [
            path
            for path in paths
            if not overwrite and os.path.lexists(path) and not _is_report(path)
        ]
    except OSError as error:
        raise SettingError(f"{folder} cannot be read ({reason(error)})") from error
    if taken:
        raise SettingError(
            f"{', '.join(map(str, taken))} should be a file and is a folder; move it away, or "
            "name another folder with --out"
        )
    if foreign:
        raise SettingError(
            f"{', '.join(map(str, foreign))} would be replaced, and no earlier report wrote "
            "that; move it away, name another folder with --out, or say --overwrite"
        )


def _write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write every file beside its place; when all are on the disk, put them there in order."""
    outcome = "what was there is as it was"
    try:
        with ExitStack() as stack:
            scratches = {}
            for name, content in contents.items():
                scratches[name] = stack.enter_context(scratch_beside(folder / name))
                scratches[name].write_bytes(content)
                sync(scratches[name])
            for name, scratch in scratches.items():
                os.replace(scratch, folder / name)
                outcome = "some files are replaced and some are not; write the report again"
    except OSError as error:
        raise SettingError(
            f"{folder} cannot be written to ({reason(error)}); {outcome}"
        ) from error


def _is_report(path: Path) -> bool:
    """Whether a report wrote a file."""
    if not path.is_file():
        return False
    with open_regular(path) as file:
        content = file.read()
    return MARK.encode() in content or content.startswith(CSV_HEAD.encode())


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
    tried = (f"{_cut_writing(name, _LONGEST_NAME - len(end))}{end}" for end in apart)
    return next(one for one in tried if one not in taken)


def _cut_writing(name: str, most: int) -> str:
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
    from trueline.lab.judges import questions_for

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
