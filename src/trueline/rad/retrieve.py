"""Windows of text in, the entries near them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from trueline.embed import Embedder, prepare_texts
from trueline.methods.base import Rows
from trueline.prompts import encode_plain
from trueline.rad.entries import Entries, EntrySettings, window_texts, window_tokens
from trueline.search import Hits, open_search
from trueline.space import OPENING_LOCK, GroundingSpace

Matches = Literal["all", "without", "only"]  # what becomes of exact matches
ROUNDING = {torch.float32: 1e-6, torch.float16: 1e-4}  # of a cosine of 1, by the type of keys


class Retriever:
    """One set of entries on one device, with the embedder of their keys."""

    def __init__(self, entries: Entries, embedder: Embedder, device: torch.device) -> None:
        self.embedder, self._device = embedder, device
        self._keys = torch.from_numpy(entries.keys).to(device)  # (entries, dimension)
        self._stored = torch.from_numpy(entries.values).to(device)  # (entries, d or vocabulary)
        self.tokens = torch.from_numpy(entries.tokens).to(device).long()  # (entries,)
        self.search = open_search(self._keys)
        self._same = 1 - ROUNDING[self._keys.dtype]  # from here on windows are equal

    def embed(self, windows: Sequence[str]) -> torch.Tensor:
        """The windows as queries (windows, dimension); equal ones are embedded once."""
        return self.prepare(windows)()

    def prepare(self, windows: Sequence[str]) -> Callable[[], torch.Tensor]:
        """A function that embeds windows (windows, dimension); see `prepare_texts`."""
        vectors = prepare_texts(self.embedder, windows, tails=True)
        return lambda: vectors().to(self._device)

    def above(self, queries: torch.Tensor, *, tau: float, matches: Matches = "all") -> Hits:
        """Every entry whose cosine with a query exceeds tau; entries ascend within a row."""
        hits = self.search.above(queries, tau)
        if matches == "all":
            return hits
        exact = hits.similarities >= self._same
        return hits.kept(exact if matches == "only" else ~exact)

    def nearest(self, queries: torch.Tensor, k: int) -> Hits:
        """The k nearest entries of each query, or all there are; the nearest first."""
        return self.search.nearest(queries, k)

    def values(self, entries: torch.Tensor) -> torch.Tensor:
        """The values of some entries, as float32: (n, d or vocabulary)."""
        return self._stored[entries].float()


def open_retriever(
    space: GroundingSpace, device: str | torch.device, *, wrong: bool = False
) -> Retriever:
    """The entries of a space on a device, of the truthful or the wrong answers; opened once."""
    rad = space.entries
    assert rad is not None
    key = torch.device(device), wrong
    with OPENING_LOCK:
        if key not in rad.opened:
            entries = rad.wrong if wrong else rad.truthful
            assert entries is not None
            rad.opened[key] = Retriever(entries, space.open_embedder(key[0]), key[0])
        retriever: Retriever = rad.opened[key]
        return retriever


def windows_of(rows: Rows, settings: EntrySettings) -> list[str]:
    """The text of each row's last tokens, as the entries were made with it."""
    questions: list[list[int]] = [[]] * len(rows)
    if settings.window == "text":
        questions = [encode_plain(text or "", rows.lm.tokenizer) for text in rows.questions]
    parts = zip(rows.contexts, rows.starts, questions, strict=True)
    return window_texts(rows.lm, [window_tokens(*part, settings) for part in parts])
