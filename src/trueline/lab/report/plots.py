"""Tables -> plots as SVG text or PNG bytes, drawn by matplotlib without a screen."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trueline.errors import MissingExtraError
from trueline.lab.measures import Column, confidences
from trueline.lab.metrics import QuartileShare, auroc, ece, quartile_shares, reliability
from trueline.lab.report.tables import MARK, MethodRow, Sweep, Table
from trueline.text import visible_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Draw = Callable[[], "Figure"]
Plot = tuple[str, str, Draw]  # its name, its title, and how it is drawn
_INK = "#24292f"  # in a page it becomes the color of the surrounding text
_COLORS = ("#6b7280", "#0f8f6c", "#d9730d", "#3b7dd8", "#b04fb3", "#b8860b", "#c0392b")
_SHOWN = ("truth_info", "hallucination", "truth", "info", "rouge_l", "mc1", "mc2")
_PANELS = 3  # measures side by side
_LONGEST = 80  # characters of a label
_USUAL = 30  # characters that have room anyway
FEWEST = 30  # samples of a reliability curve: below, its points are of a few answers each
_CURVES = 4  # methods in one diagram, so that it can be read


def plots_of(table: Table, sweeps: Sequence[Sweep]) -> list[Plot]:
    """Every plot a table has the numbers for."""
    what, plots = table.title, list[Plot]()
    columns = shown_columns(table, table.rows)
    if columns and len(table.rows) > 1:
        plots.append(("methods", f"Methods, {what}", partial(_methods, table.rows, columns)))
    # Methods with their defaults first, plain before the others, then grounded ones.
    ordered = sorted(
        table.rows,
        key=lambda x: (not x.has_default_settings, not x.is_plain, x.first.head.space is None),
    )
    found = {row.label: edit_quartiles(row) for row in ordered}
    quartiles = {label: qs for label, qs in found.items() if any(q.share for q in qs)}
    if quartiles:
        title = f"Changed tokens by base entropy, {what}"
        plots.append(("interventions", title, partial(_quartiles, quartiles)))
    for judge in dict.fromkeys(column.judge for column in table.columns if column.judge):
        pairs = {row.label: _confidences(row, judge) for row in ordered}
        curves = {label: pair for label, pair in pairs.items() if len(pair[0]) >= FEWEST}
        if curves:
            title = f"Reliability by {judge}, {what}"
            plots.append((f"reliability-{judge}", title, partial(_reliability, curves)))
    for sweep in sweeps:
        title = f"{sweep.method}: {sweep.name}, {what}"
        title += f"; {sweep.rest}" if sweep.rest else ""
        name = f"sweep-{sweep.method}-{sweep.name}"
        if varied := shown_columns(table, sweep.rows):
            plots.append((name, title, partial(_sweep, sweep, varied)))
    return plots


def as_svg(draw: Draw, name: str) -> str:
    """A plot as SVG; the same plot and name give the same text."""
    return _saved(draw, "svg", name).decode("utf-8")


def inline_svg(svg: str) -> str:
    """An SVG for a page: without its XML head, in the color of the surrounding text."""
    return svg[svg.index("<svg") :].replace(_INK, "currentColor")


def as_png(draw: Draw, name: str) -> bytes:
    return _saved(draw, "png", name)


def shown_columns(table: Table, rows: Sequence[MethodRow]) -> list[Column]:
    """The few measures of these rows that are plotted, the most important first."""
    known = {id for row in rows for id in row.values}
    columns = [column for column in table.columns if column.id in known]
    return [one for key in _SHOWN for one in columns if one.measure.key == key][:_PANELS]


def edit_quartiles(row: MethodRow) -> list[QuartileShare]:
    """How often a method changed the token, by quartile of the model's own entropy."""
    pairs = [
        (entropy, bool(flag))
        for cell in row.cells
        for line in cell.answers
        for entropy, flag in zip(line.entropy, line.flipped, strict=True)
        if entropy is not None
    ]
    if row.is_plain or not pairs:
        return []
    return quartile_shares([entropy for entropy, _ in pairs], [flag for _, flag in pairs])


def _confidences(row: MethodRow, judge: str) -> tuple[list[float], list[bool]]:
    pairs = [pair for cell in row.cells for pair in confidences(cell, judge).values()]
    return [sure for sure, _ in pairs], [is_right for _, is_right in pairs]


