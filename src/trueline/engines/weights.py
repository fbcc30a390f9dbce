"""Check the files of weights before they are opened: safetensors, their index, GGUF headers."""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any

from trueline.errors import ModelError, TruelineError

WEIGHTS = "model.safetensors"  # this file, or an index of its parts, is all that is ever opened
IMPORTING = RLock()  # transformers imports itself in circles, which breaks in two threads
_SHOWN = 300  # characters of a library's message that an error repeats
_INDEX = f"{WEIGHTS}.index.json"


@dataclass(frozen=True, slots=True)
class WeightCount:
    """How much the files of a model hold."""

    tensors: int
    values: int


@contextmanager
def opening(id: str, what: str) -> Iterator[None]:
    """Turn any error of the libraries that open a model into a ModelError of one line."""
    try:
        yield
    except TruelineError:
        raise
    except BaseException as error:
        # The readers in Rust panic, and their exception is no Exception.
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not is_panic:
            raise
        reason = (str(error).splitlines() or [""])[0][:_SHOWN]
        raise ModelError(
            f"{id} cannot be opened as {what} ({type(error).__name__}: {reason})"
        ) from error


def check_weights(folder: Path) -> WeightCount:
    """Refuse a folder whose weights are pickled, missing, incomplete or damaged."""
    from safetensors import SafetensorError, safe_open

    check_kinds(folder)
    tensors = values = 0
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="numpy") as opened:  # checks header against size
                shapes = [opened.get_slice(name).get_shape() for name in opened.keys()]
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{file} is missing, cut short or damaged ({str(error)[:_SHOWN]}); "
                f"delete the folder {folder} and fetch the model again"
            ) from None
        tensors += len(shapes)
        values += sum(map(prod, shapes))
    return WeightCount(tensors, values)


def check_kinds(folder: Path) -> None:
    """Refuse pipes and devices, and an adapter, which names weights in another place."""
    for path in sorted([*folder.iterdir(), *folder.glob("*/*")]):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelError(f"{path} is neither a file nor a folder; a model is made of these")
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{folder} holds an adapter, which changes the weights of another model; "
            "merge it into its model and save that with save_pretrained"
        )


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights. Other files of weights are never opened."""
    names = {WEIGHTS} if (folder / WEIGHTS).exists() else set()
    if (folder / _INDEX).exists():
        names |= _read_index(folder / _INDEX)
    if names:
        return [folder / name for name in sorted(names)]
    pickles = [file.name for end in ("bin", "pt", "pth") for file in folder.glob(f"*.{end}")]
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    why = "none"
    if pickles:
        why = f"only {pickles[0]}, a pickle, which could run code"
    elif others:
        why = f"only {others[0]}, a name nobody opens"
    raise ModelError(
        f"{folder} must hold its weights as {WEIGHTS} and has {why}; "
        "save the model anew with save_pretrained"
    )


def _read_index(index: Path) -> set[str]:
    """The names of the parts of sharded weights."""
    names: Any = None
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        is_sound = bool(names) and all(
            Path(name).name == name and "\\" not in name and name.endswith(".safetensors")
            for name in names
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise ModelError(
            f"{index} must name files of its own folder that end in .safetensors, and names "
            f"{', '.join(map(repr, names or ['none']))[:_SHOWN]}; "
            "save the model anew with save_pretrained"
        )
    return set(names)


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
    """The settings and the table of tensors of a GGUF file."""

    settings: Mapping[str, Setting]  # those that are one value
    arrays: Mapping[str, tuple[int, int, int]]  # type, first byte and length of the others
    tensors: Mapping[str, GgufTensor]
    tokenizer_hash: str  # of the bytes of all settings of the tokenizer

    @property
    def count(self) -> WeightCount:
        """How many tensors there are, and values in them."""
        return WeightCount(len(self.tensors), sum(prod(t.shape) for t in self.tensors.values()))


def read_gguf_header(file: Path, label: str) -> GgufHeader:
    """Read the header of a GGUF file; refuse a file that its header does not fit."""
    try:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _HeaderReader(data).read()
    except (struct.error, ValueError) as error:  # a read past the end, or an empty file
        raise ModelError(
            f"{label} is cut short or damaged ({error}); fetch the model again"
        ) from None


class _HeaderReader:
    """Reads a header from its first byte to its last."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 4  # after the letters GGUF
        self._settings: dict[str, Setting] = {}
        self._arrays: dict[str, tuple[int, int, int]] = {}
        self._tokenizer = hashlib.sha256()

    def read(self) -> GgufHeader:
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
            self._settings[name] = self._text() if kind == _TEXT else self._value(_form(kind))
        if name.startswith("tokenizer."):
            self._tokenizer.update(self._data[begin : self._at])

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """The name, shape, format and place of the next tensor."""
        name, dimensions = self._text(), self._number("I")
        if not 0 < dimensions <= _DIMENSIONS:
            raise ValueError(f"one of its tensors has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        return name, shape[::-1], self._number("I"), self._number("Q")

    def _skip_array(self, kind: int, length: int) -> None:
        if kind == _TEXT:
            for _ in range(length):
                self._skip(self._number("Q"))
        else:
            self._skip(length * struct.calcsize(_form(kind)))

    def _text(self) -> str:
        length = self._number("Q")
        self._skip(length)
        return self._data[self._at - length : self._at].decode("utf-8", "replace")

    def _number(self, form: str) -> int:
        (number,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return int(number)

    def _value(self, form: str) -> int | float | bool:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._skip(struct.calcsize(f"<{form}"))
        found: int | float | bool = value
        return found

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > len(self._data):
            raise ValueError("its header names more than the file holds")


def _form(kind: int) -> str:
    """The letter that `struct` gives a type of value."""
    if kind not in _FORMS:
        raise ValueError(f"its header has a value of the unknown type {kind}")
    return _FORMS[kind]
