"""Answers in, entries out: passes of the model, batched, resumable, here or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trueline.cluster import Run
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
from trueline.types import Example, OnProgress

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
    return settings.settled(lm, _head_kind(lm, passages)), passages


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


def _head_kind(lm: Engine, passages: Passages) -> str:
    """The form of the head, as it shows on the first answer."""
    return lm.head_kind((passages[0][0].prompt + passages[0][0].tokens)[:64])


def build_entries(
    settings: EntrySettings,
    passages: Passages,
    lm: Engine,
    embedder: Embedder,
    *,
    work: Path | None = None,
    run: Run = map,
    progress: OnProgress | None = None,
) -> RadEntries:
    """The entries of answers; what is finished is kept in `work`, and not made again."""
    batches = [batch for answers in passages for batch in _batches(answers)]
    sizes = [sum(len(row.tokens) + settings.end for row in batch) for batch in batches]
    make = partial(_entries, settings, lm, embedder)
    options: dict[str, Any] = {"work": work, "run": run, "progress": progress}
    made = resumed(make, batches, sizes, kind="entries", **options)
    count = len(_batches(passages[0]))
    truthful, wrong = _sorted(made[:count]), made[count:]
    # More examples may have no wrong answers.
    return RadEntries(settings, truthful, _sorted(wrong) if wrong else None)


def extended(
    entries: RadEntries,
    examples: Sequence[Example],
    first: int,
    lm: Engine,
    embedder: Embedder,
    prompt: Prompt,
    *,
    work: Path | None,
    progress: OnProgress | None,
) -> RadEntries:
    """Entries with those of more examples, which are numbered from `first` on.

    `lm` has passed `check_lm`.
    """
    settings = entries.settings
    passages = tokenized_answers(lm, examples, prompt, wrong=settings.wrong)
    # The form of the head was checked when the space was built. Only a head that failed there
    # is checked again, so that this copy of the model is not trusted either.
    if settings.head == "opaque":
        _head_kind(lm, passages)
    more = build_entries(settings, passages, lm, embedder, work=work, progress=progress)
    return entries.joined(more, first)


def check_lm(entries: RadEntries, lm: Engine | None) -> Engine:
    """Refuse to make entries without the model they are made with."""
    made = entries.settings
    if lm is None:
        raise SettingError(
            "this space holds RAD entries, which take a pass of the model over each new "
            f"answer; give it the model: lm=tl.load({made.model!r})"
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
    keys = embed_distinct(
        embedder, window_texts(lm, windows), tails=True
    )  # (entries, dimension)
    columns = np.array(positions, np.int32).T.copy()  # (4, entries)
    values = _values(settings, lm, batch)
    return Entries(keys.cpu().numpy().astype(settings.dtype), values, *columns).arrays()


@torch.inference_mode()
def _values(settings: EntrySettings, lm: Engine, batch: Sequence[Passage]) -> Array:
    """What the model predicts at each token of some answers: hidden states or logits."""
    prompts: list[list[int]] = []
    rows: list[int] = []
    for _, group in groupby(batch, key=lambda row: row.example):
        answers = list(group)
        rows += [len(prompts)] * len(answers)
        prompts.append(answers[0].prompt)
    lengths = [len(row.tokens) + settings.end for row in batch]
    # The last token is not read.
    reads = [[*x.tokens, 0][:length] for x, length in zip(batch, lengths, strict=True)]
    states = read_continuations(lm, prompts, rows, reads, states=True)
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
            if made and len(made[-1]) + len(rows) <= ROWS:
                made[-1] += rows
            else:
                made.append(rows)
    return made


def _sorted(parts: Sequence[Arrays]) -> Entries:
    """All entries in the order of example, answer, step, whatever the batches were."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((joined["steps"], joined["answers"], joined["examples"]))
    return Entries(**{name: array[order] for name, array in joined.items()})
