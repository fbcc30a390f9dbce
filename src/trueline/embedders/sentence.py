"""An encoder with mean or first-token pooling, as sentence-transformers runs it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import torch
from tokenizers import Tokenizer

from trueline.embedders.base import Tokenized, TokenRows, TwoPhaseEmbedder
from trueline.embedders.runtime import Runtime, open_runtime, pad_rows
from trueline.engines.encoders import Encoder

_BATCH = 64  # texts a forward pass
_RUNTIME_MOST = 32  # texts: more keep all cores of torch busy, and the runtime has one


class SentenceEmbedder(TwoPhaseEmbedder):
    """An encoder, and the mean of a text's states or the first of them as its vector."""

    def __init__(
        self,
        id: str,
        encoder: Encoder,
        tokenizer: Tokenizer,
        *,
        pooling: str,
        limit: int | None,
    ) -> None:
        self.id, self.encoder, self.pooling = id, encoder, pooling
        self.dimension = encoder.width
        self.tokenizer = tokenizer
        if limit is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(limit)
        tokenizer.no_padding()
        self._tails = Tokenizer.from_str(tokenizer.to_str())
        if limit is not None:
            self._tails.enable_truncation(limit, direction="left")
        parts = [encoder.fingerprint(), tokenizer.to_str(), pooling]
        self.hash = hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> Tokenized:
        """Cut texts into tokens, and pad them if the fast runtime is to embed them."""
        tokenizer = self._tails if tails else self.tokenizer
        encodings = tokenizer.encode_batch([text.strip() for text in texts])
        rows = [encoding.ids for encoding in encodings]
        if 0 < len(rows) <= _RUNTIME_MOST and self._runtime is not None:
            return Tokenized(rows, pad_rows(rows, self.encoder.pad_id))
        return Tokenized(rows)

    def embed_tokenized(self, tokenized: Tokenized) -> torch.Tensor:
        """Unit vectors (texts, dimension), by the fast runtime where the texts are padded."""
        if tokenized.inputs is not None and self._runtime is not None:
            return self._runtime.run(tokenized.inputs)
        return self._embed_batches(tokenized.rows)

    def open(self) -> None:
        """Open its runtime, which may have to be exported first."""
        _ = self._runtime

    @cached_property
    def _runtime(self) -> Runtime | None:
        return open_runtime(self.encoder, self.hash, self._embed_padded)

    def _embed_batches(self, rows: TokenRows) -> torch.Tensor:
        """Unit vectors by torch; texts of similar length share a pass."""
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        vectors = torch.empty(len(rows), self.dimension, device=self.encoder.device)
        for start in range(0, len(order), _BATCH):
            indices = order[start : start + _BATCH]
            vectors[indices] = self._embed_batch([rows[index] for index in indices])
        return vectors

    @torch.inference_mode()
    def _embed_batch(self, rows: TokenRows) -> torch.Tensor:
        inputs = pad_rows(rows, self.encoder.pad_id).values()
        return self._embed_padded(
            *(torch.from_numpy(a).to(self.encoder.device) for a in inputs)
        )

    def _embed_padded(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Unit vectors of a padded batch, by one pass of torch: (texts, dimension)."""
        states = self.encoder(ids, mask).float()  # (texts, tokens, dimension)
        summed = states[:, 0] if self.pooling == "first" else (states * mask[..., None]).sum(1)
        return torch.nn.functional.normalize(summed, dim=1)
