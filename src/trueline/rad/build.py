"""Answers in, entries out: passes of the model, batched, resumable, here or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch

from trueline.embed import Embedder, embed_distinct
from trueline.engines.base import Engine, read_continuations
from trueline.errors import ExampleError, SettingError, SpaceMismatchError
from trueline.prompts import Prompt, encode_plain
from trueline.rad.entries import (
    Context,
    Entries,
    EntrySettings,
    RadEntries,
    window_texts,
    window_tokens,
)
from trueline.store import Array, Arrays, resumed
from trueline.types import Example

ROWS = 32  # answers in one pass


@dataclass(frozen=True, slots=True)
class Passage:
    """One answer of one example, as tokens."""

    example: int
    answer: int
    prompt: list[int]
    tokens: list[int]
    question: list[int]  # alone


Passages = list[list[Passage]]  # of the truthful answers, then perhaps of the wrong ones


def plan_entries(
    context: Context | None,
    options: Mapping[str, Any],
    lm: Engine | None,
    examples: Sequence[Example],
    prompt: Prompt,
) -> tuple[EntrySettings, Passages] | None:
    """The settings of the entries of a new space, and the answers to read; None: no entries."""
    usual = {field.name: field.default for field in fields(EntrySettings)}
    for name, value in options.items():
        if name not in usual:
            raise TypeError(f"build takes no {name!r}")
        if context is None and value != usual[name]:
            raise SettingError(
                f"{name}={value!r} is about entries, and context=None makes none; leave it out "
                "or give a context, such as 8"
            )
    if context is None:
        return None
    settings = EntrySettings(context=context, **options)
    if lm is None:
        raise SettingError("entries need a model: give one, or context=None for none")
    passages = tokenized_answers(lm, examples, prompt, wrong=settings.wrong)
    if not all(passages):
        raise SettingError("wrong=True asks for wrong answers, and no example has one")
    # The form of the head, as it shows on the first answer.
    head = lm.head_kind((passages[0][0].prompt + passages[0][0].tokens)[:64])
    return settings.settled(lm, head), passages


def tokenized_answers(
    lm: Engine, examples: Sequence[Example], prompt: Prompt, *, wrong: bool
) -> Passages:
    """The truthful answers, then, with `wrong`, the wrong ones; each fits into the model."""
    made: Passages = [[], []]
    problems = []
    for index, example in enumerate(examples):
        prompt_ids = prompt.encode(example.question, lm.tokenizer)
        question = encode_plain(example.question, lm.tokenizer)
        answers = example.answers, example.wrong_answers if wrong else ()
        for passages, texts in zip(made, answers, strict=True):
            for number, answer in enumerate(texts):
                tokens = prompt.encode_answer(example.question, answer, lm.tokenizer)
                if lm.limit and (length := len(prompt_ids) + len(tokens)) > lm.limit:
                    problems.append(f"  example {example.id}: {length} tokens")
                passages.append(Passage(index, number, prompt_ids, tokens, question))
    if problems:
        raise ExampleError(
            f"{lm.id} reads at most {lm.limit} tokens; longer are:\n" + "\n".join(problems)
        )
    return made[: 1 + wrong]


def build_entries(
    settings: EntrySettings,
    passages: Passages,
    lm: Engine,
    embedder: Embedder,
    **options: Any,
) -> RadEntries:
    """The entries of answers; `options` are those of `store.resumed`."""
    sets = [_batches(answers) for answers in passages]
    batches = [batch for own in sets for batch in own]
    sizes = [sum(len(row.tokens) + settings.end for row in batch) for batch in batches]
    make = partial(_entries, settings, lm, embedder)
    made = resumed(make, batches, sizes, kind="entries", **options)
    parts = made[: len(sets[0])], made[len(sets[0]) :]
    made_sets = []
    for part in filter(None, parts):  # without wrong answers, there is no second part
        joined = {name: np.concatenate([one[name] for one in part]) for name in part[0]}
        # In the order of example, answer, step, whatever the batches were.
        order = np.lexsort((joined["steps"], joined["answers"], joined["examples"]))
        made_sets.append(Entries(**{name: array[order] for name, array in joined.items()}))
    return RadEntries(settings, *made_sets)


def extended(
    entries: RadEntries,
    examples: Sequence[Example],
    first: int,
    lm: Engine,
    embedder: Embedder,
    prompt: Prompt,
    **options: Any,
) -> RadEntries:
    """Entries with those of more examples, which are numbered from `first` on.

    `lm` has passed `check_lm`; `options` are `work` and `progress` of `store.resumed`.
    """
    settings = entries.settings
    passages = tokenized_answers(lm, examples, prompt, wrong=settings.wrong)
    if settings.head == "opaque":  # so that this copy of the model does not use it either
        lm.head_kind((passages[0][0].prompt + passages[0][0].tokens)[:64])
    more = build_entries(settings, passages, lm, embedder, run=map, **options)
    return entries.joined(more, first)


def check_lm(entries: RadEntries, lm: Engine | None) -> Engine:
    """Refuse to make entries without the model they are made with."""
    made = entries.settings
    if lm is None:
        raise SettingError(
            "this space holds RAD entries, which the model makes for each new answer; give it: "
            f"lm=tl.load({made.model!r})"
        )
    entries.check_model(lm)
    if (computed := str(lm.dtype).removeprefix("torch.")) != made.computed:
        raise SpaceMismatchError(
            f"the entries were computed in {made.computed}, this model runs in {computed}; "
            f"load it with dtype={made.computed!r}"
        )
    return lm


def _entries(
    settings: EntrySettings, lm: Engine, embedder: Embedder, batch: Sequence[Passage]
) -> Arrays:
    """One entry for every token of every answer; each prompt is read once."""
    end = lm.tokenizer.eos_token_id
    end = min(lm.stop_ids, default=-1) if end is None else int(end)
    windows, positions = [], []
    for row in batch:
        context, start = row.prompt + row.tokens, len(row.prompt)
        for step, token in enumerate([*row.tokens, *[end] * settings.end]):
            so_far = context[: start + step]
            windows.append(window_tokens(so_far, start, row.question, settings))
            positions.append((token, row.example, row.answer, step))
    keys = embed_distinct(embedder, window_texts(lm, windows), tails=True)  # (n, dimension)
    columns = np.array(positions, np.int32).T.copy()  # (4, n)
    values = _values(settings, lm, batch)
    return Entries(keys.cpu().numpy().astype(settings.dtype), values, *columns).arrays()


@torch.inference_mode()
def _values(settings: EntrySettings, lm: Engine, batch: Sequence[Passage]) -> Array:
    """What the model predicts at each token of some answers: hidden states or logits."""
    prompts = {row.example: row.prompt for row in batch}
    rows = [[*prompts].index(row.example) for row in batch]
    lengths = [len(row.tokens) + settings.end for row in batch]
    # The last token is not read.
    reads = [[*x.tokens, 0][:length] for x, length in zip(batch, lengths, strict=True)]
    states = read_continuations(lm, [*prompts.values()], rows, reads, states=True)
    computed = states.logits if states.hidden is None else states.hidden
    assert computed is not None
    kept = torch.cat([row[:length] for row, length in zip(computed, lengths, strict=True)])
    if settings.values == "logits" and lm.head is not None:
        kept = lm.head(kept)
    values: Array = kept.float().cpu().numpy().astype(settings.dtype)
    if not np.isfinite(values).all():
        raise SettingError(
            f"some values do not fit into {settings.dtype}; build with dtype='float32'"
        )
    return values


def _batches(passages: Sequence[Passage]) -> list[list[Passage]]:
    """Prompts of like length together, the answers of one question next to each other."""
    groups = [list(group) for _, group in groupby(passages, key=lambda row: row.example)]
    groups.sort(key=lambda group: len(group[0].prompt))  # stable: ties keep their order
    made: list[list[Passage]] = []
    for group in groups:
        for start in range(0, len(group), ROWS):
            rows = group[start : start + ROWS]
            if not made or len(made[-1]) + len(rows) > ROWS:
                made.append([])
            made[-1] += rows
    return made
