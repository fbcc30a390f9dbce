"""Passes of a transformers model over a batch of rows, and its cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from trueline.engines.base import IsDone, States, shared_length
from trueline.engines.models import IMPORTING

if TYPE_CHECKING:
    from trueline.engines.transformers.model import LanguageModel

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

_NAME = "trueline"  # of our attention among those of transformers
_ROOM = 64  # tokens that fit into a buffer before it is made anew


class GrowingLayer(DynamicLayer):
    """The cache of one layer, in buffers with room for more tokens.

    transformers' own layer concatenates at every step, which copies all keys and values.
    """

    keys: torch.Tensor  # (rows, heads, tokens, width), a view into the first buffer
    values: torch.Tensor  # the same of the second one
    buffers: list[torch.Tensor]
    is_initialized: bool

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = (key_states, value_states)
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.fill([one.new_empty(*one.shape[:2], 0, one.shape[3]) for one in states], 0)
            self.is_initialized = True
        start = self.keys.shape[2]
        length = start + key_states.shape[2]
        if length > self.buffers[0].shape[2]:
            size = max(length + _ROOM, length * 3 // 2)
            larger = [one.new_empty(*one.shape[:2], size, one.shape[3]) for one in states]
            for made, old in zip(larger, (self.keys, self.values), strict=True):
                made[:, :, :start] = old
            self.buffers = larger
        for buffer, new in zip(self.buffers, states, strict=True):
            buffer.narrow(2, start, length - start).copy_(new)
        self.fill(self.buffers, length)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.is_initialized:
            self.fill([buffer[indices] for buffer in self.buffers], self.keys.shape[2])

    def fill(self, buffers: list[torch.Tensor], length: int) -> None:
        """Take these buffers, of which `length` tokens are filled."""
        self.buffers = buffers
        self.keys, self.values = (buffer.narrow(2, 0, length) for buffer in buffers)


class Cache(DynamicCache):
    """The cache of a model; layers with a sliding window keep transformers' own class."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(config=model.config)
        self.layers: list[Any]
        self.layers = [
            GrowingLayer() if type(layer) is DynamicLayer else layer for layer in self.layers
        ]

    def absorb(self, other: Cache, width: int) -> None:
        """Append the rows of another cache; `width` is that of the wider one.

        All rows end at the same place: short ones are padded on the left.
        """
        for ours, theirs in zip(self.layers, other.layers, strict=True):
            if not ours.is_initialized:
                continue  # it reads the keys of another layer
            pairs = (ours.keys, theirs.keys), (ours.values, theirs.values)
            if isinstance(ours, GrowingLayer):
                ours.fill([stack_right(pair, width, room=_ROOM) for pair in pairs], width)
                continue
            held = min(width, ours.sliding_window - 1) if ours.is_sliding else width
            ours.keys, ours.values = (stack_right(pair, held) for pair in pairs)
            if ours.is_sliding:
                ours.cumulative_length = width

    def drop_left(self, count: int) -> None:
        """Drop the first tokens of every row, which are pads in all of them."""
        for layer in self.layers if count else ():
            if not layer.is_initialized:
                continue
            if isinstance(layer, GrowingLayer):
                buffers = [buffer[:, :, count:] for buffer in layer.buffers]
                layer.fill(buffers, layer.keys.shape[2] - count)
                continue
            dropped = count
            if layer.is_sliding:  # it has dropped some already
                dropped -= min(count, layer.cumulative_length - layer.keys.shape[2])
                layer.cumulative_length -= count
            layer.keys = layer.keys[:, :, dropped:]
            layer.values = layer.values[:, :, dropped:]


def stack_right(
    parts: tuple[torch.Tensor, torch.Tensor], width: int, *, room: int = 0
) -> torch.Tensor:
    """Concatenate the rows of (rows, heads, tokens, size), padded on the left with zeros.

    `room` more tokens are left free on the right.
    """
    first = parts[0]
    made = first.new_zeros(sum(map(len, parts)), first.shape[1], width + room, first.shape[3])
    start = 0
    for part in parts:
        made[start : start + len(part), :, width - part.shape[2] : width] = part
        start += len(part)
    return made


