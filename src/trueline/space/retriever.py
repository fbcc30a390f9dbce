"""Windows of text in, the entries near them out, over all segments of a space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from threading import RLock
from typing import Literal

import torch

from trueline.embed import Embedder, PreparedTexts, embed_prepared, prepare_texts
from trueline.engines.base import Engine
from trueline.search import Exact, Hits, Search, check_numbers, join_hits, open_search
from trueline.space.content import Content
from trueline.space.segment import Entries, Part
from trueline.space.soundness import LARGEST, row_blocks
from trueline.space.windows import window_hash, window_tokens

Matches = Literal["all", "without", "only"]  # what becomes of exact matches
MatchBy = Literal["cosine", "text"]  # what counts as one

OPENING_LOCK = RLock()  # one thread at a time opens embedders, keys and indexes
_ROUNDING = {torch.float32: 1e-6, torch.float16: 1e-4}  # of a cosine of 1, by the type of keys
_SMALL = 2_048  # entries: neighboring segments below this are searched as one


class Reader:
    """The entries of one segment on one device, opened once for every space that holds it."""

    def __init__(self, entries: Entries, device: torch.device, name: str | None) -> None:
        self.keys = torch.from_numpy(entries.keys).to(device)  # (entries, dimension)
        self.values = torch.from_numpy(entries.values).to(device)  # (entries, d or vocabulary)
        self.windows = torch.from_numpy(entries.windows).to(device)  # (entries,)
        self.tokens = torch.from_numpy(entries.tokens).to(device).long()  # (entries,)
        self.examples = torch.from_numpy(entries.examples).to(device)  # (entries,)
        self._name = name

    @cached_property
    def search(self) -> Search:
        """Finds keys, through an index where there are many."""
        with OPENING_LOCK:
            return open_search(self.keys, self._name)


@dataclass(frozen=True)
class _Block:
    """Entries that are searched together, and their numbers among all entries of the space."""

    start: int  # the number of its first entry
    keys: torch.Tensor
    values: torch.Tensor
    search: Search
    live: torch.Tensor | None = None  # (rows,) whether a row is left; None: all are
    rows: torch.Tensor | None = None  # (count,) the rows that are left

    @cached_property
    def count(self) -> int:
        return len(self.keys) if self.rows is None else len(self.rows)

    @cached_property
    def numbers(self) -> torch.Tensor | None:
        """The number of each row that is left: (rows,)."""
        return None if self.live is None else self.live.cumsum(0) - 1 + self.start

    def above(self, queries: torch.Tensor, tau: float) -> Hits:
        hits = self.search.above(queries, tau)
        return self._numbered(hits if self.live is None else hits.kept(self.live[hits.entries]))

    def nearest(self, queries: torch.Tensor, k: int) -> Hits:
        return self._numbered(self.search.nearest(queries, k, self.live))

    def _numbered(self, hits: Hits) -> Hits:
        if self.numbers is None:
            numbers = hits.entries + self.start if self.start else hits.entries
        else:
            numbers = self.numbers[hits.entries]
        return Hits(hits.rows, numbers, hits.similarities)


class Retriever:
    """The entries of a space on one device, with the embedder of their keys."""

    def __init__(
        self, parts: Sequence[Part], embedder: Embedder, device: torch.device, *, wrong: bool
    ) -> None:
        self.embedder, self._device = embedder, device
        self._is_checked = all(part.segment.is_checked for part in parts)
        readers = [(part, _reader(part, device, wrong)) for part in parts]
        kept = [
            (reader, _live(part, reader))
            for part, reader in readers
            if reader is not None and part.count(wrong=wrong)
        ]
        self.blocks = _blocks(kept)
        kinds = {reader.keys.dtype for reader, _ in kept} or {torch.float32}
        self._same = 1 - max(
            _ROUNDING[kind] for kind in kinds
        )  # from here on windows are equal
        none = torch.zeros(0, dtype=torch.long, device=device)
        self._windows = _joined([_left(reader.windows, live) for reader, live in kept], none)
        self.tokens = _joined([_left(reader.tokens, live) for reader, live in kept], none)

    def embed(self, windows: Sequence[str]) -> torch.Tensor:
        """The windows as queries (windows, dimension); equal ones are embedded once."""
        return self.embed_tokenized(self.tokenize(windows))

    def tokenize(self, windows: Sequence[str]) -> PreparedTexts:
        """What the embedder makes of the windows without running; equal ones once."""
        return prepare_texts(self.embedder, windows, tails=True)

    def embed_tokenized(self, tokenized: PreparedTexts) -> torch.Tensor:
        """Tokenized windows as queries (windows, dimension), safe in another thread."""
        return embed_prepared(self.embedder, tokenized).to(self._device)

    def above(
        self,
        queries: torch.Tensor,
        windows: Sequence[str],
        *,
        tau: float,
        matches: Matches = "all",
        match_by: MatchBy = "cosine",
    ) -> Hits:
        """Every entry whose cosine with a query exceeds tau; entries ascend within a row."""
        found = [block.above(queries, tau) for block in self.blocks]
        hits = found[0] if len(found) == 1 else join_hits(found, queries)
        if matches == "all":
            return hits
        exact = self._exact(windows, hits, match_by)
        return hits.kept(exact if matches == "only" else ~exact)

    def nearest(self, queries: torch.Tensor, k: int) -> Hits:
        """The k nearest entries of each query, or all there are; the nearest first."""
        found = [block.nearest(queries, k) for block in self.blocks]
        if len(found) == 1 or not len(queries):
            return found[0] if found else join_hits([], queries)
        rows = len(queries)
        cosines = torch.cat([hits.similarities.view(rows, -1) for hits in found], 1)
        entries = torch.cat([hits.entries.view(rows, -1) for hits in found], 1)
        best = cosines.topk(min(k, cosines.shape[1]))
        row = torch.arange(rows, device=queries.device).repeat_interleave(best.values.shape[1])
        nearest = entries.gather(1, best.indices)
        return Hits(row, nearest.reshape(-1), best.values.reshape(-1))

    def values(self, entries: torch.Tensor) -> torch.Tensor:
        """The values of some entries, as float32: (n, d or vocabulary)."""
        found = self._values(entries)
        if not self._is_checked:
            check_numbers(found, "values", LARGEST)
        return found

    def _values(self, entries: torch.Tensor) -> torch.Tensor:
        if len(self.blocks) == 1 and self.blocks[0].rows is None:
            return self.blocks[0].values[entries].float()
        width = self.blocks[0].values.shape[1] if self.blocks else 0
        found = torch.empty(len(entries), width, device=self._device)
        for block in self.blocks:
            is_here = (entries >= block.start) & (entries < block.start + block.count)
            rows = entries[is_here] - block.start
            rows = rows if block.rows is None else block.rows[rows]
            found[is_here] = block.values[rows].float()
        return found

    def _exact(self, windows: Sequence[str], hits: Hits, match_by: MatchBy) -> torch.Tensor:
        """Which of the hits stand in the very window that asked: (hits,)."""
        if match_by == "cosine":
            return hits.similarities >= self._same
        asked = torch.tensor([window_hash(text) for text in windows], device=hits.rows.device)
        return asked[hits.rows] == self._windows[hits.entries]


def window_texts(
    space: Content,
    lm: Engine,
    contexts: Sequence[Sequence[int]],
    starts: Sequence[int],
) -> list[str]:
    """The text of each row's last tokens, as the space was built with it."""
    context, window = space.recipe.context, space.recipe.window
    assert context is not None
    rows = zip(contexts, starts, strict=True)
    return lm.decode_all(
        [window_tokens(tokens, start, context, window) for tokens, start in rows]
    )


