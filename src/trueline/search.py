"""Unit vectors in, the keys near each of them out: all of them exactly, or through an index."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from trueline.engines.fetch import home
from trueline.errors import SpaceFormatError
from trueline.files import file_hash, open_regular, replacing, write_text

_log = logging.getLogger(__name__)
LARGE = 50_000  # entries from which an index is used: below it, all are compared exactly
_BLOCK = 4_096  # keys compared at once: what is widened to float32 stays in the cache
PROBE_FACTOR = (
    1.5  # times the root of the number of lists: how many are searched, docs/speed.md
)
_NAMED = 32  # digits of the hash of some keys in the name of their index
_TRAINED = 40  # keys a list is made from
_LONGEST_SEAL = 1_000  # bytes; a seal has two hundred
_LARGEST = torch.finfo(torch.float32).max
_ASKED = 64  # keys that an index must find before it is used


@dataclass(frozen=True)
class Hits:
    """Retrieved entries; rows ascend."""

    rows: torch.Tensor  # (hits,) which query asked
    entries: torch.Tensor  # (hits,) which entry answered
    similarities: torch.Tensor  # (hits,) their cosine

    def __len__(self) -> int:
        return len(self.rows)

    def kept(self, which: torch.Tensor) -> Hits:
        """Those of the hits that a mask (hits,) or their positions name."""
        return Hits(self.rows[which], self.entries[which], self.similarities[which])

    def count(self, rows: int) -> torch.Tensor:
        """How many hits each of the queries has: (rows,)."""
        return torch.bincount(self.rows, minlength=rows)


class Search(Protocol):
    """Finds keys by their cosine with a query."""

    def above(self, queries: torch.Tensor, tau: float) -> Hits:
        """Every entry whose cosine with a query exceeds tau; entries ascend within a row."""
        ...

    def nearest(self, queries: torch.Tensor, k: int, live: torch.Tensor | None = None) -> Hits:
        """The k nearest entries of each query, or all there are; the nearest first.

        With `live` (entries,) only entries that it marks as true.
        """
        ...


class Exact:
    """Compares every query with every key."""

    def __init__(self, keys: torch.Tensor) -> None:
        self._keys = keys  # (entries, dimension), in the type they are kept in

    def above(self, queries: torch.Tensor, tau: float) -> Hits:
        found = []
        for start in range(0, len(self._keys), _BLOCK):
            similarities = self._similarities(queries, start)  # (queries, block)
            rows, entries = (similarities > tau).nonzero(as_tuple=True)
            found.append(Hits(rows, entries + start, similarities[rows, entries]))
        if len(found) == 1:
            return found[0]
        return join_hits(found, queries)

    def nearest(self, queries: torch.Tensor, k: int, live: torch.Tensor | None = None) -> Hits:
        starts = range(0, len(self._keys), _BLOCK)
        similarities = torch.cat([self._similarities(queries, start) for start in starts], 1)
        if live is not None:
            similarities = similarities.masked_fill(~live, -torch.inf)
        best = similarities.topk(min(k, len(self._keys) if live is None else int(live.sum())))
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

    def nearest(self, queries: torch.Tensor, k: int, live: torch.Tensor | None = None) -> Hits:
        import faiss

        count = self._index.ntotal if live is None else int(live.sum())
        given, k = queries.cpu().numpy(), min(k, count)
        settings, selector = faiss.SearchParametersIVF(), _selector(faiss, live)
        settings.sel = selector
        for settings.nprobe in (self._index.nprobe, self._index.nlist):
            cosines, entries = self._index.search(given, k, params=settings)
            if (entries >= 0).all():  # else: fewer than k in those lists, search all of them
                break
        rows = torch.arange(len(queries)).repeat_interleave(k)
        return _hits(rows, entries.reshape(-1), cosines.reshape(-1), queries.device)


def open_search(keys: torch.Tensor, name: str | None = None) -> Search:
    """The way to search some keys: all of them, or from LARGE on an index, made once and kept.

    `name` is a hash of the file that holds the keys; without it the index is not kept. It takes
    as much room again as the keys; without FAISS all keys are compared.
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
    if name is None:  # keys of a space in memory leave no trace on the disk
        return Index(_index(faiss, keys))
    path = _index_path(keys, name)
    if (kept := _kept(faiss, path, keys, name)) is not None:
        return kept
    index = _index(faiss, keys)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            faiss.write_index(index, str(scratch))
            seal = {"keys": name, "sha256": file_hash(scratch)}
        write_text(_seal_path(path), json.dumps(seal))
    except (OSError, RuntimeError) as error:  # no room, or not ours to write
        _log.warning("the index of %d entries cannot be kept (%s)", len(keys), error)
        return Index(index)
    return _kept(faiss, path, keys, name) or Index(index)


