"""What the methods share that look into the entries of a grounding space at every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trueline.decoders.base import Rows, SpaceDecoder
from trueline.embedders.base import PreparedTexts
from trueline.engines.base import Engine
from trueline.search import Hits
from trueline.space.retriever import Retriever, window_texts


@dataclass(frozen=True)
class StepHits:
    """What a method found for a step."""

    rows: int
    hits: tuple[Hits, ...]  # of every set of entries it looks into


@dataclass(frozen=True)
class WindowPrefetch:
    """The last windows of some rows, as the embedder's tokens: embedded, then searched."""

    method: Grounded
    lm: Engine
    windows: Sequence[str]
    tokenized: PreparedTexts  # what the embedder makes of the windows without running

    def run(self) -> StepHits:
        """What is near the windows."""
        retriever = self.method.retriever(self.lm)
        return self.method.look_up_by(
            self.lm, retriever.embed_tokenized(self.tokenized), self.windows
        )


class Grounded(SpaceDecoder):
    """Looks up what is near the last tokens, in the entries of its space."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.space.check_entries(self.name, self.needs.context or "full")

    def check(self, lm: Engine) -> None:
        """Refuse a model the entries say nothing of; open what will be looked into."""
        self.space.check_use(lm)
        self.retriever(lm)

    def prefetch(self, rows: Rows) -> WindowPrefetch:
        """The windows of the rows; tokenising is Python, which a second thread only delays."""
        windows = window_texts(self.space, rows.lm, rows.contexts, rows.starts)
        tokenized = self.retriever(rows.lm).tokenize(windows)
        return WindowPrefetch(self, rows.lm, windows, tokenized)

    def look_up(self, rows: Rows) -> StepHits:
        """What is near the last windows of some rows."""
        return self.prefetch(rows).run()

    def look_up_by(self, lm: Engine, queries: torch.Tensor, windows: Sequence[str]) -> StepHits:
        """What is near some windows, whose embeddings are given."""
        raise NotImplementedError

    def retriever(self, lm: Engine) -> Retriever:
        """The entries of the space, opened on the device of a model."""
        return self.space.retriever(lm.device)
