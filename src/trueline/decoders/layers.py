"""What the methods share that read earlier layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trueline.decoders.base import Step
from trueline.engines.base import Engine
from trueline.errors import SettingError


def check_layers(method: str, lm: Engine, layers: Sequence[int]) -> None:
    """Refuse layers that a model does not have, and a head that takes none."""
    if lm.head is None:
        raise SettingError(f"{method} reads early layers, and the head of {lm.id} takes none")
    if not layers or not all(0 <= layer < lm.depth for layer in layers):
        raise SettingError(
            f"candidates must name layers from 0 to {lm.depth - 1} of {lm.id}, got {layers}"
        )


def early_logits(step: Step, layers: Sequence[int]) -> torch.Tensor:
    """The logits of earlier layers: (layers, rows, vocabulary)."""
    assert step.lm.head is not None
    return step.lm.head(torch.stack([step.states.layers[layer] for layer in layers]))
