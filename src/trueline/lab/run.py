"""A plan and a folder -> answers, choices and verdicts in its results.jsonl, resumable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from trueline.errors import ClusterError, SettingError
from trueline.lab.cells import (
    Cell,
    benchmark_of,
    cells_of,
    check_scorers,
    grounding_space,
    judges_of,
    machine,
    model_of,
)
from trueline.lab.findings import agreement_notes, effect_notes, warnings
from trueline.lab.leaks import leak_line, leak_note
from trueline.lab.measures import CellSummary, summarize_cell
from trueline.lab.plan import (
    BuildOptions,
    Confidence,
    Control,
    Plan,
    References,
    Variant,
    controlled_examples,
)
from trueline.lab.results import (
    AnswerLine,
    CellLine,
    ChoiceLine,
    DoneLine,
    FailedLine,
    Journal,
    LeaksLine,
    SampleLine,
    VerdictLine,
    gather_cells,
    now,
    open_journal,
    plain,
    replace_line,
)
from trueline.lab.samples import About, Benchmark, Choices, Sample

if TYPE_CHECKING:
    from trueline.cluster import Cluster
    from trueline.engines import Origin
    from trueline.engines.base import Engine
    from trueline.lab.judges import Judge
    from trueline.space.content import Recipe
    from trueline.space.segment import Segment
    from trueline.space.space import GroundingSpace
    from trueline.types import Answer, TraceStep


TimedAnswer = tuple["Answer", float, float]  # with its seconds, and those of decoding
Batch = Sequence[tuple[int, Sample]]  # samples with their places in the benchmark
_SEEDS_APART = 1_000_003  # so that no sample of one seed draws as another sample of the next


def sample_lines(
    cell: Cell, batch: Batch, bertscore: tuple[str, int] | None = None
) -> list[SampleLine]:
    """The lines of a chunk of samples, one each and in their order."""
    if cell.head.task == "choose":
        return [_choice(cell, index, sample) for index, sample in batch]
    lines: list[SampleLine] = [
        _failed(cell, index, sample, answer)
        if isinstance(answer, str)
        else _answer(cell, index, sample, *answer)
        for (index, sample), answer in zip(batch, _answers(cell, batch), strict=True)
    ]
    if bertscore is None:
        return lines
    return _with_bertscore(lines, dict(batch), bertscore, cell.head.fidelity)


def verdict_lines(
    judge: Judge, about: About, benchmark: Benchmark, answers: Sequence[AnswerLine]
) -> list[VerdictLine]:
    """What a judge says of a chunk of answers, one line each."""
    items = [(benchmark.test[line.index], line.text) for line in answers]
    verdicts = judge.judge(benchmark.task, about, items)
    asked = judge.hash  # once: a local judge reads much for it
    return [
        VerdictLine(
            cell=line.cell,
            sample=line.sample,
            judge_hash=asked,
            time=now(),
            **asdict(verdict),
        )
        for line, verdict in zip(answers, verdicts, strict=True)
    ]


def text_scores(
    sample: Sample, text: str, *, stemmer: bool = False, references: References = "all"
) -> dict[str, float | None]:
    """What the words of an answer are worth; None where the sample has nothing to compare.

    Stemmer and references are ROUGE-L's.
    """
    from trueline.lab.metrics import bleu, closer_to_truth, rouge_l

    truthful, wrong = sample.answers, sample.wrong_answers
    shown = _shown(sample, references)
    scores = {
        "rouge_l": rouge_l(text, shown, stemmer=stemmer) if shown else None,
        "bleu": bleu(text, truthful) if truthful else None,
        "rouge_accuracy": closer_to_truth(text, truthful, wrong, rouge_l),
        "bleu_accuracy": closer_to_truth(text, truthful, wrong, bleu),
    }
    return {name: _rounded(value, 6) for name, value in scores.items()}


def _shown(sample: Sample, references: References) -> tuple[str, ...]:
    """The references an answer is compared with."""
    return sample.answers if references == "all" else sample.answers[:1]


def _answers(cell: Cell, batch: Batch) -> list[TimedAnswer | str]:
    """An answer to each sample and its share of the seconds, or why it cannot be asked."""
    from trueline.decode.generate import generate

    head, first = cell.head, batch[0][0]
    assert head.max_new_tokens is not None
    assert head.stop is not None
    begun = perf_counter()
    try:
        answers = generate(
            cell.lm,
            cell.method,
            [sample.question for _, sample in batch],
            max_new_tokens=head.max_new_tokens,
            batch_size=len(batch),
            temperature=head.temperature,
            stop=head.stop.strings,
            **head.sampling,
            trace=True,
            # Draws go with a sample's index in the benchmark, not in the chunk.
            seed=None if head.seed is None else head.seed * _SEEDS_APART + first,
        )
    except SettingError as error:  # one of them cannot be asked; each alone tells which
        if len(batch) == 1:
            return [str(error)]
        return [answer for one in batch for answer in _answers(cell, [one])]
    seconds = round((perf_counter() - begun) / len(batch), 4)
    begin = min(answer.first_token_seconds for answer in answers)
    end = max(answer.seconds for answer in answers)
    decoding = round(max(0.0, end - begin) / len(batch), 4)
    return [(answer, seconds, decoding) for answer in answers]


def _answer(
    cell: Cell, index: int, sample: Sample, answer: Answer, seconds: float, decoding: float
) -> AnswerLine:
    steps = answer.trace or ()
    how = cell.head.fidelity
    options: dict[str, Any] = {
        name: how[name] for name in ("stemmer", "references") if name in how
    }
    return AnswerLine(
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
        decoding_seconds=decoding,
        scores=_scores(sample, answer, options),
        confidence=_confidence(answer, how.get("confidence", "geometric")),
        hits=tuple(step.hits for step in steps),
        flipped=tuple(int(_is_changed(step, cell.head.temperature)) for step in steps),
        entropy=tuple(_rounded(step.entropy, 4) for step in steps),
        regime=None if sample.probe is None else sample.probe.regime,
        token_hash=sha256(str(answer.token_ids).encode()).hexdigest()[:16],
        time=now(),
    )


def _scores(
    sample: Sample, answer: Answer, options: Mapping[str, Any]
) -> dict[str, float | None]:
    """The scores of an answer: those of its regime, where it has one, else of its words."""
    from trueline.lab.metrics import probe_scores

    if sample.probe is None:
        return text_scores(sample, answer.text, **options)
    return probe_scores(sample.probe, answer.text, answer.finish == "length")


def _choice(cell: Cell, index: int, sample: Sample) -> ChoiceLine | FailedLine:
    from trueline.decode.generate import score
    from trueline.lab.metrics import mc1, mc2, mc3

    begun = perf_counter()
    single, multiple = sample.single, sample.multiple
    texts = [*dict.fromkeys((*_texts(single), *_texts(multiple)))]  # each is scored once
    try:
        scores = score(cell.lm, cell.method, sample.question, texts)
        found = {text: round(value, 5) for text, value in zip(texts, scores, strict=True)}
        ones = [found[text] for text in _texts(single)]
        many = [found[text] for text in _texts(multiple)]
        return ChoiceLine(
            cell=cell.id,
            sample=sample.id,
            index=index,
            single=tuple(_rounded(value, 5) for value in ones),
            multiple=tuple(_rounded(value, 5) for value in many),
            mc1=None if single is None else mc1(ones, single.is_true),
            mc2=None if multiple is None else round(mc2(many, multiple.is_true), 6),
            mc3=None if multiple is None else round(mc3(many, multiple.is_true), 6),
            seconds=round(perf_counter() - begun, 4),
            time=now(),
        )
    except SettingError as error:
        return _failed(cell, index, sample, str(error))


def _failed(cell: Cell, index: int, sample: Sample, reason: str) -> FailedLine:
    return FailedLine(cell=cell.id, sample=sample.id, index=index, reason=reason, time=now())


def _confidence(answer: Answer, how: Confidence) -> float | None:
    """The mean of the picked tokens' probabilities; a geometric one needs all above 0."""
    picked = [step.probability or 0.0 for step in answer.trace or ()]
    if picked and how != "geometric":
        return _rounded(sum(picked) / len(picked), 6)
    if not picked or min(picked) <= 0:
        return None
    return _rounded(math.exp(sum(map(math.log, picked)) / len(picked)), 6)


