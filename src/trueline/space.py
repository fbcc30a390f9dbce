"""Grounding spaces: examples and their vectors, built, opened, searched and edited.

RAD's entries are attached to a space, which knows no more of them than rad/entries.py says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from trueline import store
from trueline.cluster import Cluster
from trueline.embed import Embedder, SentenceEmbedder, embed_distinct, load_embedder
from trueline.engines import DEFAULT_EMBEDDER, Origin, origin_of
from trueline.engines.models import check_named
from trueline.errors import (
    ExampleError,
    SettingError,
    SpaceError,
    SpaceFormatError,
    SpaceMismatchError,
)
from trueline.examples import content_hash, digest, read_examples
from trueline.prompts import Prompt
from trueline.search import Search, forget_index, open_search
from trueline.store import Array, Arrays, Commit, Manifest, Read, Stamp
from trueline.types import Example, OnProgress

if TYPE_CHECKING:
    from trueline.engines.base import Engine
    from trueline.rad.entries import Context, EntrySettings, RadEntries

Examples: TypeAlias = "str | Path | Sequence[Example]"
Now = Callable[[], datetime]
# The vectors of each example's question, and the mean of its truthful and of its wrong answers;
# zero where it has none.
QUESTIONS, ANSWERS, WRONG_ANSWERS = "questions", "answers", "wrong_answers"
VECTORS = (QUESTIONS, ANSWERS, WRONG_ANSWERS)
OPENING_LOCK = RLock()  # one thread at a time opens embedders and indexes
_SHARED = "shared vector"  # its key among the texts that were read
_FEW = 3  # examples that weigh as much as the mean of all
_LISTED = 10  # ids that an error lists
_AT_ONCE = 512  # examples that are embedded before their vectors are kept


def utc_now() -> datetime:
    """The time that is written into the history."""
    return datetime.now(UTC)


@dataclass(frozen=True, eq=False)
class GroundingSpace:
    """Verified examples and their vectors; with RAD's entries, also what a model predicts.

    An edit returns the new space; this one goes on as it was. If it has a folder, the edit is
    committed there.
    """

    examples: tuple[Example, ...]
    vectors: Mapping[str, Array]  # each of VECTORS: (examples, dimension) float16
    embedder_id: str
    embedder_hash: str
    prompt: Prompt  # it was built with it and must be asked with it
    entries: RadEntries | None = None
    commits: tuple[Commit, ...] = ()
    tuned: Mapping[str, Any] = field(default_factory=dict)  # settings fitted to this space
    folder: Path | None = None  # where it was read from or written to
    state: Manifest | None = None  # the commit of the folder that this object shows
    stamp: Stamp | None = None  # of that commit
    now: Now = field(default=utc_now, repr=False)  # the clock of the history
    embedder: Embedder | None = field(default=None, repr=False)  # None: opened when needed
    opened: dict[torch.device, Embedder] = field(default_factory=dict, repr=False)
    # What scope and corrective decoding read of an example's texts, by example or text.
    texts_read: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    _numbers: dict[str, int] = field(default_factory=dict, init=False, repr=False)  # by id
    _questions: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._numbers.update((one.id, number) for number, one in enumerate(self.examples))
        if self.embedder is not None:
            self.check_embedder(self.embedder)

    def __len__(self) -> int:
        return len(self.examples)

    def __contains__(self, id: str) -> bool:
        return id in self._numbers

    def __repr__(self) -> str:
        count = "no" if self.entries is None else len(self.entries)
        return f"GroundingSpace({len(self)} examples, {count} entries)"

    def __reduce__(self) -> tuple[object, ...]:
        made = replace(self, embedder=None, folder=None, state=None, stamp=None, opened={})
        given = {
            name: getattr(made, name) for name in made.__dataclass_fields__ if name[0] != "_"
        }
        del given["texts_read"], given["now"]
        return _reopened, (given, origin_of(self.embedder))

    # What it holds

    def example(self, id: str) -> Example:
        """The example of that id."""
        return self.examples[self._numbers[id]]

    @property
    def dimension(self) -> int:
        """The length of its vectors."""
        return int(self.vectors[QUESTIONS].shape[1])

    def counts(self) -> dict[str, int]:
        """How many entries each set has, and how many examples there are."""
        found: dict[str, int] = {"entries": 0}
        if self.entries is not None:
            names = ("entries", "wrong")
            sets = zip(names, self.entries.sets(), strict=False)
            found = {name: len(each) for name, (_, each) in sets}
        return {**found, "examples": len(self)}

    def info(self) -> dict[str, Any]:
        """What it holds, as plain values."""
        entries = {} if self.entries is None else self.entries.info()
        size = sum(array.nbytes for array in self.vectors.values())
        return {
            "examples": len(self),
            "answers": sum(len(example.answers) for example in self.examples),
            "entries": 0,
            "wrong_entries": 0,
            "model": None,
            "context": None,
            "embedder": self.embedder_id,
            "prompt": self.prompt.template,
            "system": self.prompt.system,
            "prompt_hash": self.prompt.hash,
            "dimension": self.dimension,
            "bytes_per_example": round(size / len(self)),
            **entries,
            "bytes": size + entries.get("bytes", 0),
            "tuned": dict(self.tuned) or None,
        }

    def made_with(self) -> dict[str, Any]:
        """All that shapes its vectors and entries, as plain values."""
        return _made_with(self.embedder_id, self.embedder_hash, self.prompt, self.entries)

    @property
    def plan(self) -> str:
        """A hash of how it was made and of all its examples."""
        return _plan(self.made_with(), self.examples)

    def history(self) -> tuple[Commit, ...]:
        """What was committed and when, the oldest first."""
        return self.commits

    def verify(self) -> dict[str, Any]:
        """Check every byte and number; says what was checked, or raises SpaceFormatError."""
        found = self.counts()
        if flaw := _flaw(self.examples, self.vectors, self.entries):
            raise store.unreadable(self.folder, flaw)
        if self.folder is None:
            return found
        _, manifest, _ = store.read(self.folder, _parse)
        return {"files": len(manifest.files), **found}

    # What it answers

    def open_embedder(self, device: str | torch.device) -> Embedder:
        """The embedder it was built with, and no other; opened once for a device."""
        device = torch.device(device)
        with OPENING_LOCK:
            if device not in self.opened:
                if (embedder := self.embedder) is None:
                    check_named(self.embedder_id, "--embedder")
                    embedder = load_embedder(self.embedder_id, device=device)
                self.check_embedder(embedder)
                if isinstance(embedder, SentenceEmbedder):
                    embedder.open()
                self.opened[device] = embedder
            return self.opened[device]

    def check_embedder(self, embedder: Embedder) -> None:
        """Refuse an embedder the vectors were not made with."""
        if embedder.hash != self.embedder_hash:
            raise SpaceMismatchError(
                f"the space was built with the embedder {self.embedder_id} "
                f"(hash {self.embedder_hash[:12]}), this is {embedder.id} "
                f"(hash {embedder.hash[:12]}): their cosines cannot be compared; build it anew "
                f"with `trueline build --embedder {embedder.id}`"
            )

    def question_vectors(self, device: str | torch.device) -> torch.Tensor:
        """The examples' questions as unit vectors (examples, dimension), float32; kept."""
        device = torch.device(device)
        with OPENING_LOCK:
            if device not in self._questions:
                vectors = torch.from_numpy(self.vectors[QUESTIONS]).to(device).float()
                self._questions[device] = vectors
            found: torch.Tensor = self._questions[device]
            return found

    def nearest_examples(self, vectors: torch.Tensor, k: int) -> list[int]:
        """The numbers of the k examples whose questions are nearest to each vector, together.

        `vectors` are (queries, dimension), on the CPU.
        """
        with OPENING_LOCK:
            if _SHARED not in self._questions:
                keys = self.question_vectors("cpu")
                self._questions[_SHARED] = open_search(keys, self.file_hash(store.VECTORS))
            search: Search = self._questions[_SHARED]
        hits = search.nearest(vectors, k)
        columns = (hits.rows, -hits.similarities, hits.entries)
        near = sorted(zip(*(column.tolist() for column in columns), strict=True))
        return list(dict.fromkeys(number for _, _, number in near))

    def shared_vector(self) -> torch.Tensor:
        """What the questions and truthful answers of all examples share: (dimension,).

        It is their mean, drawn towards zero while there are few: what a single example says is
        its own.
        """
        if _SHARED not in self.texts_read:
            names = (QUESTIONS, ANSWERS)
            sums = [self.vectors[name].sum(0, dtype=np.float32) for name in names]
            total = torch.from_numpy(np.sum(sums, axis=0))
            self.texts_read[_SHARED] = total / (2 * (len(self.examples) + _FEW))
        found: torch.Tensor = self.texts_read[_SHARED]
        return found

    def example_vectors(self, number: int) -> torch.Tensor:
        """The vectors of one example's question, truthful and wrong answers: (3, dimension)."""
        own = np.stack([self.vectors[name][number] for name in VECTORS])
        return torch.from_numpy(own.astype(np.float32))

    def file_hash(self, name: str) -> str | None:
        """The hash of one of its files; None for a space in memory."""
        record = None if self.state is None else self.state.files.get(name)
        return None if record is None else record.sha256

    # Its folder

    def save(self, folder: str | Path) -> None:
        """Write the space to a folder; one that stood there stands to the last moment.

        A space that had no folder has this one from now on: edits are committed there.
        """
        folder = Path(folder)
        is_same = self.folder is not None and _is_same(folder, self.folder)
        made = self if is_same or self.folder is None else replace(self, folder=None)
        made._write(folder, self._base if is_same else None, check=is_same)
        store.clear_others(folder)

    def current(self) -> GroundingSpace:
        """The newest state of the folder; the space itself if nothing was committed since.

        Costs one look at the folder.
        """
        if self.folder is None or store.read_stamp(self.folder) == self.stamp:
            return self
        parts, manifest, stamp = store.read(self.folder, _parse)
        if manifest.sha256 == self._base:
            object.__setattr__(self, "stamp", stamp)
            return self
        is_same = manifest.embedder_hash == self.embedder_hash
        return _space_of(
            parts,
            manifest,
            stamp,
            folder=self.folder,
            now=self.now,
            embedder=self.embedder if is_same else None,
            opened=self.opened if is_same else {},
        )

    # Edits

    def add(
        self,
        examples: Examples,
        lm: Engine | None = None,
        *,
        progress: OnProgress | None = None,
    ) -> GroundingSpace:
        """The space with more examples; `lm` is needed where there are RAD entries."""
        read = read_examples(examples)
        if taken := [example for example in read if example.id in self]:
            equal = sum(map(self._holds, taken))
            raise ExampleError(
                f"the space already holds {_listed([one.id for one in taken])} ({equal} of "
                f"these {len(taken)} with this very content); nothing was added; change what is"
                " there with space.replace(...) (`trueline add --replace`), or leave these out"
            )
        return self._extended("add", self, read, lm, progress)

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
        self._check_known(ids, "; space.add(...) takes what is new (`trueline add`)")
        changed = [example for example in read if not self._holds(example)]
        if not changed:
            return self
        left = self._without([example.id for example in changed])
        return self._extended("replace", left, changed, lm, progress)

    def remove(self, ids: str | Iterable[str]) -> GroundingSpace:
        """The space without the examples of these ids, which leave its folder too."""
        named = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        self._check_known(named)
        if not named:
            return self
        if len(named) == len(self):
            raise SpaceError(
                "nothing would be left, and a space holds one example at least; nothing was "
                "changed; add others first, or delete its folder"
            )
        return self._commit("remove", self._without(named), len(named))

    def tune(self, settings: Mapping[str, Any]) -> GroundingSpace:
        """The space with these tuned settings and no others; none undo what was tuned.

        Methods read `threshold` and `strength` where nobody sets them; other names are kept to
        tell how the two were found.
        """
        try:
            store.check_tuned(tuned := dict(settings))
        except ValueError as error:
            raise SettingError(str(error)) from error
        if tuned == dict(self.tuned):
            return self
        return self._commit("tune", replace(self, tuned=tuned), 0)

    def _holds(self, example: Example) -> bool:
        own = self.examples[self._numbers[example.id]]
        return content_hash(own) == content_hash(example)

    def _check_known(self, ids: Sequence[str], advice: str = "") -> None:
        """Refuse ids that no example has, with names near to them."""
        if unknown := [id for id in dict.fromkeys(ids) if id not in self]:
            known = list(self._numbers)
            near = [name for id in unknown[:_LISTED] for name in get_close_matches(id, known)]
            raise ExampleError(
                f"no example of the space has the id {_listed(unknown)}; nothing was changed; "
                f"near names: {_listed([*dict.fromkeys(near)]) or 'none'}{advice}"
            )

    def _without(self, ids: Iterable[str]) -> GroundingSpace:
        """Without some examples; not committed, and perhaps empty."""
        kept = np.ones(len(self), bool)
        kept[[self._numbers[id] for id in ids]] = False
        return replace(
            self,
            examples=tuple(
                one for one, is_kept in zip(self.examples, kept, strict=True) if is_kept
            ),
            vectors={name: array[kept] for name, array in self.vectors.items()},
            entries=None if self.entries is None else self.entries.kept(kept),
        )

    def _extended(
        self,
        what: str,
        left: GroundingSpace,
        examples: Sequence[Example],
        lm: Engine | None,
        progress: OnProgress | None,
    ) -> GroundingSpace:
        """What is left of the space, with more examples, committed."""
        entries = left.entries
        if entries is not None:
            from trueline.rad.build import check_lm, extended

            check_lm(entries, lm)
        embedder = self.open_embedder("cpu" if lm is None else lm.device)
        folder = None if entries is None else self.folder  # vectors alone are soon made again
        with store.working(folder, _plan(self.made_with(), examples)) as work:
            vectors = embed_examples(examples, embedder)
            if entries is not None:
                options: dict[str, Any] = {"work": work, "progress": progress}
                parts = (entries, examples, len(left), lm, embedder, self.prompt)
                entries = extended(*parts, **options)
            made = _joined(left, examples, vectors, entries)
            return self._commit(what, made, len(examples))

    def _commit(self, what: str, made: GroundingSpace, changed: int) -> GroundingSpace:
        """Another content as the next state of this space."""
        made = _recorded(made, what, changed, self.now())
        if self.folder is not None:
            made._write(self.folder, self._base, is_new=what != "tune")
        return made

    def _write(
        self, folder: Path, base: str | None, *, check: bool = True, is_new: bool = True
    ) -> None:
        """Commit to a folder, and show that commit from now on."""

        def write(scratch: Path) -> None:
            (scratch / store.EXAMPLES).write_bytes(store.examples_bytes(self.examples))
            store.write_arrays(scratch / store.VECTORS, self.vectors)
            if self.entries is not None:
                self.entries.write(scratch)

        manifest = Manifest(
            store.FORMAT,
            store.FORMAT_VERSION,
            embedder=self.embedder_id,
            embedder_hash=self.embedder_hash,
            prompt=self.prompt,
            tuned=dict(self.tuned),
            entries=None if self.entries is None else self.entries.stored(),
            folder="" if self.state is None else self.state.folder,
            files={} if self.state is None else self.state.files,
            history=self.commits,
            sha256="",
        )
        old = {} if self.state is None else self.state.files
        state, stamp = store.commit(
            folder, manifest, write if is_new else None, base, check=check
        )
        for name, value in (("folder", folder), ("state", state), ("stamp", stamp)):
            object.__setattr__(self, name, value)
        kept = {record.sha256 for record in state.files.values()}
        for record in old.values():  # an index holds keys of what was removed
            if record.sha256 not in kept and check:
                forget_index(record.sha256)

    @property
    def _base(self) -> str | None:
        return None if self.state is None else self.state.sha256


