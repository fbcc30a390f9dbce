"""Two sequences in, the first place where they differ out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The index at which two sequences first differ, or one of them ends; None if nowhere."""
    missing = object()
    for index, (a, b) in enumerate(zip_longest(one, other, fillvalue=missing)):
        if a is missing or b is missing or a != b:
            return index
    return None
