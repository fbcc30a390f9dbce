"""The cache of llama.cpp: a context with many sequences, a pool of contexts, and KVCache."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from itertools import chain, pairwise
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from trueline.engines.base import IsDone, States, shared_length
from trueline.engines.llama_cpp.library import Batch, Pointer
from trueline.errors import ModelError, SettingError

if TYPE_CHECKING:
    from trueline.engines.llama_cpp.model import Weights

MAX_SEQUENCES = 256  # what llama.cpp is built for
_BATCH = 512  # tokens in one call
_OUTPUTS = 128  # tokens in one call with an output; the buffer is made for so many
_LEAST_CELLS, _LEAST_SEQUENCES = 512, 64  # of the smallest context
# llama.cpp has three ways to compute attention, which round differently; it chooses by the
# number of tokens in a call and the length of the cache. If values have another type than keys
# there is only one way, so that the logits of a row do not depend on the other rows.
_BFLOAT16 = 30
_KEPT = 2  # free contexts in a pool
_ROOM = 128  # tokens each new row may get before the context has to grow
_AT_ONCE = 256  # tokens of continuations that are read before their sequences are dropped
_ROWS = 32  # or so many rows, if they are short


class Entry(NamedTuple):
    """A token to read."""

    token: int
    position: int
    sequence: int
    is_output: bool  # whether its logits or states are wanted


class _Arrays:
    """A batch of llama.cpp that is filled for every call: making its arrays takes longer."""

    def __init__(self) -> None:
        self._numbers = np.zeros((3, _BATCH), np.int32)  # tokens, positions, sequences
        self._counts = np.ones(_BATCH, np.int32)  # of the sequences of a token
        self._outputs = np.zeros(_BATCH, np.int8)
        tokens, positions, sequences = (row.ctypes.data for row in self._numbers)
        self._addresses = sequences + 4 * np.arange(_BATCH)
        others = (self._counts, self._addresses, self._outputs)
        addresses = [part.ctypes.data for part in others]
        self._batch = Batch(0, tokens, None, positions, *addresses)

    def filled(self, entries: Sequence[Entry]) -> Batch:
        columns = np.array(entries, np.int32).T  # (4, entries)
        self._numbers[:, : len(entries)] = columns[:3]
        self._outputs[: len(entries)] = columns[3]
        self._batch.n_tokens = len(entries)
        return self._batch


class _Handle(Pointer):
    """A context of llama.cpp; it is freed once no tensor refers to its memory."""

    weights: Weights


class Context:
    """The keys and values of a number of sequences, which share their cells."""

    def __init__(self, weights: Weights, cells: int, sequences: int) -> None:
        self.weights, self.cells, self.sequences = weights, cells, sequences
        self._library = library = weights.library
        self._outputs = max(_OUTPUTS, sequences)
        params = library.params(
            "context",
            n_ctx=cells,
            n_batch=_BATCH,
            n_ubatch=_BATCH,
            n_seq_max=sequences,
            n_outputs_max=self._outputs,
            n_outputs_max_per_seq=0,
            pooling_type=0,  # each token's own state
            type_v=_BFLOAT16,
            kv_unified=True,
        )
        pointer = library.call("llama_init_from_model", weights.pointer, params)
        if not pointer:
            raise ModelError(
                f"llama.cpp makes no cache of {cells} tokens ({library.last_messages()}); "
                "choose fewer rows or fewer tokens, or free some memory"
            )
        self.pointer = _Handle(pointer)
        self.pointer.weights = weights  # they are freed after it
        free = weakref.finalize(self.pointer, library.call, "llama_free", Pointer(pointer))
        free.atexit = False  # the system frees it
        self._memory = Pointer(library.call("llama_get_memory", self.pointer))
        self._gives_states = False
        self._arrays = _Arrays()
        self._seen = (0, 0, 0)  # address, rows and width of the view
        self._view = torch.empty(0)

    def read(
        self, entries: Sequence[Entry], *, states: bool = False, most: int = _BATCH
    ) -> torch.Tensor:
        """Read tokens in order; a copy of the logits or last states at the outputs.

        (outputs, vocabulary) or (outputs, d). A call of llama.cpp takes at most `most` tokens;
        longer lists are split into parts of about the same length.
        """
        if all(entry.is_output for entry in entries):  # else there is one output a row
            most = min(most, self._outputs)
        count = max(1, -(-len(entries) // most))
        edges = [len(entries) * at // count for at in range(count + 1)]
        parts = [
            self.read_in_place(entries[start:end], states=states).clone()
            for start, end in pairwise(edges)
        ]
        return torch.cat([part for part in parts if len(part)] or parts)

    def read_in_place(self, entries: Sequence[Entry], *, states: bool = False) -> torch.Tensor:
        """`read` in one call and without a copy: the outputs are valid until the next call.

        The tensor holds the handle, and with it the memory of llama.cpp that it refers to.
        """
        width = self.weights.width if states else self.weights.vocabulary
        count = sum(entry.is_output for entry in entries)
        assert not states or count in (0, len(entries)), "states are given for every token"
        if self._gives_states != (gives_states := states and count > 0):
            self._library.call("llama_set_embeddings", self.pointer, gives_states)
            self._gives_states = gives_states
        if entries:
            batch = self._arrays.filled(entries)
            if code := self._library.call("llama_decode", self.pointer, batch):
                raise ModelError(
                    f"llama.cpp could not read {len(entries)} tokens (code {code}; "
                    f"{self._library.last_messages()})"
                )
        if not count:
            return torch.empty(0, width)
        output = "llama_get_embeddings" if states else "llama_get_logits"
        address = self._library.call(output, self.pointer)
        if not address:
            raise ModelError(f"llama.cpp gave no output ({self._library.last_messages()})")
        if self._seen != (address, count, width):  # llama.cpp seldom moves its memory
            values = (ctypes.c_float * (count * width)).from_address(address)
            values.handle = self.pointer  # type: ignore[attr-defined]
            self._view = torch.frombuffer(values, dtype=torch.float32).view(count, width)
            self._seen = (address, count, width)
        return self._view

    def use_threads(self, threads: int) -> None:
        self._library.call("llama_set_n_threads", self.pointer, threads, threads)

    def copy(self, source: int, target: int, length: int) -> None:
        """Make a sequence share the first cells of another; no cell is copied."""
        self._library.call("llama_memory_seq_cp", self._memory, source, target, 0, length)

    def drop(self, sequence: int) -> None:
        """Drop a sequence; cells that no other sequence shares are filled next."""
        self._library.call("llama_memory_seq_rm", self._memory, sequence, -1, -1)

    def clear(self) -> None:
        self._library.call("llama_memory_clear", self._memory, False)

    def move(self, sequence: int, target: Context, number: int) -> None:
        """Copy a sequence into another context, under another number."""
        call = self._library.call
        size = call("llama_state_seq_get_size", self.pointer, sequence)
        data = (ctypes.c_ubyte * size)()
        call("llama_state_seq_get_data", self.pointer, data, size, sequence)
        if not call("llama_state_seq_set_data", target.pointer, data, size, number):
            raise ModelError(
                f"llama.cpp could not move {size} bytes of its cache to a larger one "
                f"({self._library.last_messages()})"
            )


class Pool:
    """The contexts of one model; free ones are used again."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.done: IsDone | None = None  # whether the work that needs a core is done
        self._free: list[Context] = []
        self._lock = Lock()

    def take(self, cells: int, sequences: int) -> Context:
        with self._lock:
            for context in self._free:
                if context.cells >= cells and context.sequences >= sequences:
                    self._free.remove(context)
                    return context
        sizes = max(cells, _LEAST_CELLS), max(sequences, _LEAST_SEQUENCES)
        return Context(self.weights, *(1 << (size - 1).bit_length() for size in sizes))

    def give_back(self, contexts: Sequence[Context]) -> None:
        for context in contexts:
            context.clear()
        with self._lock:
            self._free = sorted([*self._free, *contexts], key=lambda one: one.cells)[-_KEPT:]


