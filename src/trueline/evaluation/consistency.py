"""Cells -> what a reader must know before they are trusted or compared, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trueline.evaluation.outcomes import CellResults
from trueline.evaluation.samples import About

_TRUSTED = 0.75  # balanced accuracy against people from which on verdicts are more than a hint
_COMPARED = "model fingerprint dtype benchmark test task temperature seed".split()


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
    for judge, about, basis in _rules_used(cells):
        known = _measured(judge, about, basis)
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


def indicative(cells: Iterable[CellResults]) -> set[tuple[str, About]]:
    """The judges and what they were asked where their verdicts are a hint, no measurement.

    That is where their balanced accuracy against people is below 75 %, or is not known of a
    rule that could have been measured.
    """
    found = set()
    for judge, about, basis in _rules_used(cells):
        known = _measured(judge, about, basis)
        if known is None or known["balanced_accuracy"][0] < _TRUSTED:
            found.add((judge, about))
    return found


def _rules_used(cells: Iterable[CellResults]) -> list[tuple[str, About, str]]:
    """The judges, what they were asked, and by which measured rule they answered."""
    lines = (line for cell in cells for line in cell.verdicts if line.basis)
    return list(dict.fromkeys((line.judge, line.about, line.basis) for line in lines))


def _measured(judge: str, about: About, basis: str) -> Mapping[str, Any] | None:
    """How far a judge agrees with people by one rule; None where nobody measured it."""
    from trueline.evaluation.judges import agreement

    known = agreement()
    by_rule = known if judge == known.get("judge") else known.get("others", {}).get(judge, {})
    found: Mapping[str, Any] | None = by_rule.get(basis)
    return found


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
