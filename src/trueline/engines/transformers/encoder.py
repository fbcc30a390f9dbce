"""A folder in, an encoder of transformers out: token ids -> one hidden state a token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trueline.engines.transformers.fingerprint import fingerprint
from trueline.engines.transformers.quiet import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Encoder(torch.nn.Module):
    """An encoder of transformers; all an embedder knows of the library behind it.

    It is a torch module, so that it can be part of a module that is exported.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model.eval()
        self.width = int(model.config.hidden_size)
        self.pad_id = int(getattr(model.config, "pad_token_id", 0) or 0)
        # Where a text's first token may stand: some encoders count from behind their pad's id.
        self.first_positions = (0, self.pad_id + 1)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def limit(self) -> int:
        """How many tokens it can read at most."""
        return int(self.model.config.max_position_embeddings)

    def fingerprint(self) -> str:
        """A hash of its weights and settings."""
        return fingerprint(self.model)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(rows, tokens) of ids -> (rows, tokens, width).

        The mask is one of tokens (rows, tokens), 1 where a token counts, or one of pairs
        (rows, 1, tokens, tokens), which is added to the attention's scores. Positions are
        given only where texts stand one behind the other in a row.
        """
        options = {} if positions is None else {"position_ids": positions}
        found = self.model(input_ids=ids, attention_mask=mask, **options)
        states: torch.Tensor = found.last_hidden_state
        return states


def open_encoder(folder: Path, device: torch.device) -> Encoder:
    """Open the encoder of a folder in float32."""
    from transformers import AutoModel

    with quiet():
        model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    return Encoder(model.to(device))
