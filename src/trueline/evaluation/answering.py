"""A chunk of samples in, their lines out: answers with scores, choices, verdicts, failures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trueline.errors import SettingError
from trueline.evaluation.cells import Cell
from trueline.evaluation.results import Line, now
from trueline.evaluation.samples import About, Benchmark, Choices, Sample

if TYPE_CHECKING:
    from trueline.evaluation.judges import Judge
    from trueline.records import Answer, TraceStep

Timed = tuple["Answer", float]  # with its seconds

_SEEDS_APART = 1_000_003  # so that no sample of one seed draws as another sample of the next


def sample_lines(
    cell: Cell, some: Sequence[tuple[int, Sample]], bertscore: tuple[str, int] | None = None
) -> list[Line]:
    """The lines of a chunk of samples, one each and in their order."""
    if cell.task == "choose":
        return [_choice(cell, place, sample) for place, sample in some]
    lines = [
        _failed(cell, place, sample, answer)
        if isinstance(answer, str)
        else _answer(cell, place, sample, *answer)
        for (place, sample), answer in zip(some, _answers(cell, some), strict=True)
    ]
    if bertscore is not None:
        _add_bertscore(lines, dict(some), *bertscore)
    return lines


def verdict_lines(
    judge: Judge, about: About, benchmark: Benchmark, answers: Sequence[Line]
) -> list[Line]:
    """What a judge says of a chunk of answers, one line each."""
    items = [(benchmark.test[line["place"]], line["text"]) for line in answers]
    verdicts = judge.judge(benchmark.task, about, items)
    return [
        {
            "kind": "verdict",
            "cell": line["cell"],
            "sample": line["sample"],
            "judge": judge.id,
            "about": about,
            "label": verdict.label,
            "raw": verdict.raw,
            "prompt_tokens": verdict.prompt_tokens,
            "answer_tokens": verdict.answer_tokens,
            "cost": verdict.cost,
            "is_cached": verdict.is_cached,
            "is_answered": verdict.is_answered,
            "time": now(),
        }
        for line, verdict in zip(answers, verdicts, strict=True)
    ]


def text_scores(sample: Sample, text: str) -> dict[str, float | None]:
    """What the words of an answer are worth; None where the sample has nothing to compare."""
    from trueline.evaluation.metrics import bleu, closer_to_truth, rouge_l

    truthful, wrong = sample.answers, sample.wrong_answers
    scores = {
        "rouge_l": rouge_l(text, truthful) if truthful else None,
        "bleu": bleu(text, truthful) if truthful else None,
        "rouge_accuracy": closer_to_truth(text, truthful, wrong, rouge_l),
        "bleu_accuracy": closer_to_truth(text, truthful, wrong, bleu),
    }
    return {name: _rounded(value, 6) for name, value in scores.items()}


def _answers(cell: Cell, some: Sequence[tuple[int, Sample]]) -> list[Timed | str]:
    """An answer to each sample and the seconds it took, or why it cannot be asked."""
    questions = [sample.question for _, sample in some]
    try:
        return [*_timed(cell, questions, some[0][0])]
    except SettingError:  # one of them cannot be asked; each alone tells which
        return [_alone(cell, place, sample) for place, sample in some]


def _alone(cell: Cell, place: int, sample: Sample) -> Timed | str:
    try:
        return _timed(cell, [sample.question], place)[0]
    except SettingError as error:
        return str(error)


def _timed(cell: Cell, questions: list[str], place: int) -> list[Timed]:
    """Answers, each with its share of the time they took together."""
    begun = perf_counter()
    answers = _generate(cell, questions, place)
    seconds = round((perf_counter() - begun) / len(questions), 4)
    return [(answer, seconds) for answer in answers]


def _generate(cell: Cell, questions: list[str], place: int) -> list[Answer]:
    from trueline.generation import generate

    line = cell.line
    options: dict[str, Any] = {}
    if line["seed"] is not None:  # draws go with the place in the benchmark, not in the chunk
        options["seed"] = line["seed"] * _SEEDS_APART + place
    return generate(
        cell.lm,
        cell.decoder,
        questions,
        max_new_tokens=line["max_new_tokens"],
        batch_size=len(questions),
        temperature=line["temperature"],
        stop=line["stop"]["strings"],
        trace=True,
        **options,
    )


def _answer(cell: Cell, place: int, sample: Sample, answer: Answer, seconds: float) -> Line:
    steps = answer.trace or ()
    return {
        "kind": "answer",
        "cell": cell.id,
        "sample": sample.id,
        "place": place,
        "question": sample.question,
        "text": answer.text,
        "tokens": len(answer.token_ids),
        "finish": answer.finish,
        "prompt_tokens": answer.prompt_tokens,
        "prompt_hashes": list(answer.prompt_hashes),
        "seconds": seconds,
        "scores": text_scores(sample, answer.text),
        "confidence": _confidence(answer),
        "hits": [step.hits for step in steps],
        "flipped": [int(_is_changed(step, cell.line["temperature"])) for step in steps],
        "entropy": [_rounded(step.entropy, 4) for step in steps],
        "time": now(),
    }


def _choice(cell: Cell, place: int, sample: Sample) -> Line:
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
        marks = {
            "mc1": None if single is None else mc1(ones, single.is_true),
            "mc2": None if multiple is None else round(mc2(many, multiple.is_true), 6),
            "mc3": None if multiple is None else round(mc3(many, multiple.is_true), 6),
        }
    except SettingError as error:
        return _failed(cell, place, sample, str(error))
    return {
        "kind": "choice",
        "cell": cell.id,
        "sample": sample.id,
        "place": place,
        "single": [_rounded(value, 5) for value in ones],
        "multiple": [_rounded(value, 5) for value in many],
        **marks,
        "seconds": round(perf_counter() - begun, 4),
        "time": now(),
    }


def _failed(cell: Cell, place: int, sample: Sample, reason: str) -> Line:
    line = {"kind": "failed", "cell": cell.id, "sample": sample.id, "place": place}
    return {**line, "reason": reason, "time": now()}


def _confidence(answer: Answer) -> float | None:
    """The geometric mean of the picked tokens' probabilities; None where one of them is 0."""
    picked = [step.probability or 0.0 for step in answer.trace or ()]
    if not picked or min(picked) <= 0:
        return None
    return _rounded(math.exp(sum(map(math.log, picked)) / len(picked)), 6)


def _is_changed(step: TraceStep, temperature: float) -> bool:
    """Whether the method changed what the model wants most; a draw alone is no change."""
    if temperature == 0:
        return step.flipped
    return step.final[0].token != step.base[0].token


def _add_bertscore(
    lines: Sequence[Line], samples: dict[int, Sample], folder: str, layers: int
) -> None:
    from trueline.evaluation.metrics import BertScore

    told = [
        line for line in lines if line["kind"] == "answer" and samples[line["place"]].answers
    ]
    references = [samples[line["place"]].answers for line in told]
    found = BertScore(Path(folder), layers).scores([line["text"] for line in told], references)
    for line, value in zip(told, found, strict=True):
        line["scores"]["bertscore"] = _rounded(value, 5)


def _texts(choices: Choices | None) -> tuple[str, ...]:
    return () if choices is None else choices.texts


def _rounded(value: float | None, digits: int) -> float | None:
    """A number as JSON can hold it: what is not finite is None."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
