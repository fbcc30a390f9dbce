"""What a space is made of: entries, segments of examples that never change, and live parts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from trueline.types import Example

Array = np.ndarray[Any, np.dtype[Any]]
# The arrays of a segment's vectors: of each example's question, and the mean of its truthful
# and of its wrong answers; zero where it has none.
QUESTIONS, ANSWERS, WRONG_ANSWERS = "questions", "answers", "wrong_answers"
VECTORS = (QUESTIONS, ANSWERS, WRONG_ANSWERS)


@dataclass(frozen=True, slots=True)
class Entries:
    """Contexts and what the model says in them; row i of each array is entry i."""

    keys: Array  # (n, dimension), unit length
    values: Array  # (n, d) hidden states or (n, vocabulary) logits
    tokens: Array  # (n,) int32, the answer's own next token
    examples: Array  # (n,) int32, the number of the example among the examples
    answers: Array  # (n,) int32, which of its answers
    steps: Array  # (n,) int32, which token of that answer
    windows: Array  # (n,) int64, the hash of the window's text

    def __len__(self) -> int:
        return len(self.keys)

    def arrays(self) -> dict[str, Array]:
        """The arrays by name, as they are stored."""
        return {name: getattr(self, name) for name in self.__slots__}

    def rows(self, rows: Array, examples: Array) -> Entries:
        """Some of the entries; `examples` (old number,) gives each example its new number."""
        arrays = {name: array[rows] for name, array in self.arrays().items()}
        arrays["examples"] = examples[arrays["examples"]].astype(np.int32)
        return Entries(**arrays)


def no_entries(dimension: int) -> Entries:
    """Entries of nothing."""
    whole, long = np.zeros(0, np.int32), np.zeros(0, np.int64)
    keys, values = np.zeros((0, dimension), np.float16), np.zeros((0, 0), np.float16)
    return Entries(keys, values, whole, whole, whole, whole, long)


def join_entries(parts: Sequence[Entries]) -> Entries:
    """All entries of several sets, one set after the other."""
    if len(parts) == 1:
        return parts[0]
    names = Entries.__slots__
    return Entries(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a segment as the manifest describes it."""

    name: str  # carries the first digits of its hash
    sha256: str
    bytes: int


@dataclass(frozen=True, eq=False)
class Segment:
    """Examples with their vectors and entries, in memory or mapped from disk; never changes."""

    examples: Sequence[Example]
    vectors: Mapping[str, Array]  # each of VECTORS: (examples, dimension) float16
    entries: Entries | None = None  # of the truthful answers; their examples count from 0 here
    wrong: Entries | None = None  # of the wrong answers
    records: dict[str, FileRecord] = field(default_factory=dict)  # empty until it is written
    is_checked: bool = True  # False: too large to look at every vector and value when opened
    # Keys, values and searches by device: opened once for every space that holds the segment.
    opened: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each example by its id."""
        return {example.id: number for number, example in enumerate(self.examples)}

    def sets(self) -> dict[str, Entries]:
        """The sets of entries by the name of their file."""
        found = {"entries": self.entries, "wrong": self.wrong}
        return {kind: entries for kind, entries in found.items() if entries is not None}

    def counts(self) -> dict[str, int]:
        """How many examples there are, and how many entries each set has."""
        sets = {kind: len(entries) for kind, entries in self.sets().items()}
        return {"examples": len(self.examples), **sets}

    @property
    def name(self) -> str:
        """A hash of its files, which is its name once it is written."""
        return segment_name(self.records)


def segment_name(records: Mapping[str, FileRecord]) -> str:
    """The name of a segment with these files."""
    hashes = " ".join(f"{kind} {records[kind].sha256}" for kind in sorted(records))
    return hashlib.sha256(hashes.encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Part:
    """A segment as one space sees it: without the examples that were removed from it."""

    segment: Segment
    removed: frozenset[str] = frozenset()  # ids
    _live: dict[bool, Array] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.segment.examples) - len(self.removed)

    def __contains__(self, id: str) -> bool:
        return id in self.segment.numbers and id not in self.removed

    @cached_property
    def examples(self) -> Sequence[Example]:
        """The examples that are left."""
        if not self.removed:
            return self.segment.examples
        return [one for one in self.segment.examples if one.id not in self.removed]

    @cached_property
    def live(self) -> Array | None:
        """Whether each example of the segment is left (examples,); None: all of them."""
        if not self.removed:
            return None
        live = np.ones(len(self.segment.examples), bool)
        live[[self.segment.numbers[id] for id in self.removed]] = False
        return live

    def live_entries(self, *, wrong: bool) -> Array | None:
        """Whether each entry of the segment is left (entries,); None: all of them."""
        entries = self.entries_of(wrong=wrong)
        if self.live is None or entries is None:
            return None
        if wrong not in self._live:
            self._live[wrong] = self.live[entries.examples]
        return self._live[wrong]

    def entries_of(self, *, wrong: bool) -> Entries | None:
        """All entries of the segment, also of what was removed."""
        return self.segment.wrong if wrong else self.segment.entries

    def entries(self, first: int, *, wrong: bool) -> Entries | None:
        """The entries that are left, their examples numbered from `first` on."""
        entries = self.entries_of(wrong=wrong)
        if entries is None or (self.live is None and not first):
            return entries
        kept = self.live_entries(wrong=wrong)
        rows = np.arange(len(entries)) if kept is None else np.flatnonzero(kept)
        return entries.rows(rows, first + self._new_numbers())

    def vectors(self) -> dict[str, Array]:
        """The vectors of the examples that are left."""
        if self.live is None:
            return dict(self.segment.vectors)
        return {name: array[self.live] for name, array in self.segment.vectors.items()}

    def count(self, *, wrong: bool) -> int:
        """How many entries are left."""
        entries, live = self.entries_of(wrong=wrong), self.live_entries(wrong=wrong)
        if entries is None:
            return 0
        return len(entries) if live is None else int(live.sum())

    def source_of(self, entry: int, *, wrong: bool) -> tuple[Example, int, int]:
        """The example, answer and step of one of the entries that are left."""
        entries, live = self.entries_of(wrong=wrong), self.live_entries(wrong=wrong)
        assert entries is not None
        row = entry if live is None else int(np.flatnonzero(live)[entry])
        example = self.segment.examples[int(entries.examples[row])]
        return example, int(entries.answers[row]), int(entries.steps[row])

    def without(self, ids: frozenset[str]) -> Part:
        """The same with more of it removed."""
        return Part(self.segment, self.removed | {id for id in ids if id in self})

    def _new_numbers(self) -> Array:
        """The number each example of the segment has among those that are left."""
        if self.live is None:
            return np.arange(len(self.segment.examples))
        return np.cumsum(self.live) - 1


def join_parts(parts: Sequence[Part]) -> Segment:
    """One segment of everything that is left in several."""
    firsts = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    sets: list[Entries | None] = []
    for wrong in (False, True):
        found = [part.entries(n, wrong=wrong) for part, n in zip(parts, firsts, strict=False)]
        kept = [entries for entries in found if entries is not None]
        sets.append(join_entries(kept) if kept else None)
    vectors = [part.vectors() for part in parts]
    return Segment(
        [example for part in parts for example in part.examples],
        {name: np.concatenate([one[name] for one in vectors]) for name in vectors[0]},
        sets[0],
        sets[1],
    )
