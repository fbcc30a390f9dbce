"""Examples in, a grounding space out: batched by length, and resumed where a kill left it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import numpy as np

from trueline.embedders.base import Embedder
from trueline.embedders.loading import load_embedder
from trueline.engines.base import Engine
from trueline.errors import SettingError, SpaceFormatError
from trueline.examples import digest, read_examples
from trueline.prompts import Prompt
from trueline.records import Example
from trueline.space.content import Entries, Recipe
from trueline.space.folder import claimed
from trueline.space.passages import ROWS, Passage, batches, passages
from trueline.space.space import GroundingSpace, read_space
from trueline.space.storage import commit, read_manifest
from trueline.space.windows import Context, Window
from trueline.space.worker import Worker, passage_length

Progress = Callable[[int, int], None]  # entries done, entries in all
Values = Literal["auto", "hidden", "logits"]
Dtype = Literal["auto", "float32", "float16"]


def build(
    lm: Engine,
    examples: str | Path | Sequence[Example],
    *,
    context: Context = 8,
    window: Window = "all",
    end: bool = False,
    prompt: Prompt | None = None,
    embedder: str | Path | Embedder = "all-minilm-l6-v2",
    values: Values = "auto",
    dtype: Dtype = "auto",
    wrong: bool = False,
    out: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> GroundingSpace:
    """Run the model over every truthful answer and keep what it predicts at each token.

    With `wrong` the wrong answers become a second set of entries, which RAD's beta subtracts.
    With `out` the space is also written there as it grows: killed at any moment, the same call
    resumes, and the bytes are those of a build that was never interrupted.
    """
    _check_settings(context, window, values, dtype)
    prompt = prompt or Prompt()
    read = read_examples(examples, columns=columns, separator=separator, limit=limit)
    found = [
        list(passages(lm, read, prompt, wrong=kind)) for kind in ([False, True][: 1 + wrong])
    ]
    if not all(found):
        raise SettingError("wrong=True asks for wrong answers, and no example has one")
    if isinstance(embedder, (str, Path)):
        embedder = load_embedder(embedder, device=lm.device)
    head = lm.head_kind((found[0][0].prompt + found[0][0].tokens)[:64])
    recipe = Recipe(
        model=lm.id,
        model_fingerprint=lm.fingerprint,
        vocabulary=lm.vocabulary,
        tokenizer_hash=lm.tokenizer_hash,
        embedder=embedder.id,
        embedder_hash=embedder.hash,
        context=context,
        window=window,
        end=end,
        wrong=wrong,
        prompt=prompt,
        values=_value_kind(values, head),
        head=head,
        dtype=_value_dtype(dtype, _value_kind(values, head)),
        computed=str(lm.dtype).removeprefix("torch."),
    )
    plan = _plan_hash(recipe, read)
    worker = Worker(lm, embedder, recipe)
    work = [batch for some in found for batch in batches(some)]
    if out is None:
        parts = [worker.entries(batch) for batch in _watched(work, end, progress)]
        return _space(worker, work, parts, read, plan)
    return _build_on_disk(Path(out), worker, work, read, plan, progress)


def _build_on_disk(
    folder: Path,
    worker: Worker,
    work: list[list[Passage]],
    examples: Sequence[Example],
    plan: str,
    progress: Progress | None,
) -> GroundingSpace:
    """Keep each finished batch in the folder of the build, and join them when all are there."""
    with claimed(folder) as building:
        kept = building / plan[:16]
        if (standing := _standing(folder, plan)) is not None:
            shutil.rmtree(kept, ignore_errors=True)
            return replace(standing, embedder=worker.embedder)
        kept.mkdir(exist_ok=True)
        parts = [
            worker.resume(batch, kept / f"{place:05d}.safetensors")
            for place, batch in enumerate(_watched(work, worker.recipe.end, progress))
        ]
        space = _space(worker, work, parts, examples, plan)
        commit(space, folder, building / "save")
        for begun in [path for path in building.iterdir() if path.is_dir()]:
            shutil.rmtree(begun)  # the lock is ours, so nobody works on these any more
        return replace(space, folder=folder)


def _standing(folder: Path, plan: str) -> GroundingSpace | None:
    """The space that stands there, if it is whole and made by this very plan."""
    try:
        return read_space(folder) if read_manifest(folder)["plan"] == plan else None
    except SpaceFormatError:  # none, unfinished or damaged: it is made anew
        return None


def _watched(
    work: list[list[Passage]], end: bool, progress: Progress | None
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


def _space(
    worker: Worker,
    work: list[list[Passage]],
    parts: list[Entries],
    examples: Sequence[Example],
    plan: str,
) -> GroundingSpace:
    """All parts together, truthful and wrong apart."""
    sets = [
        [part for batch, part in zip(work, parts, strict=True) if batch[0].is_wrong == kind]
        for kind in (False, True)
    ]
    return GroundingSpace(
        worker.recipe,
        _join(sets[0]),
        examples,
        plan,
        wrong=_join(sets[1]) if sets[1] else None,
        embedder=worker.embedder,
    )


def _join(parts: list[Entries]) -> Entries:
    """All entries in the order of example, answer, step, whatever the batches were."""
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Entries.__slots__
    }
    order = np.lexsort((arrays["steps"], arrays["answers"], arrays["examples"]))
    return Entries(**{name: array[order] for name, array in arrays.items()})


def _value_kind(values: Values, head: str) -> str:
    if values == "hidden" and head == "opaque":
        raise SettingError(
            "this model's head is of no known form: its hidden states do not give its logits; "
            "use values='auto' or 'logits'"
        )
    if values == "auto":
        return "logits" if head == "opaque" else "hidden"
    return values


def _value_dtype(dtype: Dtype, kind: str) -> str:
    """Half precision leaves the tokens as they are where states are kept (docs/speed.md)."""
    if dtype == "auto":
        return "float16" if kind == "hidden" else "float32"
    return dtype


def _plan_hash(recipe: Recipe, examples: Sequence[Example]) -> str:
    content = json.dumps([asdict(recipe), digest(examples), ROWS], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _check_settings(context: Context, window: str, values: str, dtype: str) -> None:
    if context != "full" and (not isinstance(context, int) or context < 1):
        raise SettingError(f"context is a number of tokens from 1 or 'full', got {context!r}")
    if window not in ("all", "answer"):
        raise SettingError(f"window must be all or answer, got {window!r}")
    if values not in ("auto", "hidden", "logits"):
        raise SettingError(f"values must be auto, hidden or logits, got {values!r}")
    if dtype not in ("auto", "float32", "float16"):
        raise SettingError(f"dtype must be auto, float32 or float16, got {dtype!r}")
