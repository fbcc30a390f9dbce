"""Fixed word vectors: the vector of a text is the mean of those of its words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from trueline.embedders.base import Tokenized, TwoPhaseEmbedder


class StaticEmbedder(TwoPhaseEmbedder):
    """The mean of fixed word vectors: a thousand times cheaper, blind to the order of words.

    The vector of a text without a known word is zero.
    """

    def __init__(
        self, id: str, vectors: torch.Tensor, tokenizer: Tokenizer, unknown: int | None
    ) -> None:
        self.id, self.vectors, self.tokenizer, self.unknown = id, vectors, tokenizer, unknown
        self.dimension = int(vectors.shape[1])
        tokenizer.no_truncation()
        tokenizer.no_padding()
        digest = hashlib.sha256(vectors.cpu().numpy().tobytes())
        digest.update(tokenizer.to_str().encode())
        self.hash = digest.hexdigest()

    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> Tokenized:
        """Cut texts into tokens and drop the unknown ones."""
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return Tokenized(
            [[token for token in item.ids if token != self.unknown] for item in encodings]
        )

    def embed_tokenized(self, tokenized: Tokenized) -> torch.Tensor:
        """Unit vectors (texts, dimension); zero for a text without a known word."""
        rows, device = tokenized.rows, self.vectors.device
        if not rows:
            return torch.zeros(0, self.dimension, device=device)
        ids = torch.tensor([token for row in rows for token in row], dtype=torch.long)
        starts = torch.tensor([0, *(len(row) for row in rows[:-1])]).cumsum(0)
        means = torch.nn.functional.embedding_bag(
            ids.to(device), self.vectors, starts.to(device), mode="mean"
        )
        return torch.nn.functional.normalize(means, dim=1)
