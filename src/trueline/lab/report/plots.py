"""Tables -> plots as SVG text or PNG bytes, drawn by matplotlib without a screen."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueline.errors import import_extra
from trueline.lab.measures import Average, Column, confidences
from trueline.lab.metrics import QuartileShare, auroc, ece, quartile_shares, reliability
from trueline.lab.report.tables import MARK, MethodRow, Sweep, Table, one_line, sweeps_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FEWEST = 30  # samples of a reliability curve: below, its points are of a few answers each
_INK = "#24292f"  # in a page it becomes the color of the surrounding text
_COLORS = ("#6b7280", "#0f8f6c", "#d9730d", "#3b7dd8", "#b04fb3", "#b8860b", "#c0392b")
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.size": 10,
    "font.family": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "legend.frameon": False,
    **dict.fromkeys((*_INKED, "axes.titlecolor"), _INK),
}
_SHOWN = ("truth_info", "hallucination", "truth", "info", "rouge_l", "mc1", "mc2")
_CURVES = 4  # methods in one diagram, so that it can be read


@dataclass(frozen=True)
class Plot:
    """A plot: the name of its files without a suffix, its title, and how it is drawn."""

    name: str
    title: str
    draw: Callable[[], Figure]

    @cached_property
    def svg(self) -> str:
        """SVG; the same plot and name give the same text."""
        metadata = {"Date": None, "Creator": MARK}
        return self._drawn("svg", transparent=True, metadata=metadata).decode()

    @property
    def inline_svg(self) -> str:
        """SVG for a page: without its XML head, in the color of the surrounding text."""
        return self.svg[self.svg.index("<svg") :].replace(_INK, "currentColor")

    @property
    def png(self) -> bytes:
        return self._drawn("png", metadata={"Software": MARK})

    def _drawn(self, kind: str, **options: Any) -> bytes:
        matplotlib = import_extra("matplotlib", "a plot (or else --plots none)", "eval")
        style = {**_STYLE, "svg.hashsalt": self.name}  # the same name gives the same bytes
        out = io.BytesIO()
        with matplotlib.rc_context(style), warnings.catch_warnings():
            # A sign that the font lacks is drawn as a box, without a line for each.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            self.draw().savefig(out, format=kind, dpi=150, **options)
        return out.getvalue()


def plots_of(tables: Sequence[Table]) -> list[tuple[Plot, ...]]:
    """Every plot that each table has the numbers for; no two have the same name."""
    taken: set[str] = set()
    found = []
    for table in tables:
        parts = [Path(table.benchmark).name, Path(table.model).name, table.apart]
        start = "-".join(filter(None, parts))
        group = []
        for name, title, draw in _plots(table):
            data = re.sub(r"[^\w.]+", "-", f"{start}-{name}").strip("-.").encode()
            if len(data) > 76:  # a file system takes 255 bytes: keep the beginning and end
                data = data[:30] + b"-" + data[-45:]
            whole = data.decode(errors="ignore")
            numbered = chain([whole], (f"{whole}-{number}" for number in count(2)))
            file = next(one for one in numbered if one not in taken)
            taken.add(file)
            group.append(Plot(file, f"{title}, {table.title}", draw))
        found.append(tuple(group))
    return found


def _plots(table: Table) -> Iterator[tuple[str, str, Callable[[], Figure]]]:
    """The name, the title and the drawing of each plot."""

    def plainness(row: MethodRow) -> tuple[bool, bool, bool]:  # defaults first, plain, a space
        head = row.first.head
        return bool(head.changed), not head.is_plain, head.space is None

    columns = _plotted_columns(table, table.rows)
    if columns and len(table.rows) > 1:
        yield "methods", "Methods", partial(_methods, table.rows, columns)
    rows = sorted(table.rows, key=plainness)
    found = {row.label: edit_quartiles(row) for row in rows}
    if quartiles := {label: qs for label, qs in found.items() if any(q.share for q in qs)}:
        title = "Changed tokens by base entropy"
        yield "interventions", title, partial(_quartiles, quartiles)
    for judge in table.judges:
        pairs = {
            row.label: [x for cell in row.cells for x in confidences(cell, judge).values()]
            for row in rows
        }
        if curves := {label: known for label, known in pairs.items() if len(known) >= FEWEST}:
            title = f"Reliability by {judge}"
            yield f"reliability-{judge}", title, partial(_reliability, curves)
    for sweep in sweeps_of(table):
        title = f"{sweep.method}: {sweep.name}" + (f"; {sweep.rest}" if sweep.rest else "")
        if columns := _plotted_columns(table, sweep.rows):
            yield f"sweep-{sweep.method}-{sweep.name}", title, partial(_sweep, sweep, columns)


def _plotted_columns(table: Table, rows: Sequence[MethodRow]) -> list[Column]:
    """The few measures of these rows that are plotted, the most important first."""
    known = {id for row in rows for id in row.values}
    columns = [column for column in table.columns if column.id in known]
    return [one for key in _SHOWN for one in columns if one.measure.key == key][:3]


def edit_quartiles(row: MethodRow) -> list[QuartileShare]:
    """How often a method changed the token, by quartile of the model's own entropy."""
    lines = [] if row.is_plain else [line for cell in row.cells for line in cell.answers]
    pairs = [
        (entropy, bool(flag))
        for line in lines
        for entropy, flag in zip(line.entropy, line.flipped, strict=True)
        if entropy is not None
    ]
    return quartile_shares([entropy for entropy, _ in pairs], [flag for _, flag in pairs])


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # draws into memory: no screen, no state shared with pyplot
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _methods(rows: Sequence[MethodRow], columns: Sequence[Column]) -> Figure:
    """A dot and its interval a method; a line marks the plain model."""
    labels = [_text(row.label) for row in rows]
    width = 2.9 * len(columns) + 1.6 + _extra_width(labels)
    figure, panels = _panels(len(columns), width, 1.1 + 0.32 * len(rows))
    for panel, column in zip(panels, columns, strict=True):
        for height, row in enumerate(rows):
            if (value := row.values.get(column.id)) is None:
                continue
            mean, low, high = _scaled(value, column)
            color = _COLORS[0 if row.is_plain else 1]
            if value.low is not None:
                panel.plot([low, high], [height] * 2, color=color)
            panel.plot([mean], [height], "o", color=color, markersize=8 if value.is_best else 5)
            if height == 0 and row.is_plain:
                panel.axvline(mean, color=color, linewidth=0.8, linestyle=":")
        panel.set_title(_name(column))
        panel.set_yticks(range(len(rows)), labels)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.tick_params(labelleft=panel is panels[0])
    return figure


