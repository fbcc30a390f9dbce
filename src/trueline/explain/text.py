"""An explanation -> lines for a terminal, as wide as it is, without escape sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rich.cells import cell_len, chop_cells

from trueline.explain.summary import Cited, ExplainedStep, Summary
from trueline.text import counted
from trueline.text import visible_line as safe
from trueline.types import Answer, NearExample, Piece, Signal, TraceStep

if TYPE_CHECKING:
    from trueline.explain import Explanation

    Sourced: TypeAlias = Answer | Piece | Explanation

NOT_COVERED = "not covered by your examples"
SILENT = "covered by your examples, but no token follows them"
WIDTH = 100  # columns, if the caller does not name them
_NARROWEST = 40  # columns that are always taken
_CITED = 5  # examples shown in full
_NEAR = 4  # examples whose scope is shown
_WHY = 4  # signals that are shown for it, and against it


def source_lines(answer: Sourced) -> list[str]:
    """Two lines for each source: its example, and its answer; or one that there is none."""
    return coverage_lines(answer) or [
        line
        for one in answer.sources
        for line in (
            f"{share_text(one.share)} from {one.example}: {one.question}",
            "  " + " ".join([f'"{one.answer}"', *_bracketed(one.source)]),
        )
    ]


def short_source_lines(answer: Sourced) -> list[str]:
    """The same in one line an example."""
    return coverage_lines(answer) or [
        " ".join([f"{share_text(one.share)} from {one.example}", *_bracketed(one.source)])
        for one in answer.sources
    ]


def coverage_lines(answer: Sourced) -> list[str]:
    """One line that says why there is no source; none if the method has no scope.

    An example may be in scope without effect, as with a strength of 0.
    """
    if answer.is_covered is None or answer.sources:
        return []
    return [SILENT if answer.is_covered else NOT_COVERED]


def share_text(share: float) -> str:
    """The part of an answer's tokens that were picked with an example's votes."""
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def _bracketed(source: str) -> list[str]:
    return [f"[{source}]"] if source else []


def as_text(explanation: Explanation, width: int = WIDTH, *, with_signals: bool = False) -> str:
    """The answer, the other one, the changed tokens and the examples cited."""
    width = max(width, _NARROWEST)
    is_scoped = explanation.is_covered is not None
    blocks = (
        _wrapped("", explanation.question, width),
        _answers(explanation, width),
        _sources(explanation, width),
        _scope(explanation.scope or (), width, with_signals),
        _figures(explanation.summary, width),
        _changes(explanation.steps, width),
        () if is_scoped else _cited(explanation.summary, width),  # which the sources show
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
        parts = f"{_quoted(split.text, half)} beside {_quoted(split.beside, half)}"
        yield cut(f"{'':<{margin}}they part at token {split.token}: {parts}", width)


def _sources(explanation: Explanation, width: int) -> Iterator[str]:
    yield from coverage_lines(explanation)
    for one in explanation.sources:
        spoke = f"{share_text(one.share)} of the tokens are from {one.example}"
        yield from _wrapped("", f"{spoke}: {one.question}", width)
        found = f" [{one.source}]" if one.source else ""
        yield from _wrapped("  ", f'"{one.answer}"{found}', width)


def _scope(near: Sequence[NearExample], width: int, with_signals: bool) -> Iterator[str]:
    """The examples near to the question, with reasons for those that count."""
    if not near:
        return
    yield from _wrapped(
        "", "which of your examples are near, and why they are in scope or not:", width
    )
    first_out = next((one for one in near if not one.is_in_scope), None)
    for one in near[:_NEAR]:
        yield from _wrapped("  ", f"{one.example}: {one.question}", width)
        is_told = one.is_in_scope or one is first_out
        yield from _wrapped("    ", scope_sentence(one, with_reasons=is_told), width)
        if with_signals and is_told:
            yield from _signals("for", [s for s in one.signals if s.effect > 0], width)
            yield from _signals("against", [s for s in one.signals if s.effect < 0], width)


def scope_sentence(near: NearExample, *, with_reasons: bool = True) -> str:
    """Whether an example is in scope, and why, in plain words."""
    side, than = ("In scope", "above") if near.is_in_scope else ("Out of scope", "not above")
    parts = [f"{side}: probability {near.probability:.2f}, {than} {near.threshold:.2f}."]
    if with_reasons and near.reasons_for:
        parts.append(f"For: {'; '.join(near.reasons_for)}.")
    if with_reasons and near.reasons_against:
        parts.append(f"Against: {'; '.join(near.reasons_against)}.")
    return " ".join(parts)


def _signals(side: str, signals: Sequence[Signal], width: int) -> Iterator[str]:
    """One line a signal: its effect on the log-odds, its value and what it is."""
    for number, one in enumerate(signals[:_WHY]):
        figures = f"{'' if number else side:<9}{one.effect:+5.1f}  {one.value:5.2f}  "
        yield from _wrapped(f"{'':6}{figures}", one.words, width)


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
    changed = [step for step in steps if step.flipped]
    if not changed:
        return
    head = f"{'token':>5}  {'wanted':<14} {'chosen':<14} {'move':>8} {'hits':>5}  moved most by"
    yield cut(head, width)
    for step in changed:
        best = max(step.neighbors, key=lambda neighbor: neighbor.push, default=None)
        by = safe(best.example) if best else "no example"
        line = (
            f"{step.number:>5}  {_padded(_quoted(step.wanted, 14), 14)} "
            f"{_padded(_quoted(step.text, 14), 14)} {step.move:>+z8.2f} {step.hits:>5}  {by}"
        )
        if best is not None:  # how near it was, where there is room to say it
            near = f" ({best.nearness} {best.similarity:.2f}, push {best.push:+z.2f})"
            line += near if cell_len(line + near) <= width else ""
        yield cut(line, width)


def _cited(summary: Summary, width: int) -> Iterator[str]:
    if not summary.cited:
        return
    yield f"{'weight':>6} {'tokens':>6} {'push':>7}  examples cited"
    for cited in summary.cited[:_CITED]:
        yield from _example(cited, width)
    if (left := len(summary.cited) - _CITED) > 0:
        yield f"{'':>23}and {left} more: see the JSON or the page"
    if summary.weight_on_record < 0.995:
        yield (
            f"(a trace keeps the strongest neighbors of each token: here "
            f"{_percent(summary.weight_on_record)} of all weight)"
        )


def _example(cited: Cited, width: int) -> Iterator[str]:
    figures = f"{cited.weight:>6.2f} {cited.steps:>6} {cited.push:>+z7.2f}"
    yield cut(f"{figures}  {safe(cited.example)}: {safe(cited.question)}", width)
    for answer in cited.answers:
        said = f"wrong: {safe(answer)}" if cited.is_wrong else safe(answer)
        yield cut(f"{'':>23}{said}", width)
    if cited.source:
        yield cut(f"{'':>23}[{safe(cited.source)}", width - 1) + "]"


def _quoted(text: str, width: int) -> str:
    return f"'{cut(safe(text), width - 2)}'"


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def cut(text: str, width: int) -> str:
    """As much of a text as fits."""
    if cell_len(text) <= width:
        return text
    return _fitting(text, width - 3).rstrip() + "..."


def _fitting(text: str, width: int) -> str:
    return chop_cells(text, width)[0] if text else ""


def _wrapped(head: str, text: str, width: int) -> Iterator[str]:
    """A text in lines next to its head; a word too long for a line is split."""
    room = width - cell_len(head)
    line = ""
    for word in safe(" ".join(text.split())).split(" "):
        if line and cell_len(f"{line} {word}") > room:
            yield head + line
            head, line = " " * cell_len(head), ""
        line = f"{line} {word}" if line else word
        while cell_len(line) > room:
            part = _fitting(line, room)
            yield head + part
            head, line = " " * cell_len(head), line[len(part) :]
    yield head + line


def moves(trace: Sequence[TraceStep] | None) -> list[str]:
    """A line for each changed token: what it was, and the example that pushed most."""
    lines = []
    for number, step in enumerate(trace or (), 1):
        if step.flipped and step.neighbors:
            best = max(step.neighbors, key=lambda neighbor: neighbor.push)
            unit = "hit" if best.nearness == "cosine" else "vote"
            lines.append(
                f"token {number}: {step.base[0].text!r} became {step.text!r}, moved by "
                f"{best.example} ({best.question} {best.nearness} {best.similarity:.2f}, "
                f"{best.push:+.2f}; {counted(step.hits, unit)})"
            )
    return lines
