"""A GGUF file in; out: what its header says, once it is known to fit the file.

Readers believe the lengths a header states; one that is damaged could have them loop for hours.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from trueline.engines.weights import WeightCount
from trueline.errors import ModelError

_VERSIONS = (2, 3)
_FORMS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))  # by type
_TEXT, _ARRAY = 8, 9  # the types of values that have a length
_DIMENSIONS = 4  # a tensor has at most
_VALUES_A_BYTE = 8  # no format packs more

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor of a GGUF file is, and how it is packed."""

    shape: tuple[int, ...]  # the last one runs fastest
    kind: int  # the number ggml gives its format
    start: int  # byte in the file


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of itself."""

    settings: Mapping[str, Setting]  # those that are one value
    arrays: Mapping[str, tuple[int, int, int]]  # type, first byte and length of the others
    tensors: Mapping[str, GgufTensor]
    tokenizer_hash: str  # of all settings of the tokenizer, to the byte

    @property
    def count(self) -> WeightCount:
        """How many tensors there are, and values in them."""
        return WeightCount(len(self.tensors), sum(prod(t.shape) for t in self.tensors.values()))


def read_gguf_header(file: Path, label: str) -> GgufHeader:
    """Read the header of a GGUF file; refuse one whose header does not fit it."""
    try:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Header(data).read()
    except (struct.error, ValueError) as error:  # read past the end, or an empty file
        raise ModelError(
            f"{label} is cut short or damaged ({error}); fetch the model again"
        ) from None


class _Header:
    """Walks through the header; a read past the end of the file is a struct.error."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 4  # behind the letters GGUF
        self._settings: dict[str, Setting] = {}
        self._arrays: dict[str, tuple[int, int, int]] = {}
        self._tokenizer = hashlib.sha256()

    def read(self) -> GgufHeader:
        """All that it says."""
        if (version := self._number("I")) not in _VERSIONS:
            raise ValueError(f"it has version {version} of the format, not 2 or 3")
        tensors, settings = self._number("Q"), self._number("Q")
        for _ in range(settings):
            self._setting()
        found = [self._tensor() for _ in range(tensors)]
        values = sum(prod(shape) for _, shape, _, _ in found)
        if values > _VALUES_A_BYTE * len(self._data):
            raise ValueError(f"its header names {values} values, more than the file can hold")
        step = int(self._settings.get("general.alignment", 32)) or 1
        base = -(-self._at // step) * step
        return GgufHeader(
            self._settings,
            self._arrays,
            {name: GgufTensor(shape, kind, base + at) for name, shape, kind, at in found},
            self._tokenizer.hexdigest(),
        )

    def _setting(self) -> None:
        begin, name = self._at, self._text()
        kind = self._number("I")
        if kind == _ARRAY:
            kind, length = self._number("I"), self._number("Q")
            self._arrays[name] = kind, self._at, length
            self._skip_array(kind, length)
        else:
            self._settings[name] = self._text() if kind == _TEXT else self._value(kind)
        if name.startswith("tokenizer."):
            self._tokenizer.update(self._data[begin : self._at])

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """The name, shape, format and place of the next tensor."""
        name, dimensions = self._text(), self._number("I")
        if not 0 < dimensions <= _DIMENSIONS:
            raise ValueError(f"one of its tensors has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        return name, shape[::-1], self._number("I"), self._number("Q")

    def _value(self, kind: int) -> Setting:
        (value,) = struct.unpack_from(f"<{self._form(kind)}", self._data, self._at)
        self._skip(struct.calcsize(self._form(kind)))
        found: Setting = value
        return found

    def _skip_array(self, kind: int, length: int) -> None:
        if kind == _TEXT:
            for _ in range(length):
                self._skip(self._number("Q"))
        else:
            self._skip(length * struct.calcsize(self._form(kind)))

    def _text(self) -> str:
        length = self._number("Q")
        self._skip(length)
        return self._data[self._at - length : self._at].decode("utf-8", "replace")

    def _form(self, kind: int) -> str:
        if kind not in _FORMS:
            raise ValueError(f"its header has a value of the unknown type {kind}")
        return _FORMS[kind]

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > len(self._data):
            raise ValueError("its header names more than the file holds")

    def _number(self, form: str) -> int:
        (number,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return int(number)