class SequenceCache:
    """The rows of one batch, each a sequence of llama.cpp; repeated rows share one at first.

    The keys of a row must lie in the order of its tokens: attention adds them in the order of
    the cells, and another order rounds differently. So the cells of rows that have left are
    not filled again; when the context is full, the remaining rows move to another one.

    `alike` is a number of tokens: a call of llama.cpp with more of them may multiply weights in
    another way, so that how tokens are split into calls must not depend on other rows.
    """

    def __init__(self, pool: Pool, *, states: bool = False) -> None:
        self._pool, self.gives_states = pool, states
        self._alike = pool.weights.rows_alike
        self._held: list[Context] = []  # the one context, once there is one
        self._rows: list[int] = []  # the sequence of each row
        self._lengths: dict[int, int] = {}  # tokens read in each sequence
        self._cells = 0  # that are filled, also by rows that have left
        self._numbers = 0  # of sequences used, also by rows that have left
        weakref.finalize(self, pool.give_back, self._held).atexit = False

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def width(self) -> int:
        return max(self._lengths.values(), default=0)

    def join(self, contexts: Sequence[Sequence[int]], *, layers: Sequence[int] = ()) -> States:
        tokens, count = sum(map(len, contexts)), len(contexts)
        context = self._context(tokens + _ROOM * count, count)
        new = self._unused(count)
        shared = shared_length(contexts)
        if self._alike is not None:  # the shared part and the rest of each row must be long
            most = min(map(len, contexts)) - self._alike - 2
            shared = min(shared, most) if min(shared, most) > self._alike else 0
        if shared:
            context.read(_entries(new[0], contexts[0][:shared]))
            for sequence in new[1:]:
                context.copy(new[0], sequence, shared)
        before, last = [], []
        for sequence, row in zip(new, contexts, strict=True):
            before.append(_entries(sequence, row[shared:-1], shared))
            last += _entries(sequence, row[-1:], len(row) - 1, are_outputs=True)
        self._lengths |= dict(zip(new, map(len, contexts), strict=True))
        self._cells += tokens - shared * (count - 1)
        self._rows += new
        if self._alike is None and not self.gives_states:  # one call costs least
            return self._states(context.read([*chain.from_iterable(before), *last]))
        self._read_rows(context, before)  # a call with states gives them for all its tokens
        most = self._alike or _BATCH
        return self._states(context.read(last, states=self.gives_states, most=most))

    def extend(self, tokens: Sequence[int], *, layers: Sequence[int] = ()) -> States:
        repeated = len(self._rows) - len(self._lengths)
        context = self._context(len(tokens), repeated)
        if repeated:
            seen: set[int] = set()
            for row, source in enumerate(self._rows):
                if source in seen:
                    (self._rows[row],) = self._unused(1)
                    self._lengths[self._rows[row]] = self._lengths[source]
                    context.copy(source, self._rows[row], self._lengths[source])
                seen.add(source)
        entries = []
        for sequence, token in zip(self._rows, tokens, strict=True):
            entries.append(Entry(token, self._lengths[sequence], sequence, is_output=True))
            self._lengths[sequence] += 1
        self._cells += len(entries)
        if self._alike is None or len(entries) <= self._alike:
            return self._states(context.read_in_place(entries, states=self.gives_states))
        return self._states(context.read(entries, states=self.gives_states, most=self._alike))

    def extend_many(
        self, continuations: Sequence[Sequence[int]], *, layers: Sequence[int] = ()
    ) -> States:
        """Continuations are dropped once they are read, so that many need little room."""
        longest = max(map(len, continuations))
        parts, batch = [], []
        for number, row in enumerate(zip(self._rows, continuations, strict=True), 1):
            batch.append(row)
            is_full = len(batch) == _ROWS or sum(len(one) for _, one in batch) >= _AT_ONCE
            if is_full or number == len(self._rows):
                parts.append(self._read_batch(batch, longest))
                batch = []
        self._rows = []
        return self._states(torch.cat(parts))

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
        for sequence in self._lengths.keys() - set(self._rows):
            del self._lengths[sequence]
        if not self._rows and self._held:
            self._held[0].clear()
            self._cells = self._numbers = 0

    def _read_batch(
        self, batch: Sequence[tuple[int, Sequence[int]]], longest: int
    ) -> torch.Tensor:
        """The outputs at each token of some continuations: (rows, longest, width)."""
        lengths = [len(tokens) for _, tokens in batch]
        context = self._context(sum(lengths), len(batch))
        sequences = range(self._numbers, self._numbers + len(batch))  # only for this batch
        rows = []
        for sequence, (source, tokens) in zip(sequences, batch, strict=True):
            context.copy(source, sequence, self._lengths[source])
            rows.append(_entries(sequence, tokens, self._lengths[source], are_outputs=True))
        outputs = self._read_rows(context, rows, states=self.gives_states)  # (tokens, width)
        for sequence in sequences:
            context.drop(sequence)
        padded = outputs.new_zeros(len(batch), longest, outputs.shape[1])
        for row, states in enumerate(torch.split(outputs, lengths)):
            padded[row, : len(states)] = states
        return padded

    def _read_rows(
        self, context: Context, rows: Sequence[Sequence[Entry]], *, states: bool = False
    ) -> torch.Tensor:
        """Read the tokens of several rows; the outputs of one row after the other."""
        if self._alike is None:
            return context.read([*chain.from_iterable(rows)], states=states)
        return torch.cat([context.read(row, states=states) for row in rows])

    def _states(self, outputs: torch.Tensor) -> States:
        return States(outputs, None) if self.gives_states else States(None, outputs)

    def _context(self, tokens: int, sequences: int) -> Context:
        """The context, with room for more tokens and sequences.

        It leaves a core to the work that runs in parallel until that is done.
        """
        if (count := len(self._lengths) + sequences) > MAX_SEQUENCES:
            raise SettingError(
                f"llama.cpp reads {MAX_SEQUENCES} rows at once, and {count} are requested; "
                "choose a smaller batch_size"
            )
        needed, numbers = self._cells + tokens, self._numbers + sequences
        if not self._held or self._held[0].cells < needed or self._held[0].sequences < numbers:
            self._move(tokens, sequences)
        threads, done = torch.get_num_threads(), self._pool.done
        is_shared = done is not None and threads > 1 and not done()
        self._held[0].use_threads(threads - is_shared)
        return self._held[0]

    def _move(self, tokens: int, sequences: int) -> None:
        """Move the remaining rows to a context with room for a quarter more at least."""
        self._cells, self._numbers = sum(self._lengths.values()), len(self._lengths)
        numbers = self._numbers * 5 // 4 + sequences
        target = self._pool.take(self._cells * 5 // 4 + tokens, min(numbers, MAX_SEQUENCES))
        renamed = {sequence: number for number, sequence in enumerate(self._lengths)}
        for old in self._held:
            for sequence, number in renamed.items():
                old.move(sequence, target, number)
        self._pool.give_back(self._held)
        self._held[:] = [target]
        self._lengths = {renamed[one]: length for one, length in self._lengths.items()}
        self._rows = [renamed[sequence] for sequence in self._rows]

    def _unused(self, count: int) -> list[int]:
        """The next numbers, which no sequence of this context has had."""
        self._numbers += count
        return list(range(self._numbers - count, self._numbers))


def _entries(
    sequence: int, tokens: Sequence[int], start: int = 0, *, are_outputs: bool = False
) -> list[Entry]:
    return [Entry(token, at, sequence, are_outputs) for at, token in enumerate(tokens, start)]
