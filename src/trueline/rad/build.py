"""Answers in, entries out: passes of the model, batched, resumable, here or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from trueline.embed import Embedder, embed_distinct
from trueline.engines import Origin, origin_of
from trueline.engines.base import Engine, read_continuations
from trueline.errors import ExampleError, SettingError, SpaceMismatchError
from trueline.prompts import Prompt
from trueline.rad.entries import Entries, EntrySettings, RadEntries, window_tokens
from trueline.space import check_same, same_embedder
from trueline.store import Array, Arrays, Run, resumed
from trueline.types import Example, OnProgress

ROWS = 32  # answers in one pass


@dataclass(frozen=True, slots=True)
class Passage:
    """One answer of one example, as tokens."""

    example: int
    answer: int
    prompt: list[int]
    tokens: list[int]


Passages = list[list[Passage]]  # of the truthful answers, then perhaps of the wrong ones


def tokenized_answers(
    lm: Engine, examples: Sequence[Example], prompt: Prompt, *, wrong: bool
) -> Passages:
    """The truthful answers, then the wrong ones if they are asked for."""
    kinds = [False, True][: 1 + wrong]
    return [list(_passages(lm, examples, prompt, is_wrong=kind)) for kind in kinds]


def settled(settings: EntrySettings, lm: Engine, found: Passages) -> EntrySettings:
    """The settings, with the form of the head as it shows on the first answer."""
    if not all(found):
        raise SettingError("wrong=True asks for wrong answers, and no example has one")
    head = lm.head_kind((found[0][0].prompt + found[0][0].tokens)[:64])
    return settings.settled(lm, head)


def build_entries(
    found: Passages,
    lm: Engine,
    embedder: Embedder,
    settings: EntrySettings,
    *,
    work: Path | None = None,
    run: Run = map,
    progress: OnProgress | None = None,
) -> RadEntries:
    """The entries of answers; what is finished is kept in `work`, and not made again."""
    worker = EntryWorker(lm, embedder, settings)
    plan = [_batches(passages) for passages in found]
    made = iter(
        resumed(
            [batch for batches in plan for batch in batches],
            "entries",
            worker.entries,
            worker.are_entries,
            work=work,
            run=run,
            size=lambda batch: sum(map(worker.length, batch)),
            progress=progress,
        )
    )
    sets = [[next(made) for _ in batches] for batches in plan]
    truthful, wrong = (_sorted(each) if each else None for each in [*sets, []][:2])
    assert truthful is not None
    return RadEntries(settings, truthful, wrong)  # more examples may have no wrong answers


def extended(
    entries: RadEntries,
    examples: Sequence[Example],
    first: int,
    lm: Engine | None,
    embedder: Embedder,
    prompt: Prompt,
    *,
    work: Path | None,
    progress: OnProgress | None,
) -> RadEntries:
    """Entries with those of more examples, which are numbered from `first` on."""
    settings = entries.settings
    lm = check_lm(entries, lm)
    found = tokenized_answers(lm, examples, prompt, wrong=settings.wrong)
    # The form of the head was checked when the space was built. Only a head that failed there
    # is checked again, so that this copy of the model is not trusted either.
    if settings.head == "opaque":
        settled(settings, lm, found[:1])
    if settings.values == "hidden" and lm.head is None:
        raise SpaceMismatchError(
            f"the space keeps hidden states for a head that is {settings.head}, and this "
            "model's own has no known form; build it anew with `trueline build --model "
            f"{lm.id}`"
        )
    more = build_entries(found, lm, embedder, settings, work=work, progress=progress)
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


class EntryWorker:
    """Turns batches of answers into entries.

    It is pickled as what it works with: another process opens model and embedder by name.
    """

    def __init__(self, lm: Engine, embedder: Embedder, settings: EntrySettings) -> None:
        self.lm, self.embedder, self.settings = lm, embedder, settings

    def __reduce__(self) -> tuple[object, ...]:
        origins = origin_of(self.lm), origin_of(self.embedder)
        return _reopened, (*origins, self.settings, self.embedder.hash)

    def entries(self, batch: Sequence[Passage]) -> Arrays:
        """One entry for every token of every answer; each prompt is read once."""
        context, window = self.settings.context, self.settings.window
        windows = []
        for passage in batch:
            tokens, start = passage.prompt + passage.tokens, len(passage.prompt)
            windows += [
                window_tokens(tokens[: start + step], start, context, window)
                for step in range(self.length(passage))
            ]
        texts = self.lm.decode_all(windows)
        keys = embed_distinct(self.embedder, texts, tails=True)  # (entries, dimension)
        positions = self._positions(batch)
        return Entries(
            keys=keys.cpu().numpy().astype(self.settings.dtype),
            values=self._values(batch),
            tokens=positions[:, 0].copy(),
            examples=positions[:, 1].copy(),
            answers=positions[:, 2].copy(),
            steps=positions[:, 3].copy(),
        ).arrays()

    def are_entries(self, batch: Sequence[Passage], kept: Arrays) -> bool:
        """Whether kept entries are those of a batch, and no crash has eaten into them."""
        entries = Entries(**kept)
        named = (entries.tokens, entries.examples, entries.answers, entries.steps)
        return np.array_equal(np.stack(named, 1), self._positions(batch)) and bool(
            np.isfinite(entries.values).all() and entries.values.any(1).all()
        )

    def length(self, passage: Passage) -> int:
        """How many entries an answer makes."""
        return len(passage.tokens) + self.settings.end

    def _positions(self, batch: Sequence[Passage]) -> Array:
        """Next token, example, answer and step of every entry: (entries, 4)."""
        ends = [self._end] * self.settings.end
        return np.array(
            [
                (token, passage.example, passage.answer, step)
                for passage in batch
                for step, token in enumerate([*passage.tokens, *ends])
            ],
            np.int32,
        )

    @property
    def _end(self) -> int:
        token = self.lm.tokenizer.eos_token_id
        return min(self.lm.stop_ids, default=-1) if token is None else int(token)

    @torch.inference_mode()
    def _values(self, batch: Sequence[Passage]) -> Array:
        """What the model predicts at each token of some answers: hidden states or logits."""
        lm, dtype = self.lm, self.settings.dtype
        contexts: list[list[int]] = []
        rows = []
        for _, group in groupby(batch, key=lambda passage: passage.example):
            answers = list(group)
            rows += [len(contexts)] * len(answers)
            contexts.append(answers[0].prompt)
        lengths = [self.length(passage) for passage in batch]
        # The last token is not read.
        reads = [[*x.tokens, 0][:length] for x, length in zip(batch, lengths, strict=True)]
        states = read_continuations(lm, contexts, rows, reads, states=True)
        found = states.logits if states.hidden is None else states.hidden
        assert found is not None
        kept = torch.cat([row[:length] for row, length in zip(found, lengths, strict=True)])
        if self.settings.values == "logits" and lm.head is not None:
            kept = lm.head(kept)
        values: Array = kept.float().cpu().numpy().astype(dtype)
        if not np.isfinite(values).all():
            raise SettingError(
                f"some values do not fit into {dtype}; build with dtype='float32'"
            )
        return values


def _reopened(
    lm: Origin, embedder: Origin, settings: EntrySettings, embedder_hash: str
) -> EntryWorker:
    """A worker in another process; refused where a name means other weights there."""
    model = lm()
    check_same(settings.model, model.fingerprint, settings.model_fingerprint)
    return EntryWorker(model, same_embedder(embedder, embedder_hash), settings)


def _passages(
    lm: Engine, examples: Sequence[Example], prompt: Prompt, *, is_wrong: bool
) -> Iterator[Passage]:
    """Some answers as tokens; all that are too long are named at once."""
    problems = []
    for index, example in enumerate(examples):
        prompt_ids = prompt.encode(example.question, lm.tokenizer)
        answers = example.wrong_answers if is_wrong else example.answers
        for number, answer in enumerate(answers):
            tokens = prompt.encode_answer(example.question, answer, lm.tokenizer)
            if lm.limit and (length := len(prompt_ids) + len(tokens)) > lm.limit:
                problems.append(f"  example {example.id}: {length} tokens")
            yield Passage(index, number, prompt_ids, tokens)
    if problems:
        raise ExampleError(
            f"{lm.id} reads at most {lm.limit} tokens; longer are:\n" + "\n".join(problems)
        )


def _batches(found: Sequence[Passage]) -> list[list[Passage]]:
    """Prompts of like length together, the answers of one question side by side."""
    groups = [list(group) for _, group in groupby(found, key=lambda item: item.example)]
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
