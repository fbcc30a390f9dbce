"""What an embedder is, and how texts with repeats are embedded: texts -> unit vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

TokenRows = list[list[int]]  # the token ids of several texts
Inputs = Mapping[str, np.ndarray]  # a padded batch of texts, for a runtime


class Embedder(Protocol):
    """What turns a window of text into the key of an entry, or a query."""

    id: str
    hash: str  # of everything that shapes the vectors
    dimension: int

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors (texts, dimension), float32, in the order of the texts."""
        ...


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Texts cut into tokens, ready for an embedder's second phase."""

    rows: TokenRows
    inputs: Inputs | None = None  # the same rows for a runtime, if it embeds them


class TwoPhaseEmbedder(ABC):
    """An embedder that does its Python first, so that the rest can run in another thread.

    A thread that runs Python alongside the model takes time from the model's own Python; one
    that runs compiled code does not.
    """

    id: str
    hash: str
    dimension: int

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors (texts, dimension), float32, in the order of the texts."""
        return self.embed_tokenized(self.tokenize(texts))

    @abstractmethod
    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> Tokenized:
        """Cut texts into tokens: the first phase.

        Of a text that is longer than it reads, the beginning is kept; with `tails` the end.
        """

    @abstractmethod
    def embed_tokenized(self, tokenized: Tokenized) -> torch.Tensor:
        """The unit vectors of tokenized texts: the second phase, safe in another thread."""


@dataclass(frozen=True, slots=True)
class PreparedTexts:
    """Texts without their repeats, tokenized if their embedder works in two phases."""

    distinct: list[str]
    indices: list[int]  # of each text among the distinct ones
    tokenized: Tokenized | None


def prepare_texts(
    embedder: Embedder, texts: Sequence[str], *, tails: bool = False
) -> PreparedTexts:
    """Do what an embedder can do before its model runs; `embed_prepared` does the rest.

    With `tails` it is the end that counts of a text which is too long for the embedder.
    """
    index: dict[str, int] = {}
    indices = [index.setdefault(text, len(index)) for text in texts]
    distinct = list(index)
    phases = _two_phases(embedder)
    tokenized = phases.tokenize(distinct, tails=tails) if phases and distinct else None
    return PreparedTexts(distinct, indices, tokenized)


def embed_prepared(embedder: Embedder, prepared: PreparedTexts) -> torch.Tensor:
    """The unit vectors of all prepared texts, repeats too: (texts, dimension)."""
    phases = _two_phases(embedder)
    if not prepared.distinct:
        return torch.zeros(0, embedder.dimension)
    if prepared.tokenized is not None and phases is not None:
        vectors = phases.embed_tokenized(prepared.tokenized)
    else:
        vectors = embedder.embed(prepared.distinct)
    has_repeats = len(prepared.distinct) < len(prepared.indices)
    return vectors[prepared.indices] if has_repeats else vectors


def embed_distinct(
    embedder: Embedder, texts: Sequence[str], *, tails: bool = False
) -> torch.Tensor:
    """The unit vectors of texts (texts, dimension); equal texts are embedded once."""
    return embed_prepared(embedder, prepare_texts(embedder, texts, tails=tails))


def _two_phases(embedder: Embedder) -> TwoPhaseEmbedder | None:
    """The embedder, if a class made from it has not given it another `embed`."""
    if isinstance(embedder, TwoPhaseEmbedder):
        return embedder if type(embedder).embed is TwoPhaseEmbedder.embed else None
    return None
