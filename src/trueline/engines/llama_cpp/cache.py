"""Sequences of tokens in, logits or states out: one cache of llama.cpp, and a pool of them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import torch

from trueline.engines.base import IsDone, States, shared_length
from trueline.engines.llama_cpp.library import Batch, Library, Pointer, Weights
from trueline.errors import ModelError, SettingError

MAX_SEQUENCES = 256  # what llama.cpp is built for
_BATCH = 512  # tokens in one call
_OUTPUTS = 128  # tokens in one call whose logits are wanted; their buffer is made for so many
_LEAST_CELLS, _LEAST_SEQUENCES = 512, 64  # of the smallest cache
# llama.cpp has three ways to compute attention, which round differently; it chooses by how many
# tokens are read at once and how long the cache is. With values of another type than keys it
# has only one, so that a row's logits do not depend on the rows beside it.
_BFLOAT16 = 30
_KEPT = 2  # caches that wait for the next reading


class Entry(NamedTuple):
    """One token to read: where, in which sequence, and whether its logits are wanted."""

    token: int
    position: int
    sequence: int
    is_output: bool


class _Arrays:
    """A batch of llama.cpp, filled anew for every call: making its arrays takes longer."""

    def __init__(self) -> None:
        numbers = ctypes.c_int32 * _BATCH
        self._tokens, self._positions, self._sequences = numbers(), numbers(), numbers()
        self._counts = numbers(*[1] * _BATCH)
        first = ctypes.addressof(self._sequences)
        self._addresses = (ctypes.c_void_p * _BATCH)(*range(first, first + 4 * _BATCH, 4))
        self._outputs = (ctypes.c_int8 * _BATCH)()
        self._batch = Batch(
            0,
            ctypes.addressof(self._tokens),
            None,
            ctypes.addressof(self._positions),
            ctypes.addressof(self._counts),
            ctypes.addressof(self._addresses),
            ctypes.addressof(self._outputs),
        )

    def filled(self, entries: Sequence[Entry]) -> Batch:
        """The batch with these tokens."""
        for index, entry in enumerate(entries):
            self._tokens[index] = entry.token
            self._positions[index] = entry.position
            self._sequences[index] = entry.sequence
            self._outputs[index] = entry.is_output
        self._batch.n_tokens = len(entries)
        return self._batch


class _Handle(Pointer):
    """A cache that llama.cpp made: it is freed once nothing looks into its memory."""

    weights: Weights


class Context:
    """A cache of keys and values for a number of sequences, all in the same cells."""

    def __init__(self, weights: Weights, cells: int, sequences: int) -> None:
        self.weights, self.cells, self.sequences = weights, cells, sequences
        self._threads = torch.get_num_threads()
        library = weights.library
        self._library: Library = library
        outputs = max(_OUTPUTS, sequences)
        values = {
            "n_ctx": cells,
            "n_batch": _BATCH,
            "n_ubatch": _BATCH,
            "n_seq_max": sequences,
            "n_outputs_max": outputs,
            "n_outputs_max_per_seq": 0,
            "n_threads": self._threads,
            "n_threads_batch": self._threads,
            "pooling_type": 0,  # each token's own state
            "type_v": _BFLOAT16,
            "kv_unified": True,
        }
        self._outputs = outputs
        params = library.params("context", **values)
        found = library.call("llama_init_from_model", weights.pointer, params)
        if not found:
            raise ModelError(
                f"llama.cpp makes no cache of {cells} tokens ({library.last_words()}); "
                "ask for fewer rows or fewer tokens, or free some memory"
            )
        self.pointer = _Handle(found)
        self.pointer.weights = weights  # which go after it
        free = weakref.finalize(self.pointer, library.function("llama_free"), Pointer(found))
        free.atexit = False  # the process gives it back
        self._check(values)
        self._memory = ctypes.c_void_p(library.call("llama_get_memory", self.pointer))
        self._decode = library.function("llama_decode")
        self._logits = library.function("llama_get_logits")
        self._states = library.function("llama_get_embeddings")
        self._gives_states = False
        self._arrays = _Arrays()
        self._seen = (0, 0, 0)  # what the view looks at: address, rows, width
        self._view = torch.empty(0)

    def _check(self, values: dict[str, int]) -> None:
        """Refuse a library that took our parameters for others."""
        for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads"):
            got = self._library.call(f"llama_{name}", self.pointer)
            if got != values[name]:
                raise ModelError(
                    f"llama.cpp was asked for {name}={values[name]} and took {got}: its "
                    "parameters are laid out in another way; install the release this one "
                    "was made for"
                )

    def read(
        self, entries: Sequence[Entry], *, states: bool = False, most: int = _BATCH
    ) -> torch.Tensor:
        """Read tokens in their order: the logits, or the last states, at those wanted.

        (outputs, vocabulary) or (outputs, d), as a copy: llama.cpp writes over its own. A call
        of llama.cpp takes `most` tokens.
        """
        cut = self._cut(entries, most)
        parts = [self.read_in_place(part, states=states).clone() for part in cut]
        found = [part for part in parts if len(part)]
        return found[0] if len(found) == 1 else torch.cat(found or parts)

    def _cut(self, entries: Sequence[Entry], most: int) -> list[Sequence[Entry]]:
        """The entries in parts that one call takes, all about as long: see `read_rows`.

        Outputs are one a row, for which there is always room, or at every token.
        """
        if all(entry.is_output for entry in entries):
            most = min(most, self._outputs)
        count = max(1, -(-len(entries) // most))
        edges = [len(entries) * at // count for at in range(count + 1)]
        return [entries[start:end] for start, end in pairwise(edges)]

    def read_rows(
        self, rows: Sequence[Sequence[Entry]], *, states: bool = False
    ) -> torch.Tensor:
        """Read the tokens of several rows, one row behind the other: what `read` gives.

        Where the number of tokens in a call decides how weights are multiplied, each row is
        read by itself: how its tokens are cut then hangs on the row alone.
        """
        if self.weights.rows_alike is None:
            return self.read([entry for row in rows for entry in row], states=states)
        return torch.cat([self.read(row, states=states) for row in rows or [[]]])

    def read_step(self, entries: Sequence[Entry], *, states: bool = False) -> torch.Tensor:
        """Read one token of each row: the outputs at all of them, which may be in place."""
        most = self.weights.rows_alike
        if most is None or len(entries) <= most:
            return self.read_in_place(entries, states=states)
        return self.read(entries, states=states, most=most)

    def read_ends(
        self, before: Sequence[Sequence[Entry]], last: Sequence[Entry], *, states: bool = False
    ) -> torch.Tensor:
        """Read rows up to their last tokens, and then these: the outputs at the last ones."""
        if self.weights.rows_alike is None and not states:  # all at once costs least
            return self.read([*(entry for row in before for entry in row), *last])
        self.read_rows(before)  # with states, all that is read in a call is put out
        return self.read(last, states=states, most=self.weights.rows_alike or _BATCH)

    def shareable(self, contexts: Sequence[Sequence[int]]) -> int:
        """How many tokens at the start of all contexts may be read once for all.

        Where the number of tokens in a call matters, what is shared and what is left of each
        row are both to be as many as take the other way of multiplying, or nothing is shared.
        """
        shared = shared_length(contexts)
        if (alike := self.weights.rows_alike) is None:
            return shared
        shared = min([shared, *(len(one) - 1 - (alike + 1) for one in contexts)])
        return shared if shared > alike else 0

    def read_in_place(self, entries: Sequence[Entry], *, states: bool = False) -> torch.Tensor:
        """The same in one call of llama.cpp, without a copy: it holds until the next call.

        The tensor keeps the handle, and with it the memory it looks into.
        """
        width = self.weights.width if states else self.weights.vocabulary
        if not entries:
            return torch.empty(0, width)
        count = sum(entry.is_output for entry in entries)
        assert not states or count in (0, len(entries)), "with states it puts out every token"
        self._give_states(states and count > 0)
        if code := self._decode(self.pointer, self._arrays.filled(entries)):
            raise ModelError(
                f"llama.cpp could not read {len(entries)} tokens (code {code}; "
                f"{self._library.last_words()})"
            )
        if not count:
            return torch.empty(0, width)
        address = (self._states if states else self._logits)(self.pointer)
        if not address:
            raise ModelError(f"llama.cpp gave no output ({self._library.last_words()})")
        if self._seen != (address, count, width):  # llama.cpp seldom moves its memory
            values = (ctypes.c_float * (count * width)).from_address(address)
            values.handle = self.pointer  # type: ignore[attr-defined]
            self._view = torch.frombuffer(values, dtype=torch.float32).view(count, width)
            self._seen = (address, count, width)
        return self._view

    def _give_states(self, wanted: bool) -> None:
        if wanted != self._gives_states:
            self._library.call("llama_set_embeddings", self.pointer, wanted)
            self._gives_states = wanted

    def use_threads(self, threads: int) -> None:
        """Read with so many threads from now on."""
        if threads != self._threads:
            self._library.call("llama_set_n_threads", self.pointer, threads, threads)
            self._threads = threads

    def copy(self, source: int, target: int, length: int) -> None:
        """Have a sequence begin with the first tokens of another; no cell is copied."""
        self._library.call("llama_memory_seq_cp", self._memory, source, target, 0, length)

    def drop(self, sequence: int) -> None:
        """Forget a sequence; the cells that were its alone are the next to be filled."""
        self._library.call("llama_memory_seq_rm", self._memory, sequence, -1, -1)

    def clear(self) -> None:
        """Forget all."""
        self._library.call("llama_memory_clear", self._memory, False)

    def move(self, sequence: int, target: Context, number: int) -> None:
        """Write a sequence into another cache, under a number of that one."""
        call = self._library.call
        size = call("llama_state_seq_get_size", self.pointer, sequence)
        data = (ctypes.c_ubyte * size)()
        call("llama_state_seq_get_data", self.pointer, data, size, sequence)
        if not call("llama_state_seq_set_data", target.pointer, data, size, number):
            raise ModelError(
                f"llama.cpp could not move {size} bytes of its cache to a larger one "
                f"({self._library.last_words()})"
            )


class Pool:
    """The caches of one model: those that wait are handed out again."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.done: IsDone | None = None  # whether the work that needs a core is done
        self._waiting: list[Context] = []
        self._lock = Lock()

    def take(self, cells: int, sequences: int) -> Context:
        """An empty cache for so many tokens in all, and so many sequences."""
        with self._lock:
            for context in self._waiting:
                if context.cells >= cells and context.sequences >= sequences:
                    self._waiting.remove(context)
                    return context
        return Context(
            self._weights,
            _power_of_two(max(cells, _LEAST_CELLS)),
            min(_power_of_two(max(sequences, _LEAST_SEQUENCES)), MAX_SEQUENCES),
        )

    def give_back(self, context: Context) -> None:
        """Keep a cache for the next reading."""
        context.clear()
        with self._lock:
            self._waiting = sorted([*self._waiting, context], key=lambda one: one.cells)[
                -_KEPT:
            ]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


