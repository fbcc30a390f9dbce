"""A grounding space in memory: its entries, its examples, and what it may be used with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueline.errors import SpaceMismatchError
from trueline.prompts import Prompt
from trueline.records import Example
from trueline.space.windows import Context, Window

if TYPE_CHECKING:
    from trueline.models.embedder import Embedder
    from trueline.models.language import LanguageModel

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
class GroundingSpace:
    """Context embeddings and the model's own predictions in truthful contexts."""

    recipe: Recipe
    entries: Entries
    examples: Sequence[Example]
    plan: str  # a hash of all that went into the build
    wrong: Entries | None = None  # the same of the wrong answers, if it was built with them
    folder: Path | None = None  # where it was read from or written to
    embedder: Embedder | None = field(default=None, repr=False)  # None: opened when needed

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return (
            f"GroundingSpace({len(self)} entries from {len(self.examples)} examples, "
            f"model {self.recipe.model}, context {self.recipe.context})"
        )

    @property
    def prompt(self) -> Prompt:
        """The prompt it was built with and must be asked with."""
        return self.recipe.prompt

    def save(self, folder: str | Path) -> None:
        """Write the space to a folder; one that stood there stands to the last moment."""
        from trueline.space.storage import write_space

        write_space(self, Path(folder))

    def verify(self) -> dict[str, Any]:
        """Check every byte and number; says what was checked, or raises SpaceFormatError."""
        from trueline.space.storage import verify_space

        return verify_space(self)

    def info(self) -> dict[str, Any]:
        """What it holds, as plain values."""
        recipe = self.recipe
        size = sum(array.nbytes for array in self.entries.arrays().values())
        return {
            "entries": len(self),
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
            "bytes_per_entry": round(size / max(1, len(self))),
            "logits_would_be": 4 * recipe.vocabulary,
        }

    def check_model(self, lm: LanguageModel) -> None:
        """Refuse a model or tokenizer the space was not built with."""
        recipe = self.recipe
        again = f"build it anew with `trueline build --model {lm.id}`"
        if lm.fingerprint != recipe.model_fingerprint:
            raise SpaceMismatchError(
                f"the space was built with the model {recipe.model} "
                f"(fingerprint {recipe.model_fingerprint[:12]}, "
                f"vocabulary {recipe.vocabulary}), this is {lm.id} "
                f"(fingerprint {lm.fingerprint[:12]}, vocabulary {lm.vocabulary}); {again}"
            )
        if lm.tokenizer_hash != recipe.tokenizer_hash:
            raise SpaceMismatchError(
                f"the space was built with another tokenizer "
                f"(hash {recipe.tokenizer_hash[:12]}, this one has {lm.tokenizer_hash[:12]}): "
                f"the same text would become other tokens; {again}"
            )

    def check_embedder(self, embedder: Embedder) -> None:
        """Refuse an embedder the keys were not made with."""
        if embedder.hash != self.recipe.embedder_hash:
            raise SpaceMismatchError(
                f"the space was built with the embedder {self.recipe.embedder} "
                f"(hash {self.recipe.embedder_hash[:12]}), this is {embedder.id} "
                f"(hash {embedder.hash[:12]}): their cosines cannot be compared; build it anew "
                f"with `trueline build --embedder {embedder.id}`"
            )

    def check_prompt(self, prompt: Prompt) -> None:
        """Refuse a prompt the entries were not made with."""
        if prompt != self.recipe.prompt:
            raise SpaceMismatchError(
                f"the space was built with the prompt {self.recipe.prompt.template!r} "
                f"(hash {self.recipe.prompt.hash}), this is {prompt.template!r} "
                f"(hash {prompt.hash}); ask with the space's own prompt or build it anew"
            )
