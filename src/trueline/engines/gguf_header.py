"""A GGUF file in; out: how much it holds, once its header is known to fit the file.

Readers believe the lengths a header states; one that is damaged could have them loop for hours.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path

from trueline.engines.weights import WeightCount
from trueline.errors import ModelError

_VERSIONS = (2, 3)
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # by type
_TEXT, _ARRAY = 8, 9  # the types of values that have a length
_DIMENSIONS = 4  # a tensor has at most
_VALUES_A_BYTE = 8  # no format packs more


def read_gguf_header(file: Path, label: str) -> WeightCount:
    """Count tensors and values of a GGUF file; refuse one whose header does not fit it."""
    try:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Header(data).count()
    except (struct.error, ValueError) as error:  # read past the end, or an empty file
        raise ModelError(
            f"{label} is cut short or damaged ({error}); fetch the model again"
        ) from None


class _Header:
    """Walks through the header; a read past the end of the file is a struct.error."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 4  # behind the letters GGUF

    def count(self) -> WeightCount:
        """How many tensors there are, and values in them."""
        if (version := self._number("<I")) not in _VERSIONS:
            raise ValueError(f"it has version {version} of the format, not 2 or 3")
        tensors, settings = self._number("<Q"), self._number("<Q")
        for _ in range(settings):
            self._skip_text()
            self._skip_value(self._number("<I"))
        values = sum(self._tensor() for _ in range(tensors))
        if values > _VALUES_A_BYTE * len(self._data):
            raise ValueError(f"its header names {values} values, more than the file can hold")
        return WeightCount(tensors, values)

    def _tensor(self) -> int:
        """How many values the next tensor has."""
        self._skip_text()
        dimensions = self._number("<I")
        if not 0 < dimensions <= _DIMENSIONS:
            raise ValueError(f"one of its tensors has {dimensions} dimensions")
        values = prod(self._number("<Q") for _ in range(dimensions))
        self._skip(struct.calcsize("<IQ"))  # type and place
        return values

    def _skip_value(self, kind: int) -> None:
        if kind == _TEXT:
            self._skip_text()
        elif kind == _ARRAY:
            kind, length = self._number("<I"), self._number("<Q")
            if kind == _TEXT:
                for _ in range(length):
                    self._skip_text()
            else:
                self._skip(length * self._width(kind))
        else:
            self._skip(self._width(kind))

    def _skip_text(self) -> None:
        self._skip(self._number("<Q"))

    def _width(self, kind: int) -> int:
        if kind not in _WIDTHS:
            raise ValueError(f"its header has a value of the unknown type {kind}")
        return _WIDTHS[kind]

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > len(self._data):
            raise ValueError("its header names more than the file holds")

    def _number(self, form: str) -> int:
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(number)
