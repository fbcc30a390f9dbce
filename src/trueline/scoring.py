"""Questions and candidate answers in, their log-probabilities under a method out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from trueline.decoders.base import Decoder, Rows, Step
from trueline.engines.base import Engine, States, read_continuations
from trueline.errors import SettingError
from trueline.generation import Messages
from trueline.inputs import ModelInput, read_messages
from trueline.prompts import check_text
from trueline.records import GenerateOptions, several
from trueline.requests import as_input, check_contexts, check_method, model_inputs
from trueline.visible import shown

_POSITIONS = 64  # positions that are scored in one batch


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a model reads, and the tokens whose probability behind it is asked for."""

    given: ModelInput
    contexts: tuple[tuple[int, ...], ...]  # under each prompt of the method
    tokens: tuple[int, ...]


def score(
    lm: Engine,
    method: Decoder,
    question: str | ModelInput | None = None,
    candidates: Sequence[str] = (),
    *,
    messages: Messages | None = None,
) -> list[float]:
    """The log-probability of each candidate answer under the method, summed over its tokens."""
    check_method(method, lm)
    texts = several(candidates)
    if not isinstance(texts, tuple):
        raise SettingError(f"candidates must be a list of answers, got {shown(candidates)}")
    for number, candidate in enumerate(texts, 1):
        check_text(candidate, f"candidate {number}")
        if not candidate.strip():
            raise SettingError(f"candidate {number} is empty; leave it out")
    if not texts:
        return []
    if (question is None) == (messages is None):
        raise SettingError("give either a question or messages, one of the two")
    asked = question if messages is None else read_messages(messages)
    given = as_input(method, asked, "the question")
    inputs = model_inputs(method, given)
    contexts = tuple(tuple(one.encode(lm.tokenizer)) for one in inputs)
    check_contexts(lm, contexts, "the question")
    answers = [tuple(inputs[0].encode_answer(text, lm.tokenizer)) for text in texts]
    longest = max(map(len, contexts)) + max(map(len, answers))
    if lm.limit is not None and longest > lm.limit:
        raise SettingError(
            f"the longest prompt and candidate are {longest} tokens, {lm.id} reads {lm.limit}"
        )
    rows = [Continuation(given, contexts, answer) for answer in answers]
    return [total for total, _ in score_continuations(lm, method, rows)]


@torch.inference_mode()
def score_continuations(
    lm: Engine, method: Decoder, rows: Sequence[Continuation]
) -> list[tuple[float, bool]]:
    """The log-probability of each continuation, and whether the method itself would write it.

    Rows with the same contexts share one reading of them.
    """
    totals, is_own = [0.0] * len(rows), [True] * len(rows)
    for batch, log_probs in _positions(lm, method, rows):
        for (row, at), line, best in zip(batch, log_probs, log_probs.argmax(-1), strict=True):
            token = rows[row].tokens[at]
            totals[row] += float(line[token])
            is_own[row] &= int(best) == token
    return list(zip(totals, is_own, strict=True))


def _positions(
    lm: Engine, method: Decoder, rows: Sequence[Continuation]
) -> Iterator[tuple[list[tuple[int, int]], torch.Tensor]]:
    """Every position of every row, and the log-probabilities there (positions, vocabulary)."""
    first, second = _read(lm, method, rows)
    distinct = dict.fromkeys((row.contexts, row.given) for row in rows)
    prepared = {key: method.prepare(lm, key[1], GenerateOptions()) for key in distinct}
    spots = [(row, at) for row, one in enumerate(rows) for at in range(len(one.tokens))]
    for start in range(0, len(spots), _POSITIONS):
        batch = spots[start : start + _POSITIONS]
        which, steps = [row for row, _ in batch], [at for _, at in batch]
        step = Step(
            Rows(
                lm,
                [[*rows[row].contexts[0], *rows[row].tokens[:at]] for row, at in batch],
                [len(rows[row].contexts[0]) for row in which],
                [rows[row].given.question for row in which],
                [prepared[rows[row].contexts, rows[row].given] for row in which],
            ),
            first.map(lambda tensor: tensor[which, steps]),  # noqa: B023
            None if second is None else second.map(lambda tensor: tensor[which, steps]),  # noqa: B023
            is_probability=True,
        )
        yield batch, method.adjust(step).logits.float().log_softmax(-1)


def _read(
    lm: Engine, method: Decoder, rows: Sequence[Continuation]
) -> tuple[States, States | None]:
    """The states before each token of each row (rows, longest, ...), under each prompt."""
    streams = len(rows[0].contexts)
    distinct = {row.contexts: None for row in rows}
    index = {contexts: number for number, contexts in enumerate(distinct)}
    read = [contexts[stream] for stream in range(streams) for contexts in distinct]
    own = [index[row.contexts] for row in rows]
    which = [stream * len(distinct) + number for stream in range(streams) for number in own]
    states = read_continuations(
        lm, read, which, [row.tokens for row in rows] * streams, layers=method.read_layers(lm)
    )
    first = states.map(lambda tensor: tensor[: len(rows)])
    second = states.map(lambda tensor: tensor[len(rows) :])
    return first, second if streams > 1 else None
