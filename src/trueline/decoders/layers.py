"""What the methods share that read earlier layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trueline.decoders.base import Decoder, Needs, Step
from trueline.engines.base import Engine
from trueline.errors import SettingError


class LayerDecoder(Decoder):
    """Compares the last layer with earlier ones, its `candidates`."""

    candidates: str | tuple[int, ...]  # layers by number, or a word for some of them
    needs = Needs(layers=True)

    def check(self, lm: Engine) -> None:
        """Refuse an engine or a head without use for layers, and layers that are none."""
        if not lm.gives_layers:
            raise SettingError(
                f"{self.name} reads early layers, and the engine of {lm.id} does not hand them "
                "out; load it with engine='transformers'"
            )
        if lm.head is None:
            raise SettingError(
                f"{self.name} reads early layers, and the head of {lm.id} takes none"
            )
        layers = self.layers(lm)
        if not layers or not all(0 <= layer < lm.depth for layer in layers):
            raise SettingError(
                f"candidates must name layers from 0 to {lm.depth - 1} of {lm.id}, got {layers}"
            )

    def layers(self, lm: Engine) -> Sequence[int]:
        """The layers that were asked for by number, or those that the word stands for."""
        return self.candidates if isinstance(self.candidates, tuple) else self.named_layers(lm)

    def named_layers(self, lm: Engine) -> Sequence[int]:
        """The layers that the word in `candidates` stands for.

        Layer 0 is none of them in a model with tied embeddings: it would give back its own
        input.
        """
        raise NotImplementedError


def early_logits(step: Step, layers: Sequence[int]) -> torch.Tensor:
    """The logits of earlier layers: (layers, rows, vocabulary)."""
    assert step.lm.head is not None
    return step.lm.head(torch.stack([step.states.layers[layer] for layer in layers]))
