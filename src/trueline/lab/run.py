"""A plan and a folder -> answers, choices and verdicts in its jsonl, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, geometric_mean
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Annotated

from trueline.errors import ClusterError, SettingError
from trueline.lab import metrics, results
from trueline.lab.benchmarks.tables import Benchmark, Choices, Sample
from trueline.lab.cells import (
    Cell,
    benchmark_of,
    cells_of,
    grounding_space,
    judges_of,
    machine,
    model_of,
    versions,
)
from trueline.lab.findings import agreement_notes, effect_notes, warnings
from trueline.lab.judges import questions_for
from trueline.lab.leaks import leak_line, leak_note
from trueline.lab.measures import CellSummary, summarize_cell
from trueline.lab.plan import (
    BuildOptions,
    Confidence,
    Control,
    Plan,
    References,
    controlled_examples,
)
from trueline.settings import Between, check_value
from trueline.text import counted

if TYPE_CHECKING:
    from trueline.cluster import Cluster
    from trueline.engines.base import Engine
    from trueline.lab.judges import Judge
    from trueline.space import GroundingSpace
    from trueline.types import Answer

Batch = Sequence[tuple[int, Sample]]  # samples with their places in the benchmark
Spaces = dict[tuple[BuildOptions, Control | None], "GroundingSpace"]  # by what shapes them
OnLabelledProgress = Callable[[str, int, int], None]  # a label, samples done, samples in all
_SEEDS_APART = 1_000_003  # so that no sample of one seed draws like a sample of the next
_JUDGED = 64  # answers a judge gets at once: enough to keep a service busy


def sample_lines(cell: Cell, batch: Batch) -> list[results.SampleLine]:
    """The lines of a chunk of samples, one each and in their order."""
    try:
        if cell.head.task == "choose":
            return [_choice(cell, index, sample) for index, sample in batch]
        return [*_answers(cell, batch)]
    except SettingError as error:
        if len(batch) > 1:  # each alone, to know which one failed
            return [line for one in batch for line in sample_lines(cell, [one])]
        ((index, sample),) = batch
        return [
            results.FailedLine(cell=cell.id, sample=sample.id, index=index, reason=str(error))
        ]


def _answers(cell: Cell, batch: Batch) -> Iterator[results.AnswerLine]:
    """An answer to each sample with its share of the seconds."""
    from trueline.decode.generate import generate

    how, seed = cell.head.fidelity, cell.head.seed
    if seed is not None:  # draws depend on a sample's index in the benchmark, not on its chunk
        seed = seed * _SEEDS_APART + batch[0][0]
    begun = perf_counter()
    answers = generate(
        cell.lm,
        cell.method,
        [sample.question for _, sample in batch],
        batch_size=len(batch),
        **asdict(replace(cell.sampling, seed=seed, trace=True)),
    )
    seconds = round((perf_counter() - begun) / len(batch), 4)
    begin = min(answer.first_token_seconds for answer in answers)
    end = max(answer.seconds for answer in answers)
    which, stemmer = how.get("references", "all"), how.get("stemmer", False)
    scores = [
        text_scores(sample, answer.text, stemmer=stemmer, references=which)
        if sample.probe is None
        else dict(metrics.probe_scores(sample.probe, answer.text, answer.finish == "length"))
        for (_, sample), answer in zip(batch, answers, strict=True)
    ]
    known = [number for number, (_, sample) in enumerate(batch) if sample.answers]
    if cell.encoder is not None and known:
        most = None if which == "all" else 1
        references = [batch[number][1].answers[:most] for number in known]
        texts = [answers[number].text for number in known]
        values = metrics.BertScore(*cell.encoder).scores(texts, references)
        for number, value in zip(known, values, strict=True):
            scores[number]["bertscore"] = _rounded(value, 5)
    for (index, sample), answer, own in zip(batch, answers, scores, strict=True):
        steps = answer.trace or ()
        changed = (
            # A draw alone is no change by the method.
            step.final[0].token != step.base[0].token if cell.head.temperature else step.flipped
            for step in steps
        )
        yield results.AnswerLine(
            cell=cell.id,
            sample=sample.id,
            index=index,
            question=sample.question,
            text=answer.text,
            tokens=len(answer.token_ids),
            finish=answer.finish,
            prompt_tokens=answer.prompt_tokens,
            prompt_hashes=tuple(answer.prompt_hashes),
            seconds=seconds,
            decoding_seconds=round(max(0.0, end - begin) / len(batch), 4),
            scores=own,
            confidence=_confidence(answer, how.get("confidence", "geometric")),
            hits=tuple(step.hits for step in steps),
            flipped=tuple(map(int, changed)),
            entropy=tuple(_rounded(step.entropy, 4) for step in steps),
            regime=None if sample.probe is None else sample.probe.regime,
            token_hash=sha256(str(answer.token_ids).encode()).hexdigest()[:16],
        )


def text_scores(
    sample: Sample, text: str, *, stemmer: bool = False, references: References = "all"
) -> dict[str, float | None]:
    """The scores of an answer's words; None if the sample has nothing to compare with.

    Stemmer and references are ROUGE-L's.
    """
    truthful, wrong = sample.answers, sample.wrong_answers
    compared = truthful if references == "all" else truthful[:1]
    scores = {
        "rouge_l": metrics.rouge_l(text, compared, stemmer=stemmer) if compared else None,
        "bleu": metrics.bleu(text, truthful) if truthful else None,
        "rouge_accuracy": metrics.closer_to_truth(text, truthful, wrong, metrics.rouge_l),
        "bleu_accuracy": metrics.closer_to_truth(text, truthful, wrong, metrics.bleu),
    }
    return {name: _rounded(value, 6) for name, value in scores.items()}


def _confidence(answer: Answer, how: Confidence) -> float | None:
    """The mean of the picked tokens' probabilities; a geometric one needs all above 0."""
    picked = [step.probability or 0.0 for step in answer.trace or ()]
    if not picked or (how == "geometric" and min(picked) <= 0):
        return None
    return _rounded(geometric_mean(picked) if how == "geometric" else fmean(picked), 6)


