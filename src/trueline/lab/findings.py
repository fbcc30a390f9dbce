"""Cells -> what controls say of a gain, and what makes cells incomparable, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trueline.lab.measures import (
    Column,
    columns_of,
    difference_from,
    measured_agreement,
    rules_used,
)
from trueline.lab.results import CellResults
from trueline.lab.statistics import Difference

NOT_AN_EFFECT = "not an effect of the examples"
WITHOUT = (
    "no controls were run, so whatever it gains may not be an effect of the examples; leave "
    "out --no-controls, or name a swept value as a variant"
)
Finding = Literal["effect", "shared", "unclear"]
Cells = Sequence[CellResults]
_SHARE = 0.5  # of a gain: a control that has so much of it, and is not beaten, shares it
_COMPARED = "model fingerprint dtype benchmark test task temperature seed".split()
_SETTING = "model fingerprint dtype benchmark test task temperature max_new_tokens stop".split()


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
    groups: dict[str, list[CellResults]] = {}  # of cells that need controls, by experiment
    controls: dict[str, dict[str, list[CellResults]]] = {}  # by experiment and name
    plain: dict[str, list[CellResults]] = {}  # by setting
    for cell in cells:
        if cell.head.control is not None:
            named = controls.setdefault(cell.experiment, {})
            named.setdefault(cell.head.control, []).append(cell)
        elif cell.head.is_plain:
            plain.setdefault(_setting(cell), []).append(cell)
        elif needs_controls(cell):
            groups.setdefault(cell.experiment, []).append(cell)
    notes = []
    for experiment, group in groups.items():
        own, base = controls.get(experiment, {}), plain.get(_setting(group[0]), [])
        if not own or not base:
            notes.append(f"{group[0].description}: {WITHOUT}")
            continue
        notes += _gains(group, base, own)
    return notes


def _gains(group: Cells, plain: Cells, controls: Mapping[str, Cells]) -> list[str]:
    notes = []
    for column in judged_columns(group):
        if (found := effect_of(group, plain, controls, column)) is not None:
            scale = 100 if column.measure.is_percent else 1
            notes.append(
                f"{group[0].description}: {column.id} is {scale * found.gain:.1f} better "
                f"than the plain model, {found.in_words(column)}"
            )
    return notes


def needs_controls(cell: CellResults) -> bool:
    """Whether what a cell gains needs controls: it has a space, and is no control itself."""
    head = cell.head
    return head.space is not None and head.control is None and not head.is_instead


def judged_columns(cells: Cells) -> list[Column]:
    """The columns in which a method can gain."""
    found = columns_of(cells)
    return [x for x in found if x.measure.better and x.measure.group != "Behaviour"]


def _setting(cell: CellResults) -> str:
    """A name of where a cell was run, whatever the method."""
    return repr([getattr(cell.head, name) for name in _SETTING])


def _is_ahead(difference: Difference, better: int) -> bool:
    """Whether a difference lies on the better side of 0 with its whole interval."""
    return (difference.low if better > 0 else -difference.high) > 0


def warnings(cells: Sequence[CellResults]) -> list[str]:
    """What a reader must know before these cells are compared."""
    found = []
    for cell in cells:
        found += _failures(cell) + _cut_off(cell) + _strange_prompts(cell)
    groups: dict[str, list[CellResults]] = {}
    for cell in cells:
        key = repr([getattr(cell.head, name) for name in _COMPARED])
        groups.setdefault(key, []).append(cell)
    for group in groups.values():
        found += _unequal_rules(group) + _unequal_judges(group) + _idle(group)
    return found


def agreement_notes(cells: Iterable[CellResults]) -> list[str]:
    """How far judges agree with people, where a verdict names the rule that was measured."""
    notes = []
    for judge, about, basis in rules_used(cells):
        known = measured_agreement(judge, about, basis)
        where = ""
        if basis.startswith("references") or basis == "info_alone":
            where = " where no wrong answer is known"
        notes.append(
            f"{judge}: how far it agrees with people on {about} is not known"
            if known is None
            else f"{judge} agrees with people on {known['accuracy'][0]:.0%} of {about} labels"
            f"{where} "
            f"(saying the more frequent label every time agrees on {known['always']:.0%})"
        )
    return notes


def _failures(cell: CellResults) -> list[str]:
    failed = cell.failed
    if not failed:
        return []
    ids = ", ".join(line.sample for line in failed[:5]) + (", ..." if failed[5:] else "")
    return [
        f"{cell.description}: {len(failed)} of {cell.head.samples} samples failed ({ids}); "
        f"the first one: {failed[0].reason}"
    ]


def _cut_off(cell: CellResults) -> list[str]:
    """Answers that had not ended when their tokens ran out."""
    count, limit = cell.cut_off, cell.head.max_new_tokens
    if not count:
        return []
    return [
        f"{cell.description}: {count} of {len(cell.answers)} answers are cut off after {limit} "
        "tokens, and were judged as they stand; raise max_new_tokens"
    ]


def _strange_prompts(cell: CellResults) -> list[str]:
    """Answers that were not asked with the prompt their cell names."""
    expected = cell.head.prompt_hashes
    strange = [line for line in cell.answers if line.prompt_hashes != expected]
    if cell.head.has_own_prompt or not strange:
        return []
    return [f"{cell.description}: {len(strange)} answers were asked with another prompt"]


def _unequal_rules(cells: Sequence[CellResults]) -> list[str]:
    """What should be the same in cells that are compared, and is not."""
    heads = [cell.head for cell in cells]
    where = f"{heads[0].model} on {heads[0].benchmark} ({heads[0].task})"
    hashes: dict[object, list[str]] = {}  # by their grounding examples
    for head in heads:
        hashes.setdefault((head.ground, head.ground_from), []).append(head.data_hash)
    rules: dict[str, list[object]] = {
        "stop": [head.stop for head in heads],
        "max_new_tokens": [head.max_new_tokens for head in heads],
        "base prompt": [head.prompt_hashes[0] for head in heads if not head.has_own_prompt],
        "dataset": [hash == group[0] for group in hashes.values() for hash in group],
    }
    return [
        f"{where}: the methods ran with different values of {name}"
        for name, values in rules.items()
        if any(value != values[0] for value in values)
    ]


def _unequal_judges(cells: Sequence[CellResults]) -> list[str]:
    """Judges that had one name and were not the same in cells that are compared."""
    hashes: dict[str, set[str]] = {}
    for cell in cells:
        for line in cell.verdicts:
            hashes.setdefault(line.judge, set()).add(line.judge_hash)
    where = f"{cells[0].head.model} on {cells[0].head.benchmark}"
    return [
        f"{where}: {judge} judged with different settings, prompts or weights"
        for judge, found in hashes.items()
        if len(found) > 1
    ]


def _idle(cells: Sequence[CellResults]) -> list[str]:
    """Methods that gave the plain model's own answers or scores everywhere."""
    plain = next((cell for cell in cells if cell.head.is_plain), None)
    if plain is None:
        return []
    found, base = [], _outputs(plain)
    for cell in cells:
        outputs = _outputs(cell)
        shared = outputs.keys() & base.keys()
        if cell.head.is_plain or cell.head.control is not None or not shared:
            continue
        if all(outputs[sample] == base[sample] for sample in shared):
            what = "score" if cell.head.task == "choose" else "answer"
            found.append(
                f"{cell.description}: did nothing: every {what} is {plain.head.method}'s own "
                f"({len(shared)} samples)"
            )
    return found


def _outputs(cell: CellResults) -> dict[str, object]:
    texts: dict[str, object] = {line.sample: line.text for line in cell.answers}
    return texts | {line.sample: (line.single, line.multiple) for line in cell.choices}
