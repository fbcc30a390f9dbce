"""What RAD looks up at the first steps of its answers, under one reading of its window."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from trueline.lab.cells import benchmark_of, cells_of, grounding_space, model_of
from trueline.lab.plan import Plan
from trueline.lab.report.tables import DASH, Grid, GridText, Table

STEPS = 8  # the first of an answer
_QUESTIONS = 16


@dataclass(frozen=True, slots=True)
class WindowStep:
    """One step of the answers to several questions."""

    window: str  # of the first of them
    hits: float  # the mean of a question
    shared: float | None  # of a question's hits, the part that all others have too; the mean
    flipped: float  # the share of questions whose token RAD changed


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """The first steps under one reading."""

    reading: str
    steps: list[WindowStep]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def grid(self) -> Grid:
        head = (
            "step",
            "window, of the first question",
            "hits",
            "the same for all, %",
            "changed, %",
        )
        rows = []
        for number, step in enumerate(self.steps, 1):
            shared = DASH if step.shared is None else f"{100 * step.shared:.1f}"
            numbers = (f"{step.hits:.1f}", shared, f"{100 * step.flipped:.1f}")
            rows.append(tuple(map(GridText, (str(number), repr(step.window), *numbers))))
        note = f"The first {STEPS} tokens of RAD's answers to at most {_QUESTIONS} questions."
        return Grid(f"window = {self.reading}", head, tuple(rows), (note,))


def window_steps(plan: Plan, folder: Path, table: Table) -> WindowSteps:
    """The first steps of RAD's answers to the first questions of a table's benchmark.

    They are decoded once more with a trace; the space is in the folder already.
    """
    from trueline.decode.generate import generate
    from trueline.rad.retrieve import open_retriever

    read = benchmark_of(plan, table.benchmark)
    lm = next(lm for lm in (model_of(plan, x) for x in plan.models) if lm.id == table.model)
    variant = next(x for x in plan.variants if x.method == "rad" and x.control is None)
    assert variant.build is not None
    space = grounding_space(lm, read, variant.build, folder / "spaces", None)
    method = cells_of(plan, lm, read, variant, space)[0].method
    questions = [sample.question for sample in read.test[:_QUESTIONS]]
    answers = generate(lm, method, questions, max_new_tokens=STEPS, trace=True)
    retriever, tau = open_retriever(space, lm.device), method.settings()["tau"]
    found = []
    for number in range(STEPS):
        steps = [x.trace[number] for x in answers if x.trace and len(x.trace) > number]
        if not steps:
            break
        hits = retriever.above(retriever.embed([step.window for step in steps]), tau=tau)
        sets = [{*hits.entries[hits.rows == row].tolist()} for row in range(len(steps))]
        common = set.intersection(*sets)
        shares = [len(common) / len(one) for one in sets if one]
        found.append(
            WindowStep(
                window=steps[0].window,
                hits=mean(map(len, sets)),
                shared=mean(shares) if shares and len(sets) > 1 else None,
                flipped=mean(step.flipped for step in steps),
            )
        )
    return WindowSteps(variant.build.window, found)
