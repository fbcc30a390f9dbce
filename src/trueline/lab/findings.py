"""Cells -> what controls show about a gain, and what makes cells incomparable, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from trueline.lab.measures import Cells, Column, agreements, columns_of, difference_from
from trueline.lab.plan import Control
from trueline.lab.results import CellResults
from trueline.lab.statistics import Difference

NOT_AN_EFFECT = "not an effect of the examples"
WITHOUT = (
    "no controls were run, so whatever it gains may not be an effect of the examples; leave "
    "out --no-controls, or name a swept value as a variant"
)
_SHARE = 0.5  # a control with this part of a gain, and not beaten, shares the gain
_COMPARED = "model fingerprint dtype benchmark test task temperature seed".split()
_SETTING = "model fingerprint dtype benchmark test task temperature max_new_tokens stop".split()


@dataclass(frozen=True, slots=True)
class Effect:
    """What controls show about a gain over the plain model, in the unit of its column.

    `effect`: the gain and the lead over every control are beyond chance. `shared`: a control
    gains at least half as much, and the lead over it is not beyond chance. `unclear`: the gain
    is beyond chance, and the lead over some control is not.
    """

    finding: Literal["effect", "shared", "unclear"]
    gain: float  # above 0, whichever way the column is better
    controls: Mapping[str, float]  # the gains of controls that are not beaten, or of all

    def in_words(self, column: Column) -> str:
        scale = 100 if column.measure.is_percent else 1
        digits = column.measure.digits
        listed = ", ".join(f"{n} {scale * x:+.{digits}f}" for n, x in self.controls.items())
        return {
            "shared": f"{NOT_AN_EFFECT}: {listed}",
            "unclear": f"not clearly better than its controls: {listed}",
            "effect": "better than every control",
        }[self.finding]


def effect_of(
    ours: Cells, plain: Cells, controls: Mapping[str, Cells], column: Column
) -> Effect | None:
    """What the controls show about a gain; None without a gain or without common samples.

    The control without boundary steps has the true examples: it shows where a gain comes from,
    and not whether the examples are its cause.
    """
    others = {name: cells for name, cells in controls.items() if name != Control.BOUNDARY}
    leads = {name: difference_from(cells, ours, column) for name, cells in others.items()}
    known = {name: lead for name, lead in leads.items() if lead is not None}
    if not known or (change := difference_from(plain, ours, column)) is None:
        return None
    return judge_gain(change, known, column.measure.better)


def judge_gain(
    change: Difference, leads: Mapping[str, Difference], better: int
) -> Effect | None:
    """The effect, given the difference from the plain model and those from the controls."""
    gain = better * change.mean
    if gain <= 0:
        return None

    def is_beyond_chance(difference: Difference) -> bool:
        return (difference.low if better > 0 else -difference.high) > 0

    gains = {name: gain - better * lead.mean for name, lead in leads.items()}
    unbeaten = {name: x for name, x in gains.items() if not is_beyond_chance(leads[name])}
    sharing = {name: x for name, x in unbeaten.items() if x >= _SHARE * gain}
    if sharing:
        return Effect("shared", gain, sharing)
    if not is_beyond_chance(change):
        return None
    return Effect("unclear", gain, unbeaten) if unbeaten else Effect("effect", gain, gains)


def effect_notes(cells: Cells) -> list[str]:
    """What the controls of a run show, a sentence for each gain, and where none were run."""
    groups: dict[str, list[CellResults]] = {}  # of cells that need controls, by experiment
    controls: dict[str, dict[str, list[CellResults]]] = {}  # by experiment and name
    plain: dict[str, list[CellResults]] = {}  # by setting
    for cell in cells:
        if (control := cell.head.control) is not None:
            controls.setdefault(cell.experiment, {}).setdefault(control, []).append(cell)
        elif cell.head.is_plain:
            plain.setdefault(key_of(cell, _SETTING), []).append(cell)
        elif needs_controls(cell):
            groups.setdefault(cell.experiment, []).append(cell)
    notes = []
    for experiment, group in groups.items():
        own, base = controls.get(experiment, {}), plain.get(key_of(group[0], _SETTING), [])
        found = [] if own and base else [WITHOUT]
        for column in filter(can_gain, columns_of(group)):
            if effect := effect_of(group, base, own, column):
                gain = effect.gain * (100 if column.measure.is_percent else 1)
                words = effect.in_words(column)
                found.append(f"{column.id} is {gain:.1f} better than the plain model, {words}")
        notes += [f"{group[0].description}: {note}" for note in found]
    return notes


def needs_controls(cell: CellResults) -> bool:
    """Whether a cell has a space, and is neither a control nor a baseline."""
    head = cell.head
    return head.space is not None and head.control is None and not head.is_instead


def can_gain(column: Column) -> bool:
    return column.measure.better != 0 and column.measure.group != "Behaviour"


def key_of(cell: CellResults, names: Iterable[str]) -> str:
    """The values of these fields of its head: equal for cells that share them."""
    return repr([getattr(cell.head, name) for name in names])


def warnings(cells: Cells) -> list[str]:
    """What a reader must know before these cells are compared."""
    found = []
    groups: dict[str, list[CellResults]] = {}
    for cell in cells:
        found += [f"{cell.description}: {text}" for text in _problems_of(cell)]
        groups.setdefault(key_of(cell, _COMPARED), []).append(cell)
    for group in groups.values():
        found += [*_unequal_parts(group), *_without_effect(group)]
    return found


def agreement_notes(cells: Iterable[CellResults]) -> list[str]:
    """How far judges agree with people, for each measured rule that gave a verdict."""
    notes = []
    for (judge, about, basis), known in agreements(cells).items():
        if known is None:
            notes.append(f"{judge}: how far it agrees with people on {about} is not known")
            continue
        is_alone = basis.startswith("references") or basis == "info_alone"
        where = " where no wrong answer is known" if is_alone else ""
        notes.append(
            f"{judge} agrees with people on {known['accuracy'][0]:.0%} of {about} "
            f"labels{where} (always giving the more frequent label agrees on "
            f"{known['always']:.0%})"
        )
    return notes


def _problems_of(cell: CellResults) -> Iterator[str]:
    """Failed samples, answers cut off by the token limit, and answers to another prompt."""
    head, failed = cell.head, cell.failed
    if failed:
        ids = ", ".join(line.sample for line in failed[:5]) + (", ..." if failed[5:] else "")
        count = f"{len(failed)} of {head.samples} samples failed"
        yield f"{count} ({ids}); the first one: {failed[0].reason}"
    if cell.cut_off:
        yield (
            f"{cell.cut_off} of {len(cell.answers)} answers are cut off after "
            f"{head.max_new_tokens} tokens, and were judged as they stand; raise max_new_tokens"
        )
    strange = sum(line.prompt_hashes != head.prompt_hashes for line in cell.answers)
    if strange and not head.has_own_prompt:
        yield f"{strange} answers were generated with another prompt"


def _unequal_parts(cells: Cells) -> Iterator[str]:
    """Settings, data or judges that differ although the cells are compared."""
    heads = [cell.head for cell in cells]
    where = f"{heads[0].model} on {heads[0].benchmark}"
    first_hash: dict[object, str] = {}  # of the data, by the grounding examples
    for head in heads:
        first_hash.setdefault((head.ground, head.ground_from), head.data_hash)
    values: dict[str, list[object]] = {
        "stop": [head.stop for head in heads],
        "max_new_tokens": [head.max_new_tokens for head in heads],
        "base prompt": [head.prompt_hashes[0] for head in heads if not head.has_own_prompt],
        "dataset": [x.data_hash == first_hash[x.ground, x.ground_from] for x in heads],
    }
    for name, each in values.items():
        if any(value != each[0] for value in each):
            task = heads[0].task
            yield f"{where} ({task}): the methods ran with different values of {name}"
    judges = {(line.judge, line.judge_hash) for cell in cells for line in cell.verdicts}
    for judge, count in sorted(Counter(name for name, _ in judges).items()):
        if count > 1:
            yield f"{where}: {judge} judged with different settings, prompts or weights"


def _without_effect(cells: Cells) -> Iterator[str]:
    """Methods whose every answer or score is the plain model's."""
    outputs: dict[str, dict[str, object]] = {
        cell.id: {line.sample: line.text for line in cell.answers}
        | {line.sample: (line.single, line.multiple) for line in cell.choices}
        for cell in cells
    }
    plain = next((cell for cell in cells if cell.head.is_plain), None)
    for cell in cells:
        if plain is None or cell.head.is_plain or cell.head.control is not None:
            continue
        own, base = outputs[cell.id], outputs[plain.id]
        shared = own.keys() & base.keys()
        if shared and all(own[sample] == base[sample] for sample in shared):
            what = "score" if cell.head.task == "choose" else "answer"
            yield (
                f"{cell.description}: did nothing: every {what} is {plain.head.method}'s own "
                f"({len(shared)} samples)"
            )
