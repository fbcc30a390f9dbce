"""A folder in, an encoder of transformers out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trueline.engines.transformers.fingerprint import fingerprint
from trueline.engines.transformers.opening import open_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TransformersEncoder(torch.nn.Module):
    """An encoder of transformers behind the protocol of `engines.encoders`."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model.eval()
        self.width = int(model.config.hidden_size)
        self.limit: int | None = getattr(model.config, "max_position_embeddings", None)
        self.pad_id = int(getattr(model.config, "pad_token_id", 0) or 0)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def word_vectors(self) -> torch.Tensor:
        """The vectors that token ids begin with: (vocabulary, width)."""
        table: torch.Tensor = self.model.get_input_embeddings().weight.detach()
        return table

    def fingerprint(self) -> str:
        """A hash of its weights and settings."""
        return fingerprint(self.model)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(rows, tokens) of ids -> (rows, tokens, width)."""
        found = self.model(input_ids=ids, attention_mask=mask)
        states: torch.Tensor = found.last_hidden_state
        return states


def open_encoder(folder: Path, device: torch.device) -> TransformersEncoder:
    """Open the encoder of a folder in float32; code that comes with it never runs."""
    return TransformersEncoder(open_model(folder, "encoder", torch.float32).to(device))
