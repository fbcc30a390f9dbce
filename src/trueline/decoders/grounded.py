"""What the methods share that look into a grounding space."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from trueline.decoders.base import Decoder, Lookup
from trueline.engines.transformers.language import LanguageModel
from trueline.prompts import Asked
from trueline.space.retriever import window_texts
from trueline.space.space import GroundingSpace


class Grounded(Decoder):
    """Asks with the prompt of its space, and looks up what is near while the model reads."""

    space: GroundingSpace
    looks_up = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.space.check_entries(self.name, self.needs.context or "full")

    def check(self, lm: LanguageModel) -> None:
        """Refuse a model the space was not built with; open what will be looked into."""
        self.space.check_model(lm)
        self.space.retriever(lm.device)

    def prompts(self, question: str) -> tuple[Asked, ...]:
        """The prompt of the space."""
        return (Asked(self.space.prompt, question),)

    def begin(
        self, lm: LanguageModel, contexts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Callable[[], Lookup]:
        """Read the windows; what is returned embeds them and searches.

        Reading is Python, which a thread beside the model would do against the model's own.
        """
        windows = window_texts(self.space, lm, contexts, starts)
        queries = self.space.retriever(lm.device).begin(windows)
        return lambda: self.look_up_by(lm, queries(), windows)

    def look_up(
        self, lm: LanguageModel, contexts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Lookup:
        """What is near the last windows of some contexts."""
        return self.begin(lm, contexts, starts)()

    def look_up_by(
        self, lm: LanguageModel, queries: torch.Tensor, windows: Sequence[str]
    ) -> Lookup:
        """What is near some windows, whose embeddings are given."""
        raise NotImplementedError
