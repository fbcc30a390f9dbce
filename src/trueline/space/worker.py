"""Examples in, their vectors out; a batch of answers in, entries out: what the passes make."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from trueline.embed import Embedder, embed_distinct
from trueline.engines import Origin, origin_of
from trueline.engines.base import Engine, read_continuations
from trueline.errors import SettingError, SpaceMismatchError
from trueline.space.content import Recipe
from trueline.space.passages import Passage
from trueline.space.segment import ANSWERS, QUESTIONS, VECTORS, WRONG_ANSWERS, Array, Entries
from trueline.space.windows import window_hash, window_tokens
from trueline.types import Example

Arrays = dict[str, Array]  # by the name under which they are stored


def passage_length(passage: Passage, end: bool) -> int:
    """How many entries an answer makes."""
    return len(passage.tokens) + end


class Worker:
    """Turns examples into vectors and batches of answers into entries.

    It is pickled as what it works with: another process opens model and embedder by name.
    """

    def __init__(self, lm: Engine | None, embedder: Embedder, recipe: Recipe) -> None:
        self.lm, self.embedder, self.recipe = lm, embedder, recipe

    def __reduce__(self) -> tuple[object, ...]:
        lm = None if self.lm is None else origin_of(self.lm)
        return _reopened, (lm, origin_of(self.embedder), self.recipe)

    def vectors(self, examples: Sequence[Example]) -> Arrays:
        """The questions, and the means of truthful and of wrong answers, as unit vectors."""
        return embed_examples(examples, self.embedder)

    def are_vectors(self, examples: Sequence[Example], kept: Arrays) -> bool:
        """Whether kept vectors can be those of some examples."""
        shape = (len(examples), self.embedder.dimension)
        return all(
            kept[name].shape == shape and np.isfinite(kept[name]).all() for name in VECTORS
        )

    def entries(self, batch: Sequence[Passage]) -> Arrays:
        """One entry for every token of every answer; each prompt is read once."""
        assert self.lm is not None
        assert self.recipe.context is not None
        lengths = [passage_length(passage, self.recipe.end) for passage in batch]
        windows = []
        for passage, length in zip(batch, lengths, strict=True):
            tokens, start = passage.prompt + passage.tokens, len(passage.prompt)
            windows += [
                window_tokens(
                    tokens[: start + step], start, self.recipe.context, self.recipe.window
                )
                for step in range(length)
            ]
        texts = self.lm.decode_all(windows)
        positions = self._positions(batch)
        return Entries(
            keys=self._keys(texts),
            values=read_values(self.lm, self.recipe, batch, lengths),
            tokens=positions[:, 0].copy(),
            examples=positions[:, 1].copy(),
            answers=positions[:, 2].copy(),
            steps=positions[:, 3].copy(),
            windows=np.array([window_hash(text) for text in texts], np.int64),
        ).arrays()

    def are_entries(self, batch: Sequence[Passage], kept: Arrays) -> bool:
        """Whether kept entries are those of a batch, and no crash has eaten into them."""
        entries = Entries(**kept)
        named = (entries.tokens, entries.examples, entries.answers, entries.steps)
        return np.array_equal(np.stack(named, 1), self._positions(batch)) and bool(
            np.isfinite(entries.values).all() and entries.values.any(1).all()
        )

    def _positions(self, batch: Sequence[Passage]) -> Array:
        """Next token, example, answer and step of every entry: (entries, 4)."""
        return np.array(
            [
                (token, passage.example, passage.answer, step)
                for passage in batch
                for step, token in enumerate([*passage.tokens, *[self._end] * self.recipe.end])
            ],
            np.int32,
        )

    @property
    def _end(self) -> int:
        assert self.lm is not None
        token = self.lm.tokenizer.eos_token_id
        return min(self.lm.stop_ids, default=-1) if token is None else int(token)

    def _keys(self, windows: list[str]) -> Array:
        vectors = embed_distinct(self.embedder, windows, tails=True)  # (entries, dimension)
        return vectors.cpu().numpy().astype(self.recipe.dtype)


def _reopened(lm: Origin | None, embedder: Origin, recipe: Recipe) -> Worker:
    """A worker in another process; refused where a name means other weights there."""
    worker = Worker(lm and lm(), embedder(), recipe)
    found = {recipe.embedder: (worker.embedder.hash, recipe.embedder_hash)}
    if worker.lm is not None:
        found[recipe.model] = (worker.lm.fingerprint, recipe.model_fingerprint)
    for name, (there, here) in found.items():
        if there != here:
            raise SpaceMismatchError(
                f"{name} has other weights there than on the machine that builds; put the "
                "same on every machine"
            )
    return worker


def embed_examples(examples: Sequence[Example], embedder: Embedder) -> Arrays:
    """The questions, and the means of truthful and of wrong answers, as unit vectors."""
    texts: dict[str, list[Sequence[str]]] = {
        QUESTIONS: [(example.question,) for example in examples],
        ANSWERS: [example.answers for example in examples],
        WRONG_ANSWERS: [example.wrong_answers for example in examples],
    }
    flat = [text for groups in texts.values() for group in groups for text in group]
    vectors = iter(embed_distinct(embedder, flat).cpu().numpy())
    return {
        name: np.stack([_mean([next(vectors) for _ in group], embedder) for group in groups])
        for name, groups in texts.items()
    }


def _mean(vectors: list[Array], embedder: Embedder) -> Array:
    """The direction of some vectors together, of length 1; zero where there are none."""
    if len(vectors) == 1:
        return vectors[0].astype(np.float16)
    total: Array = np.sum([np.zeros(embedder.dimension, np.float32), *vectors], axis=0)
    length = float(np.linalg.norm(total))
    mean: Array = (total / length if length > 1e-6 else 0 * total).astype(np.float16)
    return mean


@torch.inference_mode()
def read_values(
    lm: Engine, recipe: Recipe, batch: Sequence[Passage], lengths: Sequence[int]
) -> Array:
    """What the model says at each token of some answers: hidden states or logits."""
    contexts: list[list[int]] = []
    rows = []
    for _, group in groupby(batch, key=lambda passage: passage.example):
        answers = list(group)
        rows += [len(contexts)] * len(answers)
        contexts.append(answers[0].prompt)
    pairs = zip(batch, lengths, strict=True)
    read = [[*passage.tokens, 0][:length] for passage, length in pairs]  # the last is not read
    states = read_continuations(lm, contexts, rows, read, states=True)
    found = states.logits if states.hidden is None else states.hidden
    assert found is not None
    kept = torch.cat([row[:length] for row, length in zip(found, lengths, strict=True)])
    if recipe.values == "logits" and lm.head is not None:
        kept = lm.head(kept)
    values: Array = kept.float().cpu().numpy().astype(recipe.dtype)
    if not np.isfinite(values).all():
        raise SettingError(
            f"some values do not fit into {recipe.dtype}; build with dtype='float32'"
        )
    return values
