"""Lines of results in; a summary of each cell out, and what in them cannot be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.evaluation.results import SAMPLE_KINDS, Line
from trueline.evaluation.statistics import mean_interval

_OWN_PROMPT = ("kate",)  # methods that read another prompt by design
_COMPARED = (
    "model",
    "fingerprint",
    "dtype",
    "benchmark",
    "test",
    "task",
    "temperature",
    "seed",
)
_RULES = ("stop", "max_new_tokens")


@dataclass(frozen=True, slots=True)
class CellSummary:
    """How far a cell has come, and its means."""

    cell: str
    model: str
    benchmark: str
    label: str
    task: str
    seed: int | None
    done: int  # samples with an answer or a choice
    failed: int
    samples: int  # in all
    is_done: bool
    means: dict[str, float]  # of every score, and the share of yes by judge and question
    intervals: dict[str, tuple[float, float]]  # of these, 95 %
    unscored: dict[str, int]  # verdicts that could not be read, by judge and question
    seconds: float


def summarize(lines: Sequence[Line], ids: Sequence[str]) -> list[CellSummary]:
    """A summary of each of these cells, in their order."""
    return [_summary([line for line in lines if line["cell"] == id]) for id in ids]


def warnings(lines: Sequence[Line], ids: Sequence[str]) -> list[str]:
    """What a reader must know before these cells are compared."""
    cells = {id: [line for line in lines if line["cell"] == id] for id in ids}
    cells = {id: own for id, own in cells.items() if own}
    heads = [own[0] for own in cells.values()]
    found = []
    for head in heads:
        found += _failures(head, cells[head["cell"]])
        found += _strange_prompts(head, cells[head["cell"]])
    for some in _alike(heads):
        found += _unequal_rules(some)
        found += _idle(some, cells)
    return found


def agreement_notes(lines: Sequence[Line], ids: Sequence[str]) -> list[str]:
    """How far the offline judge agrees with people, where its verdicts are among the lines."""
    from trueline.evaluation.judges import agreement

    measured, asked = agreement(), set(ids)
    used = {
        (line["judge"], line["about"], line.get("basis") or line["about"]): None
        for line in lines
        if line["kind"] == "verdict"
        and line["cell"] in asked
        and line["judge"].startswith("offline")
        and line["label"] is not None
    }
    return [
        f"{judge} agrees with people on {measured[name]['accuracy'][0]:.0%} of {about} labels"
        f"{' where no wrong answer is known' if name != about else ''} "
        f"(one label for all: {measured[name]['always']:.0%})"
        if judge == measured.get("judge") and name in measured
        else f"{judge}: how far it agrees with people on {about} is not known"
        for judge, about, name in used
    ]


def describe(head: Line) -> str:
    """A cell in words: what was run on what."""
    told = [head["label"], *_space_words(head), f"({head['task']})"]
    if head["seed"] is not None:
        told.append(f"seed {head['seed']}")
    return f"{head['model']} on {head['benchmark']}: {' '.join(told)}"


def _space_words(head: Line) -> list[str]:
    return [] if head["context"] is None else [f"context={head['context']}"]


def _summary(own: list[Line]) -> CellSummary:
    head = own[0]
    samples = [line for line in own if line["kind"] in SAMPLE_KINDS]
    failed = sum(line["kind"] == "failed" for line in samples)
    values: dict[str, list[float]] = {}
    unscored: dict[str, int] = {}
    for name, value in _values(own):
        if value is not None:
            values.setdefault(name, []).append(float(value))
        elif name.startswith("judge "):
            unscored[name] = unscored.get(name, 0) + 1
    means = {name: mean_interval(some) for name, some in values.items()}
    return CellSummary(
        cell=head["cell"],
        model=head["model"],
        benchmark=head["benchmark"],
        label=" ".join([head["label"], *_space_words(head)]),
        task=head["task"],
        seed=head["seed"],
        done=len(samples) - failed,
        failed=failed,
        samples=head["samples"],
        is_done=any(line["kind"] == "done" for line in own),
        means={name: one.mean for name, one in means.items()},
        intervals={name: (one.low, one.high) for name, one in means.items()},
        unscored=unscored,
        seconds=sum(line.get("seconds", 0.0) for line in samples),
    )


def _values(own: Iterable[Line]) -> Iterable[tuple[str, float | bool | None]]:
    """Every score and verdict of a cell by name."""
    for line in own:
        if line["kind"] == "answer":
            yield from line["scores"].items()
        elif line["kind"] == "choice":
            yield from ((name, line[name]) for name in ("mc1", "mc2", "mc3"))
        elif line["kind"] == "verdict":
            yield f"judge {line['judge']} {line['about']}", line["label"]


def _failures(head: Line, own: list[Line]) -> list[str]:
    failed = [line for line in own if line["kind"] == "failed"]
    if not failed:
        return []
    ids = ", ".join(line["sample"] for line in failed[:5]) + (", ..." if failed[5:] else "")
    return [
        f"{describe(head)}: {len(failed)} of {head['samples']} samples failed ({ids}); "
        f"the first one: {failed[0]['reason']}"
    ]


def _strange_prompts(head: Line, own: list[Line]) -> list[str]:
    """Answers that were not asked with the prompt their cell names."""
    answers = [line for line in own if line["kind"] == "answer"]
    if head["method"] in _OWN_PROMPT:
        return []
    strange = [line for line in answers if line["prompt_hashes"] != head["prompt_hashes"]]
    if not strange:
        return []
    return [f"{describe(head)}: {len(strange)} answers were asked with another prompt"]


def _alike(heads: Sequence[Line]) -> list[list[Line]]:
    """Cells that are meant to be compared: the same model, benchmark and task."""
    found: dict[str, list[Line]] = {}
    for head in heads:
        found.setdefault(repr([head[name] for name in _COMPARED]), []).append(head)
    return list(found.values())


def _unequal_rules(heads: Sequence[Line]) -> list[str]:
    """What should be the same in cells that are compared, and is not."""
    where = f"{heads[0]['model']} on {heads[0]['benchmark']} ({heads[0]['task']})"
    rules: dict[str, list[Any]] = {name: [head[name] for head in heads] for name in _RULES}
    rules["base prompt"] = [
        head["prompt_hashes"][0] for head in heads if head["method"] not in _OWN_PROMPT
    ]
    hashes: dict[str, list[str]] = {}  # by the examples they are to hold beside the samples
    for head in heads:
        key = repr([head["ground"], head["ground_from"]])
        hashes.setdefault(key, []).append(head["data_hash"])
    rules["dataset"] = [hash == some[0] for some in hashes.values() for hash in some]
    return [
        f"{where}: the methods ran with different values of {name}"
        for name, values in rules.items()
        if any(value != values[0] for value in values)
    ]


def _idle(heads: Sequence[Line], cells: dict[str, list[Line]]) -> list[str]:
    """Methods that gave greedy's own answers or scores everywhere."""
    greedy = [head for head in heads if head["method"] == "greedy"]
    found = []
    for head in heads:
        if not greedy or head["method"] == "greedy":
            continue
        own, plain = (_outputs(cells[one["cell"]]) for one in (head, greedy[0]))
        shared = own.keys() & plain.keys()
        if shared and all(own[sample] == plain[sample] for sample in shared):
            what = "score" if head["task"] == "choose" else "answer"
            found.append(
                f"{describe(head)}: did nothing: every {what} is greedy's own "
                f"({len(shared)} samples)"
            )
    return found


def _outputs(own: Iterable[Line]) -> dict[str, object]:
    return {
        line["sample"]: line["text"]
        if line["kind"] == "answer"
        else (line["single"], line["multiple"])
        for line in own
        if line["kind"] in ("answer", "choice")
    }