def build(
    lm: Engine | Examples | None,
    examples: Examples | None = None,
    *,
    context: Context | None = None,
    prompt: Prompt | None = None,
    embedder: str | Path | Embedder = DEFAULT_EMBEDDER,
    out: str | Path | None = None,
    overwrite: bool = False,
    on: str | Cluster | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    limit: int | None = None,
    progress: OnProgress | None = None,
    now: Now = utc_now,
    **entries: Any,
) -> GroundingSpace:
    """Embed examples, which is all that corrective decoding needs: no model runs.

    Examples are a list, a file, a dataset, `facts` or a space. With a context, such as 8 or
    "full", RAD's entries are made too: the model runs over every truthful answer, and what it
    predicts at each token is kept; `entries` are the other fields of `EntrySettings`.

    With `out` the space is also written there: killed at any moment, the same call resumes to
    the bytes of a build that was never interrupted. A space in that folder that this build
    would not make is replaced only with `overwrite`. With on="ray" the passes run on a Ray
    cluster, and give the same bytes.
    """
    model: Any = None if examples is None else lm
    source: Any = lm if examples is None else examples
    source = store.examples_of_space(source) or source
    read = read_examples(source, columns=columns, separator=separator, limit=limit)
    if isinstance(embedder, (str, Path)):
        embedder = load_embedder(embedder, device="cpu" if model is None else model.device)
    prompt = prompt or Prompt()
    settings, answers = _entry_plan(context, entries, model, read, prompt)
    cluster = Cluster(address=on) if isinstance(on, str) else on
    run: store.Run = map if cluster is None else cluster.map

    def make(work: Path | None) -> GroundingSpace:
        steps: dict[str, Any] = {"work": work, "run": run}
        tell = progress if settings is None else None
        vectors = embed_examples(read, embedder, progress=tell, **steps)
        attached = None
        if settings is not None:
            from trueline.rad.build import build_entries

            steps["progress"] = progress
            attached = build_entries(answers, model, embedder, settings, **steps)
        made = (tuple(read), vectors, embedder.id, embedder.hash, prompt, attached)
        space = GroundingSpace(*made, now=now, embedder=embedder)
        return _recorded(space, "build", len(read), now())

    if out is None:
        return make(None)
    folder = Path(out)
    plan = _plan(_made_with(embedder.id, embedder.hash, prompt, settings), read)
    with store.working(folder, plan) as work:
        base = store.standing_in(folder)
        if (space := _standing(folder, plan, embedder, now)) is None:
            if not overwrite:
                check_vacant(folder)
            space = make(work)
            space._write(folder, None if base is None else base.sha256)
    store.clear_others(folder)
    return space


