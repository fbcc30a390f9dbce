"""Corrective decoding as a `custom_generate` folder of transformers (docs/transformers.md)."""

from __future__ import annotations

from pathlib import Path

# What model.generate(custom_generate=...) takes; on the hub, the repository that has its files.
FOLDER = str(Path(__file__).parent)
