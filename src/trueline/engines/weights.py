"""A folder of weights in; out: whether they are safe to open and whole, and how many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any

from trueline.errors import ModelError, TruelineError

WEIGHTS = "model.safetensors"  # this file, or an index of its parts, is all that is ever opened
IMPORTING = RLock()  # transformers imports itself in circles, which breaks in two threads
_SHOWN = 300  # characters of a reader's own words that an error repeats
_INDEX = f"{WEIGHTS}.index.json"


@dataclass(frozen=True, slots=True)
class WeightCount:
    """How much the files of a model hold."""

    tensors: int
    values: int


@contextmanager
def opening(id: str, what: str) -> Iterator[None]:
    """Refuse in one line what a library's reader cannot make sense of, whatever it raises."""
    try:
        yield
    except TruelineError:
        raise
    except BaseException as error:
        # The readers in Rust panic, which Python's own tree of exceptions does not know.
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not is_panic:
            raise
        reason = (str(error).splitlines() or [""])[0][:_SHOWN]
        raise ModelError(
            f"{id} cannot be opened as {what} ({type(error).__name__}: {reason})"
        ) from error


def check_weights(folder: Path) -> WeightCount:
    """Refuse a folder whose weights are pickled, missing, cut short or damaged."""
    from safetensors import SafetensorError, safe_open

    check_kinds(folder)
    tensors = values = 0
    for file in _weight_files(folder):
        try:
            with safe_open(file, framework="numpy") as opened:  # holds the header to the size
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
    """Refuse what is no plain file, and an adapter: it names weights that are elsewhere."""
    for path in sorted([*folder.iterdir(), *folder.glob("*/*")]):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelError(f"{path} is neither a file nor a folder; a model is made of these")
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{folder} holds an adapter, which changes the weights of another model; "
            "merge it into its model and save that with save_pretrained"
        )


def _weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights; no other is opened, whatever stands beside them."""
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
        is_plain = all(Path(name).name == name and "\\" not in name for name in names)
        is_safe = all(name.endswith(".safetensors") for name in names)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_plain = is_safe = False
    if not names or not is_plain or not is_safe:
        raise ModelError(
            f"{index} must name files of its own folder that end in .safetensors, and names "
            f"{', '.join(map(repr, names or ['none']))[:_SHOWN]}; "
            "save the model anew with save_pretrained"
        )
    return set(names)
