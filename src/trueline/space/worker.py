"""A batch of answers in, entries out: one pass of the model, one of the embedder."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from trueline.embedders.base import Embedder, embed_distinct
from trueline.engines.base import Engine, states_behind
from trueline.errors import SettingError
from trueline.files import replacing
from trueline.space.content import Recipe
from trueline.space.passages import Passage
from trueline.space.segment import Array, Entries
from trueline.space.windows import window_hash, window_tokens


def passage_length(passage: Passage, end: bool) -> int:
    """How many entries an answer makes."""
    return len(passage.tokens) + end


class Worker:
    """Turns batches of passages into entries."""

    def __init__(self, lm: Engine, embedder: Embedder, recipe: Recipe) -> None:
        self.lm, self.embedder, self.recipe = lm, embedder, recipe

    def resume(self, batch: list[Passage], path: Path) -> Entries:
        """The entries of a batch, from its file if an earlier build finished it."""
        try:
            kept = Entries(**load_file(path))
            if self._is_of(kept, batch):
                return kept
        except (OSError, SafetensorError, TypeError):  # not there, or cut short
            pass
        entries = self.entries(batch)
        with replacing(path) as scratch:
            save_file(entries.arrays(), scratch)
        return entries

    def entries(self, batch: list[Passage]) -> Entries:
        """One entry for every token of every answer; each prompt is read once."""
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
            values=self._values(batch, lengths),
            tokens=positions[:, 0].copy(),
            examples=positions[:, 1].copy(),
            answers=positions[:, 2].copy(),
            steps=positions[:, 3].copy(),
            windows=np.array([window_hash(text) for text in texts], np.int64),
        )

    def _positions(self, batch: list[Passage]) -> Array:
        """Next token, example, answer and step of every entry: (entries, 4)."""
        return np.array(
            [
                (token, passage.example, passage.answer, step)
                for passage in batch
                for step, token in enumerate([*passage.tokens, *[self._end] * self.recipe.end])
            ],
            np.int32,
        )

    def _is_of(self, kept: Entries, batch: list[Passage]) -> bool:
        """Whether kept entries are those of a batch, and no crash has eaten into them."""
        positions = np.stack([kept.tokens, kept.examples, kept.answers, kept.steps], 1)
        return np.array_equal(positions, self._positions(batch)) and bool(
            np.isfinite(kept.values).all() and kept.values.any(1).all()
        )

    @property
    def _end(self) -> int:
        token = self.lm.tokenizer.eos_token_id
        return min(self.lm.stop_ids, default=-1) if token is None else int(token)

    def _keys(self, windows: list[str]) -> Array:
        vectors = embed_distinct(self.embedder, windows, tails=True)  # (entries, dimension)
        return vectors.cpu().numpy().astype(self.recipe.dtype)

    @torch.inference_mode()
    def _values(self, batch: list[Passage], lengths: list[int]) -> Array:
        contexts: list[list[int]] = []
        rows = []
        for _, group in groupby(batch, key=lambda passage: passage.example):
            answers = list(group)
            rows += [len(contexts)] * len(answers)
            contexts.append(answers[0].prompt)
        reading = self.lm.start()
        states = reading.join(contexts).take(rows)
        reading.keep(rows)
        pairs = list(zip(batch, lengths, strict=True))
        after = [passage.tokens[: length - 1] for passage, length in pairs]
        if any(after):
            states = states_behind(states, reading.read_on(after))
        else:
            states = states.map(lambda tensor: tensor[:, None])
        found = states.logits if states.hidden is None else states.hidden
        assert found is not None
        kept = torch.cat([row[:length] for row, length in zip(found, lengths, strict=True)])
        if self.recipe.values == "logits" and self.lm.head is not None:
            kept = self.lm.head(kept)
        values: Array = kept.float().cpu().numpy().astype(self.recipe.dtype)
        if not np.isfinite(values).all():
            raise SettingError(
                f"some values do not fit into {self.recipe.dtype}; build with dtype='float32'"
            )
        return values
