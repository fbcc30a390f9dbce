"""Unit vectors in, the keys near each of them out: all of them exactly, or through an index."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

LARGE = 50_000  # keys from which an index is used: below it, all are compared exactly
PROBE_FACTOR = 1.5  # times the root of the number of lists: how many are searched
_BLOCK = 4_096  # keys compared at once: their float32 copy stays in the processor's cache
_TRAINED = 40  # keys a list is made from


@dataclass(frozen=True)
class Hits:
    """Retrieved entries; rows ascend."""

    rows: torch.Tensor  # (hits,) the query
    entries: torch.Tensor  # (hits,) the entry
    similarities: torch.Tensor  # (hits,) their cosine

    def __len__(self) -> int:
        return len(self.rows)

    def kept(self, which: torch.Tensor) -> Hits:
        """Some of the hits, by a mask (hits,) or their positions."""
        return Hits(self.rows[which], self.entries[which], self.similarities[which])

    def count(self, rows: int) -> torch.Tensor:
        """The number of hits of each query: (rows,)."""
        return torch.bincount(self.rows, minlength=rows)


class Exact:
    """Compares every query with every key."""

    def __init__(self, keys: torch.Tensor) -> None:
        self._keys = keys  # (entries, dimension), in the type they are kept in

    def above(self, queries: torch.Tensor, tau: float) -> Hits:
        """Every entry whose cosine with a query exceeds tau; entries ascend within a row."""
        blocks = []
        for start in range(0, max(1, len(self._keys)), _BLOCK):
            similarities = self._similarities(queries, start)  # (queries, block)
            rows, entries = (similarities > tau).nonzero(as_tuple=True)
            blocks.append((rows, entries + start, similarities[rows, entries]))
        if len(blocks) == 1:
            return Hits(*blocks[0])
        hits = Hits(*(torch.cat(column) for column in zip(*blocks, strict=True)))
        return hits.kept(hits.rows.argsort(stable=True))

    def nearest(self, queries: torch.Tensor, k: int) -> Hits:
        """The k nearest entries of each query, or all there are; the nearest first."""
        starts = range(0, len(self._keys), _BLOCK)
        similarities = torch.cat([self._similarities(queries, start) for start in starts], 1)
        best = similarities.topk(min(k, len(self._keys)))
        rows = torch.arange(len(queries), device=queries.device)
        return Hits(
            rows.repeat_interleave(best.values.shape[1]),
            best.indices.reshape(-1),
            best.values.reshape(-1),
        )

    def _similarities(self, queries: torch.Tensor, start: int) -> torch.Tensor:
        """The cosine of every query with a block of entries: (queries, block)."""
        return (queries @ self._keys[start : start + _BLOCK].float().T).clamp(max=1.0)


class Index:
    """Compares every query with the lists of keys whose centres are nearest (FAISS, IVF)."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self._index.nprobe = round(PROBE_FACTOR * self._index.nlist**0.5)

    def above(self, queries: torch.Tensor, tau: float) -> Hits:
        ends, cosines, entries = self._index.range_search(queries.cpu().numpy(), tau)
        counts = torch.from_numpy(np.diff(ends.astype(np.int64)))
        rows = torch.arange(len(queries)).repeat_interleave(counts)
        order = np.lexsort((entries, rows.numpy()))
        hits = _hits(rows[order], entries[order], cosines[order], queries.device)
        return hits.kept(hits.similarities > tau)  # a cosine of 1 may have been rounded up

    def nearest(self, queries: torch.Tensor, k: int) -> Hits:
        import faiss

        given, k = queries.cpu().numpy(), min(k, self._index.ntotal)
        settings = faiss.SearchParametersIVF()
        for settings.nprobe in (self._index.nprobe, self._index.nlist):
            cosines, entries = self._index.search(given, k, params=settings)
            if (entries >= 0).all():  # else: fewer than k in those lists, search all of them
                break
        rows = torch.arange(len(queries)).repeat_interleave(k)
        return _hits(rows, entries.reshape(-1), cosines.reshape(-1), queries.device)


Search = Exact | Index


def open_search(keys: torch.Tensor) -> Search:
    """The way to search some keys: all of them, or from LARGE on an index, if FAISS is there.

    The index takes as much room again as the keys. It has about 2 sqrt(n) lists of keys in half
    precision, trained on a sample drawn with a seed.
    """
    if len(keys) < LARGE:
        return Exact(keys)
    try:
        import faiss
    except ImportError:
        warnings.warn(
            f"all {len(keys):,} entries are compared at every token; an index is faster: "
            "pip install 'trueline[large]'",
            stacklevel=2,
        )
        return Exact(keys)
    count, dimension = keys.shape
    lists = int(2 ** round(1 + np.log2(count) / 2))
    index: Any = faiss.index_factory(
        dimension, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT
    )
    index.cp.max_points_per_centroid, index.cp.niter = _TRAINED, 8
    sample = np.random.default_rng(0).choice(count, min(count, _TRAINED * lists), replace=False)
    index.train(keys[np.sort(sample)].float().cpu().numpy())
    for start in range(0, count, _BLOCK):
        index.add(keys[start : start + _BLOCK].float().cpu().numpy())
    return Index(index)


def _hits(rows: torch.Tensor, entries: Any, cosines: Any, device: torch.device) -> Hits:
    values = torch.from_numpy(cosines).clamp(max=1.0)
    return Hits(rows.to(device), torch.from_numpy(entries).to(device), values.to(device))
