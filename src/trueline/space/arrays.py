"""The bytes of a safetensors file in, its arrays out: in place, and nothing but the known."""

from __future__ import annotations

from mmap import mmap
from typing import Any

import numpy as np

from trueline.space.json_text import parse_json
from trueline.space.segment import Array

_DTYPES = {"F16": np.float16, "F32": np.float32, "I32": np.int32, "I64": np.int64}
_LONGEST_HEADER = 1 << 20  # bytes; ours have a few hundred


def arrays_in(data: bytearray | mmap) -> dict[str, Array]:
    """The arrays by name, sharing the memory of `data`; a ValueError says what is wrong.

    They fill what follows the header without a gap, as docs/format.md says.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 + length or length > _LONGEST_HEADER:
        raise ValueError(f"the header of the arrays would have {length} bytes")
    header = parse_json(bytes(data[8 : 8 + length]).decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("the header of the arrays is no object")
    header.pop("__metadata__", None)
    found, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(item[1])):
        dtype, shape = _form(name, entry)
        size = dtype.itemsize * int(np.prod(shape, dtype=object))
        if _offsets(entry) != (end, end + size) or (8 + length + end) % dtype.itemsize:
            raise ValueError(f"the array {name} is not where its shape and those before say")
        end += size
        if 8 + length + end > len(data):
            raise ValueError(f"the array {name} ends behind the file")
        count = size // dtype.itemsize
        found[name] = np.frombuffer(data, dtype, count, 8 + length + end - size).reshape(shape)
    if 8 + length + end != len(data):
        raise ValueError(f"{len(data) - 8 - length - end} bytes behind the arrays mean nothing")
    return found


def _offsets(entry: Any) -> tuple[int, int]:
    """Where an array begins and ends, counted from the end of the header."""
    match entry:
        case {"data_offsets": [int() as begin, int() as end]} if 0 <= begin <= end:
            return begin, end
    raise ValueError("an array has no place")


def _form(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type and shape of an array."""
    shape, dtype = entry.get("shape"), entry.get("dtype")
    is_shape = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if (
        set(entry) != {"dtype", "shape", "data_offsets"}
        or not is_shape
        or len(shape) not in (1, 2)
    ):
        raise ValueError(f"the array {name} has no shape of one or two lengths")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"the array {name} has another type than {', '.join(_DTYPES)}")
    return np.dtype(_DTYPES[dtype]).newbyteorder("<"), tuple(shape)
