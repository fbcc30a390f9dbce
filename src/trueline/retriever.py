"""Windows of text in, the entries above tau out: exact, strict, and all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from trueline.models.embedder import Embedder, load_embedder
from trueline.space.content import Entries
from trueline.space.space import GroundingSpace
from trueline.space.windows import text_hash

Matches = Literal["all", "without", "only"]  # what becomes of exact matches
MatchBy = Literal["cosine", "text"]  # what counts as one

_ROUNDING = {torch.float32: 1e-6, torch.float16: 5e-4}  # of a cosine of 1, by the type of keys


@dataclass(frozen=True)
class Hits:
    """Retrieved entries, one a place; rows ascend."""

    rows: torch.Tensor  # (hits,) which window asked
    entries: torch.Tensor  # (hits,) which entry answered
    similarities: torch.Tensor  # (hits,) their cosine

    def __len__(self) -> int:
        return len(self.rows)

    def count(self, rows: int) -> torch.Tensor:
        """How many hits each of the windows has: (rows,)."""
        return torch.bincount(self.rows, minlength=rows)


class Retriever:
    """The keys and values of some entries on one device, with the embedder of the keys."""

    def __init__(self, entries: Entries, embedder: Embedder, device: torch.device) -> None:
        self.embedder = embedder
        keys = torch.from_numpy(entries.keys)
        self._same = 1 - _ROUNDING[keys.dtype]  # from here on a cosine is that of equal windows
        self._keys = keys.to(device).float()  # (entries, dimension)
        self._values = torch.from_numpy(entries.values).to(device)  # (entries, d or vocabulary)
        self._windows = torch.from_numpy(entries.windows).to(device)  # (entries,)
        self.tokens = torch.from_numpy(entries.tokens).to(device).long()  # (entries,)

    def embed(self, windows: Sequence[str]) -> torch.Tensor:
        """The windows as queries (windows, dimension); equal windows are embedded once."""
        if not windows:
            return self._keys.new_zeros(0, self._keys.shape[1])
        distinct = list(dict.fromkeys(windows))
        queries = self.embedder.embed(distinct).to(self._keys.device)
        if len(distinct) == len(windows):
            return queries
        row = {text: place for place, text in enumerate(distinct)}
        return queries[[row[text] for text in windows]]

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
        similarities = self._similarities(queries)  # (queries, entries)
        near = similarities > tau
        if matches != "all":
            exact = self._exact(windows, similarities, match_by)
            near &= exact if matches == "only" else ~exact
        rows, entries = near.nonzero(as_tuple=True)
        return Hits(rows, entries, similarities[rows, entries])

    def nearest(self, queries: torch.Tensor, k: int) -> Hits:
        """The k nearest entries of each query, or all there are; the nearest first."""
        similarities = self._similarities(queries)
        best = similarities.topk(min(k, similarities.shape[1]))
        rows = torch.arange(len(queries), device=best.values.device)
        return Hits(
            rows.repeat_interleave(best.values.shape[1]),
            best.indices.reshape(-1),
            best.values.reshape(-1),
        )

    def values(self, entries: torch.Tensor) -> torch.Tensor:
        """The values of some entries, as float32: (n, d or vocabulary)."""
        return self._values[entries].float()

    def _similarities(self, queries: torch.Tensor) -> torch.Tensor:
        """The cosine of every query with every entry: (queries, entries)."""
        return (queries @ self._keys.T).clamp(max=1.0)

    def _exact(
        self, windows: Sequence[str], similarities: torch.Tensor, match_by: MatchBy
    ) -> torch.Tensor:
        if match_by == "cosine":
            return similarities >= self._same
        hashes = [text_hash(text) for text in windows]
        return torch.tensor(hashes, device=self._windows.device)[:, None] == self._windows


class Retrievers:
    """The entries of a space on every device they were asked for on; a space never changes."""

    def __init__(self, space: GroundingSpace, *, wrong: bool = False) -> None:
        self._space, self._wrong = space, wrong
        self._made: dict[torch.device, Retriever] = {}

    def on(self, device: torch.device) -> Retriever:
        """The entries on a device."""
        if device not in self._made:
            entries = self._space.wrong if self._wrong else self._space.entries
            assert entries is not None
            self._made[device] = Retriever(entries, open_embedder(self._space, device), device)
        return self._made[device]


def open_embedder(space: GroundingSpace, device: torch.device) -> Embedder:
    """The embedder a space was built with, and no other; opened once for a space and device."""
    if device not in space.opened:
        embedder = space.embedder or load_embedder(space.recipe.embedder, device=device)
        space.check_embedder(embedder)
        space.opened[device] = embedder
    return space.opened[device]
