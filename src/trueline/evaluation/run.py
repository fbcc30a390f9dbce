"""A plan and a folder -> answers, choices and verdicts in its results.jsonl, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from trueline.errors import SettingError
from trueline.evaluation.answering import verdict_lines
from trueline.evaluation.cells import Cell, cells_of, grounding_space, machine
from trueline.evaluation.chunks import answer_chunks
from trueline.evaluation.controls import controlled_examples
from trueline.evaluation.findings import agreement_notes, effect_notes, warnings
from trueline.evaluation.journal import Journal, open_journal
from trueline.evaluation.leaks import leak_line, leak_note
from trueline.evaluation.lines import (
    AnswerLine,
    CellLine,
    DoneLine,
    FailedLine,
    LeaksLine,
    SampleLine,
    VerdictLine,
    now,
    replace_line,
)
from trueline.evaluation.measures import CellSummary, summarize_cell
from trueline.evaluation.outcomes import gather_cells
from trueline.evaluation.parts import benchmark_of, check_scorers, judges_of, model_of
from trueline.evaluation.plan import BuildOptions, Control, Plan, Variant
from trueline.evaluation.samples import Benchmark

if TYPE_CHECKING:
    from trueline.cluster import Cluster
    from trueline.engines.base import Engine
    from trueline.evaluation.judges import Judge
    from trueline.space.space import GroundingSpace

Spaces = dict[tuple[BuildOptions, Control | None], "GroundingSpace"]  # by what shapes them
OnLabelledProgress = Callable[[str, int, int], None]  # a label, samples done, samples in all
_JUDGED = 64  # answers a judge is given at once: enough to keep a service busy


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run came to."""

    folder: Path
    cells: list[CellSummary]  # those of the plan that have begun
    warnings: list[str]
    stopped: str | None  # why it ended before its end; the same call goes on


class _LimitReached(Exception):
    """The time or the number of samples of this call is spent."""


@dataclass
class _Budget:
    """How much this call may still do."""

    deadline: float | None
    samples: int | None

    def check(self) -> None:
        if self.deadline is not None and monotonic() >= self.deadline:
            raise _LimitReached("the time is up")
        if self.samples is not None and self.samples <= 0:
            raise _LimitReached("the number of samples is reached")

    def spend(self, count: int) -> None:
        if self.samples is not None:
            self.samples -= count


@dataclass
class _Run:
    """What the parts of one run share."""

    plan: Plan
    folder: Path
    journal: Journal
    budget: _Budget
    tell: OnLabelledProgress
    models: dict[str, Engine]  # those a judge on this machine holds, by name
    on: Cluster | None  # whose workers answer; None: this process does
    notes: list[str] = field(default_factory=list)
    begun: dict[str, Benchmark] = field(default_factory=dict)  # by cell, in their order


