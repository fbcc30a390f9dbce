"""What a grounding space holds: its parts, how they were made, what they can be used with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trueline.errors import SpaceMismatchError
from trueline.prompts import Prompt
from trueline.space.segment import QUESTIONS, Entries, Part, join_entries, no_entries
from trueline.space.windows import Context, Window
from trueline.text import counted
from trueline.types import Example

if TYPE_CHECKING:
    from trueline.embed import Embedder
    from trueline.engines.base import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How vectors and entries were made, which is also what they can be used with.

    Without entries, the context is None and all that follows it keeps its default.
    """

    embedder: str
    embedder_hash: str
    prompt: Prompt
    context: Context | None = None
    window: Window = "all"
    end: bool = False  # whether there is an entry after the last answer token
    wrong: bool = False  # whether the wrong answers are kept as a second set of entries
    model: str = ""
    model_fingerprint: str = ""
    vocabulary: int = 0
    tokenizer_hash: str = ""
    values: str = ""  # `hidden` or `logits`
    head: str = ""  # `linear`, `nonlinear` (soft-capped) or `opaque`: why values are kept so
    dtype: str = ""  # of keys and values at rest
    computed: str = ""  # the type the model ran in when they were made

    def differences(self, other: Recipe) -> list[str]:
        """The settings in which another recipe differs; names do not count, hashes do."""
        mine, theirs = asdict(self), asdict(other)
        names = ("embedder", "model")
        return [name for name in mine if name not in names and mine[name] != theirs[name]]


@dataclass(frozen=True, slots=True)
class Commit:
    """One line of a space's history."""

    what: str  # build, add, remove, replace, merge, compact or tune
    time: str  # UTC, ISO 8601
    changed: int  # examples it added, removed or replaced
    examples: int  # examples in the space afterwards
    entries: int  # RAD entries in the space afterwards

    def __str__(self) -> str:
        changed = f" of {counted(self.changed, 'example')}" if self.changed else ""
        return f"{self.what}{changed} at {self.time}"


def utc_now() -> datetime:
    """The time that is written into the history."""
    return datetime.now(UTC)


