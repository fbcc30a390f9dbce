"""Contexts in, logits or states out, step by step: the sequences of one batch of rows."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import torch

from trueline.engines.base import IsDone, States
from trueline.engines.llama_cpp.context import MAX_SEQUENCES, Context, Entry, Pool
from trueline.errors import SettingError

_ROOM = 128  # tokens each new row may get before the cache has to grow
_AT_ONCE = 256  # tokens of continuations that are read before their rows are dropped
_ROWS = 32  # rows of which that is true, whatever their length


class SequenceReading:
    """The rows of one batch, each a sequence of llama.cpp.

    A row that is named several times stays one sequence until its tokens differ. A row's keys
    have to lie in the order of its tokens: attention adds them up as they lie, and another
    order rounds differently. So the cells of rows that have left are not filled again; when the
    cache is full, the rows that are left move to another one.
    """

    def __init__(self, pool: Pool, *, states: bool = False) -> None:
        self._pool, self._wants_states = pool, states
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
        done: IsDone | None = None,
    ) -> States:
        """Read whole contexts as new rows behind the others: the states at their ends."""
        _check_layers(layers)
        tokens = sum(map(len, contexts)) + _ROOM * len(contexts)
        context = self._context(tokens, len(contexts), done)
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
        return self._states(context.read_ends(before, last, states=self._wants_states))

    def extend(
        self, tokens: Sequence[int], *, layers: Sequence[int] = (), done: IsDone | None = None
    ) -> States:
        """Read one more token in every row: the states at these tokens.

        They stand in llama.cpp's own memory, until the next call.
        """
        _check_layers(layers)
        repeated = len(self._rows) - len(self._lengths)
        context = self._context(len(tokens), repeated, done)
        if repeated:
            self._part_rows(context)
        lengths = self._lengths
        entries = []
        for sequence, token in zip(self._rows, tokens, strict=True):
            entries.append(Entry(token, lengths[sequence], sequence, is_output=True))
            lengths[sequence] += 1
        self._cells += len(entries)
        return self._states(context.read_step(entries, states=self._wants_states))

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
        outputs = context.read_rows(rows, states=self._wants_states)  # (tokens, width)
        for sequence in sequences:
            context.drop(sequence)
        padded = outputs.new_zeros(len(batch), longest, outputs.shape[1])
        for row, own in enumerate(torch.split(outputs, lengths)):
            padded[row, : len(own)] = own
        return padded

    def _states(self, outputs: torch.Tensor) -> States:
        return States(outputs, None) if self._wants_states else States(None, outputs)

    def _context(self, tokens: int, sequences: int, done: IsDone | None = None) -> Context:
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
        threads = torch.get_num_threads()
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