def _entry_plan(
    context: Context | None,
    options: Mapping[str, Any],
    lm: Any,
    examples: Sequence[Example],
    prompt: Prompt,
) -> tuple[EntrySettings | None, Any]:
    """How entries are to be made, settled with the model, and of which answers; None: none."""
    from trueline.rad.entries import EntrySettings, check_entry_options

    check_entry_options(context, options)
    if context is None:
        return None, []
    from trueline.rad.build import settled, tokenized_answers

    settings = EntrySettings(context=context, **options)
    if lm is None:
        raise SettingError("entries need a model: give one, or context=None for none")
    answers = tokenized_answers(lm, examples, prompt, wrong=settings.wrong)
    return settled(settings, lm, answers), answers


def read_space(
    folder: str | Path,
    *,
    embedder: str | Path | Embedder | None = None,
    now: Now = utc_now,
) -> GroundingSpace:
    """Open a space; every byte and number of it is checked.

    `embedder` is needed only if the one it was built with has no name that can be opened again.
    """
    if isinstance(embedder, (str, Path)):
        embedder = load_embedder(embedder)
    parts, manifest, stamp = store.read(Path(folder), _parse)
    return _space_of(parts, manifest, stamp, folder=Path(folder), embedder=embedder, now=now)


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
    _check_alike(one, other)
    shared = [example for example in other.examples if example.id in one]
    if unlike := [example.id for example in shared if not one._holds(example)]:
        raise ExampleError(
            f"the two spaces hold different examples under one id: {_listed(unlike)}; rename "
            "or remove them in one of the two, then merge again"
        )
    new = other._without([example.id for example in shared])
    entries = one.entries
    if entries is not None and new.entries is not None:
        entries = entries.joined(new.entries, len(one))
    made = _joined(one, new.examples, new.vectors, entries)
    for space in (one, other):
        if out is not None and space.folder is not None and _is_same(out, space.folder):
            made = replace(made, folder=space.folder, state=space.state, stamp=space.stamp)
            made = _recorded(made, "merge", len(new), one.now())
            made._write(space.folder, space._base)
            return made
    made = replace(made, folder=None, state=None, stamp=None)
    made = _recorded(made, "merge", len(new), one.now())
    if out is not None:
        if not overwrite:
            check_vacant(Path(out))
        made.save(out)
    return made


