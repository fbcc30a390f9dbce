"""Prompts in, hidden states out, step by step: the tokens, caches and masks of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trueline.engines.alongside import beside
from trueline.engines.transformers.attention import Cache
from trueline.engines.transformers.language import LanguageModel
from trueline.shortcuts import is_on

Prompts = Sequence[
    Sequence[int]
]  # of one question: the prompt it is asked with, then any others


# Begins what can be worked out from the contexts and where their answers begin, without the
# model; what it returns ends it.
Aside = Callable[[Sequence[Sequence[int]], Sequence[int]], Callable[[], Any]]


_WORTH = 8  # tokens in common from which a pass of their own pays


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


def shared_length(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows begin with; one of each is left to be read, and few are none."""
    if len(rows) == 1:
        return 0
    first, last = min(map(list, rows)), max(map(list, rows))  # what these share, all share
    limit = min(map(len, rows)) - 1
    same = 0
    while same < limit and first[same] == last[same]:
        same += 1
    return same if same >= _WORTH else 0


class Reading:
    """What one batch has read so far; it belongs to one call and ends with it.

    A row is a question. It may be read under several prompts at once, each with a cache of its
    own and all in one pass: states come prompt by prompt, row by row. Prompts of unequal length
    are padded and masked, and what all begin with is read once. Rows can leave, and can be
    repeated so that several continuations share one prompt's cache. `aside` runs beside every
    pass that ends in a new state, over the tokens the pass reads.
    """

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Sequence[Prompts],
        *,
        layers: Sequence[int] = (),
        aside: Aside | None = None,
    ) -> None:
        self.lm, self._layers, self._aside = lm, tuple(layers), aside
        self.streams = len(prompts[0])
        read = [list(row[stream]) for stream in range(self.streams) for row in prompts]
        self.contexts = read[: len(prompts)]  # tokens of each live row under its first prompt
        self.starts = [len(context) for context in self.contexts]  # where each answer begins
        self._lengths = [len(tokens) for tokens in read]  # of every row under every prompt
        self._cache = Cache(lm.model)
        self._mask: torch.Tensor | None = None  # (n, tokens), absent while nothing is padded
        self.found: Any = None  # what was worked out aside, from the contexts
        is_shared = is_on("prefix") and self._goes_by_position(read)
        shared = shared_length(read) if is_shared else 0
        if shared:
            self._forward([read[0][:shared]], [0])
            self._cache.batch_select_indices(torch.zeros(len(read), dtype=torch.long))
        gaps = [max(self._lengths) - length for length in self._lengths]
        if any(gaps):
            rows = zip(gaps, self._lengths, strict=True)
            self._mask = torch.tensor(
                [[1] * shared + [0] * gap + [1] * (length - shared) for gap, length in rows],
                device=lm.device,
            )
        ids = [[0] * gap + tokens[shared:] for gap, tokens in zip(gaps, read, strict=True)]
        self.states = self._read(ids, [shared - gap for gap in gaps])

    def extend(self, tokens: Sequence[int]) -> None:
        """Read one more token in each row."""
        self.contexts = [
            [*context, token] for context, token in zip(self.contexts, tokens, strict=True)
        ]
        self._grow_mask(1)
        ids = [[token] for token in tokens] * self.streams
        self.states = self._read(ids, self._lengths)
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

    def _goes_by_position(self, read: list[list[int]]) -> bool:
        """Whether pads between a shared prefix and the rest change nothing.

        A sliding window or a bias by distance counts places, pads too.
        """
        if any(self._cache.is_sliding):
            return False
        config = self.lm.model.config.get_text_config()
        is_rotary = getattr(config, "rope_parameters", None) is not None
        return is_rotary or len(set(map(len, read))) == 1

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

    def _read(self, ids: list[list[int]], first: Sequence[int]) -> States:
        """The states at the last token; what is asked for aside is worked out meanwhile."""
        if self._aside is None:
            return self._forward(ids, first).map(lambda tensor: tensor[:, -1])
        work = self._aside(self.contexts, self.starts)
        with beside(work, self.lm.device) as job:
            self._cache.at_layer = job.at_layer
            states = self._forward(ids, first)
        self.found = job.result()
        return states.map(lambda tensor: tensor[:, -1])
