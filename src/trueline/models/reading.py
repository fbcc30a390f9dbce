"""Prompts in, hidden states out, step by step: the tokens, caches and masks of one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from trueline.models.language import LanguageModel


class Reading:
    """What one batch has read so far; it belongs to one call and ends with it.

    Prompts of unequal length are padded on the left and masked. Rows can leave, and can be
    repeated so that several continuations share one prompt's cache.
    """

    def __init__(self, lm: LanguageModel, prompts: Sequence[Sequence[int]]) -> None:
        self.lm = lm
        self.contexts = [list(prompt) for prompt in prompts]  # tokens of each live row
        self.starts = [len(prompt) for prompt in prompts]  # where each answer begins
        self._cache = DynamicCache(config=lm.model.config)
        self._mask: torch.Tensor | None = None  # (rows, tokens), absent while nothing is padded
        width = max(self.starts)
        pad = [[0] * (width - start) for start in self.starts]
        if any(pad):
            self._mask = torch.tensor(
                [[0] * len(gap) + [1] * start for gap, start in zip(pad, self.starts)],
                device=lm.device,
            )
        ids = [gap + context for gap, context in zip(pad, self.contexts)]
        first = [-len(gap) for gap in pad]
        hidden, logits = self._forward(ids, first)
        self.hidden = None if hidden is None else hidden[:, -1]  # (rows, d)
        self.logits = (
            None if logits is None else logits[:, -1]
        )  # (rows, vocab), opaque heads only

    def extend(self, tokens: Sequence[int]) -> None:
        """Read one more token in each row."""
        first = [len(context) for context in self.contexts]
        for context, token in zip(self.contexts, tokens):
            context.append(token)
        self._grow_mask(1)
        hidden, logits = self._forward([[token] for token in tokens], first)
        self.hidden = None if hidden is None else hidden[:, -1]
        self.logits = None if logits is None else logits[:, -1]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        if list(rows) == list(range(len(self.contexts))):
            return
        index = torch.tensor(list(rows), device=self.lm.device)
        self.contexts = [list(self.contexts[row]) for row in rows]
        self.starts = [self.starts[row] for row in rows]
        self._cache.batch_select_indices(index)
        self._mask = None if self._mask is None else self._mask[index]
        self.hidden = None if self.hidden is None else self.hidden[index]
        self.logits = None if self.logits is None else self.logits[index]

    def finish(
        self, continuations: Sequence[Sequence[int]]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Read a whole continuation in each row, in one pass: the states behind each of its tokens.

        Returns hidden states (rows, 1 + longest, d), or logits for an opaque head; the first is
        the state before the continuation, those past a row's own end mean nothing.
        """
        width = max(map(len, continuations))
        before = self.hidden, self.logits
        if width == 0:
            return tuple(None if x is None else x[:, None] for x in before)  # type: ignore[return-value]
        first = [len(context) for context in self.contexts]
        ids = [list(tokens) + [0] * (width - len(tokens)) for tokens in continuations]
        self._grow_mask(width)
        after = self._forward(ids, first)
        hidden, logits = (
            None if old is None or new is None else torch.cat([old[:, None], new], 1)
            for old, new in zip(before, after)
        )
        return hidden, logits

    def _grow_mask(self, width: int) -> None:
        if self._mask is not None:
            ones = self._mask.new_ones(len(self._mask), width)
            self._mask = torch.cat([self._mask, ones], 1)

    def _forward(
        self, ids: list[list[int]], first: list[int]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Run the model over ids (rows, n) whose first token stands at the given positions."""
        device = self.lm.device
        steps = torch.arange(len(ids[0]), device=device)
        positions = (torch.tensor(first, device=device)[:, None] + steps).clamp(min=0)
        return self.lm.forward(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
