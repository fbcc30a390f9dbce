"""What the methods share that look into a grounding space."""

from __future__ import annotations

from functools import cached_property

from trueline.decoders.base import Decoder
from trueline.models.language import LanguageModel
from trueline.prompts import Asked
from trueline.retriever import Retrievers
from trueline.space.space import GroundingSpace


class Grounded(Decoder):
    """Asks with the prompt of its space, and looks up what is near while the model reads."""

    space: GroundingSpace
    looks_up = True

    def check(self, lm: LanguageModel) -> None:
        """Refuse a model the space was not built with; open what will be looked into."""
        self.space.check_model(lm)
        self._truthful.on(lm.device)

    def prompts(self, question: str) -> tuple[Asked, ...]:
        """The prompt of the space."""
        return (Asked(self.space.prompt, question),)

    @cached_property
    def _truthful(self) -> Retrievers:
        return Retrievers(self.space)
