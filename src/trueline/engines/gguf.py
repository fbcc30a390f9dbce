"""The header of a GGUF file: its settings and the table of its tensors, checked against it."""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from trueline.errors import ModelError

_FORMS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))  # by type
_TEXT, _ARRAY = 8, 9  # the types of values that have a length
_MOST_DIMENSIONS = 4
_VALUES_A_BYTE = 8  # no format packs more


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor of a GGUF file is, and how it is packed."""

    shape: tuple[int, ...]  # the last one runs fastest
    kind: int  # the number ggml gives its format
    start: int  # byte in the file


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The settings and the table of tensors of a GGUF file."""

    settings: Mapping[str, Any]  # those that are one value
    arrays: Mapping[str, tuple[int, int, int]]  # type, first byte and length of the others
    tensors: Mapping[str, GgufTensor]
    tokenizer_hash: str  # of the bytes of all settings of the tokenizer


def read_gguf_header(file: Path, label: str) -> GgufHeader:
    """Read the header of a GGUF file; refuse a file that its header does not fit."""
    try:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _read(_Reader(data), len(data))
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise ModelError(
            f"{label} is cut short or damaged ({error}); fetch the model again"
        ) from None


class _Reader:
    """A position in the bytes of a file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 4  # after the letters GGUF

    def value(self, kind: int) -> Any:
        """A value of a type of the format, which is not an array."""
        if kind == _TEXT:
            length = self.number("Q")
            self.skip(length)
            return self.data[self.at - length : self.at].decode("utf-8", "replace")
        return self.number(_FORMS[kind])

    def number(self, form: str) -> Any:
        (number,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return number

    def skip(self, length: int) -> None:
        self.at += length
        if self.at > len(self.data):
            raise ValueError("its header names more than the file holds")


def _read(reader: _Reader, size: int) -> GgufHeader:
    if (version := reader.number("I")) not in (2, 3):
        raise ValueError(f"it has version {version} of the format, not 2 or 3")
    tensor_count, setting_count = reader.number("Q"), reader.number("Q")
    settings: dict[str, Any] = {}
    arrays: dict[str, tuple[int, int, int]] = {}
    tokenizer = hashlib.sha256()
    for _ in range(setting_count):
        begin, name, kind = reader.at, reader.value(_TEXT), reader.number("I")
        if kind == _ARRAY:
            kind, length = reader.number("I"), reader.number("Q")
            arrays[name] = kind, reader.at, length
            if kind != _TEXT:
                reader.skip(length * struct.calcsize(f"<{_FORMS[kind]}"))
            for _ in range(length if kind == _TEXT else 0):
                reader.skip(reader.number("Q"))
        else:
            settings[name] = reader.value(kind)
        if name.startswith("tokenizer."):
            tokenizer.update(reader.data[begin : reader.at])
    tensors = {}
    for _ in range(tensor_count):
        name, dimensions = reader.value(_TEXT), reader.number("I")
        if not 0 < dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"one of its tensors has {dimensions} dimensions")
        shape = tuple(reader.number("Q") for _ in range(dimensions))
        tensors[name] = GgufTensor(shape[::-1], reader.number("I"), reader.number("Q"))
    values = sum(prod(tensor.shape) for tensor in tensors.values())
    if values > _VALUES_A_BYTE * size:
        raise ValueError(f"its header names {values} values, more than the file can hold")
    step = int(settings.get("general.alignment", 32)) or 1
    base = -(-reader.at // step) * step  # the places of tensors are counted from there
    tensors = {name: replace(one, start=base + one.start) for name, one in tensors.items()}
    return GgufHeader(settings, arrays, tensors, tokenizer.hexdigest())
