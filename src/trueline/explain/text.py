"""An explanation -> lines for a terminal, as wide as it is, without escape sequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from rich.cells import cell_len, chop_cells, set_cell_size

from trueline.text import counted
from trueline.text import visible_line as safe
from trueline.types import Answer, NearExample, Neighbor, Piece, TraceStep

if TYPE_CHECKING:
    from trueline.explain import ExplainedStep, Explanation, Summary

    Sourced: TypeAlias = Answer | Piece | Explanation

WIDTH = 100  # columns, if the caller does not name them
_NARROWEST = 40  # columns that are always used
REPEATS = "the answer repeats itself"
_CITED = 5  # examples shown in full
_NEAR = 4  # examples whose scope is shown
_SIGNALS = 4  # that are shown for it, and against it


def source_lines(answer: Sourced, *, is_short: bool = False) -> list[str]:
    """Two lines for each source: its example, and its answer; one line if `is_short`."""
    lines = coverage_lines(answer)
    for one in answer.sources:
        share = f"{one.share:.0%}" if one.share >= 0.005 else "<1%"
        source = f" [{one.source}]" if one.source else ""
        if is_short:
            lines.append(f"{share} from {one.example}{source}")
        else:
            lines += [
                f"{share} from {one.example}: {one.question}",
                f'  "{one.answer}"{source}',
            ]
    return lines


def coverage_lines(answer: Sourced) -> list[str]:
    """One line that says why there is no source; none if the method has no scope.

    An example may be in scope without effect, as with a strength of 0.
    """
    if answer.is_covered is None or answer.sources:
        return []
    if answer.is_covered:
        return ["covered by your examples, but no token follows them"]
    return ["not covered by your examples"]


def as_text(explanation: Explanation, width: int = WIDTH, *, with_signals: bool = False) -> str:
    """The answer, the other one, the sources, the scope and the changed tokens."""
    width, summary = max(width, _NARROWEST), explanation.summary
    has_scope = explanation.is_covered is not None
    sources = source_lines(explanation)
    blocks: tuple[Iterable[str], ...] = (
        _wrapped("", explanation.question, width),
        _answers(explanation, width),
        chain(*(_wrapped("  " * x.startswith("  "), x, width) for x in sources)),
        _scope(explanation.scope or (), width, with_signals),
        _figures(summary, width),
        _changes(explanation.steps, width),
        _windows(explanation.steps, width),
        () if has_scope else _cited(summary, width),  # which the sources show
    )
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := list(block)))


def _answers(explanation: Explanation, width: int) -> Iterator[str]:
    beside, split = explanation.beside, explanation.summary.divergence
    names = [safe(one.method) for one in (explanation, beside) if one is not None]
    margin = max(map(len, names)) + 2
    yield from _wrapped(f"{names[0]:<{margin}}", explanation.answer, width)
    if beside is None:
        return
    yield from _wrapped(f"{names[1]:<{margin}}", beside.answer, width)
    if split is None:
        yield " " * margin + "the same, token for token"
    else:
        half = max(8, (width - margin - 38) // 2)
        parts = f"{_quoted(split.text, half)} and {_quoted(split.beside, half)}"
        yield _shortened(f"{'':<{margin}}they differ from token {split.token}: {parts}", width)


def _scope(near: Sequence[NearExample], width: int, with_signals: bool) -> Iterator[str]:
    """The examples near to the question, with reasons for those that count."""
    if near:
        head = "which of your examples are near, and why they are in scope or not:"
        yield from _wrapped("", head, width)
    first_out = next((one for one in near if not one.is_in_scope), None)
    for one in near[:_NEAR]:
        has_reasons = one.is_in_scope or one is first_out
        side, than = ("In scope", "above") if one.is_in_scope else ("Out of scope", "not above")
        why = f"{side}: probability {one.probability:.2f}, {than} {one.threshold:.2f}."
        for name, reasons in (("For", one.reasons_for), ("Against", one.reasons_against)):
            if has_reasons and reasons:
                why += f" {name}: {'; '.join(reasons)}."
        yield from _wrapped("  ", f"{one.example}: {one.question}", width)
        yield from _wrapped("    ", why, width)
        for name, sign in (("for", 1), ("against", -1)) if with_signals and has_reasons else ():
            found = [signal for signal in one.signals if signal.effect * sign > 0]
            for signal in found[:_SIGNALS]:
                figures = f"{name:<9}{signal.effect:+5.1f}  {signal.value:5.2f}  "
                yield from _wrapped(f"      {figures}", signal.words, width)
                name = ""


def _figures(summary: Summary, width: int) -> Iterator[str]:
    grounded, changed = _percent(summary.grounded_share), _percent(summary.flipped_share)
    line = (
        f"{counted(summary.tokens, 'token')}: {summary.grounded} grounded ({grounded}), "
        f"{summary.flips} changed ({changed}); mean entropy {summary.mean_entropy:.2f} nats"
    )
    parts = ", ".join(f"{one.flips} of {one.steps}" for one in summary.quartiles)
    yield from _wrapped("", line, width)
    yield from _wrapped("", f"changed by entropy quartile, surest first: {parts}", width)


def _percent(share: float) -> str:
    return f"{int(100 * share + 0.5)}%"  # halves up, as the page has it


def _changes(steps: Sequence[ExplainedStep], width: int) -> Iterator[str]:
    """One line a changed token, with the example that pushed it most."""
    head = f"{'token':>5}  {'wanted':<14} {'chosen':<14} {'move':>8} {'hits':>5}  moved most by"
    flipped = [step for step in steps if step.flipped]
    if flipped:
        yield _shortened(head, width)
    for step in flipped:
        both = (step.wanted, step.text)
        wanted, chosen = (set_cell_size(_quoted(one, 14), 14) for one in both)
        line = f"{step.number:>5}  {wanted} {chosen} {step.move:>+z8.2f} {step.hits:>5}  "
        if (best := _strongest(step.neighbors)) is None:
            line += "no example"
        else:
            line += safe(best.example)
            near = f" ({best.nearness} {best.similarity:.2f}, push {best.push:+z.2f})"
            line += near if cell_len(line + near) <= width else ""
        yield _shortened(line, width)


def _windows(steps: Sequence[ExplainedStep], width: int) -> Iterator[str]:
    """One line a step: the window that was looked up, and how many entries were near to it."""
    if any(step.window for step in steps):
        yield _shortened(f"{'token':>5}  {'chosen':<14} {'hits':>5}  window", width)
    for step in (one for one in steps if one.window):
        chosen = set_cell_size(_quoted(step.text, 14), 14)
        line = f"{step.number:>5}  {chosen} {step.hits:>5}  {_quoted(step.window, width)}"
        yield _shortened(line, width)


def _strongest(neighbors: Sequence[Neighbor]) -> Neighbor | None:
    return max(neighbors, key=lambda neighbor: neighbor.push, default=None)


def _cited(summary: Summary, width: int) -> Iterator[str]:
    if not summary.cited:
        return
    yield f"{'weight':>6} {'tokens':>6} {'push':>7}  examples cited"
    margin = " " * 23
    for one in summary.cited[:_CITED]:
        figures = f"{one.weight:>6.2f} {one.steps:>6} {one.push:>+z7.2f}"
        yield _shortened(f"{figures}  {safe(one.example)}: {safe(one.question)}", width)
        kind = "wrong: " if one.is_wrong else ""
        for answer in one.answers:
            yield _shortened(f"{margin}{kind}{safe(answer)}", width)
        if one.source:
            yield _shortened(f"{margin}[{safe(one.source)}", width - 1) + "]"
    if (left := len(summary.cited) - _CITED) > 0:
        yield f"{margin}and {left} more: see the JSON or the page"
    if summary.weight_on_record < 0.995:
        recorded = _percent(summary.weight_on_record)
        yield f"(the trace has the strongest neighbors of each token: {recorded} of all weight)"


def moves(trace: Sequence[TraceStep] | None) -> list[str]:
    """A line for each changed token: what it was, and the example that pushed most."""
    lines = []
    for number, step in enumerate(trace or (), 1):
        if step.flipped and (best := _strongest(step.neighbors)):
            unit = "hit" if best.nearness == "cosine" else "vote"
            lines.append(
                f"token {number}: {step.base[0].text!r} became {step.text!r}, moved by "
                f"{best.example} ({best.question} {best.nearness} {best.similarity:.2f}, "
                f"{best.push:+.2f}; {counted(step.hits, unit)})"
            )
    return lines


def _quoted(text: str, width: int) -> str:
    return f"'{_shortened(safe(text), width - 2)}'"


def _shortened(text: str, width: int) -> str:
    """As much of a text as fits."""
    if cell_len(text) <= width:
        return text
    return chop_cells(text, width - 3)[0].rstrip() + "..."


def _wrapped(head: str, text: str, width: int) -> Iterator[str]:
    """A text in lines next to its head; a word too long for a line is split."""
    room, lines = width - cell_len(head), [""]
    for word in safe(" ".join(text.split())).split(" "):
        if lines[-1] and cell_len(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines[-1:] = [*filter(None, lines[-1:]), *(chop_cells(word, room) or [""])]
    for line in lines:
        yield head + line
        head = " " * cell_len(head)
