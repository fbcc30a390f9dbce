"""Examples in, a segment out: batched by length, and resumed where a kill left it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from trueline.embedders.base import Embedder, embed_distinct
from trueline.engines.base import Engine
from trueline.errors import SettingError, SpaceMismatchError
from trueline.examples import digest
from trueline.files import replacing
from trueline.prompts import Prompt
from trueline.records import Example, OnProgress
from trueline.space.content import Content, Recipe
from trueline.space.passages import ROWS, Passage, batches, passages
from trueline.space.segment import (
    ANSWERS,
    QUESTIONS,
    VECTORS,
    WRONG_ANSWERS,
    Array,
    Entries,
    Segment,
    join_entries,
)
from trueline.space.worker import Worker, passage_length

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
        return make_segment(examples, embedder, work=work, progress=progress)
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
    return make_segment(
        examples, embedder, worker=worker, found=found, work=work, progress=progress
    )


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
    embedder: Embedder,
    *,
    worker: Worker | None = None,
    found: Sequence[Sequence[Passage]] = (),
    work: Path | None = None,
    progress: OnProgress | None = None,
) -> Segment:
    """Embed the examples and, with a worker, make the entries of all answers.

    What is finished is kept in `work`, from where the same call goes on after a kill.
    """
    vectors = _vectors(examples, embedder, work, None if worker else progress)
    if worker is None:
        return Segment(examples, vectors)
    plan = [batch for answers in found for batch in batches(answers)]
    parts = []
    for number, batch in enumerate(_watched(plan, worker.recipe.end, progress)):
        if work is None:
            parts.append(worker.entries(batch))
        else:
            parts.append(worker.resume(batch, work / f"{number:05d}.safetensors"))
    sets = [
        [part for batch, part in zip(plan, parts, strict=True) if batch[0].is_wrong == kind]
        for kind in (False, True)
    ]
    entries, wrong = (_sorted(each) if each else None for each in sets)
    return Segment(examples, vectors, entries, wrong)


def _vectors(
    examples: Sequence[Example],
    embedder: Embedder,
    work: Path | None,
    progress: OnProgress | None,
) -> dict[str, Array]:
    """The vectors of the examples, each of VECTORS as (examples, dimension)."""
    found = []
    for start in range(0, len(examples), _EXAMPLES_AT_ONCE):
        if progress:
            progress(start, len(examples))
        batch = examples[start : start + _EXAMPLES_AT_ONCE]
        path = None if work is None else work / f"vectors-{start:07d}.safetensors"
        found.append(_resumed(batch, embedder, path))
    if progress:
        progress(len(examples), len(examples))
    return {name: np.concatenate([one[name] for one in found]) for name in VECTORS}


def _resumed(
    examples: Sequence[Example], embedder: Embedder, path: Path | None
) -> dict[str, Array]:
    """The vectors of some examples, from their file if they were made before."""
    shape = (len(examples), embedder.dimension)
    try:
        if path is not None:
            kept: dict[str, Array] = load_file(path)
            if all(
                kept[name].shape == shape and np.isfinite(kept[name]).all() for name in VECTORS
            ):
                return kept
    except (OSError, SafetensorError, KeyError):  # not there, or cut short
        pass
    vectors = embed_examples(examples, embedder)
    if path is not None:
        with replacing(path) as scratch:
            save_file(vectors, scratch)
    return vectors


def embed_examples(examples: Sequence[Example], embedder: Embedder) -> dict[str, Array]:
    """The questions, and the means of truthful and of wrong answers, as unit vectors."""
    texts: dict[str, list[Sequence[str]]] = {
        QUESTIONS: [(example.question,) for example in examples],
        ANSWERS: [example.answers for example in examples],
        WRONG_ANSWERS: [example.wrong_answers for example in examples],
    }
    flat = [text for groups in texts.values() for group in groups for text in group]
    vectors = iter(embed_distinct(embedder, flat).cpu().numpy())
    return {
        name: np.stack([_mean([next(vectors) for _ in group], embedder) for group in groups])
        for name, groups in texts.items()
    }


def _mean(vectors: list[Array], embedder: Embedder) -> Array:
    """The direction of some vectors together, of length 1; zero where there are none."""
    if len(vectors) == 1:
        return vectors[0].astype(np.float16)
    total: Array = np.sum([np.zeros(embedder.dimension, np.float32), *vectors], axis=0)
    length = float(np.linalg.norm(total))
    mean: Array = (total / length if length > 1e-6 else 0 * total).astype(np.float16)
    return mean


def _watched(
    work: list[list[Passage]], end: bool, progress: OnProgress | None
) -> Iterator[list[Passage]]:
    """Hand out the batches and say after each how many entries are done."""
    sizes = [sum(passage_length(passage, end) for passage in batch) for batch in work]
    done, total = 0, sum(sizes)
    for batch, size in zip(work, sizes, strict=True):
        if progress:
            progress(done, total)
        yield batch
        done += size
    if progress:
        progress(done, total)


def _sorted(parts: list[Entries]) -> Entries:
    """All entries in the order of example, answer, step, whatever the batches were."""
    joined = join_entries(parts)
    order = np.lexsort((joined.steps, joined.answers, joined.examples))
    return Entries(**{name: array[order] for name, array in joined.arrays().items()})
