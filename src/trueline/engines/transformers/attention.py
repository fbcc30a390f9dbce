"""Keys and values of the tokens read so far: kept in place, and read without a copy."""

from __future__ import annotations

from typing import Any

import torch

from trueline.engines.weights import IMPORTING

with IMPORTING:
    from transformers import (
        AttentionInterface,
        AttentionMaskInterface,
        DynamicCache,
        PreTrainedModel,
    )
    from transformers.cache_utils import DynamicLayer
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

_NAME = "trueline"  # what transformers files our attention under
_ROOM = 64  # tokens a buffer can take before it has to be made anew


class GrowingLayer(DynamicLayer):
    """The cache of one layer in a buffer with room at its end.

    transformers' own joins old and new into a new tensor at every step, which copies all.
    """

    keys: torch.Tensor  # (rows, heads, tokens, width), a view into the buffer
    values: torch.Tensor
    is_initialized: bool

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens behind the old; all keys and values so far come back."""
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self._length = 0
            self._buffers = [
                state.new_empty(*state.shape[:2], 0, state.shape[3])
                for state in (key_states, value_states)
            ]
            self.is_initialized = True
        new = key_states.shape[2]
        start, self._length = self._length, self._length + new
        if self._length > self._buffers[0].shape[2]:
            self._buffers = [self._larger(buffer, start) for buffer in self._buffers]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer.narrow(2, start, new).copy_(states)
        self._show()
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        if self.is_initialized:
            self._buffers = [buffer[indices] for buffer in self._buffers]
            self._show()

    def absorb(self, other: GrowingLayer, width: int) -> None:
        """Add the rows of another layer below these, all padded on the left to `width`."""
        pairs = zip((self.keys, self.values), (other.keys, other.values), strict=True)
        self._buffers = [stack_right(pair, width, room=_ROOM) for pair in pairs]
        self._length = width
        self._show()

    def drop_left(self, count: int) -> None:
        """Forget the first tokens of every row."""
        self._buffers = [buffer[:, :, count:] for buffer in self._buffers]
        self._length -= count
        self._show()

    def _larger(self, buffer: torch.Tensor, used: int) -> torch.Tensor:
        """(rows, heads, tokens, width) with room for half as many tokens again."""
        size = max(self._length + _ROOM, self._length * 3 // 2)
        made = buffer.new_empty(*buffer.shape[:2], size, buffer.shape[3])
        made[:, :, :used] = buffer[:, :, :used]
        return made

    def _show(self) -> None:
        self.keys = self._buffers[0].narrow(2, 0, self._length)
        self.values = self._buffers[1].narrow(2, 0, self._length)


class Cache(DynamicCache):
    """The cache of a model; layers with a sliding window keep transformers' own kind."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(config=model.config)
        self.layers: list[Any]
        self.layers = [
            GrowingLayer() if type(layer) is DynamicLayer else layer for layer in self.layers
        ]

    def absorb(self, other: Cache, width: int) -> None:
        """Add the rows of another cache below these; `width` is that of the wider one.

        Every row ends at the same place: what is short gets pads on its left.
        """
        for ours, theirs in zip(self.layers, other.layers, strict=True):
            if not ours.is_initialized:
                continue  # it reads the keys of another layer
            if isinstance(ours, GrowingLayer):
                ours.absorb(theirs, width)
                continue
            held = min(width, ours.sliding_window - 1) if ours.is_sliding else width
            ours.keys = stack_right((ours.keys, theirs.keys), held)
            ours.values = stack_right((ours.values, theirs.values), held)
            if ours.is_sliding:
                ours.cumulative_length = width

    def drop_left(self, count: int) -> None:
        """Forget the first tokens of every row, which are pads in all of them."""
        for layer in self.layers:
            if isinstance(layer, GrowingLayer) and layer.is_initialized:
                layer.drop_left(count)
            elif layer.is_initialized:
                gone = count
                if layer.is_sliding:  # it has forgotten some by itself
                    gone -= min(count, layer.cumulative_length - layer.keys.shape[2])
                    layer.cumulative_length -= count
                layer.keys, layer.values = layer.keys[:, :, gone:], layer.values[:, :, gone:]


def stack_right(
    parts: tuple[torch.Tensor, torch.Tensor], width: int, *, room: int = 0
) -> torch.Tensor:
    """Rows of (rows, heads, tokens, size) below rows, ending at the same token; zeros are pads.

    `room` tokens more are left free behind them.
    """
    rows = sum(len(part) for part in parts)
    first = parts[0]
    made = first.new_zeros(rows, first.shape[1], width + room, first.shape[3])
    start = 0
    for part in parts:
        made[start : start + len(part), :, width - part.shape[2] : width] = part
        start += len(part)
    return made


def share_heads(model: PreTrainedModel) -> None:
    """Let a model that uses torch's attention read shared keys without copies."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(_NAME)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one new token: the heads of a group become the queries of their keys.

    (rows, heads, 1, width) is read as (rows, groups, heads a group, width): the same products,
    and the keys (rows, groups, tokens, width) are not repeated for each head.
    """
    rows, heads, new, width = query.shape
    groups = key.shape[1]
    plain = not any(options.get(name) for name in ("dropout", "position_bias", "softcap"))
    is_small = rows == 1 or groups == heads  # one row is read as fast either way
    if new > 1 or is_small or not plain:
        whole, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return whole, None
    out = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, groups, heads // groups, width),
        key,
        value,
        attn_mask=attention_mask,
        scale=options.get("scaling"),
    )  # (rows, groups, heads a group, width)
    return out.reshape(rows, 1, heads, width), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)