def run_plan(
    plan: Plan,
    folder: str | Path,
    *,
    minutes: float | None = None,
    max_samples: int | None = None,
    on: Cluster | None = None,
    progress: OnLabelledProgress | None = None,
) -> RunOutcome:
    """Run every cell of a plan that is not done yet, and have the answers judged.

    Killed or stopped at any moment, the same call goes on where it was; the lines are those of
    a run that was never interrupted, apart from times. `on` is a cluster whose
    workers build the spaces and answer, with the threads of the plan; judges run here.
    """
    _check_limits(minutes, max_samples)
    deadline = None if minutes is None else monotonic() + 60 * minutes
    budget = _Budget(deadline, max_samples)
    stopped = None
    with open_journal(Path(folder)) as journal:
        benchmarks = [benchmark_of(plan, name) for name in plan.benchmarks]
        check_scorers(plan)
        models: dict[str, Engine] = {}
        judges = judges_of(plan, models)  # a missing key shows before anything is run
        tell = progress or (lambda label, done, total: None)
        if on is not None and plan.threads is not None:
            on = replace(on, threads=plan.threads)
        run = _Run(plan, Path(folder), journal, budget, tell, models, on, _dropped(journal))
        try:
            with _threads(plan.threads):
                for model in plan.models:
                    _run_model(run, model, benchmarks)
                for judge in judges:
                    _run_judge(run, judge)
        except _LimitReached as reason:
            stopped = str(reason)
    by_id = {cell.id: cell for cell in gather_cells(journal.lines)}
    cells = [by_id[id] for id in run.begun]
    notes = run.notes + warnings(cells) + effect_notes(cells) + agreement_notes(cells)
    return RunOutcome(Path(folder), [summarize_cell(cell) for cell in cells], notes, stopped)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Let torch have so many threads meanwhile; None: as many as it has."""
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before if count is None else count)
        yield
    finally:
        torch.set_num_threads(before)


def _run_model(run: _Run, model: str, benchmarks: Sequence[Benchmark]) -> None:
    """Every cell of one model, benchmark by benchmark."""
    plan = run.plan
    run.budget.check()
    lm = run.models.get(model) or model_of(plan, model)
    for benchmark in benchmarks:
        spaces: Spaces = {}
        cells = list(_cells(run, lm, benchmark, spaces))
        total, done = sum(len(cell.samples) for cell in cells), 0
        label = f"{lm.id} {benchmark.name}"
        answered = answer_chunks(run.plan, cells, run.journal, run.on)
        for cell in cells:
            for step in _run_cell(run, cell, answered):
                done += step
                run.tell(label, done, total)
        own = (space for (_, control), space in spaces.items() if control is None)
        _find_leaks(run, lm, benchmark, next(own, None))


def _find_leaks(
    run: _Run, lm: Engine, benchmark: Benchmark, space: GroundingSpace | None
) -> None:
    """Say once for all cells what the grounding examples give away of the samples.

    Samples with a regime are about the examples by intention.
    """
    if all(sample.probe for sample in benchmark.test):
        return
    known = [
        line
        for line in run.journal.lines
        if isinstance(line, LeaksLine)
        and line.data_hash == benchmark.hash
        and (space is None or line.embedder == space.recipe.embedder)
    ]
    if not known:
        embedder = None if space is None else space.open_embedder(lm.device)
        known = [leak_line(benchmark, embedder)]
        run.journal.append(known)
    if known[0].counts.get("leaking"):
        run.notes.append(leak_note(known[0]))


def _cells(
    run: _Run,
    lm: Engine,
    benchmark: Benchmark,
    spaces: Spaces,
) -> Iterator[Cell]:
    """The cells of every variant; a space is made once for all that share it."""
    has_choices = any(sample.single or sample.multiple for sample in benchmark.test)
    if "choose" in run.plan.tasks and not has_choices:
        run.notes.append(f"{benchmark.name} has no choices; the task choose is left out")
    for variant in run.plan.variants:
        if problem := _unfit(variant, benchmark):
            run.notes.append(f"{benchmark.name}: {problem}")
            continue
        space = None
        if (options := variant.build) is not None:
            key = (options, variant.control_of_examples)
            if key not in spaces:
                ground = controlled_examples(benchmark.ground, variant.control)
                spaces[key] = _space(run, lm, replace(benchmark, ground=ground), options)
            space = spaces[key]
        yield from cells_of(run.plan, lm, benchmark, variant, space)


def _unfit(variant: Variant, benchmark: Benchmark) -> str:
    """Why a variant cannot be run on a benchmark, in words; empty if it can."""
    if variant.needs_wrong and not any(one.wrong_answers for one in benchmark.ground):
        given = ", ".join(f"{name}={value}" for name, value in variant.settings.items())
        return (
            f"no grounding example has a wrong answer; {variant.method} with "
            f"{given or 'its defaults'} is left out"
        )
    if variant.control and not controlled_examples(benchmark.ground, variant.control):
        return f"its examples give no control `{variant.control}` for {variant.method}"
    return ""


def _space(
    run: _Run, lm: Engine, benchmark: Benchmark, options: BuildOptions
) -> GroundingSpace:
    windows = "" if options.context is None else f" context {options.context}"
    label = f"building {benchmark.name}{windows}"

    def tell(done: int, total: int) -> None:
        run.tell(label, done, total)
        if done < total:
            run.budget.check()  # the build is resumed, too

    return grounding_space(lm, benchmark, options, run.folder / "spaces", tell, run.on)


def _run_cell(run: _Run, cell: Cell, answered: Iterator[list[SampleLine]]) -> Iterator[int]:
    """Do what a cell still lacks, chunk by chunk; yields how many samples are done."""
    run.begun[cell.id] = cell.benchmark
    journal = run.journal
    ready = len(journal.samples_of(cell.id))
    yield ready
    if journal.has(cell.id, DoneLine):
        return
    cell.decoder.check(cell.lm)
    if not journal.has(cell.id, CellLine):
        journal.append([replace_line(cell.head, machine=machine(run.on), time=now())])
    for _ in range(ready, len(cell.samples), run.plan.batch_size):
        run.budget.check()
        lines = next(answered)
        journal.append(lines)
        run.budget.spend(len(lines))
        yield len(lines)
    lines = journal.samples_of(cell.id)
    seconds = sum(0.0 if isinstance(line, FailedLine) else line.seconds for line in lines)
    journal.append([DoneLine(cell=cell.id, seconds=round(seconds, 4), time=now())])


def _run_judge(run: _Run, judge: Judge) -> None:
    """Ask one judge what it was not asked yet about the answers of every cell."""
    from trueline.evaluation.judges import questions_for

    journal = run.journal
    lines = [x for x in journal.lines if isinstance(x, VerdictLine) and x.cell in run.begun]
    known = [line for line in lines if line.judge == judge.id]
    asked_now = judge.hash  # once: a local judge reads much for it
    standing = [x for x in known if x.is_answered and x.judge_hash == asked_now]
    kept = {id(line) for line in standing}
    journal.drop([line for line in known if id(line) not in kept])  # they are asked once more
    judged = {(x.cell, x.about, x.sample) for x in standing}
    answers = [x for x in journal.lines if isinstance(x, AnswerLine) and not x.is_local]
    questions = [
        (benchmark, about, [line for line in answers if line.cell == cell])
        for cell, benchmark in run.begun.items()
        for about in questions_for(benchmark.task)
    ]
    total, done = sum(len(lines) for _, _, lines in questions), len(judged)
    size = max(_JUDGED, run.plan.batch_size)
    silent = 0
    for benchmark, about, answers in questions:
        left = [x for x in answers if (x.cell, about, x.sample) not in judged]
        for start in range(0, len(left), size):
            run.budget.check()
            verdicts = verdict_lines(judge, about, benchmark, left[start : start + size])
            journal.append(verdicts)
            silent += sum(not line.is_answered for line in verdicts)
            done += len(verdicts)
            run.tell(f"judge {judge.id}", done, total)
    if silent:
        run.notes.append(
            f"{judge.id}: {silent} questions got no response; the next run asks again"
        )


def _dropped(journal: Journal) -> list[str]:
    if not journal.dropped:
        return []
    lines = "1 line" if journal.dropped == 1 else f"{journal.dropped} lines"
    return [f"{lines} at the end of {journal.path.name}, left by a kill, are done again"]


def _check_limits(minutes: float | None, max_samples: int | None) -> None:
    if minutes is not None and not minutes > 0:
        raise SettingError(f"minutes must be above 0, got {minutes}")
    if max_samples is not None and max_samples < 1:
        raise SettingError(f"max_samples must be at least 1, got {max_samples}")