def _quartiles(shares: dict[str, list[QuartileShare]]) -> Figure:
    figure, (panel,) = _panels(1, 6.4, 3.6)
    shown = list(shares.items())[:_CURVES]
    width = 0.8 / len(shown)
    for number, (label, quartiles) in enumerate(shown):
        centers = [x + number * width - 0.4 + width / 2 for x in range(4)]
        heights = [100 * (quartile.share or 0.0) for quartile in quartiles]
        color = _COLORS[number + 1]
        bars = panel.bar(centers, heights, width * 0.92, color=color, label=_text(label))
        if len(shown) <= 2:
            panel.bar_label(bars, fmt="%.1f", padding=2)
    panel.set_xticks(range(4), ["lowest", "second", "third", "highest"])
    panel.set_xlabel("quartile of the model's own entropy")
    panel.set_ylabel("changed tokens, %")
    panel.legend()
    return figure


def _reliability(curves: dict[str, list[tuple[float, bool]]]) -> Figure:
    """How often answers were right against how sure the model was; the dotted line is ideal."""
    figure, (panel,) = _panels(1, 6.6 + _extra_width(map(_text, curves)), 3.9)
    panel.plot([0, 1], [0, 1], ":", color=_INK, linewidth=0.8)
    for color, (label, pairs) in zip(_COLORS[:_CURVES], curves.items(), strict=False):
        sure, right = [x for x, _ in pairs], [is_right for _, is_right in pairs]
        area = auroc(sure, right)
        shown = "none" if area is None else f"{area:.2f}"
        text = f"{_text(label)}: ECE {ece(sure, right):.2f}, AUROC {shown}"
        bins = reliability(sure, right)
        x, y = [b.confidence for b in bins], [b.accuracy for b in bins]
        panel.plot(x, y, color=color, linewidth=1.2)
        panel.scatter(x, y, [12 + 120 * b.n / len(sure) for b in bins], color=color, label=text)
    panel.set(xlim=(0, 1), ylim=(-0.03, 1.03), ylabel="share judged truthful")
    panel.set_xlabel("confidence (geometric mean of the tokens' probabilities)")
    legend = panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
    for handle in legend.legend_handles:
        handle.set_sizes([30])  # type: ignore[union-attr]
    return figure


def _sweep(sweep: Sweep, columns: Sequence[Column]) -> Figure:
    """A measure against what was varied, its interval as a band; the dotted line is plain."""
    figure, panels = _panels(len(columns), 3.1 * len(columns) + 0.4, 3.0)
    is_number = all(isinstance(x, int | float) for x in sweep.values)
    x = list(sweep.values) if is_number else list(range(len(sweep.values)))
    for panel, column in zip(panels, columns, strict=True):
        points = [
            (at, *_scaled(value, column))
            for at, row in zip(x, sweep.rows, strict=True)
            if (value := row.values.get(column.id)) is not None
        ]
        at, means, lows, highs = zip(*points, strict=True)
        panel.fill_between(at, lows, highs, color=_COLORS[1], alpha=0.2, lw=0)
        panel.plot(at, means, "o-", color=_COLORS[1])
        if sweep.plain and (value := sweep.plain.values.get(column.id)):
            mean, name = _scaled(value, column)[0], _text(sweep.plain.method)
            panel.axhline(mean, color=_COLORS[0], linestyle=":", label=name)
            panel.legend()
        panel.set_title(_name(column))
        panel.set_xlabel(_text(sweep.name))
        panel.set_xticks(x, [_text(str(value)) for value in sweep.values])
    return figure


def _scaled(value: Average, column: Column) -> tuple[float, float, float]:
    """A mean and the ends of its interval, or three times the mean without one."""
    scale = 100 if column.measure.is_percent else 1
    low, high = (value.mean if end is None else end for end in (value.low, value.high))
    return scale * value.mean, scale * low, scale * high


def _name(column: Column) -> str:
    judge = f"\n({_text(column.judge)})" if column.judge else ""
    unit = ", %" if column.measure.is_percent and "%" not in column.measure.title else ""
    return f"{column.measure.title}{unit}{judge}"


def _text(text: str) -> str:
    """A label on one line, not too long; matplotlib hides one that begins with "_"."""
    text = one_line(text, 80)
    return f" {text}" if text.startswith("_") else text


def _extra_width(labels: Iterable[str]) -> float:
    """The extra inches that labels of more than 30 characters need."""
    return 0.09 * max(0, max(map(len, labels), default=0) - 30)
