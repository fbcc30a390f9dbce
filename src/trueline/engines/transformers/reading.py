"""Contexts in, hidden states out, step by step: the caches and masks of one batch of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trueline.engines.base import IsDone, States, shared_length
from trueline.engines.transformers.attention import Cache

if TYPE_CHECKING:
    from trueline.engines.transformers.language import LanguageModel


class BatchReading:
    """The rows of one batch; contexts of unequal length are padded on the left and masked.

    What all new contexts begin with is read once. All rows end at the same cached token, so a
    row that joins is put below the others, and whichever is shorter gets pads on its left.
    """

    def __init__(self, lm: LanguageModel, *, states: bool) -> None:
        self._lm = lm
        self._states = states  # whether it gives hidden states, or else logits
        self._cache = Cache(lm.model)
        self._mask: torch.Tensor | None = None  # (rows, width); None while nothing is padded
        self._lengths: list[int] = []  # tokens read in each row, which is its next position
        self._width = 0

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return len(self._lengths)

    @property
    def width(self) -> int:
        """How many tokens are cached for each row, pads included."""
        return self._width

    def join(
        self,
        contexts: Sequence[Sequence[int]],
        *,
        layers: Sequence[int] = (),
        done: IsDone | None = None,
    ) -> States:
        """Read whole contexts as new rows behind the others: the states at their ends."""
        if self.rows:
            joining = BatchReading(self._lm, states=self._states)
            states = joining.join(contexts, layers=layers, done=done)
            self._absorb(joining)
            return states
        self._lengths = [len(tokens) for tokens in contexts]
        shared = shared_length(contexts) if self._goes_by_position() else 0
        if shared:
            self._forward([list(contexts[0][:shared])], [0], done=done)
            self._cache.batch_select_indices(torch.zeros(self.rows, dtype=torch.long))
        self._width = max(self._lengths)
        gaps = [self._width - length for length in self._lengths]
        if any(gaps):
            pairs = zip(gaps, self._lengths, strict=True)
            rows = [[1] * shared + [0] * gap + [1] * (length - shared) for gap, length in pairs]
            self._mask = torch.tensor(rows, device=self._lm.device)
        ids = [
            [0] * gap + list(tokens[shared:])
            for gap, tokens in zip(gaps, contexts, strict=True)
        ]
        states = self._forward(ids, [shared - gap for gap in gaps], layers=layers, done=done)
        return states.map(lambda tensor: tensor[:, -1])

    def extend(
        self, tokens: Sequence[int], *, layers: Sequence[int] = (), done: IsDone | None = None
    ) -> States:
        """Read one more token in every row: the states at these tokens."""
        self._grow_mask(1)
        ids = [[token] for token in tokens]
        states = self._forward(ids, self._lengths, layers=layers, done=done)
        self._lengths = [length + 1 for length in self._lengths]
        self._width += 1
        return states.map(lambda tensor: tensor[:, -1])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        if list(rows) == list(range(self.rows)):
            return
        index = torch.tensor(rows, device=self._lm.device)
        self._lengths = [self._lengths[row] for row in rows]
        self._cache.batch_select_indices(index)
        if self._mask is not None:
            self._mask = self._mask[index]
            self._drop_pads(self._mask)

    def read_on(
        self, continuations: Sequence[Sequence[int]], *, layers: Sequence[int] = ()
    ) -> States:
        """Read a whole continuation in every row, in one pass, which ends the reading."""
        longest = max(map(len, continuations))
        ids = [list(tokens) + [0] * (longest - len(tokens)) for tokens in continuations]
        self._grow_mask(longest)
        pairs = zip(self._lengths, continuations, strict=True)
        ends = [max(0, length + len(tokens) - 1) for length, tokens in pairs]
        return self._forward(ids, self._lengths, layers=layers, ends=ends)

    def _absorb(self, other: BatchReading) -> None:
        """Put the rows of another reading below these."""
        width = max(self._width, other._width)
        if self._width != other._width or self._mask is not None or other._mask is not None:
            masks = [reading._padded_mask(width) for reading in (self, other)]
            self._mask = torch.cat(masks)
        self._cache.absorb(other._cache, width)
        self._lengths, self._width = self._lengths + other._lengths, width

    def _padded_mask(self, width: int) -> torch.Tensor:
        """Which tokens of each row are no pads, were it `width` tokens wide."""
        mask = self._mask
        if mask is None:
            shape = (self.rows, self._width)
            mask = torch.ones(shape, dtype=torch.long, device=self._lm.device)
        return torch.nn.functional.pad(mask, (width - self._width, 0))

    def _drop_pads(self, mask: torch.Tensor) -> None:
        """Forget what is a pad in every row on the left, so that the width can come down."""
        pads = int(mask.any(0).long().argmax())
        if pads:
            self._cache.drop_left(pads)
            self._width -= pads
        self._mask = None if bool(mask[:, pads:].all()) else mask[:, pads:]

    def _goes_by_position(self) -> bool:
        """Whether pads between a shared prefix and the rest change nothing.

        A sliding window or a bias by distance counts cached tokens, pads too.
        """
        if any(self._cache.is_sliding):
            return False
        config = self._lm.model.config.get_text_config()
        is_rotary = getattr(config, "rope_parameters", None) is not None
        return is_rotary or len(set(self._lengths)) == 1

    def _grow_mask(self, width: int) -> None:
        if self._mask is not None:
            ones = self._mask.new_ones(len(self._mask), width)
            self._mask = torch.cat([self._mask, ones], 1)

    def _forward(
        self,
        ids: list[list[int]],
        first: Sequence[int],
        *,
        layers: Sequence[int] = (),
        done: IsDone | None = None,
        ends: Sequence[int] | None = None,
    ) -> States:
        """Run the model over ids (rows, tokens), the first token of each at its position.

        Pads behind a row's end are read at its last position: a model may know no further one.
        """
        device = self._lm.device
        steps = torch.arange(len(ids[0]), device=device)
        positions = (torch.tensor(first, device=device)[:, None] + steps).clamp(min=0)
        if ends is not None:
            positions = positions.minimum(torch.tensor(ends, device=device)[:, None])
        inputs = {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": self._mask,
            "position_ids": positions,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        return self._lm.forward(
            inputs, states=self._states, layers=layers, every=ends is not None, done=done
        )
