"""A chunk of samples -> their lines: answers with scores, choices, verdicts, failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trueline.errors import SettingError
from trueline.evaluation.cells import Cell
from trueline.evaluation.lines import (
    AnswerLine,
    ChoiceLine,
    FailedLine,
    SampleLine,
    VerdictLine,
    now,
    replace_line,
)
from trueline.evaluation.plan import Confidence, References
from trueline.evaluation.samples import About, Benchmark, Choices, Sample

if TYPE_CHECKING:
    from trueline.evaluation.judges import Judge
    from trueline.records import Answer, TraceStep

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
    from trueline.evaluation.metrics import bleu, closer_to_truth, rouge_l

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
    from trueline.generation import generate

    head, first = cell.head, batch[0][0]
    assert head.max_new_tokens is not None
    assert head.stop is not None
    begun = perf_counter()
    try:
        answers = generate(
            cell.lm,
            cell.decoder,
            [sample.question for _, sample in batch],
            max_new_tokens=head.max_new_tokens,
            batch_size=len(batch),
            temperature=head.temperature,
            stop=head.stop.strings,
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
    from trueline.evaluation.metrics import probe_scores

    if sample.probe is None:
        return text_scores(sample, answer.text, **options)
    return probe_scores(sample.probe, answer.text, answer.finish == "length")


def _choice(cell: Cell, index: int, sample: Sample) -> ChoiceLine | FailedLine:
    from trueline.evaluation.metrics import mc1, mc2, mc3
    from trueline.scoring import score

    begun = perf_counter()
    single, multiple = sample.single, sample.multiple
    texts = [*dict.fromkeys((*_texts(single), *_texts(multiple)))]  # each is scored once
    try:
        scores = score(cell.lm, cell.decoder, sample.question, texts)
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
    from trueline.evaluation.metrics import BertScore

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
