"""The tokens so far in, the window that is embedded out; building and decoding share it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

Context = int | Literal["full"]  # M: how many tokens a window holds
Window = Literal["all", "answer"]  # whether it may reach into the prompt


def window_tokens(
    tokens: Sequence[int], start: int, context: Context, window: Window
) -> Sequence[int]:
    """The last M of the tokens so far; `start` is where the answer begins among them."""
    first = start if window == "answer" else 0
    if context != "full":
        first = max(first, len(tokens) - context)
    return tokens[first:]


def window_hash(text: str) -> int:
    """A 64-bit name of a window's text, which exact matches share."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