def check_vacant(folder: Path) -> None:
    """Refuse to put a new space where another stands, which would be lost with its edits.

    One that cannot be read, damaged or of a newer format, may be all that is left of it.
    """
    store.check_folder(folder)
    if not folder.exists() or not any(folder.iterdir()) or store.is_begun(folder):
        return
    try:
        found = read_space(folder)
    except SpaceFormatError as error:
        raise SpaceError(
            f"nothing was written: {error}, name another folder, or replace what is there with "
            "--overwrite (overwrite=True)"
        ) from error
    raise SpaceError(
        f"{folder} holds another space ({len(found)} examples, last changed by "
        f"{found.commits[-1]}); nothing was written; change it with `trueline add` and "
        "`trueline remove`, name another folder, or replace it with --overwrite "
        "(overwrite=True)"
    )


def embed_examples(
    examples: Sequence[Example],
    embedder: Embedder,
    *,
    work: Path | None = None,
    run: store.Run = map,
    progress: OnProgress | None = None,
) -> Arrays:
    """The questions, and the means of truthful and of wrong answers, as unit vectors."""
    worker = VectorWorker(embedder)
    starts = range(0, len(examples), _AT_ONCE)
    units = [examples[start : start + _AT_ONCE] for start in starts]
    steps: dict[str, Any] = {"work": work, "run": run, "size": len, "progress": progress}
    made = store.resumed(units, "vectors", worker.vectors, worker.are_vectors, **steps)
    return {name: np.concatenate([one[name] for one in made]) for name in VECTORS}