def _kept(faiss: Any, path: Path, keys: torch.Tensor, name: str) -> Index | None:
    """The index that is kept under a name, if it is whole and of these keys.

    FAISS believes what it reads, so it reads only what its seal vouches for.
    """
    try:
        with open_regular(_seal_path(path)) as file:
            seal = json.loads(file.read(_LONGEST_SEAL))
        with open_regular(path) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if seal != {"keys": name, "sha256": sha256}:
            raise ValueError("it is not what was kept for these keys")
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        _check_index(faiss, index, keys)
        return Index(index)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as error:
        _log.warning("the index %s is damaged (%s) and is made anew", path.name, error)
        return None


def _check_index(faiss: Any, index: Any, keys: torch.Tensor) -> None:
    """Refuse an index of other keys: it must find some of these where they are."""
    form = type(index), getattr(index, "nlist", 0), index.ntotal, index.d
    if form != (faiss.IndexIVFScalarQuantizer, _lists(len(keys)), *keys.shape):
        raise ValueError("it is of another form")
    rows = torch.linspace(0, len(keys) - 1, _ASKED).long()
    asked = keys[rows.to(keys.device)].float().cpu().numpy()
    _, lists = index.quantizer.search(asked, 1)
    found = [_ids_in(faiss, index.invlists, int(number)) for (number,) in lists]
    if not all(row in ids for row, ids in zip(rows.tolist(), found, strict=True)):
        raise ValueError("it is of other keys")


def _ids_in(faiss: Any, lists: Any, number: int) -> Any:
    """The keys in a list of an index."""
    return faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number))


def _index_path(keys: torch.Tensor, name: str) -> Path:
    """Where the index of some keys is kept: their hash, and how it is made."""
    made = f"{len(keys)} {keys.dtype} {_lists(len(keys))} {_TRAINED}"
    how = hashlib.sha256(made.encode()).hexdigest()[:8]
    return home() / "indexes" / f"{name[:_NAMED]}-{how}.faiss"


def forget_index(name: str) -> None:
    """Remove what is kept of the index of some keys, by their hash."""
    for path in (home() / "indexes").glob(f"{name[:_NAMED]}-*"):
        path.unlink(missing_ok=True)


def _seal_path(path: Path) -> Path:
    """Where the checksum of an index is kept."""
    return path.with_suffix(".json")


def _selector(faiss: Any, live: torch.Tensor | None) -> Any:
    """What keeps FAISS to the entries that are left; None: all are."""
    if live is None:
        return None
    return faiss.IDSelectorBitmap(np.packbits(live.cpu().numpy(), bitorder="little"))


def _lists(count: int) -> int:
    return int(2 ** round(1 + np.log2(count) / 2))


def _index(faiss: Any, keys: torch.Tensor) -> Any:
    """About 2 sqrt(n) lists of half-precision keys, trained on a sample drawn with a seed."""
    count, dimension = keys.shape
    lists = _lists(count)
    index = faiss.index_factory(dimension, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid, index.cp.niter = _TRAINED, 8
    sample = np.random.default_rng(0).choice(count, min(count, _TRAINED * lists), replace=False)
    index.train(_numbers(keys[np.sort(sample)]))
    for start in range(0, count, _BLOCK):
        index.add(_numbers(keys[start : start + _BLOCK]))
    return index


def check_numbers(found: torch.Tensor, what: str, largest: float = _LARGEST) -> None:
    """Refuse float32 numbers of a space with NaN or infinity among them, or larger ones."""
    if not bool((found <= largest).all() and (found > -torch.inf).all()):  # no NaN is either
        raise SpaceFormatError(
            f"some {what} of the space are no numbers: it is damaged; check it with `trueline "
            "verify`, restore it from a copy or build it anew"
        )


def _numbers(keys: torch.Tensor) -> Any:
    """Keys for FAISS, which takes what is no number for one."""
    wide = keys.float()
    check_numbers(wide, "keys")
    return wide.cpu().numpy()


def _hits(rows: torch.Tensor, entries: Any, cosines: Any, device: torch.device) -> Hits:
    values = torch.from_numpy(cosines).clamp(max=1.0)
    return Hits(rows.to(device), torch.from_numpy(entries).to(device), values.to(device))


def join_hits(found: list[Hits], queries: torch.Tensor) -> Hits:
    """The hits of several searches, whose entries ascend from one to the next, row by row."""
    empty = torch.empty(0, dtype=torch.long, device=queries.device)
    hits = Hits(
        torch.cat([empty, *(hits.rows for hits in found)]),
        torch.cat([empty, *(hits.entries for hits in found)]),
        torch.cat([queries.new_empty(0), *(hits.similarities for hits in found)]),
    )
    return hits.kept(hits.rows.argsort(stable=True))
