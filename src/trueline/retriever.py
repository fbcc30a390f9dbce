"""Windows of text in, the entries above tau out: exact, strict, and all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from trueline.models.embedder import load_embedder
from trueline.space.space import GroundingSpace
from trueline.space.windows import text_hash

Matches = Literal["all", "without", "only"]  # what becomes of exact matches
MatchBy = Literal["cosine", "text"]  # what counts as one

_SAME = 1 - 1e-6  # a cosine of 1, up to the rounding of 384 products in float32


@dataclass(frozen=True)
class Hits:
    """Retrieved entries, one a place; rows ascend, and entries ascend within a row."""

    rows: torch.Tensor  # (hits,) which window asked
    entries: torch.Tensor  # (hits,) which entry answered
    similarities: torch.Tensor  # (hits,) their cosine

    def __len__(self) -> int:
        return len(self.rows)

    def count(self, rows: int) -> torch.Tensor:
        """How many hits each of the windows has: (rows,)."""
        return torch.bincount(self.rows, minlength=rows)


class Retriever:
    """The keys and values of a space on one device, with the embedder that made the keys."""

    def __init__(self, space: GroundingSpace, device: torch.device) -> None:
        self.space = space
        self.embedder = space.embedder or load_embedder(space.recipe.embedder, device=device)
        space.check_embedder(self.embedder)
        entries = space.entries
        self._keys = torch.from_numpy(entries.keys).to(device).float()  # (entries, dimension)
        self._values = torch.from_numpy(entries.values).to(device)  # (entries, d or vocabulary)
        self._windows = torch.from_numpy(entries.windows).to(device)  # (entries,)

    def above(
        self,
        windows: Sequence[str],
        *,
        tau: float,
        matches: Matches = "all",
        match_by: MatchBy = "cosine",
    ) -> Hits:
        """Every entry whose cosine with a window exceeds tau."""
        queries = self._embed(windows)  # (windows, dimension)
        similarities = (queries @ self._keys.T).clamp(max=1.0)  # (windows, entries)
        near = similarities > tau
        if matches != "all":
            exact = self._exact(windows, similarities, match_by)
            near &= exact if matches == "only" else ~exact
        rows, entries = near.nonzero(as_tuple=True)
        return Hits(rows, entries, similarities[rows, entries])

    def values(self, entries: torch.Tensor) -> torch.Tensor:
        """The values of some entries, as float32: (n, d or vocabulary)."""
        return self._values[entries].float()

    def _embed(self, windows: Sequence[str]) -> torch.Tensor:
        distinct = list(dict.fromkeys(windows))
        vectors = self.embedder.embed(distinct).to(self._keys.device)
        if len(distinct) == len(windows):
            return vectors
        row = {text: place for place, text in enumerate(distinct)}
        return vectors[[row[text] for text in windows]]

    def _exact(
        self, windows: Sequence[str], similarities: torch.Tensor, match_by: MatchBy
    ) -> torch.Tensor:
        if match_by == "cosine":
            return similarities >= _SAME
        hashes = [text_hash(text) for text in windows]
        return torch.tensor(hashes, device=self._windows.device)[:, None] == self._windows
