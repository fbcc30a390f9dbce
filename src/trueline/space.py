"""Grounding spaces: examples and their vectors, built, opened, searched and edited.

RAD's entries are attached to a space, which uses only what rad/entries.py lists.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from trueline import store
from trueline.cluster import Cluster, Run
from trueline.embed import Embedder, SentenceEmbedder, embed_distinct, load_embedder
from trueline.engines import DEFAULT_EMBEDDER
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
from trueline.search import Search, open_search
from trueline.store import Arrays, Commit, Manifest, Read
from trueline.types import Example, OnProgress

if TYPE_CHECKING:
    from trueline.engines.base import Engine
    from trueline.rad.entries import Context, EntrySettings, RadEntries

Examples: TypeAlias = "str | Path | Sequence[Example]"
Now = Callable[[], datetime]  # the clock of the history
# The vectors of each example's question, and the mean of its truthful and of its wrong answers;
# zero where it has none.
VECTORS = QUESTIONS, ANSWERS, WRONG_ANSWERS = "questions", "answers", "wrong_answers"
OPENING_LOCK = RLock()  # one thread at a time opens embedders and indexes
_FEW = 3  # examples that weigh as much as the mean of all
_LISTED = 10  # ids that an error lists
_AT_ONCE = 512  # examples that are embedded before their vectors are kept
_now: Now = partial(datetime.now, UTC)


@dataclass(frozen=True, eq=False)
class GroundingSpace:
    """Verified examples and their vectors; with RAD's entries, also what a model predicts.

    An edit returns the new space; this one goes on as it was. If it has a folder, the edit is
    committed there.
    """

    examples: tuple[Example, ...]
    vectors: Arrays  # each of VECTORS: (examples, dimension) float16
    embedder_id: str
    embedder_hash: str
    prompt: Prompt  # it was built with it and must be used with it
    entries: RadEntries | None = None
    commits: tuple[Commit, ...] = ()
    tuned: Mapping[str, Any] = field(default_factory=dict)  # settings fitted to this space
    folder: Path | None = None  # where it was read from or written to
    state: Manifest | None = None  # the commit of the folder that this object shows
    now: Now = field(default=_now, repr=False)
    embedder: Embedder | None = field(default=None, repr=False)  # None: opened when needed
    opened: dict[torch.device, Embedder] = field(default_factory=dict, repr=False)
    # What corrective decoding made of an example's texts, by example or tokenizer.
    texts_read: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.embedder is not None:
            self._check_embedder(self.embedder)

    def __len__(self) -> int:
        return len(self.examples)

    def __contains__(self, id: str) -> bool:
        return id in self._numbers

    def __repr__(self) -> str:
        return f"GroundingSpace({len(self)} examples, {self.counts()['entries']} entries)"

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {example.id: number for number, example in enumerate(self.examples)}

    # What it holds

    def example(self, id: str) -> Example:
        """The example of that id."""
        return self.examples[self._numbers[id]]

    def counts(self) -> dict[str, int]:
        """How many entries each set has, and how many examples there are."""
        counts = {"entries": 0} if self.entries is None else self.entries.counts()
        return {**counts, "examples": len(self)}

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
            "dimension": int(self.vectors[QUESTIONS].shape[1]),
            "bytes_per_example": round(size / len(self)),
            **entries,
            "bytes": size + entries.get("bytes", 0),
            "tuned": dict(self.tuned) or None,
        }

    def made_with(self, settings: EntrySettings | None = None) -> dict[str, Any]:
        """All that shapes its vectors and entries, as plain values."""
        settings = settings if self.entries is None else self.entries.settings
        return {
            "embedder": self.embedder_id,
            "embedder_hash": self.embedder_hash,
            "prompt": asdict(self.prompt),
            "entries": asdict(settings) if settings else None,
        }

    @property
    def plan(self) -> str:
        """A hash of how it was made and of all its examples."""
        return _plan(self.made_with(), self.examples)

    def history(self) -> tuple[Commit, ...]:
        """What was committed and when, the oldest first."""
        return self.commits

    def verify(self) -> dict[str, Any]:
        """Check every byte and number in its folder; returns what was checked.

        What is damaged raises SpaceFormatError.
        """
        if self.folder is None:
            return self.counts()
        store.read(self.folder, _parse)
        return {"files": len(store.read_manifest(self.folder).files), **self.counts()}

    # Vectors

    def open_embedder(self, device: str | torch.device) -> Embedder:
        """The embedder it was built with, and no other; opened once for a device."""
        device = torch.device(device)
        with OPENING_LOCK:
            if device not in self.opened:
                if (embedder := self.embedder) is None:
                    check_named(self.embedder_id, "--embedder")
                    embedder = load_embedder(self.embedder_id, device=device)
                    self._check_embedder(embedder)
                if isinstance(embedder, SentenceEmbedder):
                    embedder.open()
                self.opened[device] = embedder
            return self.opened[device]

    def _check_embedder(self, embedder: Embedder) -> None:
        if embedder.hash != self.embedder_hash:
            raise SpaceMismatchError(
                f"the space was built with the embedder {self.embedder_id} "
                f"(hash {self.embedder_hash[:12]}), this is {embedder.id} "
                f"(hash {embedder.hash[:12]}): their cosines cannot be compared; build it anew "
                f"with `trueline build --embedder {embedder.id}`"
            )

    @cached_property
    def _questions(self) -> torch.Tensor:
        return torch.from_numpy(self.vectors[QUESTIONS]).float()

    @cached_property
    def _search(self) -> Search:
        return open_search(self._questions)

    def question_vectors(self, device: str | torch.device) -> torch.Tensor:
        """The examples' questions as unit vectors (examples, dimension), float32."""
        return self._questions.to(device)

    def nearest_examples(self, vectors: torch.Tensor, k: int) -> list[int]:
        """The numbers of the k examples whose questions are nearest to each vector, together.

        `vectors` are (queries, dimension), on the CPU.
        """
        with OPENING_LOCK:
            search = self._search
        hits = search.nearest(vectors, k)
        columns = (hits.rows, -hits.similarities, hits.entries)
        near = sorted(zip(*(column.tolist() for column in columns), strict=True))
        return list(dict.fromkeys(number for _, _, number in near))

    @cached_property
    def shared_vector(self) -> torch.Tensor:
        """What the questions and truthful answers of all examples share: (dimension,).

        It is their mean, drawn towards zero while there are few examples.
        """
        sums = [self.vectors[name].sum(0, dtype=np.float32) for name in (QUESTIONS, ANSWERS)]
        return torch.from_numpy(np.sum(sums, axis=0)) / (2 * (len(self.examples) + _FEW))

    def example_vectors(self, number: int) -> torch.Tensor:
        """The vectors of one example's question, truthful and wrong answers: (3, dimension)."""
        vectors = np.stack([self.vectors[name][number] for name in VECTORS])
        return torch.from_numpy(vectors.astype(np.float32))

    # Its folder

    def save(self, folder: str | Path) -> None:
        """Write the space to a folder; the old content stays there until the last moment.

        A space that had no folder has this one from now on: edits are committed there.
        """
        folder, is_here = Path(folder), _is_same(folder, self.folder)
        made = self if is_here or self.folder is None else replace(self)
        made._write(folder, self.state if is_here else store.state_in(folder))

    def current(self) -> GroundingSpace:
        """The newest state of the folder; the space itself if nothing was committed since."""
        if self.folder is None or store.read_manifest(self.folder) == self.state:
            return self
        newest = read_space(self.folder, now=self.now)
        if newest.embedder_hash != self.embedder_hash:
            return newest
        return replace(newest, embedder=self.embedder, opened=self.opened)

    # Edits

    def add(
        self,
        examples: Examples,
        lm: Engine | None = None,
        *,
        progress: OnProgress | None = None,
    ) -> GroundingSpace:
        """The space with more examples; `lm` is needed where there are RAD entries."""
        new = read_examples(examples)
        if taken := [example for example in new if example.id in self]:
            equal = sum(map(self._holds, taken))
            raise ExampleError(
                f"the space already holds {_listed(taken)} ({equal} of these {len(taken)} with "
                "this very content); nothing was added; change them with space.replace(...) "
                "(`trueline add --replace`), or leave them out"
            )
        return self._extended("add", new, lm, progress)

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
        new = read_examples(examples)
        self._check_known([example.id for example in new])
        changed = [example for example in new if not self._holds(example)]
        return self._extended("replace", changed, lm, progress) if changed else self

    def remove(self, ids: str | Iterable[str]) -> GroundingSpace:
        """The space without the examples of these ids, which leave its folder too."""
        named = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        self._check_known(named)
        if len(named) == len(self):
            raise SpaceError(
                "nothing would be left, and a space holds one example at least; nothing was "
                "changed; add others first, or delete its folder"
            )
        return self._without(named)._committed("remove", len(named)) if named else self

    def tune(self, settings: Mapping[str, Any]) -> GroundingSpace:
        """The space with these tuned settings and no others; {} removes all of them.

        Methods read `threshold` and `strength` where nobody sets them; other names are kept to
        show how the two were found.
        """
        try:
            store.check_tuned(tuned := dict(settings))
        except ValueError as error:
            raise SettingError(str(error)) from error
        if tuned == dict(self.tuned):
            return self
        return replace(self, tuned=tuned)._committed("tune", 0)

    def _holds(self, example: Example) -> bool:
        return content_hash(self.example(example.id)) == content_hash(example)

    def _check_known(self, ids: Sequence[str]) -> None:
        """Refuse ids that no example has, with names near to them."""
        if unknown := [id for id in ids if id not in self]:
            near = [name for id in unknown for name in get_close_matches(id, self._numbers)]
            raise ExampleError(
                f"no example of the space has the id {_listed(unknown)}; nothing was changed; "
                f"near names: {_listed([*dict.fromkeys(near)]) or 'none'}; space.add(...) "
                "(`trueline add`) takes what is new"
            )

    def _without(self, ids: Iterable[str]) -> GroundingSpace:
        """Without some examples; not committed, and perhaps empty."""
        is_kept = np.ones(len(self), bool)
        is_kept[[self._numbers[id] for id in ids]] = False
        examples = tuple(self.examples[number] for number in is_kept.nonzero()[0])
        vectors = {name: array[is_kept] for name, array in self.vectors.items()}
        entries = None if self.entries is None else self.entries.kept(is_kept)
        return replace(self, examples=examples, vectors=vectors, entries=entries)

    def _joined(
        self, examples: Sequence[Example], vectors: Arrays, entries: RadEntries | None
    ) -> GroundingSpace:
        """With more examples, and other entries; not committed."""
        both = {name: np.concatenate((self.vectors[name], vectors[name])) for name in VECTORS}
        examples = (*self.examples, *examples)
        return replace(self, examples=examples, vectors=both, entries=entries)

    def _extended(
        self, what: str, new: Sequence[Example], lm: Engine | None, progress: OnProgress | None
    ) -> GroundingSpace:
        """The space with examples in place of those with their ids, committed."""
        rest = self._without([example.id for example in new if example.id in self])
        if (entries := rest.entries) is not None:
            from trueline.rad.build import check_lm, extended

            lm = check_lm(entries, lm)
        embedder = self.open_embedder("cpu" if lm is None else lm.device)
        folder = None if entries is None else self.folder  # vectors alone are soon made again
        with store.working(folder, _plan(self.made_with(), new)) as work:
            vectors = embed_examples(new, embedder)
            if entries is not None and lm is not None:
                more = (new, len(rest), lm, embedder, self.prompt)
                entries = extended(entries, *more, work=work, progress=progress)
            return rest._joined(new, vectors, entries)._committed(what, len(new))

    def _committed(self, what: Any, changed: int) -> GroundingSpace:
        """The space with one more line in its history; written, if it has a folder."""
        time = self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        commit = Commit(what, time, changed, len(self), self.counts()["entries"])
        made = replace(self, commits=(*self.commits, commit))
        if self.folder is not None:
            made._write(self.folder, self.state)
        return made

    def _write(self, folder: Path, base: Manifest | None) -> None:
        """Commit to a folder, and show that commit from now on."""
        manifest = Manifest(
            embedder=self.embedder_id,
            embedder_hash=self.embedder_hash,
            prompt=self.prompt,
            tuned=dict(self.tuned),
            entries=self.made_with()["entries"],
            history=self.commits,
        )
        contents = {
            store.EXAMPLES: store.as_lines(self.examples),
            store.VECTORS: store.arrays_bytes(self.vectors),
            **({} if self.entries is None else self.entries.contents()),
        }
        object.__setattr__(self, "state", store.commit(folder, manifest, contents, base))
        object.__setattr__(self, "folder", folder)


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
    now: Now = _now,
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
    from trueline.rad.build import build_entries, plan_entries

    model: Any = None if examples is None else lm
    source: Any = lm if examples is None else examples
    source = store.examples_of_space(source) or source
    read = tuple(read_examples(source, columns=columns, separator=separator, limit=limit))
    if isinstance(embedder, (str, Path)):
        embedder = load_embedder(embedder, device="cpu" if model is None else model.device)
    made = (embedder.id, embedder.hash, prompt or Prompt())
    space = GroundingSpace(read, {}, *made, now=now, embedder=embedder)
    planned = plan_entries(context, entries, model, read, space.prompt)
    plan = _plan(space.made_with(planned[0] if planned else None), read)
    cluster = Cluster(address=on) if isinstance(on, str) else on
    folder = None if out is None else Path(out)
    with store.working(folder, plan) as work:
        base = store.state_in(folder) if folder else None
        if folder and (old := _existing(folder, plan, is_replaced=overwrite)):
            space = replace(old, embedder=embedder, now=now)
        else:
            run: Run = cluster.map if cluster else map
            on_vectors, on_entries = (None, progress) if planned else (progress, None)
            vectors = embed_examples(read, embedder, work=work, run=run, progress=on_vectors)
            more: dict[str, Any] = {"work": work, "run": run, "progress": on_entries}
            rad = build_entries(*planned, model, embedder, **more) if planned else None
            space = replace(space, vectors=vectors, entries=rad)._committed("build", len(read))
            if folder:
                space._write(folder, base)
    return space


