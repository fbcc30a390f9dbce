"""Examples in, a segment out: batched by length, and resumed where a kill left it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from trueline.cluster import Run
from trueline.embed import Embedder
from trueline.engines.base import Engine
from trueline.errors import SettingError, SpaceMismatchError
from trueline.examples import digest
from trueline.files import replacing
from trueline.prompts import Prompt
from trueline.space.content import Content, Recipe
from trueline.space.passages import ROWS, Passage, batches, passages
from trueline.space.segment import VECTORS, Entries, Segment, join_entries
from trueline.space.worker import Arrays, Worker, passage_length
from trueline.types import Example, OnProgress

_EXAMPLES_AT_ONCE = 512  # examples that are embedded before their vectors are kept


def plan_hash(recipe: Recipe, examples: Sequence[Example]) -> str:
    """The name of the work on some examples: equal plans give equal segments."""
    content = json.dumps([asdict(recipe), digest(examples), ROWS], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def cut_answers(
    lm: Engine, examples: Sequence[Example], prompt: Prompt, *, wrong: bool
) -> list[list[Passage]]:
    """The truthful answers as tokens, then the wrong ones if they are asked for."""
    kinds = [False, True][: 1 + wrong]
    return [list(passages(lm, examples, prompt, wrong=kind)) for kind in kinds]


def head_of(lm: Engine, found: list[list[Passage]]) -> str:
    """The form of the model's head, checked on the first answer."""
    return lm.head_kind((found[0][0].prompt + found[0][0].tokens)[:64])


def extension(
    space: Content,
    examples: Sequence[Example],
    lm: Engine | None,
    embedder: Embedder,
    work: Path | None,
    progress: OnProgress | None,
) -> Segment:
    """A segment of more examples for a space, made as the others were."""
    recipe = space.recipe
    if recipe.context is None:
        worker = Worker(None, embedder, recipe)
        return make_segment(examples, worker, work=work, progress=progress)
    assert lm is not None
    found = cut_answers(lm, examples, recipe.prompt, wrong=recipe.wrong)
    # The form of the head was checked when the space was built. Only a head that failed there
    # is checked again, so that this copy of the model is not trusted either.
    head = head_of(lm, found) if recipe.head == "opaque" else recipe.head
    if recipe.values == "hidden" and lm.head is None:
        raise SpaceMismatchError(
            f"the space keeps hidden states for a head that is {head}, and this model's own "
            f"has no known form; build it anew with `trueline build --model {lm.id}`"
        )
    worker = Worker(lm, embedder, recipe)
    return make_segment(examples, worker, found=found, work=work, progress=progress)


def check_lm(space: Content, lm: Engine | None) -> None:
    """Refuse to make entries without the model they are made with."""
    recipe = space.recipe
    if recipe.context is None:
        return
    if lm is None:
        raise SettingError(
            "this space holds RAD entries, which take a pass of the model over each new "
            f"answer; give it the model: lm=tl.load({recipe.model!r})"
        )
    space.check_model(lm)
    if (computed := str(lm.dtype).removeprefix("torch.")) != recipe.computed:
        raise SpaceMismatchError(
            f"the entries were computed in {recipe.computed}, this model runs in {computed}; "
            f"load it with dtype={recipe.computed!r}"
        )


def make_segment(
    examples: Sequence[Example],
    worker: Worker,
    *,
    found: Sequence[Sequence[Passage]] = (),
    work: Path | None = None,
    run: Run = map,
    progress: OnProgress | None = None,
) -> Segment:
    """Embed the examples and make the entries of all answers that were found in them.

    What is finished is kept in `work`, from where the same call goes on after a kill. `run`
    does what is left to do; it is `map`, here or on a cluster.
    """
    starts = range(0, len(examples), _EXAMPLES_AT_ONCE)
    embedded = _resumed(
        [examples[start : start + _EXAMPLES_AT_ONCE] for start in starts],
        [f"vectors-{start:07d}" for start in starts],
        worker.vectors,
        worker.are_vectors,
        _Steps(work, run, None if found else progress, len),
    )
    vectors = {name: np.concatenate([one[name] for one in embedded]) for name in VECTORS}
    if not found:
        return Segment(examples, vectors)
    plan = [batch for answers in found for batch in batches(answers)]
    end = worker.recipe.end
    parts = _resumed(
        plan,
        [f"{number:05d}" for number in range(len(plan))],
        worker.entries,
        worker.are_entries,
        _Steps(work, run, progress, lambda batch: sum(passage_length(x, end) for x in batch)),
    )
    sets = [
        [
            Entries(**part)
            for batch, part in zip(plan, parts, strict=True)
            if batch[0].is_wrong == kind
        ]
        for kind in (False, True)
    ]
    entries, wrong = (_sorted(each) if each else None for each in sets)
    return Segment(examples, vectors, entries, wrong)


@dataclass(frozen=True, slots=True)
class _Steps:
    """How units of work are gone through: where they are kept, who makes them, who is told."""

    work: Path | None
    run: Run
    progress: OnProgress | None
    size: Callable[[Any], int]  # of a unit, as progress counts it


def _resumed(
    units: Sequence[Any],
    names: Sequence[str],
    make: Callable[[Any], Arrays],
    is_whole: Callable[[Any, Arrays], bool],
    steps: _Steps,
) -> list[Arrays]:
    """What is made of every unit, from its file if an earlier call finished it."""
    work, tell = steps.work, steps.progress or (lambda done, total: None)
    paths = [None if work is None else work / f"{name}.safetensors" for name in names]
    kept = [_read(path, unit, is_whole) for unit, path in zip(units, paths, strict=True)]
    todo = [unit for unit, one in zip(units, kept, strict=True) if one is None]
    made = steps.run(make, todo)
    sizes = [steps.size(unit) for unit in units]
    found: list[Arrays] = []
    for number, (path, one) in enumerate(zip(paths, kept, strict=True)):
        tell(sum(sizes[:number]), sum(sizes))
        if one is None:
            one = next(made)
            if path is not None:
                with replacing(path) as scratch:
                    save_file(one, scratch)
        found.append(one)
    tell(sum(sizes), sum(sizes))
    return found


def _read(
    path: Path | None, unit: Any, is_whole: Callable[[Any, Arrays], bool]
) -> Arrays | None:
    """What was kept of a unit; None where nothing was, or not all of it."""
    try:
        kept: Arrays | None = None if path is None else load_file(path)
        return kept if kept is not None and is_whole(unit, kept) else None
    except (OSError, SafetensorError, KeyError, TypeError):  # not there, or cut short
        return None


def _sorted(parts: list[Entries]) -> Entries:
    """All entries in the order of example, answer, step, whatever the batches were."""
    joined = join_entries(parts)
    order = np.lexsort((joined.steps, joined.answers, joined.examples))
    return Entries(**{name: array[order] for name, array in joined.arrays().items()})
