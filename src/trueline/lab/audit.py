"""A run of one method -> a verdict in words: what it changes, and if its evidence is why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from trueline.errors import SettingError
from trueline.lab.findings import agreement_notes, can_gain, effect_of
from trueline.lab.measures import Average, Column, average
from trueline.lab.report.tables import (
    DASH,
    Document,
    Grid,
    GridText,
    MethodRow,
    Section,
    Table,
    grids_of,
    number,
    tables_of,
)
from trueline.lab.results import RunResults
from trueline.methods import PLAIN

Finding = Literal[
    "nothing", "unmeasured", "worse", "none", "no controls", "shared", "unclear", "effect"
]
Gains = Mapping[str, Mapping[str, float]]  # by label, then by column
FIRST = 4  # steps, in which the manner of an answer is decided
# The verdict is about the first of these that was measured.
_VERDICT_ON = ("truth_info", "truth", "hallucination", "mc2", "rouge_accuracy", "rouge_l")


@dataclass(frozen=True, slots=True)
class Changes:
    """What a method, or one of its controls, changed in the plain model's answers."""

    answers: int
    changed: int  # answers that differ from the plain model's in a token
    tokens: int
    flipped: int  # tokens that are not the model's own first choice
    flipped_first: int  # of these, those in the first steps
    with_hits: int  # tokens for which there was evidence
    entropy_flipped: float | None  # of the model, at the steps that were changed, in nats
    entropy_kept: float | None  # and at those that were not
    speed: float | None  # tokens a second, as a multiple of the plain model's


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdict on a method with one model on one benchmark."""

    label: str
    table: str
    finding: Finding
    column: str | None  # that the verdict is about
    sentence: str
    changes: Mapping[str, Changes]  # by label: of the method, then of its controls
    gains: Gains  # the same: differences from the plain model


def audits_of(results: RunResults, method: str) -> tuple[Document, list[Audit]]:
    """The verdicts on a method in a run, and a page that begins with them."""
    audits, sections = [], []
    for table in tables_of(results):
        plain = next((row for row in table.rows if row.is_plain), None)
        for row in table.rows:
            if plain is not None and row.method == method:
                audit = _audit(table, row, plain)
                audits.append(audit)
                notes = tuple(agreement_notes(table.cells))
                grids = (_changes_grid(audit), *grids_of(table))
                sections.append(Section(f"{row.label}, {table.title}", (), grids, notes=notes))
    if not audits:
        raise SettingError(f"{results.folder} has no answers of {method} and {PLAIN}")
    lead = tuple(f"{one.label}, {one.table}: {one.sentence}" for one in audits)
    return Document(f"Audit of {method}", lead, tuple(sections)), audits


def _audit(table: Table, row: MethodRow, plain: MethodRow) -> Audit:
    rows = (row, *table.controls_of(row))
    changes = {one.label: _changes(one, plain) for one in rows}
    gains: dict[str, dict[str, float]] = {}
    for one in rows:
        for column in filter(can_gain, table.columns):
            value = average(one.cells, column, plain.cells)
            if value is not None and value.difference is not None:
                gains.setdefault(one.label, {})[column.id] = value.difference.mean
    about, finding, sentence = _finding(table, row, plain, changes[row.label], gains)
    return Audit(row.label, table.title, finding, about, f"{sentence}.", changes, gains)


def _finding(
    table: Table, row: MethodRow, plain: MethodRow, own: Changes, gains: Gains
) -> tuple[str | None, Finding, str]:
    """What the verdict is about, the verdict, and the same in words."""
    measured = [x for x in table.columns if x.id in gains.get(row.label, {})]
    column = next((x for key in _VERDICT_ON for x in measured if x.measure.key == key), None)
    failed = [line for cell in row.cells for line in cell.failed]
    if failed and not own.answers:
        text = f"every sample failed; the first one: {failed[0].reason}"
        return None, "unmeasured", text
    if not own.changed:
        text = f"it does nothing; all {own.answers} answers are {PLAIN}'s, token for token"
        return None, "nothing", text
    if column is None:
        return None, "unmeasured", "its effect is not measured: no judge, and no reference"
    controls = {one.control: one.cells for one in table.controls_of(row)}
    finding, text = _verdict(row.values[column.id], column)
    if effect := effect_of(row.cells, plain.cells, controls, column):
        return column.id, effect.finding, f"{text}; it is {effect.in_words(column)}"
    if finding == "no controls":
        text += "; there is no control, since it has no examples to exchange"
    return column.id, finding, text


def _verdict(value: Average, column: Column) -> tuple[Finding, str]:
    """What the difference from the plain model alone shows."""
    change, better = value.difference, column.measure.better
    assert change is not None
    ends = (change.mean, change.low, change.high)
    mean, low, high = (number(x, column, sign=True) for x in ends)
    text = f"{column.id} against {PLAIN}: {mean} [{low}, {high}] on {change.n} answers"
    worst, best = sorted((better * change.low, better * change.high))
    if best < 0:
        return "worse", f"it does harm; {text}"
    if worst <= 0:
        return "none", f"no effect that can be told from chance; {text}"
    return "no controls", f"a gain beyond chance; {text}"


def _changes(row: MethodRow, plain: MethodRow) -> Changes:
    base = {line.sample: line for line in plain.first.answers}
    lines = [line for line in row.first.answers if line.sample in base]
    steps = [
        (place, flipped == 1, hits > 0, entropy)
        for line in lines
        for place, (flipped, hits, entropy) in enumerate(
            zip(line.flipped, line.hits, line.entropy, strict=True)
        )
    ]
    at_flips = [x for _, flipped, _, x in steps if flipped and x is not None]
    elsewhere = [x for _, flipped, _, x in steps if not flipped and x is not None]
    ours, theirs = row.values.get("speed"), plain.values.get("speed")
    return Changes(
        answers=len(lines),
        changed=sum(line.token_hash != base[line.sample].token_hash for line in lines),
        tokens=len(steps),
        flipped=sum(flipped for _, flipped, _, _ in steps),
        flipped_first=sum(flipped for place, flipped, _, _ in steps if place < FIRST),
        with_hits=sum(has_hits for _, _, has_hits, _ in steps),
        entropy_flipped=mean(at_flips) if at_flips else None,
        entropy_kept=mean(elsewhere) if elsewhere else None,
        speed=ours.mean / theirs.mean if ours and theirs else None,
    )


def _changes_grid(audit: Audit) -> Grid:
    def share(part: int, whole: int) -> str:
        return f"{100 * part / whole:.1f}" if whole else DASH

    def digits(value: float | None) -> str:
        return DASH if value is None else f"{value:.2f}"

    head = (
        "variant",
        "answers changed, %",
        "tokens changed, %",
        f"of these in the first {FIRST}, %",
        "tokens with evidence, %",
        "entropy where changed",
        "elsewhere",
        f"speed / {PLAIN}",
    )
    rows = []
    for label, one in audit.changes.items():
        texts = (
            label,
            share(one.changed, one.answers),
            share(one.flipped, one.tokens),
            share(one.flipped_first, one.flipped),
            share(one.with_hits, one.tokens),
            digits(one.entropy_flipped),
            digits(one.entropy_kept),
            digits(one.speed),
        )
        rows.append(tuple(map(GridText, texts)))
    return Grid("What it changes", head, tuple(rows))
