"""A grounding space: written, read again, and edited without touching what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from trueline.embed import Embedder, load_embedder
from trueline.engines.base import Engine
from trueline.errors import SettingError
from trueline.examples import read_examples
from trueline.prompts import Prompt
from trueline.search import forget_index
from trueline.space import edits
from trueline.space.content import Commit, Content, utc_now
from trueline.space.folder import clear, clear_others, working
from trueline.space.making import check_lm, extension, plan_hash
from trueline.space.manifest import check_tuned
from trueline.space.opened import OpenContent
from trueline.space.segment import Part
from trueline.space.storage import (
    State,
    check_vacant,
    commit,
    read_stamp,
    read_state,
    tidy,
    verify_content,
)
from trueline.types import Example, OnProgress

Examples = str | Path | Sequence[Example]
Now = Callable[[], datetime]


@dataclass(frozen=True, eq=False)
class GroundingSpace(OpenContent):
    """Verified examples, their vectors, and the model's own predictions in truthful contexts.

    An edit returns the new space; this one goes on as it was. If it has a folder, the edit is
    committed there.
    """

    folder: Path | None = None  # where it was read from or written to
    state: State | None = None  # the commit of the folder that this object shows
    now: Now = field(default=utc_now, repr=False)  # the clock of the history

    def __repr__(self) -> str:
        counts, context = self.counts(), self.recipe.context
        made = f"model {self.recipe.model}, context {context}" if context else "no entries"
        return f"GroundingSpace({len(self)} examples, {counts['entries']} entries, {made})"

    @property
    def prompt(self) -> Prompt:
        """The prompt it was built with and must be asked with."""
        return self.recipe.prompt

    @property
    def plan(self) -> str:
        """A hash of how it was made and of all its examples."""
        return plan_hash(self.recipe, self.examples)

    def save(self, folder: str | Path) -> None:
        """Write the space to a folder; one that stood there stands to the last moment.

        A space that had no folder has this one from now on: edits are committed there.
        """
        folder = Path(folder)
        is_same = self.folder is not None and _is_same(folder, self.folder)
        with working(folder, self.plan, is_build=True) as work:
            state = commit(self, folder, self._base if is_same else None, work, check=is_same)
            clear(work)
        clear_others(folder)  # with the lock of builds free again
        if self.folder is None or is_same:
            object.__setattr__(self, "folder", folder)
            object.__setattr__(self, "state", state)

    def verify(self) -> dict[str, Any]:
        """Check every byte and number; says what was checked, or raises SpaceFormatError."""
        return verify_content(self, self.folder)

    def history(self) -> tuple[Commit, ...]:
        """What was committed and when, the oldest first."""
        return self.commits

    def current(self) -> GroundingSpace:
        """The newest state of the folder; the space itself if nothing was committed since.

        Costs one look at the manifest. Segments that are open already are shared.
        """
        if self.folder is None or self.state is None:
            return self
        if self.state.stamp is not None and read_stamp(self.folder) == self.state.stamp:
            return self
        content, state = read_state(self.folder, self)
        if state.hash == self.state.hash:
            object.__setattr__(self, "state", state)
            return self
        return self._next(content, state)

    def add(
        self,
        examples: Examples,
        lm: Engine | None = None,
        *,
        progress: OnProgress | None = None,
    ) -> GroundingSpace:
        """The space with more examples; `lm` is needed where there are RAD entries."""
        read = read_examples(examples)
        edits.check_new(self, read)
        return self._extended("add", self.parts, read, lm, progress)

    def replace(
        self,
        examples: Examples,
        lm: Engine | None = None,
        *,
        progress: OnProgress | None = None,
    ) -> GroundingSpace:
        """The space with other content under the ids of these examples, which move to the end.

        What has not changed stays as it is.
        """
        read = read_examples(examples)
        ids = [example.id for example in read]
        edits.check_known(self, ids, "; space.add(...) takes what is new (`trueline add`)")
        changed = edits.changed_examples(self, read)
        if not changed:
            return self
        gone = frozenset(example.id for example in changed)
        parts = [part.without(gone) for part in self.parts]
        return self._extended("replace", parts, changed, lm, progress)

    def remove(self, ids: str | Iterable[str]) -> GroundingSpace:
        """The space without the examples of these ids; no answer sees them any more."""
        named = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        edits.check_known(self, named)
        if not named:
            return self
        return self._commit("remove", edits.parts_without(self, named), len(named), None)

    def tune(self, settings: Mapping[str, Any]) -> GroundingSpace:
        """The space with these tuned settings and no others; none undo what was tuned.

        Methods read `threshold` and `strength` where nobody sets them; other names are kept to
        tell how the two were found.
        """
        try:
            check_tuned(tuned := dict(settings))
        except ValueError as error:
            raise SettingError(str(error)) from error
        if tuned == dict(self.tuned):
            return self
        return self._commit("tune", self.parts, 0, None, tuned)

    def compact(self) -> GroundingSpace:
        """The space as one segment: what was removed is gone from every byte of the folder."""
        if not edits.is_compact(self):
            with self._working(self.examples) as work:
                made = self._commit("compact", edits.compacted(self), len(self), work)
        else:
            made = self
        if self.folder is not None:
            tidy(self.folder, made._base)
            clear_others(self.folder)
        return made

    def _forget_indexes(self, kept: GroundingSpace) -> None:
        """Remove the indexes of segments that are gone: they hold keys of removed examples."""
        left = {part.segment.name for part in kept.parts}
        for part in self.parts:
            if part.segment.name not in left:
                for record in part.segment.records.values():
                    forget_index(record.sha256)

    def _extended(
        self,
        what: str,
        parts: Iterable[Part],
        examples: Sequence[Example],
        lm: Engine | None,
        progress: OnProgress | None,
    ) -> GroundingSpace:
        """The space with these parts and a new one."""
        check_lm(self, lm)
        embedder = self.open_embedder("cpu" if lm is None else lm.device)
        with self._working(examples) as work:
            segment = extension(self, examples, lm, embedder, work, progress)
            return self._commit(what, [*parts, Part(segment)], len(examples), work)

    @contextmanager
    def _working(self, examples: Sequence[Example]) -> Iterator[Path | None]:
        """Where unfinished work on some examples is kept; None for a space in memory."""
        if self.folder is None:
            yield None
            return
        with working(self.folder, plan_hash(self.recipe, examples)) as work:
            yield work
            clear(work)

    def _commit(
        self,
        what: str,
        parts: Iterable[Part],
        changed: int,
        work: Path | None,
        tuned: Mapping[str, Any] | None = None,
    ) -> GroundingSpace:
        content = self.edited(what, parts, changed=changed, time=self.now(), tuned=tuned)
        if self.folder is None:
            return self._next(content, None)
        made = self._next(content, commit(content, self.folder, self._base, work))
        self._forget_indexes(made)
        return made

    @property
    def _base(self) -> str:
        assert self.state is not None
        return self.state.hash

    def _next(self, content: Content, state: State | None) -> GroundingSpace:
        """Another content with all that is opened here, if it was made with this embedder."""
        is_same = content.recipe.embedder_hash == self.recipe.embedder_hash
        return space_of(
            content,
            folder=self.folder,
            state=state,
            now=self.now,
            embedder=self.embedder if is_same else None,
            opened=self.opened if is_same else {},
        )


def space_of(
    content: Content,
    *,
    folder: Path | None = None,
    state: State | None = None,
    embedder: Embedder | None = None,
    now: Now = utc_now,
    opened: dict[torch.device, Embedder] | None = None,
) -> GroundingSpace:
    """A space of some content; `opened` are embedders that are open already, by device."""
    return GroundingSpace(
        content.recipe,
        content.parts,
        content.commits,
        content.tuned,
        folder=folder,
        state=state,
        embedder=embedder,
        now=now,
        opened={} if opened is None else opened,
    )


def read_space(
    folder: str | Path,
    *,
    embedder: str | Path | Embedder | None = None,
    now: Now = utc_now,
) -> GroundingSpace:
    """Open a space, its arrays left on disk until a row is asked for.

    `embedder` is needed only if the one it was built with has no name that can be opened again.
    """
    if isinstance(embedder, (str, Path)):
        embedder = load_embedder(embedder)
    content, state = read_state(Path(folder))
    return space_of(content, folder=Path(folder), state=state, embedder=embedder, now=now)


def merge(
    one: GroundingSpace,
    other: GroundingSpace,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> GroundingSpace:
    """The examples of both spaces, which must have been made alike; in memory, or in `out`.

    `out` may be the folder of the first or of the other: then the merged space is committed
    there, unless somebody else has committed since it was opened.
    """
    parts = edits.merged(one, other)
    added = sum(map(len, parts)) - len(one)
    content = one.edited("merge", parts, changed=added, time=one.now())
    for space in (one, other):
        if out is not None and space.folder is not None and _is_same(out, space.folder):
            with space._working(content.examples) as work:
                return space._next(content, commit(content, space.folder, space._base, work))
    made = space_of(content, embedder=one.embedder, now=one.now, opened=one.opened)
    if out is not None:
        if not overwrite:
            check_vacant(Path(out))
        made.save(out)
    return made


def _is_same(one: str | Path, other: Path) -> bool:
    return Path(one).resolve() == other.resolve()