def read_space(
    folder: str | Path, *, embedder: str | Path | Embedder | None = None, now: Now = _now
) -> GroundingSpace:
    """Open a space; every byte and number of it is checked.

    `embedder` is needed only if the one it was built with has no name that can be opened again.
    """
    if isinstance(embedder, (str, Path)):
        embedder = load_embedder(embedder)
    space = store.read(Path(folder), _parse)
    return replace(space, folder=Path(folder), embedder=embedder, now=now)


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
    mine, theirs = (
        {"context": None, "embedder": x.embedder_hash, "prompt": x.prompt}
        | (x.made_with()["entries"] or {})
        for x in (one, other)
    )
    names = [name for name in mine if name in theirs and mine[name] != theirs[name]]
    if differing := [f"{x} {mine[x]!r} and {theirs[x]!r}" for x in names if x != "model"]:
        raise SpaceMismatchError(
            f"the two spaces were not made alike: {'; '.join(differing)}; build one of them "
            "anew with the settings of the other (`trueline info` lists them)"
        )
    shared = [example for example in other.examples if example.id in one]
    if unlike := [example for example in shared if not one._holds(example)]:
        raise ExampleError(
            f"the two spaces hold different examples under one id: {_listed(unlike)}; rename "
            "or remove them in one of the two, then merge again"
        )
    new = other._without([example.id for example in shared])
    entries = one.entries
    if entries is not None and new.entries is not None:
        entries = entries.joined(new.entries, len(one))
    made = one._joined(new.examples, new.vectors, entries)
    home = next((x for x in (other, one) if out and _is_same(out, x.folder)), None)
    folder, state = (home.folder, home.state) if home else (None, None)
    made = replace(made, folder=folder, state=state)
    made = made._committed("merge", len(new))
    if out is not None and home is None:
        _existing(Path(out), "", is_replaced=overwrite)
        made.save(out)
    return made


