"""Cells of a method, its controls and the plain model -> whether a gain comes from examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trueline.evaluation.averages import difference_from
from trueline.evaluation.measures import Column, columns_of
from trueline.evaluation.outcomes import CellResults
from trueline.evaluation.statistics import Difference

NOT_AN_EFFECT = "not an effect of the examples"
Finding = Literal["effect", "shared", "unclear"]
Cells = Sequence[CellResults]
_SHARE = 0.5  # of a gain: a control that has so much of it, and is not beaten, shares it


@dataclass(frozen=True, slots=True)
class Effect:
    """What controls say of a gain over the plain model, in the unit of its column.

    `effect`: the gain is beyond chance, and so is the lead over every control. `shared`: a
    control gains at least half as much, and the lead over it is not beyond chance. `unclear`:
    the gain is beyond chance, and the lead over some control is not.
    """

    finding: Finding
    gain: float  # above 0, whichever way the column is better
    controls: Mapping[str, float]  # the gains of those that are not beaten, by name; or of all

    def in_words(self, column: Column) -> str:
        """As tables and notes print it."""
        scale = 100 if column.measure.is_percent else 1
        digits = column.measure.digits
        listed = ", ".join(f"{n} {scale * x:+.{digits}f}" for n, x in self.controls.items())
        if self.finding == "shared":
            return f"{NOT_AN_EFFECT}: {listed}"
        if self.finding == "unclear":
            return f"not told apart from its controls: {listed}"
        return "ahead of every control"


def effect_of(
    ours: Cells, plain: Cells, controls: Mapping[str, Cells], column: Column
) -> Effect | None:
    """What the controls say of a gain; None where there is none, or nothing to compare with."""
    leads = {
        name: lead
        for name, cells in controls.items()
        if (lead := difference_from(cells, ours, column)) is not None
    }
    if not leads or (change := difference_from(plain, ours, column)) is None:
        return None
    return judge_gain(change, leads, column.measure.better)


def judge_gain(
    change: Difference, leads: Mapping[str, Difference], better: int
) -> Effect | None:
    """The verdict on a difference from the plain model, given those from the controls."""
    gain = better * change.mean
    if gain <= 0:
        return None
    gains = {name: gain - better * lead.mean for name, lead in leads.items()}
    beaten = {name for name, lead in leads.items() if _is_ahead(lead, better)}
    unbeaten = {name: x for name, x in gains.items() if name not in beaten}
    sharing = {name: x for name, x in unbeaten.items() if x >= _SHARE * gain}
    if sharing:
        return Effect("shared", gain, sharing)
    if not _is_ahead(change, better):
        return None
    return Effect("unclear", gain, unbeaten) if unbeaten else Effect("effect", gain, gains)


def effect_notes(cells: Cells) -> list[str]:
    """What the controls of a run say, a sentence for every gain, and where none were run."""
    plain, controls, grounded = _sorted_out(cells)
    notes = []
    for group in grounded.values():
        own = controls.get(group[0].experiment, {})
        base = plain.get(_setting(group[0]), [])
        if not own or not base:
            notes.append(f"{group[0].description}: {WITHOUT}")
            continue
        for column in judged_columns(group):
            found = effect_of(group, base, own, column)
            if found is not None:
                scale = 100 if column.measure.is_percent else 1
                notes.append(
                    f"{group[0].description}: {column.id} is {scale * found.gain:.1f} better "
                    f"than the plain model, {found.in_words(column)}"
                )
    return notes


WITHOUT = (
    "no controls were run, so whatever it gains may not be an effect of the examples; leave "
    "out --no-controls, or name a swept value as a variant"
)


def needs_controls(cell: CellResults) -> bool:
    """Whether what a cell gains needs controls: it has a space, and is no control itself."""
    head = cell.head
    return head.space is not None and head.control is None and not head.is_instead


def judged_columns(cells: Cells) -> list[Column]:
    """The columns in which a method can gain."""
    found = columns_of(cells)
    return [x for x in found if x.measure.better and x.measure.group != "Behaviour"]


def _sorted_out(
    cells: Cells,
) -> tuple[
    dict[str, list[CellResults]],
    dict[str, dict[str, list[CellResults]]],
    dict[str, list[CellResults]],
]:
    """Plain cells by setting; controls by experiment and name; grounded ones by experiment."""
    plain: dict[str, list[CellResults]] = {}
    controls: dict[str, dict[str, list[CellResults]]] = {}
    grounded: dict[str, list[CellResults]] = {}
    for cell in cells:
        if cell.head.control is not None:
            named = controls.setdefault(cell.experiment, {})
            named.setdefault(cell.head.control, []).append(cell)
        elif cell.head.is_plain:
            plain.setdefault(_setting(cell), []).append(cell)
        elif needs_controls(cell):
            grounded.setdefault(cell.experiment, []).append(cell)
    return plain, controls, grounded


def _setting(cell: CellResults) -> str:
    """Where a cell was run, whatever the method."""
    names = "model fingerprint dtype benchmark test task temperature max_new_tokens stop"
    return repr([getattr(cell.head, name) for name in names.split()])


def _is_ahead(difference: Difference, better: int) -> bool:
    """Whether a difference lies on the better side of 0 with its whole interval."""
    return (difference.low if better > 0 else -difference.high) > 0
