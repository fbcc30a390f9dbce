"""A grounding space: what it holds, and what it may be used with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueline.embedders.base import Embedder
from trueline.embedders.loading import load_embedder
from trueline.errors import SpaceMismatchError
from trueline.prompts import Prompt
from trueline.space.content import Content
from trueline.space.storage import read_content, verify_content, write_content

if TYPE_CHECKING:
    from trueline.engines.base import Engine


@dataclass(frozen=True)
class GroundingSpace(Content):
    """Context embeddings and the model's own predictions in truthful contexts."""

    folder: Path | None = None  # where it was read from or written to
    embedder: Embedder | None = field(default=None, repr=False)  # None: opened when needed
    opened: dict[Any, Embedder] = field(  # by device, so that every method shares one
        default_factory=dict, init=False, repr=False, compare=False
    )

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
        write_content(self, Path(folder))

    def verify(self) -> dict[str, Any]:
        """Check every byte and number; says what was checked, or raises SpaceFormatError."""
        return verify_content(self, self.folder)

    def check_model(self, lm: Engine) -> None:
        """Refuse a model or tokenizer the space was not built with."""
        recipe = self.recipe
        again = f"build it anew with `trueline build --model {lm.id}`"
        if lm.id == recipe.model:
            again = (
                "the name is the same, the weights or their precision are not (float32 and "
                f"bfloat16 count as one, float16 does not); {again}"
            )
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


def read_space(
    folder: str | Path, *, embedder: str | Path | Embedder | None = None
) -> GroundingSpace:
    """Open a space, its arrays left on disk until a row is asked for.

    `embedder` is needed only if the one it was built with has no name that can be opened again.
    """
    if isinstance(embedder, (str, Path)):
        embedder = load_embedder(embedder)
    content = read_content(Path(folder))
    space = GroundingSpace(**vars(content), folder=Path(folder), embedder=embedder)
    if embedder is not None:
        space.check_embedder(embedder)
    return space