def _rounded(value: float | None, digits: int) -> float | None:
    """A number as JSON can hold it: None if it is not finite."""
    return None if value is None or not isfinite(value) else round(value, digits)


def _choice(cell: Cell, index: int, sample: Sample) -> results.ChoiceLine:
    from trueline.decode.generate import score

    begun = perf_counter()
    single, multiple = (x or Choices((), ()) for x in (sample.single, sample.multiple))
    texts = [*dict.fromkeys((*single.texts, *multiple.texts))]  # each is scored once
    scores = score(cell.lm, cell.method, sample.question, texts)
    by_text = {text: round(value, 5) for text, value in zip(texts, scores, strict=True)}
    ones, many = ([by_text[text] for text in choices.texts] for choices in (single, multiple))
    return results.ChoiceLine(
        cell=cell.id,
        sample=sample.id,
        index=index,
        single=tuple(_rounded(value, 5) for value in ones),
        multiple=tuple(_rounded(value, 5) for value in many),
        mc1=metrics.mc1(ones, single.is_true) if sample.single else None,
        mc2=round(metrics.mc2(many, multiple.is_true), 6) if sample.multiple else None,
        mc3=round(metrics.mc3(many, multiple.is_true), 6) if sample.multiple else None,
        seconds=round(perf_counter() - begun, 4),
    )


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The summary of a run."""

    folder: Path
    cells: list[CellSummary]  # those of the plan that have begun
    warnings: list[str]
    stopped: str | None  # why it ended early; the same call goes on


class _LimitReached(Exception):
    """The time or the number of samples of this call is used up."""


@dataclass
class _Run:
    """What the functions of one run share."""

    plan: Plan
    folder: Path
    journal: results.Journal
    on: Cluster | None  # whose workers answer; None: this process does
    progress: OnLabelledProgress
    deadline: float
    samples: float  # that this call may still answer
    models: dict[str, Engine] = field(default_factory=dict)  # of local judges, by name
    notes: list[str] = field(default_factory=list)
    begun: dict[str, Benchmark] = field(default_factory=dict)  # by cell, in their order

    def check_limits(self) -> None:
        if monotonic() >= self.deadline:
            raise _LimitReached("the time is up")
        if self.samples <= 0:
            raise _LimitReached("the number of samples is reached")


def run_plan(
    plan: Plan,
    folder: str | Path,
    *,
    minutes: float | None = None,
    max_samples: int | None = None,
    on: Cluster | None = None,
    progress: OnLabelledProgress | None = None,
) -> RunOutcome:
    """Run every cell of a plan that is not done yet, and judge the answers.

    After a kill or a stop at any moment, the same call goes on and ends with the lines of a run
    that was never interrupted, apart from times. `on` is a cluster whose workers build the
    spaces and answer, with the threads of the plan; judges run here.
    """
    import torch

    check_value("minutes", minutes, Annotated[float, Between(0, above=True)] | None)
    check_value("max_samples", max_samples, Annotated[int, Between(1)] | None)
    deadline = inf if minutes is None else monotonic() + 60 * minutes
    if on is not None and plan.threads is not None:
        on = replace(on, threads=plan.threads)
    progress = progress or (lambda label, done, total: None)
    folder, stopped, threads = Path(folder), None, torch.get_num_threads()
    with results.open_journal(folder) as journal:
        run = _Run(plan, folder, journal, on, progress, deadline, max_samples or inf)
        benchmarks = [benchmark_of(plan, name) for name in plan.benchmarks]
        # A missing extra, encoder or key of a judge shows before anything is run.
        text_scores(Sample("a", "a", ("a",)), "a")
        if plan.encoder is not None:
            metrics.BertScore(*plan.encoder).scores([], [])
        judges = judges_of(plan, run.models)
        if lines := journal.dropped:
            run.notes.append(f"{counted(lines, 'line')} cut short by a kill: done again")
        torch.set_num_threads(plan.threads or threads)
        try:
            for model in plan.models:
                _run_model(run, model, benchmarks)
            for judge in judges:
                _run_judge(run, judge)
        except _LimitReached as reason:
            stopped = str(reason)
        finally:
            torch.set_num_threads(threads)
    by_id = {cell.id: cell for cell in results.gather_cells(journal.lines)}
    cells = [by_id[id] for id in run.begun]
    notes = run.notes + warnings(cells) + effect_notes(cells) + agreement_notes(cells)
    return RunOutcome(folder, [summarize_cell(cell) for cell in cells], notes, stopped)


def _run_model(run: _Run, model: str, benchmarks: Sequence[Benchmark]) -> None:
    """Complete the cells of one model, chunk by chunk."""
    run.check_limits()
    lm = run.models.get(model) or model_of(run.plan, model)
    journal, size = run.journal, run.plan.batch_size
    for benchmark in benchmarks:
        spaces: Spaces = {}
        cells = {cell.id: cell for cell in _cells(run, lm, benchmark, spaces)}
        ready = {id: len(journal.lines_of(id, results.SampleLine)) for id in cells}
        left = {id: x for id, x in cells.items() if not journal.lines_of(id, results.DoneLine)}
        starts = {id: range(ready[id], len(x.samples), size) for id, x in left.items()}
        chunks = [(id, start) for id in left for start in starts[id]]
        lines_of = partial(_chunk_lines, cells, size)
        answered = (map if run.on is None else run.on.map)(lines_of, chunks)
        total, done = sum(len(cell.samples) for cell in cells.values()), 0
        for id, cell in cells.items():
            run.begun[id] = benchmark
            done += ready[id]
            run.progress(f"{lm.id} {benchmark.name}", done, total)
            if id not in left:
                continue
            cell.method.check(lm)
            if not journal.lines_of(id, results.CellLine):
                journal.append([results.replace_line(cell.head, machine=machine(run.on))])
            for _ in starts[id]:
                run.check_limits()
                lines = next(answered)
                journal.append(lines)
                run.samples -= len(lines)
                done += len(lines)
                run.progress(f"{lm.id} {benchmark.name}", done, total)
            samples = journal.lines_of(id, results.SampleLine)
            seconds = sum(getattr(line, "seconds", 0.0) for line in samples)
            journal.append([results.DoneLine(cell=id, seconds=round(seconds, 4))])
        own = (space for (_, control), space in spaces.items() if control is None)
        _find_leaks(run, lm, benchmark, next(own, None))


def _chunk_lines(
    cells: dict[str, Cell], size: int, chunk: tuple[str, int]
) -> list[results.SampleLine]:
    id, start = chunk  # the id of a cell, and the number of its first sample
    cell, wanted = cells[id], cells[id].head.versions
    found = versions(type(cell.method).__module__, [*wanted])
    if other := [x for x in wanted if x != "python" and found.get(x) != wanted[x]]:
        raise ClusterError(
            f"{cell.head.label} would run differently on another machine, which has another "
            f"version of {', '.join(other)}; install the same on every machine"
        )
    return sample_lines(cell, cell.samples[start : start + size])


def _cells(run: _Run, lm: Engine, benchmark: Benchmark, spaces: Spaces) -> Iterator[Cell]:
    """The cells of every variant; those with equal examples and build options share a space."""
    has_choices = any(sample.single or sample.multiple for sample in benchmark.test)
    if "choose" in run.plan.tasks and not has_choices:
        run.notes.append(f"{benchmark.name} has no choices; the task choose is left out")
    for variant in run.plan.variants:
        name = f"{benchmark.name}: {variant.method}"
        if variant.needs_wrong and not any(one.wrong_answers for one in benchmark.ground):
            given = ", ".join(f"{name}={value}" for name, value in variant.settings.items())
            run.notes.append(
                f"{name} with {given or 'its defaults'} is left out: no grounding example has "
                "a wrong answer"
            )
            continue
        control = None if variant.control is Control.BOUNDARY else variant.control
        ground = controlled_examples(benchmark.ground, control)
        if control and not ground:
            run.notes.append(f"{name} has no control `{control}`: its examples give none")
            continue
        space = None
        if variant.build is not None:
            key = (variant.build, control)
            if key not in spaces:
                spaces[key] = _space(run, lm, replace(benchmark, ground=ground), variant.build)
            space = spaces[key]
        yield from cells_of(run.plan, lm, benchmark, variant, space)


def _space(
    run: _Run, lm: Engine, benchmark: Benchmark, options: BuildOptions
) -> GroundingSpace:
    windows = "" if options.context is None else f" context {options.context}"

    def report(done: int, total: int) -> None:
        run.progress(f"building {benchmark.name}{windows}", done, total)
        if done < total:
            run.check_limits()  # a build resumes as well

    return grounding_space(lm, benchmark, options, run.folder / "spaces", report, run.on)


def _find_leaks(
    run: _Run, lm: Engine, benchmark: Benchmark, space: GroundingSpace | None
) -> None:
    """Note once for all cells which samples the grounding examples give away.

    Samples with a regime are about the examples on purpose.
    """
    if all(sample.probe for sample in benchmark.test):
        return
    for line in run.journal.lines:
        if isinstance(line, results.LeaksLine) and line.data_hash == benchmark.hash:
            if space is None or line.embedder == space.embedder_id:
                break
    else:
        line = leak_line(benchmark, None if space is None else space.open_embedder(lm.device))
        run.journal.append([line])
    if line.counts.get("leaking"):
        run.notes.append(leak_note(line))


def _run_judge(run: _Run, judge: Judge) -> None:
    """Let one judge answer its open questions about the answers of every cell."""
    journal, judge_hash = run.journal, judge.hash  # once: a local judge reads much for it
    judged, kept = set(), []
    for line in journal.lines:
        if (
            isinstance(line, results.VerdictLine)
            and line.judge == judge.id
            and line.cell in run.begun
        ):
            if not line.is_answered or line.judge_hash != judge_hash:
                continue
            judged.add((line.cell, line.about, line.sample))
        kept.append(line)
    if len(kept) < len(journal.lines):
        journal.keep(kept)
    answers = [x for x in kept if isinstance(x, results.AnswerLine) and not x.is_local]
    questions = [
        (benchmark, about, [line for line in answers if line.cell == cell])
        for cell, benchmark in run.begun.items()
        for about in questions_for(benchmark.task)
    ]
    total, done = sum(len(lines) for _, _, lines in questions), len(judged)
    size, silent = max(_JUDGED, run.plan.batch_size), 0
    for benchmark, about, lines in questions:
        left = [x for x in lines if (x.cell, about, x.sample) not in judged]
        for batch in (left[start : start + size] for start in range(0, len(left), size)):
            run.check_limits()
            items = [(benchmark.test[line.index], line.text) for line in batch]
            found = judge.judge(benchmark.task, about, items)
            verdicts = [
                results.VerdictLine(
                    cell=line.cell, sample=line.sample, judge_hash=judge_hash, **asdict(verdict)
                )
                for line, verdict in zip(batch, found, strict=True)
            ]
            journal.append(verdicts)
            silent += sum(not line.is_answered for line in verdicts)
            done += len(verdicts)
            run.progress(f"judge {judge.id}", done, total)
    if silent:
        run.notes.append(
            f"{judge.id}: {silent} questions got no response; the next run tries again"
        )