@dataclass(frozen=True, eq=False)
class Content:
    """Everything a space is made of, in memory or mapped from disk."""

    recipe: Recipe
    parts: tuple[Part, ...]
    commits: tuple[Commit, ...] = ()
    tuned: Mapping[str, Any] = field(default_factory=dict)  # settings fitted to this space

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __contains__(self, id: str) -> bool:
        return any(id in part for part in self.parts)

    @cached_property
    def examples(self) -> Sequence[Example]:
        """The examples, in the order in which entries number them."""
        if len(self.parts) == 1:
            return self.parts[0].examples
        return [example for part in self.parts for example in part.examples]

    @cached_property
    def entries(self) -> Entries:
        """All entries of the truthful answers; joined when first asked for."""
        return self._entries(wrong=False)

    @cached_property
    def wrong(self) -> Entries | None:
        """All entries of the wrong answers, if the space was built with them."""
        return self._entries(wrong=True) if self.recipe.wrong else None

    @property
    def dimension(self) -> int:
        """The length of its vectors."""
        return int(self.parts[0].segment.vectors[QUESTIONS].shape[1])

    def example(self, id: str) -> Example:
        """The example of that id."""
        (found,) = [part.segment for part in self.parts if id in part]
        return found.examples[found.numbers[id]]

    def source_of(self, entry: int, *, wrong: bool = False) -> tuple[Example, int, int]:
        """The example of an entry, which of its answers, and which token of that answer."""
        for part in self.parts:
            count = part.count(wrong=wrong)
            if entry < count:
                return part.source_of(entry, wrong=wrong)
            entry -= count
        raise IndexError(entry)

    def counts(self) -> dict[str, int]:
        """How many entries each set has, and how many examples there are."""
        found = {"entries": sum(part.count(wrong=False) for part in self.parts)}
        if self.recipe.wrong:
            found["wrong"] = sum(part.count(wrong=True) for part in self.parts)
        return {**found, "examples": len(self)}

    def edited(
        self,
        what: str,
        parts: Iterable[Part],
        *,
        changed: int,
        time: datetime,
        tuned: Mapping[str, Any] | None = None,
    ) -> Content:
        """The content after an edit; a part with nothing left in it goes."""
        kept = tuple(part for part in parts if len(part))
        settings = self.tuned if tuned is None else tuned
        made = Content(self.recipe, kept, self.commits, settings)
        stamp = time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        counts = made.counts()
        commit = Commit(what, stamp, changed, counts["examples"], counts["entries"])
        return replace(made, commits=(*self.commits, commit))

    def info(self) -> dict[str, Any]:
        """What it holds, as plain values."""
        recipe, counts = self.recipe, self.counts()
        sets = [part.segment.entries for part in self.parts]
        size = sum(a.nbytes for each in sets if each for a in each.arrays().values())
        stored = sum(len(each) for each in sets if each)
        vectors = sum(a.nbytes for part in self.parts for a in part.segment.vectors.values())
        examples = sum(len(part.segment.examples) for part in self.parts)
        return {
            "examples": counts["examples"],
            "answers": sum(len(example.answers) for example in self.examples),
            "entries": counts["entries"],
            "wrong_entries": counts.get("wrong", 0),
            "segments": len(self.parts),
            "removed": sum(len(part.removed) for part in self.parts),
            "model": recipe.model or None,
            "model_fingerprint": recipe.model_fingerprint[:16] or None,
            "embedder": recipe.embedder,
            "context": recipe.context,
            "window": recipe.window,
            "end": recipe.end,
            "prompt": recipe.prompt.template,
            "system": recipe.prompt.system,
            "prompt_hash": recipe.prompt.hash,
            "values": recipe.values or None,
            "head": recipe.head or None,
            "dtype": recipe.dtype or None,
            "dimension": self.dimension,
            "width": next((each.values.shape[1] for each in sets if each), None),
            "bytes": size + vectors,
            "bytes_per_entry": round(size / max(1, stored)),
            "bytes_per_example": round(vectors / examples),
            "logits_would_be": 4 * recipe.vocabulary,
            "tuned": dict(self.tuned) or None,
        }

    def check_model(self, lm: Engine) -> None:
        """Refuse a model or tokenizer the entries were not made with."""
        recipe = self.recipe
        if recipe.context is None:
            return
        again = f"build it anew with `trueline build --model {lm.id}`"
        if lm.id == recipe.model:
            again = (
                "the name is the same, the weights or their precision are not (float32 and "
                f"bfloat16 count as one, float16 does not); {again}"
            )
        if (lm.fingerprint, lm.vocabulary) != (recipe.model_fingerprint, recipe.vocabulary):
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
        """Refuse an embedder the vectors were not made with."""
        if embedder.hash != self.recipe.embedder_hash:
            raise SpaceMismatchError(
                f"the space was built with the embedder {self.recipe.embedder} "
                f"(hash {self.recipe.embedder_hash[:12]}), this is {embedder.id} "
                f"(hash {embedder.hash[:12]}): their cosines cannot be compared; build it anew "
                f"with `trueline build --embedder {embedder.id}`"
            )

    def check_prompt(self, prompt: Prompt) -> None:
        """Refuse a prompt the entries were not made with."""
        if self.recipe.context is not None and prompt != self.recipe.prompt:
            raise SpaceMismatchError(
                f"the space was built with the prompt {self.recipe.prompt.template!r} "
                f"(hash {self.recipe.prompt.hash}), this is {prompt.template!r} "
                f"(hash {prompt.hash}); ask with the space's own prompt or build it anew"
            )

    def check_entries(self, method: str, context: Context) -> None:
        """Refuse a method that needs entries where there are none."""
        if self.recipe.context is None:
            raise SpaceMismatchError(
                f"{method} needs entries, and this space holds examples only; build it with "
                f"context={context!r} (`trueline build --context {context}`)"
            )

    def _entries(self, *, wrong: bool) -> Entries:
        found, first = [], 0
        for part in self.parts:
            entries = part.entries(first, wrong=wrong)
            found += [] if entries is None else [entries]
            first += len(part)
        return join_entries(found) if found else no_entries(self.dimension)