def _is_changed(step: TraceStep, temperature: float) -> bool:
    """Whether the method changed what the model wants most; a draw alone is no change."""
    if temperature == 0:
        return step.flipped
    return step.final[0].token != step.base[0].token


def _with_bertscore(
    lines: Sequence[SampleLine],
    samples: dict[int, Sample],
    encoder: tuple[str, int],
    how: Mapping[str, Any],
) -> list[SampleLine]:
    """The lines with one more score for every answer that has a reference."""
    from trueline.lab.metrics import BertScore

    scored = [x for x in lines if isinstance(x, AnswerLine) and samples[x.index].answers]
    asked = how.get("references", "all")
    references = [_shown(samples[line.index], asked) for line in scored]
    scorer = BertScore(Path(encoder[0]), encoder[1], how.get("bertscore_baseline"))
    values = scorer.scores([line.text for line in scored], references)
    more = {
        line.index: replace_line(line, scores={**line.scores, "bertscore": _rounded(value, 5)})
        for line, value in zip(scored, values, strict=True)
    }
    return [more.get(line.index, line) for line in lines]


def _texts(choices: Choices | None) -> tuple[str, ...]:
    return () if choices is None else choices.texts


def _rounded(value: float | None, digits: int) -> float | None:
    """A number as JSON can hold it: what is not finite is None."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


Chunk = tuple[str, int]  # the id of a cell, and the number of its first sample


def answer_chunks(
    plan: Plan, cells: Sequence[Cell], journal: Journal, on: Cluster | None
) -> Iterator[list[SampleLine]]:
    """The lines of every chunk that cells still lack, in the order of cells and samples."""
    chunks: list[Chunk] = []
    for cell in {cell.id: cell for cell in cells}.values():
        if not journal.has(cell.id, DoneLine):
            ready = len(journal.samples_of(cell.id))
            starts = range(ready, len(cell.samples), plan.batch_size)
            chunks += [(cell.id, start) for start in starts]
    run = map if on is None else on.map
    return run(Answerer(plan, cells).lines, chunks)


class Answerer:
    """Answers the samples of the cells of one model and one benchmark, chunk by chunk.

    It is pickled as what its cells are made of: another process opens the model and the
    embedders by name, and refuses to go on if its cells would be others.
    """

    def __init__(self, plan: Plan, cells: Sequence[Cell]) -> None:
        self.plan, self.cells = plan, {cell.id: cell for cell in cells}

    def __reduce__(self) -> tuple[object, ...]:
        from trueline.engines import origin_of

        cells = list(self.cells.values())
        spaces = {id(cell.space): cell.space for cell in cells if cell.space is not None}
        packed = {key: _packed(space) for key, space in spaces.items()}
        made_of = [(cell.head, cell.variant, id(cell.space)) for cell in cells]
        origin, benchmark = origin_of(cells[0].lm), cells[0].benchmark
        return _reopened, (self.plan, origin, benchmark, made_of, packed)

    def lines(self, chunk: Chunk) -> list[SampleLine]:
        """The lines of a chunk of samples, one each and in their order."""
        plan, (id, start) = self.plan, chunk
        scorer = None
        if plan.bertscore is not None and plan.bertscore_layers is not None:
            scorer = (plan.bertscore, plan.bertscore_layers)
        cell = self.cells[id]
        return sample_lines(cell, cell.samples[start : start + plan.batch_size], scorer)


@dataclass(frozen=True, slots=True)
class _PackedSpace:
    """A space without what is open in it."""

    recipe: Recipe
    segment: Segment
    embedder: Origin


def _packed(space: GroundingSpace) -> _PackedSpace:
    from trueline.engines import origin_of
    from trueline.space.segment import join_parts

    return _PackedSpace(space.recipe, join_parts(space.parts), origin_of(space.embedder))


def _unpacked(packed: _PackedSpace) -> GroundingSpace:
    from trueline.space.content import Content
    from trueline.space.segment import Part
    from trueline.space.space import space_of

    content = Content(packed.recipe, (Part(packed.segment),))
    return space_of(content, embedder=packed.embedder())


def _reopened(
    plan: Plan,
    origin: Origin,
    benchmark: Benchmark,
    made_of: Sequence[tuple[CellLine, Variant, int]],
    packed: dict[int, _PackedSpace],
) -> Answerer:
    """The same cells in another process."""
    lm: Engine = origin()
    spaces = {key: _unpacked(space) for key, space in packed.items()}
    found: dict[str, Cell] = {}
    for head, variant, key in made_of:
        if head.cell not in found:
            cells = cells_of(plan, lm, benchmark, variant, spaces.get(key))
            found |= {cell.id: cell for cell in cells}
            _check_same(head, cells)
    return Answerer(plan, [found[head.cell] for head, _, _ in made_of])


def _check_same(head: CellLine, cells: Sequence[Cell]) -> None:
    """Refuse to run a cell that is not the one asked for, and say in what it differs."""
    if any(cell.id == head.cell for cell in cells):
        return
    here = plain(next(cell.head for cell in cells if cell.head.task == head.task))
    wanted: dict[str, Any] = plain(head)
    differing = [name for name in wanted if name != "cell" and wanted[name] != here[name]]
    raise ClusterError(
        f"{head.label} on {head.benchmark} would be run otherwise there than here: its "
        f"{', '.join(differing)} differ; put the same files and versions on every machine"
    )


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
            control = None if variant.control is Control.BOUNDARY else variant.control
            key = (options, control)
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
    cell.method.check(cell.lm)
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
    from trueline.lab.judges import questions_for

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
