"""A folder of weights in; out: whether they are safe to open and whole."""

from __future__ import annotations

import re
from pathlib import Path

from trueline.errors import ModelError


def check_weights(folder: Path) -> None:
    """Refuse a folder whose weights are pickled, missing, cut short or damaged."""
    from safetensors import SafetensorError, safe_open

    files = {*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")}
    for index in folder.glob("*.safetensors.index.json"):
        files |= {
            folder / name for name in re.findall(r'"([^"]+\.safetensors)"', index.read_text())
        }
    if not files:
        pickles = [
            file.name for end in ("bin", "pt", "pth") for file in folder.glob(f"*.{end}")
        ]
        why = f"only {pickles[0]}, a pickle, which could run code" if pickles else "none"
        raise ModelError(
            f"{folder} must hold its weights as safetensors and has {why}; "
            "save the model anew with save_pretrained"
        )
    for file in sorted(files):
        try:
            with safe_open(file, framework="numpy"):  # reads the header, holds it to the size
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{file} is missing, cut short or damaged ({error}); "
                f"delete the folder {folder} and fetch the model again"
            ) from None
