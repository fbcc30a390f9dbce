"""A text -> its words, each with a vector and a weight: what is compared word by word.

The vectors are those an embedder's model begins with, so no pass of it is needed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from math import log

import torch

from trueline.embedders.base import Embedder
from trueline.embedders.sentence import SentenceEmbedder
from trueline.embedders.static import StaticEmbedder

_WORD = re.compile(r"\w+")
_COMMON = 1_000  # ids of a vocabulary: common words stand first in it, and weigh less
_WIDTH = 64  # of the vectors of words that have none of their own


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a text."""

    vectors: torch.Tensor  # (words, width), unit length
    weights: torch.Tensor  # (words,) how much a word tells: rare ones more
    texts: tuple[str, ...]  # the words themselves

    def coverage(self, other: torch.Tensor) -> torch.Tensor:
        """The cosine of each word with the nearest of other words (others, width)."""
        if not len(other):
            return torch.zeros(len(self.vectors))
        return (self.vectors @ other.T).amax(1)

    def share(self, coverage: torch.Tensor) -> float:
        """The mean of a coverage, rare words counting more; 0 where there is no word."""
        return float((self.weights * coverage).sum() / self.weights.sum().clamp(min=1e-6))

    def missing(self, coverage: torch.Tensor) -> float:
        """The weight of the words that a coverage leaves out."""
        return float((self.weights * (1 - coverage)).sum())


def words_of(embedder: Embedder, text: str) -> Words:
    """The words of a text as an embedder knows them; equal words alone where it knows none."""
    if isinstance(embedder, SentenceEmbedder):
        return _known(embedder.tokenizer, embedder.encoder.word_vectors, text)
    if isinstance(embedder, StaticEmbedder):
        return _known(embedder.tokenizer, embedder.vectors, text)
    found = [word.lower() for word in _WORD.findall(text)]
    vectors = [_hashed(word) for word in found]
    return Words(
        torch.stack(vectors) if found else torch.zeros(0, _WIDTH),
        torch.ones(len(found)),
        tuple(found),
    )


def _known(tokenizer: object, table: torch.Tensor, text: str) -> Words:
    """Words from the table of a model: the mean of a word's pieces."""
    encoding = tokenizer.encode(text, add_special_tokens=False)  # type: ignore[attr-defined]
    pieces: dict[int, list[int]] = {}
    places: dict[int, tuple[int, int]] = {}  # where a word begins and ends
    for token, word, (start, end) in zip(
        encoding.ids, encoding.word_ids, encoding.offsets, strict=True
    ):
        if word is not None and _WORD.search(text[start:end]):
            pieces.setdefault(word, []).append(token)
            places[word] = places.get(word, (start, end))[0], end
    if not pieces:
        return Words(torch.zeros(0, table.shape[1]), torch.zeros(0), ())
    vectors = torch.stack([table[ids].float().mean(0) for ids in pieces.values()]).cpu()
    rarest = len(table)
    ranks = [ids[0] if len(ids) == 1 else rarest for ids in pieces.values()]
    return Words(
        torch.nn.functional.normalize(vectors, dim=1),
        torch.tensor([log(1 + rank / _COMMON) for rank in ranks]),
        tuple(text[start:end] for start, end in places.values()),
    )


def _hashed(word: str) -> torch.Tensor:
    """A vector of a word that is near to no other word's."""
    seed = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:7])
    source = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(_WIDTH, generator=source), dim=0)