def _existing(folder: Path, plan: str, *, is_replaced: bool) -> GroundingSpace | None:
    """The space in a folder if a plan makes the same; any other is refused unless replaced.

    Also one that cannot be read: it may be all that is left of somebody's examples.
    """
    store.check_folder(folder)
    if not os.path.lexists(folder / store.NAME):
        return None
    try:
        space = read_space(folder)
        if space.plan == plan:
            return space
        last = f"last changed by {space.commits[-1]}"
        problem = f"{folder} holds another space ({len(space)} examples, {last})"
    except SpaceFormatError as error:
        problem = str(error)
    if is_replaced:
        return None
    raise SpaceError(
        f"{problem}; nothing was written; change it with `trueline add` and `trueline remove`, "
        "name another folder, or replace it with --overwrite (overwrite=True)"
    )


def embed_examples(
    examples: Sequence[Example],
    embedder: Embedder,
    *,
    work: Path | None = None,
    run: Run = map,
    progress: OnProgress | None = None,
) -> Arrays:
    """The questions, and the means of truthful and of wrong answers, as unit vectors."""
    starts = range(0, len(examples), _AT_ONCE)
    units = [examples[start : start + _AT_ONCE] for start in starts]
    steps: dict[str, Any] = {"kind": "vectors", "work": work, "run": run, "progress": progress}
    parts = store.resumed(partial(_vectors, embedder), units, [*map(len, units)], **steps)
    return {name: np.concatenate([part[name] for part in parts]) for name in VECTORS}


