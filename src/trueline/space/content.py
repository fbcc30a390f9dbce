"""What a grounding space holds: its entries, its examples, and how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueline.prompts import Prompt
from trueline.records import Example
from trueline.space.windows import Context, Window

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the entries were made, which is also what they can be used with."""

    model: str
    model_fingerprint: str
    vocabulary: int
    tokenizer_hash: str
    embedder: str
    embedder_hash: str
    context: Context
    window: Window
    end: bool  # whether there is an entry after the last answer token
    wrong: bool  # whether the wrong answers are kept as a second set of entries
    prompt: Prompt
    values: str  # `hidden` or `logits`
    head: str  # `linear`, `own` (soft-capped) or `opaque`: why the values are kept as they are
    dtype: str  # of keys and values at rest
    computed: str  # the type the model ran in when they were made


@dataclass(frozen=True, slots=True)
class Entries:
    """Contexts and what the model says in them; row i of each array is entry i."""

    keys: Array  # (n, dimension), unit length
    values: Array  # (n, d) hidden states or (n, vocabulary) logits
    tokens: Array  # (n,) int32, the answer's own next token
    examples: Array  # (n,) int32, the place of the example among the examples
    answers: Array  # (n,) int32, which of its answers
    steps: Array  # (n,) int32, which token of that answer
    windows: Array  # (n,) int64, the hash of the window's text

    def __len__(self) -> int:
        return len(self.keys)

    def arrays(self) -> dict[str, Array]:
        """The arrays by name, as they are stored."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True)
class Content:
    """Everything a space is made of, in memory or mapped from disk."""

    recipe: Recipe
    entries: Entries
    examples: Sequence[Example]
    plan: str  # a hash of all that went into the build
    wrong: Entries | None = None  # entries of the wrong answers, if it was built with them

    def sets(self) -> dict[str, Entries]:
        """The sets of entries by the name of their file."""
        return {"entries": self.entries} | ({} if self.wrong is None else {"wrong": self.wrong})

    def counts(self) -> dict[str, int]:
        """How many entries each set has, and how many examples there are."""
        sets = {stem: len(entries) for stem, entries in self.sets().items()}
        return {**sets, "examples": len(self.examples)}

    def info(self) -> dict[str, Any]:
        """What it holds, as plain values."""
        recipe = self.recipe
        size = sum(array.nbytes for array in self.entries.arrays().values())
        return {
            "entries": len(self.entries),
            "wrong_entries": 0 if self.wrong is None else len(self.wrong),
            "examples": len(self.examples),
            "answers": sum(len(example.answers) for example in self.examples),
            "model": recipe.model,
            "model_fingerprint": recipe.model_fingerprint[:16],
            "embedder": recipe.embedder,
            "context": recipe.context,
            "window": recipe.window,
            "end": recipe.end,
            "prompt": recipe.prompt.template,
            "system": recipe.prompt.system,
            "prompt_hash": recipe.prompt.hash,
            "values": recipe.values,
            "head": recipe.head,
            "dtype": recipe.dtype,
            "dimension": self.entries.keys.shape[1],
            "width": self.entries.values.shape[1],
            "bytes": size,
            "bytes_per_entry": round(size / max(1, len(self.entries))),
            "logits_would_be": 4 * recipe.vocabulary,
        }
