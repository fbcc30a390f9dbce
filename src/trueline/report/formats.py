"""A document -> Markdown, HTML, LaTeX; and its tables as CSV, a number a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from trueline.evaluation.measures import Average, Column
from trueline.report.grids import MARK, Document, Grid, GridText, Section
from trueline.report.method_rows import MethodRow
from trueline.report.plots import inline_svg
from trueline.report.tables import Table
from trueline.visible import visible_line

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

    source = files("trueline.report").joinpath("page.html").read_text("utf-8")
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