_ROOM = 128  # tokens each new row may get before the cache has to grow
_AT_ONCE = 256  # tokens of continuations that are read before their rows are dropped
_ROWS = 32  # rows of which that is true, whatever their length


class SequenceCache:
    """The rows of one batch, each a sequence of llama.cpp.

    A row that is named several times stays one sequence until its tokens differ. A row's keys
    have to lie in the order of its tokens: attention adds them up as they lie, and another
    order rounds differently. So the cells of rows that have left are not filled again; when the
    cache is full, the rows that are left move to another one.
    """

    def __init__(self, pool: Pool, *, states: bool = False) -> None:
        self._pool, self.gives_states = pool, states
        self._held: list[Context] = []  # the one cache, once there is one
        self._rows: list[int] = []  # the sequence of each row
        self._lengths: dict[int, int] = {}  # tokens read in each sequence
        self._cells = 0  # that are filled, those of rows that have left included
        self._numbers = 0  # of sequences that were given out, those that have left included
        weakref.finalize(self, _give_back, pool, self._held).atexit = False

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return len(self._rows)

    @property
    def width(self) -> int:
        """How many tokens the longest row has in its cache."""
        return max(self._lengths.values(), default=0)

    def join(
        self,
        contexts: Sequence[Sequence[int]],
        *,
        layers: Sequence[int] = (),
    ) -> States:
        """Read whole contexts as new rows behind the others: the states at their ends."""
        _check_layers(layers)
        tokens = sum(map(len, contexts)) + _ROOM * len(contexts)
        context = self._context(tokens, len(contexts))
        new = self._unused(len(contexts))
        shared = context.shareable(contexts)
        if shared:
            context.read(_entries(new[0], contexts[0][:shared]))
            for sequence in new[1:]:
                context.copy(new[0], sequence, shared)
        before, last = [], []
        for sequence, own in zip(new, contexts, strict=True):
            before.append(_entries(sequence, own[shared:-1], shared))
            last += _entries(sequence, own[-1:], len(own) - 1, are_outputs=True)
        self._lengths |= dict(zip(new, map(len, contexts), strict=True))
        self._cells += sum(map(len, contexts)) - shared * (len(contexts) - 1)
        self._rows += new
        return self._states(context.read_ends(before, last, states=self.gives_states))

    def extend(self, tokens: Sequence[int], *, layers: Sequence[int] = ()) -> States:
        """Read one more token in every row: the states at these tokens.

        They stand in llama.cpp's own memory, until the next call.
        """
        _check_layers(layers)
        repeated = len(self._rows) - len(self._lengths)
        context = self._context(len(tokens), repeated)
        if repeated:
            self._part_rows(context)
        lengths = self._lengths
        entries = []
        for sequence, token in zip(self._rows, tokens, strict=True):
            entries.append(Entry(token, lengths[sequence], sequence, is_output=True))
            lengths[sequence] += 1
        self._cells += len(entries)
        return self._states(context.read_step(entries, states=self.gives_states))

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        self._rows = [self._rows[row] for row in rows]
        for sequence in self._lengths.keys() - set(self._rows):
            del self._lengths[sequence]
        if not self._rows and self._held:
            self._held[0].clear()
            self._cells = self._numbers = 0

    def read_on(
        self, continuations: Sequence[Sequence[int]], *, layers: Sequence[int] = ()
    ) -> States:
        """Read a whole continuation in every row, which ends the reading.

        Continuations are dropped as they are done, so that many of one context take little
        room.
        """
        _check_layers(layers)
        longest = max(map(len, continuations))
        parts = []
        for batch in _batches(list(zip(self._rows, continuations, strict=True))):
            parts.append(self._read_batch(batch, longest))
        self._rows = []
        return self._states(torch.cat(parts))

    def _read_batch(
        self, batch: Sequence[tuple[int, Sequence[int]]], longest: int
    ) -> torch.Tensor:
        """The outputs behind each token of some rows: (rows, longest, width)."""
        lengths = [len(tokens) for _, tokens in batch]
        context = self._context(sum(lengths), len(batch))
        sequences = range(self._numbers, self._numbers + len(batch))  # only for this batch
        rows = []
        for sequence, (source, tokens) in zip(sequences, batch, strict=True):
            context.copy(source, sequence, self._lengths[source])
            rows.append(_entries(sequence, tokens, self._lengths[source], are_outputs=True))
        outputs = context.read_rows(rows, states=self.gives_states)  # (tokens, width)
        for sequence in sequences:
            context.drop(sequence)
        padded = outputs.new_zeros(len(batch), longest, outputs.shape[1])
        for row, own in enumerate(torch.split(outputs, lengths)):
            padded[row, : len(own)] = own
        return padded

    def _states(self, outputs: torch.Tensor) -> States:
        return States(outputs, None) if self.gives_states else States(None, outputs)

    def _context(self, tokens: int, sequences: int) -> Context:
        """The cache, with room for more tokens and sequences, and a core left to others."""
        if len(self._lengths) + sequences > MAX_SEQUENCES:
            raise SettingError(
                f"llama.cpp reads {MAX_SEQUENCES} rows at once, and "
                f"{len(self._lengths) + sequences} are asked for; choose a smaller batch_size"
            )
        context = self._held[0] if self._held else None
        if (
            context is None
            or context.cells < self._cells + tokens
            or context.sequences < self._numbers + sequences
        ):
            context = self._moved(tokens, sequences)
        threads, done = torch.get_num_threads(), self._pool.done
        is_shared = done is not None and threads > 1 and not done()
        context.use_threads(threads - is_shared)
        return context

    def _moved(self, tokens: int, sequences: int) -> Context:
        """Another cache with the rows that are left, and room for a quarter more at least."""
        self._cells, self._numbers = sum(self._lengths.values()), len(self._lengths)
        numbers = self._numbers * 5 // 4 + sequences
        target = self._pool.take(self._cells * 5 // 4 + tokens, min(numbers, MAX_SEQUENCES))
        renamed = {sequence: number for number, sequence in enumerate(self._lengths)}
        for old in self._held:
            for sequence, number in renamed.items():
                old.move(sequence, target, number)
            self._pool.give_back(old)
        self._held[:] = [target]
        self._lengths = {renamed[one]: length for one, length in self._lengths.items()}
        self._rows = [renamed[sequence] for sequence in self._rows]
        return target

    def _part_rows(self, context: Context) -> None:
        """Give every row a sequence of its own."""
        seen: set[int] = set()
        for row, sequence in enumerate(self._rows):
            if sequence in seen:
                self._rows[row] = self._copied(context, sequence)
            seen.add(sequence)

    def _copied(self, context: Context, source: int) -> int:
        """Another sequence with the same tokens."""
        (sequence,) = self._unused(1)
        self._lengths[sequence] = self._lengths[source]
        context.copy(source, sequence, self._lengths[source])
        return sequence

    def _unused(self, count: int) -> list[int]:
        """The next numbers, which no sequence has had in this cache."""
        first = self._numbers
        self._numbers += count
        return list(range(first, self._numbers))


def _entries(
    sequence: int, tokens: Sequence[int], start: int = 0, *, are_outputs: bool = False
) -> list[Entry]:
    return [Entry(token, at, sequence, are_outputs) for at, token in enumerate(tokens, start)]


def _batches(
    rows: Sequence[tuple[int, Sequence[int]]],
) -> Iterator[list[tuple[int, Sequence[int]]]]:
    """Rows together, as many as are worth reading at once."""
    batch: list[tuple[int, Sequence[int]]] = []
    for row in rows:
        batch.append(row)
        if sum(len(tokens) for _, tokens in batch) >= _AT_ONCE or len(batch) == _ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _give_back(pool: Pool, held: list[Context]) -> None:
    for context in held:
        pool.give_back(context)


def _check_layers(layers: Sequence[int]) -> None:
    if layers:
        raise SettingError(
            "llama.cpp does not hand out the states of earlier layers; use "
            "engine='transformers' for a method that reads them"
        )
