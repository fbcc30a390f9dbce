"""Prompts in, hidden states out, step by step: the tokens, caches and masks of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from trueline.models.language import LanguageModel

Prompts = Sequence[
    Sequence[int]
]  # of one question: the prompt it is asked with, then any others


@dataclass(frozen=True)
class States:
    """What the model computed for a number of rows, at their last token or at several."""

    hidden: torch.Tensor | None  # (n, ..., d); None for an opaque head
    logits: torch.Tensor | None  # (n, ..., vocabulary), for an opaque head only
    layers: tuple[
        torch.Tensor, ...
    ] = ()  # (n, ..., d) each, the earlier layers that were asked for

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> States:
        """The same change to each of the tensors."""
        return States(
            None if self.hidden is None else function(self.hidden),
            None if self.logits is None else function(self.logits),
            tuple(function(layer) for layer in self.layers),
        )

    def joined(self, after: States) -> States:
        """These states of one token, and behind them those of the tokens that follow."""

        def pair(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
            return None if one is None or other is None else torch.cat([one[:, None], other], 1)

        layers = zip(self.layers, after.layers, strict=True)
        return States(
            pair(self.hidden, after.hidden),
            pair(self.logits, after.logits),
            tuple(torch.cat([one[:, None], other], 1) for one, other in layers),
        )


class Reading:
    """What one batch has read so far; it belongs to one call and ends with it.

    A row is a question. It may be read under several prompts at once, each with a cache of its
    own and all in one pass: states come prompt by prompt, row by row. Prompts of unequal length
    are padded on the left and masked. Rows can leave, and can be repeated so that several
    continuations share one prompt's cache.
    """

    def __init__(
        self, lm: LanguageModel, prompts: Sequence[Prompts], *, layers: Sequence[int] = ()
    ) -> None:
        self.lm, self._layers = lm, tuple(layers)
        self.streams = len(prompts[0])
        read = [list(row[stream]) for stream in range(self.streams) for row in prompts]
        self.contexts = read[: len(prompts)]  # tokens of each live row under its first prompt
        self.starts = [len(context) for context in self.contexts]  # where each answer begins
        self._lengths = [len(tokens) for tokens in read]  # of every row under every prompt
        self._cache = DynamicCache(config=lm.model.config)
        self._mask: torch.Tensor | None = None  # (n, tokens), absent while nothing is padded
        gaps = [max(self._lengths) - length for length in self._lengths]
        if any(gaps):
            rows = zip(gaps, self._lengths, strict=True)
            self._mask = torch.tensor(
                [[0] * gap + [1] * length for gap, length in rows], device=lm.device
            )
        ids = [[0] * gap + tokens for gap, tokens in zip(gaps, read, strict=True)]
        self.states = self._last(self._forward(ids, [-gap for gap in gaps]))

    def extend(self, tokens: Sequence[int]) -> None:
        """Read one more token in each row."""
        self.contexts = [
            [*context, token] for context, token in zip(self.contexts, tokens, strict=True)
        ]
        self._grow_mask(1)
        ids = [[token] for token in tokens] * self.streams
        self.states = self._last(self._forward(ids, self._lengths))
        self._lengths = [length + 1 for length in self._lengths]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        count = len(self.contexts)
        if list(rows) == list(range(count)):
            return
        everywhere = [stream * count + row for stream in range(self.streams) for row in rows]
        index = torch.tensor(everywhere, device=self.lm.device)
        self.contexts = [self.contexts[row] for row in rows]
        self.starts = [self.starts[row] for row in rows]
        self._lengths = [self._lengths[place] for place in everywhere]
        self._cache.batch_select_indices(index)
        self._mask = None if self._mask is None else self._mask[index]
        self.states = self.states.map(lambda tensor: tensor[index])

    def finish(self, continuations: Sequence[Sequence[int]]) -> States:
        """Read a whole continuation in each row, in one pass: the states behind its tokens.

        They are (n, 1 + longest, ...): the first is the state before the continuation, those
        past a row's own end mean nothing.
        """
        width = max(map(len, continuations))
        if width == 0:
            return self.states.map(lambda tensor: tensor[:, None])
        ids = [list(tokens) + [0] * (width - len(tokens)) for tokens in continuations]
        self._grow_mask(width)
        return self.states.joined(self._forward(ids * self.streams, self._lengths))

    def _grow_mask(self, width: int) -> None:
        if self._mask is not None:
            ones = self._mask.new_ones(len(self._mask), width)
            self._mask = torch.cat([self._mask, ones], 1)

    def _forward(self, ids: list[list[int]], first: Sequence[int]) -> States:
        """Run the model over ids (n, tokens), the first token of each at its position."""
        device = self.lm.device
        steps = torch.arange(len(ids[0]), device=device)
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": self._mask,
            "position_ids": (torch.tensor(first, device=device)[:, None] + steps).clamp(min=0),
            "past_key_values": self._cache,
            "use_cache": True,
        }
        return States(*self.lm.forward(inputs, self._layers))

    @staticmethod
    def _last(states: States) -> States:
        return states.map(lambda tensor: tensor[:, -1])