class VectorWorker:
    """Turns examples into vectors; pickled by the name of its embedder."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    def __reduce__(self) -> tuple[object, ...]:
        return _worker, (origin_of(self.embedder), self.embedder.hash)

    def vectors(self, examples: Sequence[Example]) -> Arrays:
        """The vectors of some examples, by name."""
        texts: dict[str, list[Sequence[str]]] = {
            QUESTIONS: [(example.question,) for example in examples],
            ANSWERS: [example.answers for example in examples],
            WRONG_ANSWERS: [example.wrong_answers for example in examples],
        }
        flat = [text for groups in texts.values() for group in groups for text in group]
        vectors = iter(embed_distinct(self.embedder, flat).cpu().numpy())
        return {
            name: np.stack([self._mean([next(vectors) for _ in group]) for group in groups])
            for name, groups in texts.items()
        }

    def are_vectors(self, examples: Sequence[Example], kept: Arrays) -> bool:
        """Whether kept vectors can be those of some examples."""
        shape = (len(examples), self.embedder.dimension)
        return all(
            kept[name].shape == shape and np.isfinite(kept[name]).all() for name in VECTORS
        )

    def _mean(self, vectors: list[Array]) -> Array:
        """The direction of some vectors together, of length 1; zero where there are none."""
        if len(vectors) == 1:
            return vectors[0].astype(np.float16)
        zero = np.zeros(self.embedder.dimension, np.float32)
        total: Array = np.sum([zero, *vectors], axis=0)
        length = float(np.linalg.norm(total))
        mean: Array = (total / length if length > 1e-6 else 0 * total).astype(np.float16)
        return mean


def _worker(embedder: Origin, wanted: str) -> VectorWorker:
    return VectorWorker(same_embedder(embedder, wanted))


def same_embedder(origin: Origin, wanted: str) -> Any:
    """An embedder in another process, which must be the same there."""
    embedder: Any = origin()
    check_same(embedder.id, embedder.hash, wanted)
    return embedder


def check_same(name: str, there: str, here: str) -> None:
    """Refuse a name that means other weights on the machine of a worker."""
    if there != here:
        raise SpaceMismatchError(
            f"{name} has other weights there than on the machine that builds; put the same on "
            "every machine"
        )


def _reopened(given: Mapping[str, Any], embedder: Origin) -> GroundingSpace:
    """A space in another process."""
    return GroundingSpace(**{**given, "embedder": embedder()})


def _parse(manifest: Manifest, read: Read) -> dict[str, Any]:
    """The parts of a space in a folder; a ValueError says what is wrong with them."""
    examples = store.examples_in(read(store.EXAMPLES))
    vectors = store.arrays_in(read(store.VECTORS), dict.fromkeys(VECTORS, ("float16", 2)))
    names, entries = {store.EXAMPLES, store.VECTORS}, None
    if manifest.entries is not None:
        from trueline.rad.entries import open_entries

        entries = open_entries(manifest.entries, read)
        names |= {name for name, _ in entries.sets()}
    if set(manifest.files) != names:
        raise ValueError(f"it has the files {sorted(manifest.files)}, not {sorted(names)}")
    if flaw := _flaw(examples, vectors, entries):
        raise ValueError(flaw)
    last, count = manifest.history[-1], 0 if entries is None else len(entries)
    if (last.examples, last.entries) != (len(examples), count):
        raise ValueError(f"it holds {len(examples)} examples and {count} entries, not {last}")
    return {"examples": examples, "vectors": vectors, "entries": entries}


def _flaw(
    examples: Sequence[Example], vectors: Mapping[str, Array], entries: RadEntries | None
) -> str:
    """What is wrong with the numbers of a space; "" if nothing is."""
    width = vectors[QUESTIONS].shape[1]
    for name, array in vectors.items():
        if array.shape != (len(examples), width) or not width:
            return f"the vectors of {name} have the shape {array.shape}"
        if not store.are_unit(array):
            return f"some vectors of {name} are not of unit length"
    return "" if entries is None else entries.flaw(examples, width)


def _space_of(
    parts: dict[str, Any], manifest: Manifest, stamp: Stamp, **given: Any
) -> GroundingSpace:
    return GroundingSpace(
        **parts,
        embedder_id=manifest.embedder,
        embedder_hash=manifest.embedder_hash,
        prompt=manifest.prompt,
        commits=manifest.history,
        tuned=manifest.tuned,
        state=manifest,
        stamp=stamp,
        **given,
    )


def _standing(folder: Path, plan: str, embedder: Embedder, now: Now) -> GroundingSpace | None:
    """The space that stands there, if it is whole and has what this plan would make."""
    try:
        standing = read_space(folder, embedder=embedder, now=now)
        return standing if standing.plan == plan else None
    except (SpaceFormatError, SpaceMismatchError):  # none, damaged, or made otherwise
        return None


def _recorded(space: GroundingSpace, what: Any, changed: int, time: datetime) -> GroundingSpace:
    """The space with one more line in its history."""
    stamp = time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    counts = space.counts()
    commit = Commit(what, stamp, changed, counts["examples"], counts["entries"])
    return replace(space, commits=(*space.commits, commit))


def _joined(
    left: GroundingSpace,
    examples: Sequence[Example],
    vectors: Mapping[str, Array],
    entries: RadEntries | None,
) -> GroundingSpace:
    """A space with more examples; not committed."""
    return replace(
        left,
        examples=(*left.examples, *examples),
        vectors={name: np.concatenate([left.vectors[name], vectors[name]]) for name in VECTORS},
        entries=entries,
    )


def _check_alike(one: GroundingSpace, other: GroundingSpace) -> None:
    differing = [
        f"{name} {getattr(one, name)!r} and {getattr(other, name)!r}"
        for name in ("embedder_hash", "prompt")
        if getattr(one, name) != getattr(other, name)
    ]
    if one.entries is None or other.entries is None:
        if (one.entries is None) != (other.entries is None):
            differing.append("only one of them has RAD entries")
    else:
        differing += one.entries.differences(other.entries)
    if differing:
        raise SpaceMismatchError(
            f"the two spaces were not made alike: {'; '.join(differing)}; build one of them "
            "anew with the settings of the other (`trueline info` lists them)"
        )


def _made_with(
    embedder: str, embedder_hash: str, prompt: Prompt, entries: Any
) -> dict[str, Any]:
    """All that shapes a space; `entries` are its entries or their settings."""
    settings = getattr(entries, "settings", entries)
    return {
        "embedder": embedder,
        "embedder_hash": embedder_hash,
        "prompt": asdict(prompt),
        "entries": None if settings is None else asdict(settings),
    }


def _plan(made_with: Mapping[str, Any], examples: Sequence[Example]) -> str:
    content = json.dumps([made_with, digest(examples)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    return ", ".join(map(repr, ids[:_LISTED])) + more


def _is_same(one: str | Path, other: Path) -> bool:
    return Path(one).resolve() == other.resolve()
