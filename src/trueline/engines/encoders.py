"""A folder in, an encoder out, which embedders stand on: token ids -> a state for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch


class Encoder(Protocol):
    """What gives a state for every token; it is also a torch module, so it can be exported."""

    width: int  # of a state
    limit: int | None  # tokens it can read at most
    pad_id: int

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        ...

    @property
    def word_vectors(self) -> torch.Tensor:
        """The vectors that token ids begin with: (vocabulary, width)."""
        ...

    def fingerprint(self) -> str:
        """A hash of its weights and settings."""
        ...

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids (rows, tokens), and a mask with 1 where one counts -> (rows, tokens, width)."""
        ...


def open_encoder(folder: Path, device: torch.device) -> Encoder:
    """Open the encoder of a folder in float32."""
    from trueline.engines.transformers.encoder import open_encoder

    return open_encoder(folder, device)


def open_bert_scorer(folder: str, layers: int) -> Any:
    """A scorer of bert-score on the encoder in a folder."""
    from trueline.engines.transformers import bert_scorer

    return bert_scorer.open_bert_scorer(folder, layers)