def share_heads(model: PreTrainedModel) -> None:
    """Use our attention in a model that uses torch's; it does not copy shared keys."""
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
    is_small = rows == 1 or groups == heads  # then both ways are equally fast
    if new > 1 or is_small or not plain:
        whole, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return whole, None
    out = scaled_dot_product_attention(
        query.reshape(rows, groups, heads // groups, width),
        key,
        value,
        attn_mask=attention_mask,
        scale=options.get("scaling"),
    )  # (rows, groups, heads a group, width)
    return out.reshape(rows, 1, heads, width), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


class BatchCache:
    """The rows of one batch; contexts of unequal length are padded on the left and masked.

    The common prefix of new contexts is read once. All rows end at the same cached token:
    whichever is shorter when a row joins is padded on the left.
    """

    def __init__(self, lm: LanguageModel, *, states: bool) -> None:
        self._lm = lm
        self.gives_states = states  # whether it gives hidden states, or else logits
        self._cache = Cache(lm.model)
        self._mask = torch.ones(0, 0)  # (rows, width), 0 at pads
        self._has_pads = False
        self._lengths: list[int] = []  # tokens read in each row, which is its next position
        self.width = 0

    @property
    def rows(self) -> int:
        return len(self._lengths)

    def join(self, contexts: Sequence[Sequence[int]], *, layers: Sequence[int] = ()) -> States:
        if self.rows:
            new = BatchCache(self._lm, states=self.gives_states)
            states = new.join(contexts, layers=layers)
            width = max(self.width, new.width)
            masks = [pad(one._mask, (width - one.width, 0)) for one in (self, new)]
            self._set_mask(torch.cat(masks))
            self._cache.absorb(new._cache, width)
            self._lengths, self.width = self._lengths + new._lengths, width
            return states
        self._lengths = [len(tokens) for tokens in contexts]
        # A sliding window or a bias by distance counts pads after a shared prefix too.
        config = self._lm.model.config.get_text_config()
        is_rotary = getattr(config, "rope_parameters", None) is not None
        may_share = is_rotary or len(set(self._lengths)) == 1
        may_share = may_share and not any(self._cache.is_sliding)
        shared = shared_length(contexts) if may_share else 0
        if shared:
            self._forward([list(contexts[0][:shared])], [0])
            self._cache.batch_select_indices(torch.zeros(self.rows, dtype=torch.long))
        self.width = max(self._lengths)
        pairs = [(self.width - len(tokens), list(tokens[shared:])) for tokens in contexts]
        rows = [[1] * shared + [0] * gap + [1] * len(tokens) for gap, tokens in pairs]
        self._set_mask(torch.tensor(rows, device=self._lm.device))
        ids = [[0] * gap + tokens for gap, tokens in pairs]
        states = self._forward(ids, [shared - gap for gap, _ in pairs], layers=layers)
        return states.map(lambda tensor: tensor[:, -1])

    def extend(self, tokens: Sequence[int], *, layers: Sequence[int] = ()) -> States:
        self._mask = pad(self._mask, (0, 1), value=1)
        states = self._forward([[token] for token in tokens], self._lengths, layers=layers)
        self._lengths = [length + 1 for length in self._lengths]
        self.width += 1
        return states.map(lambda tensor: tensor[:, -1])

    def extend_many(
        self, continuations: Sequence[Sequence[int]], *, layers: Sequence[int] = ()
    ) -> States:
        longest = max(map(len, continuations))
        ids = [list(tokens) + [0] * (longest - len(tokens)) for tokens in continuations]
        self._mask = pad(self._mask, (0, longest), value=1)
        pairs = zip(self._lengths, continuations, strict=True)
        ends = [max(0, length + len(tokens) - 1) for length, tokens in pairs]
        return self._forward(ids, self._lengths, layers=layers, ends=ends)

    def keep(self, rows: Sequence[int]) -> None:
        if list(rows) == list(range(self.rows)):
            return
        index = torch.tensor(rows, dtype=torch.long, device=self._lm.device)
        self._lengths = [self._lengths[row] for row in rows]
        self._cache.batch_select_indices(index)
        mask = self._mask[index]
        pads = int(mask.any(0).long().argmax())  # on the left of every row
        self._cache.drop_left(pads)
        self.width -= pads
        self._set_mask(mask[:, pads:])

    def _set_mask(self, mask: torch.Tensor) -> None:
        self._mask, self._has_pads = mask, not bool(mask.all())

    def _forward(
        self,
        ids: list[list[int]],
        first: Sequence[int],
        *,
        layers: Sequence[int] = (),
        ends: Sequence[int] | None = None,
    ) -> States:
        """Run the model over ids (rows, tokens), whose first tokens have these positions.

        Pads after the end of a row get its last position: the model may know no further one.
        """
        device = self._lm.device
        steps = torch.arange(len(ids[0]), device=device)
        positions = (torch.tensor(first, device=device)[:, None] + steps).clamp(min=0)
        if ends is not None:
            positions = positions.minimum(torch.tensor(ends, device=device)[:, None])
        inputs = {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": self._mask if self._has_pads else None,
            "position_ids": positions,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        return self._lm.forward(
            inputs, states=self.gives_states, layers=layers, every=ends is not None
        )


_turn = Lock()  # torch has one number of threads for the whole process


@contextmanager
def leave_a_core(
    layers: Sequence[torch.nn.Module], done: IsDone, device: torch.device
) -> Iterator[None]:
    """Run a pass with one thread less until the parallel work is done, then with all again.

    torch's threads wait for each other at every operation, so they lose more than one core if
    another thread takes one. The number of threads can change between two layers.
    """
    threads = torch.get_num_threads()
    is_shared = device.type == "cpu" and threads > 1
    if not is_shared or not _turn.acquire(blocking=False):
        yield
        return

    owner = get_ident()  # another thread may run a pass over the same layers

    def before_layer(*_: object) -> None:
        if get_ident() == owner and torch.get_num_threads() < threads and done():
            torch.set_num_threads(threads)

    hooks = [layer.register_forward_pre_hook(before_layer) for layer in layers]
    try:
        torch.set_num_threads(threads - 1)
        yield
    finally:
        torch.set_num_threads(threads)
        for hook in hooks:
            hook.remove()
        _turn.release()