def _reader(part: Part, device: torch.device, wrong: bool) -> Reader | None:
    """The reader of a segment, from those it has or new; None: it has no such entries."""
    entries, segment = part.entries_of(wrong=wrong), part.segment
    if entries is None or not len(entries):
        return None
    if (device, wrong) not in segment.opened:
        record = segment.records.get("wrong" if wrong else "entries")
        name = None if record is None else record.sha256
        if not segment.is_checked:
            for block in row_blocks(entries.keys):
                check_numbers(torch.from_numpy(block).float(), "keys")
        segment.opened[device, wrong] = Reader(entries, device, name)
    found: Reader = segment.opened[device, wrong]
    return found


def _live(part: Part, reader: Reader) -> torch.Tensor | None:
    """Whether each entry of a segment is left: (entries,); None: all are."""
    if part.live is None:
        return None
    return torch.from_numpy(part.live).to(reader.keys.device)[reader.examples.long()]


def _blocks(kept: Sequence[tuple[Reader, torch.Tensor | None]]) -> list[_Block]:
    """Large segments each by itself; small ones that follow each other are joined."""
    blocks: list[_Block] = []
    start = 0
    for is_small, group in groupby(kept, lambda pair: len(pair[0].keys) < _SMALL):
        pairs = list(group)
        for joined in [pairs] if is_small and len(pairs) > 1 else [[pair] for pair in pairs]:
            blocks.append(_block(start, joined))
            start += blocks[-1].count
    return blocks


def _block(start: int, pairs: Sequence[tuple[Reader, torch.Tensor | None]]) -> _Block:
    if len(pairs) > 1:
        keys = torch.cat([_left(reader.keys, live) for reader, live in pairs])
        values = torch.cat([_left(reader.values, live) for reader, live in pairs])
        return _Block(start, keys, values, Exact(keys))
    ((reader, live),) = pairs
    rows = None if live is None else live.nonzero()[:, 0]
    return _Block(start, reader.keys, reader.values, reader.search, live, rows)


def _left(tensor: torch.Tensor, live: torch.Tensor | None) -> torch.Tensor:
    return tensor if live is None else tensor[live]


def _joined(tensors: list[torch.Tensor], none: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensors) if tensors else none
