"""Questions and candidate answers in, their log-probabilities under a method out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trueline.decoders.base import Decoder, Step
from trueline.engines.transformers.language import LanguageModel
from trueline.engines.transformers.reading import Reading
from trueline.errors import SettingError
from trueline.prompts import check_text

_SCORED = 64  # positions whose logits are held at once

# The prompts a row is read under, the one it is asked with first; and what continues it.
Row = tuple[Sequence[Sequence[int]], Sequence[int]]


def score(
    lm: LanguageModel, method: Decoder, question: str, candidates: Sequence[str]
) -> list[float]:
    """The log-probability of each candidate answer under the method, summed over its tokens."""
    method.check(lm)
    if not candidates:
        return []
    if isinstance(candidates, str):
        raise SettingError(f"candidates must be a list of answers, got {candidates!r}")
    check_text(question, "the question")
    for place, candidate in enumerate(candidates):
        check_text(candidate, f"candidate {place + 1}")
        if not candidate.strip():
            raise SettingError(f"candidate {place + 1} is empty; leave it out")
    asked = method.prompts(question)
    prompts = [prompt.encode(lm.tokenizer) for prompt in asked]
    answers = [asked[0].encode_answer(candidate, lm.tokenizer) for candidate in candidates]
    longest = max(map(len, prompts)) + max(map(len, answers))
    if lm.limit is not None and longest > lm.limit:
        raise SettingError(
            f"the longest prompt and candidate are {longest} tokens, {lm.id} reads {lm.limit}"
        )
    return [total for total, _ in score_tokens(lm, method, [(prompts, a) for a in answers])]


@torch.inference_mode()
def score_tokens(
    lm: LanguageModel, method: Decoder, rows: Sequence[Row]
) -> list[tuple[float, bool]]:
    """The log-probability of each continuation, and whether the method itself would write it.

    Rows with the same prompts share one reading of them.
    """
    read = {tuple(map(tuple, prompts)): list(prompts) for prompts, _ in rows}
    places = {key: place for place, key in enumerate(read)}
    reading = Reading(lm, list(read.values()), layers=method.layers(lm))
    reading.select([places[tuple(map(tuple, prompts))] for prompts, _ in rows])
    states = reading.finish([after[:-1] for _, after in rows])
    spots = [(row, at) for row, (_, after) in enumerate(rows) for at in range(len(after))]
    totals, is_own = [0.0] * len(rows), [True] * len(rows)
    for start in range(0, len(spots), _SCORED):
        some = spots[start : start + _SCORED]
        which = [
            stream * len(rows) + row for stream in range(reading.streams) for row, _ in some
        ]
        steps = [at for _, at in some] * reading.streams
        step = Step(
            lm,
            [[*rows[row][0][0], *rows[row][1][:at]] for row, at in some],
            [len(rows[row][0][0]) for row, _ in some],
            states.map(lambda tensor: tensor[which, steps]),  # noqa: B023
            is_probability=True,
        )
        log_probs = method.adjust(step).logits.float().log_softmax(-1)  # (spots, vocabulary)
        for (row, at), line, best in zip(some, log_probs, log_probs.argmax(-1), strict=True):
            totals[row] += float(line[rows[row][1][at]])
            is_own[row] &= int(best) == rows[row][1][at]
    return list(zip(totals, is_own, strict=True))