def _saved(draw: Draw, kind: str, name: str) -> bytes:
    matplotlib = _matplotlib()
    style = {
        "svg.fonttype": "none",
        "text.parse_math": False,  # a dollar in a name is a dollar
        "svg.hashsalt": name,  # the same plot gives the same bytes
        "font.size": 10,
        "font.family": ["DejaVu Sans"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "legend.frameon": False,
        **{
            f"{part}color": _INK
            for part in ("text.", "axes.edge", "axes.label", "xtick.", "ytick.", "axes.title")
        },
    }
    out = io.BytesIO()
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # A sign that the font lacks is drawn as a box, without a line for each.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = draw()
        is_svg = kind == "svg"
        figure.savefig(
            out,
            format=kind,
            dpi=150,
            transparent=is_svg,
            metadata={"Date": None, "Creator": MARK} if is_svg else {"Software": MARK},
        )
    return out.getvalue()


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError(
            "plots need matplotlib; install trueline[eval], or leave them out with --plots none"
        ) from error
    return matplotlib


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # draws into memory: no screen, no state shared with pyplot
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _methods(rows: Sequence[MethodRow], columns: Sequence[Column]) -> Figure:
    """A dot and its interval a method; a line marks the plain model."""
    labels = [_text(row.label) for row in rows]
    width = 2.9 * len(columns) + 1.6 + _room(labels)
    figure, panels = _panels(len(columns), width, 1.1 + 0.32 * len(rows))
    for panel, column in zip(panels, columns, strict=True):
        for height, row in enumerate(rows):
            if (value := row.values.get(column.id)) is None:
                continue
            scale = 100 if column.measure.is_percent else 1
            color = _COLORS[0 if row.is_plain else 1]
            mean = scale * value.mean
            if value.low is not None and value.high is not None:
                panel.plot([scale * value.low, scale * value.high], [height] * 2, color=color)
            panel.plot([mean], [height], "o", color=color, markersize=8 if value.is_best else 5)
            if height == 0 and row.is_plain:
                panel.axvline(mean, color=color, linewidth=0.8, linestyle=":")
        panel.set_title(_name(column))
        panel.set_yticks(range(len(rows)), labels)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.tick_params(labelleft=panel is panels[0])
    return figure


def _name(column: Column) -> str:
    judge = f"\n({_text(column.judge)})" if column.judge else ""
    unit = ", %" if column.measure.is_percent and "%" not in column.measure.title else ""
    return f"{column.measure.title}{unit}{judge}"


def _quartiles(shares: dict[str, list[QuartileShare]]) -> Figure:
    figure, (panel,) = _panels(1, 6.4, 3.6)
    shown = list(shares.items())[:_CURVES]
    width = 0.8 / len(shown)
    for number, (label, quartiles) in enumerate(shown):
        centers = [x + number * width - 0.4 + width / 2 for x in range(4)]
        heights = [100 * (quartile.share or 0.0) for quartile in quartiles]
        color, name = _color(number + 1), _text(label)
        bars = panel.bar(centers, heights, width * 0.92, color=color, label=name)
        if len(shown) <= 2:
            panel.bar_label(bars, fmt="%.1f", padding=2)
    panel.set_xticks(range(4), ["lowest", "second", "third", "highest"])
    panel.set_xlabel("quartile of the model's own entropy")
    panel.set_ylabel("changed tokens, %")
    panel.legend()
    return figure


def _reliability(curves: dict[str, tuple[list[float], list[bool]]]) -> Figure:
    """How often answers were right against how sure the model was; the dotted line is ideal."""
    figure, (panel,) = _panels(1, 6.6 + _room(map(_text, curves)), 3.9)
    panel.plot([0, 1], [0, 1], ":", color=_INK, linewidth=0.8)
    for number, (label, (sure, right)) in enumerate(list(curves.items())[:_CURVES]):
        bins = reliability(sure, right)
        area, gap = auroc(sure, right), ece(sure, right)
        shown = "none" if area is None else f"{area:.2f}"
        text = f"{_text(label)}: ECE {gap:.2f}, AUROC {shown}"
        x, y = [b.confidence for b in bins], [b.accuracy for b in bins]
        sizes = [12 + 120 * b.n / len(sure) for b in bins]
        panel.plot(x, y, color=_color(number), linewidth=1.2)
        panel.scatter(x, y, sizes, color=_color(number), label=text)
    panel.set_xlabel("confidence (geometric mean of the tokens' probabilities)")
    panel.set_ylabel("share judged truthful")
    panel.set_xlim(0, 1)
    panel.set_ylim(-0.03, 1.03)
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
        scale = 100 if column.measure.is_percent else 1
        points = [
            (at, value)
            for at, row in zip(x, sweep.rows, strict=True)
            if (value := row.values.get(column.id)) is not None
        ]
        places = [at for at, _ in points]
        lows, highs = (
            [scale * (v.mean if (e := getattr(v, end)) is None else e) for _, v in points]
            for end in ("low", "high")
        )
        panel.fill_between(places, lows, highs, color=_color(1), alpha=0.2, lw=0)
        panel.plot(places, [scale * v.mean for _, v in points], "o-", color=_color(1))
        if sweep.plain and (value := sweep.plain.values.get(column.id)):
            mean, name = scale * value.mean, _text(sweep.plain.method)
            panel.axhline(mean, color=_COLORS[0], linestyle=":", label=name)
            panel.legend()
        panel.set_title(_name(column))
        panel.set_xlabel(_text(sweep.name))
        panel.set_xticks(x, [_text(str(value)) for value in sweep.values])
    return figure


def _text(text: str) -> str:
    """A label on one line, not too long; matplotlib hides one that begins with "_"."""
    text = visible_line(" ".join(text.split()))
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return f" {text}" if text.startswith("_") else text


def _room(labels: Iterable[str]) -> float:
    """The extra inches that long labels need."""
    return 0.09 * max(0, max(map(len, labels), default=0) - _USUAL)


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]
