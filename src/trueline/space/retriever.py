"""Windows of text in, the entries near them out."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Literal

import torch

from trueline.embedders.base import Embedder, PreparedTexts, embed_prepared, prepare_texts
from trueline.embedders.loading import load_embedder
from trueline.embedders.sentence import SentenceEmbedder
from trueline.engines.base import Engine
from trueline.search import Exact, Hits, open_search
from trueline.shortcuts import is_on
from trueline.space.content import Entries
from trueline.space.space import GroundingSpace
from trueline.space.windows import text_hash, window_tokens

Matches = Literal["all", "without", "only"]  # what becomes of exact matches
MatchBy = Literal["cosine", "text"]  # what counts as one

_opening = RLock()  # one thread at a time opens embedders, keys and indexes
_ROUNDING = {torch.float32: 1e-6, torch.float16: 1e-4}  # of a cosine of 1, by the type of keys


class Retriever:
    """The keys and values of some entries on one device, with the embedder of the keys."""

    def __init__(self, entries: Entries, embedder: Embedder, device: torch.device) -> None:
        self.embedder = embedder
        keys = torch.from_numpy(entries.keys).to(device)  # (entries, dimension)
        self._same = 1 - _ROUNDING[keys.dtype]  # from here on a cosine is that of equal windows
        self._search = {True: open_search(keys), False: Exact(keys)}
        self._values = torch.from_numpy(entries.values).to(device)  # (entries, d or vocabulary)
        self._windows = torch.from_numpy(entries.windows).to(device)  # (entries,)
        self.tokens = torch.from_numpy(entries.tokens).to(device).long()  # (entries,)

    def embed(self, windows: Sequence[str]) -> torch.Tensor:
        """The windows as queries (windows, dimension); equal ones are embedded once."""
        return self.embed_tokenized(self.tokenize(windows))

    def tokenize(self, windows: Sequence[str]) -> PreparedTexts:
        """What the embedder makes of the windows without running; equal ones once."""
        return prepare_texts(self.embedder, windows)

    def embed_tokenized(self, tokenized: PreparedTexts) -> torch.Tensor:
        """Tokenized windows as queries (windows, dimension), safe in another thread."""
        return embed_prepared(self.embedder, tokenized).to(self._values.device)

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
        hits = self._search[is_on("index")].above(queries, tau)
        if matches == "all":
            return hits
        exact = self._exact(windows, hits, match_by)
        return hits.kept(exact if matches == "only" else ~exact)

    def nearest(self, queries: torch.Tensor, k: int) -> Hits:
        """The k nearest entries of each query, or all there are; the nearest first."""
        return self._search[is_on("index")].nearest(queries, k)

    def values(self, entries: torch.Tensor) -> torch.Tensor:
        """The values of some entries, as float32: (n, d or vocabulary)."""
        return self._values[entries].float()

    def _exact(self, windows: Sequence[str], hits: Hits, match_by: MatchBy) -> torch.Tensor:
        """Which of the hits stand in the very window that asked: (hits,)."""
        if match_by == "cosine":
            return hits.similarities >= self._same
        asked = torch.tensor([text_hash(text) for text in windows], device=hits.rows.device)
        return asked[hits.rows] == self._windows[hits.entries]


def window_texts(
    space: GroundingSpace,
    lm: Engine,
    contexts: Sequence[Sequence[int]],
    starts: Sequence[int],
) -> list[str]:
    """The text of each row's last tokens, as the space was built with it."""
    context, window = space.recipe.context, space.recipe.window
    rows = zip(contexts, starts, strict=True)
    return lm.decode_all(
        [window_tokens(tokens, start, context, window) for tokens, start in rows]
    )


class Retrievers:
    """The entries of a space on every device they were asked for on; a space never changes."""

    def __init__(self, space: GroundingSpace, *, wrong: bool = False) -> None:
        self._space, self._wrong = space, wrong
        self._made: dict[torch.device, Retriever] = {}

    def on(self, device: torch.device) -> Retriever:
        """The entries on a device."""
        with _opening:
            if device not in self._made:
                entries = self._space.wrong if self._wrong else self._space.entries
                assert entries is not None
                embedder = open_embedder(self._space, device)
                self._made[device] = Retriever(entries, embedder, device)
            return self._made[device]


def open_embedder(space: GroundingSpace, device: torch.device) -> Embedder:
    """The embedder a space was built with, and no other; opened once for a space and device."""
    with _opening:
        if device not in space.opened:
            embedder = space.embedder or load_embedder(space.recipe.embedder, device=device)
            space.check_embedder(embedder)
            if isinstance(embedder, SentenceEmbedder):
                embedder.open()
            space.opened[device] = embedder
        return space.opened[device]