def _vectors(embedder: Embedder, examples: Sequence[Example]) -> Arrays:
    questions = [(example.question,) for example in examples]
    answers = [example.answers for example in examples]
    groups = [*questions, *answers, *(example.wrong_answers for example in examples)]
    texts = [text for group in groups for text in group]
    vectors, means = embed_distinct(embedder, texts).cpu().numpy(), []
    for group in groups:
        mean, vectors = vectors[: len(group)].sum(0), vectors[len(group) :]
        length = 1.0 if len(group) == 1 else float(np.linalg.norm(mean))
        means.append((mean / length if length > 1e-6 else 0 * mean).astype(np.float16))
    return dict(zip(VECTORS, np.array(means).reshape(3, len(examples), -1), strict=True))


def _parse(manifest: Manifest, read: Read) -> GroundingSpace:
    """A space from its files; a ValueError names what is wrong with them."""
    examples = store.examples_in(read(store.EXAMPLES))
    vectors = store.arrays_in(read(store.VECTORS), dict.fromkeys(VECTORS, ("float16", 2)))
    width = vectors[QUESTIONS].shape[1]
    for name, array in vectors.items():
        if array.shape != (len(examples), width) or not width:
            raise ValueError(f"the vectors of {name} have the shape {array.shape}")
        if not store.are_unit(array):
            raise ValueError(f"some vectors of {name} are not of unit length")
    names, entries = {store.EXAMPLES, store.VECTORS}, None
    if manifest.entries is not None:
        from trueline.rad.entries import open_entries

        entries = open_entries(manifest.entries, read)
        names |= {name for name, _ in entries.sets()}
        if flaw := entries.flaw(examples, width):
            raise ValueError(flaw)
    if set(manifest.files) != names:
        raise ValueError(f"it has the files {sorted(manifest.files)}, not {sorted(names)}")
    made = (manifest.embedder, manifest.embedder_hash, manifest.prompt, entries)
    past = (manifest.history, manifest.tuned)
    space = GroundingSpace(examples, vectors, *made, *past, state=manifest)
    counts, last = space.counts(), manifest.history[-1]
    if (counts["examples"], counts["entries"]) != (last.examples, last.entries):
        raise ValueError(f"its examples and entries are not as many as after its {last}")
    return space


def _plan(made_with: Mapping[str, Any], examples: Sequence[Example]) -> str:
    content = json.dumps([made_with, digest(examples)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _listed(given: Sequence[str | Example]) -> str:
    ids = [repr(one if isinstance(one, str) else one.id) for one in given]
    more = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    return ", ".join(ids[:_LISTED]) + more


def _is_same(one: str | Path, other: Path | None) -> bool:
    return other is not None and Path(one).resolve() == other.resolve()
