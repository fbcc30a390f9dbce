"""Examples in, a grounding space out: batched by length, and resumed where a kill left it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from trueline.errors import ExampleError, SettingError, SpaceError
from trueline.examples import digest, read_examples
from trueline.models.embedder import Embedder, load_embedder
from trueline.models.language import LanguageModel
from trueline.models.reading import Reading
from trueline.prompts import Prompt
from trueline.records import Example
from trueline.space.space import Array, Entries, GroundingSpace, Recipe
from trueline.space.storage import (
    BUILDING,
    check_target,
    read_manifest,
    read_space,
    write_space,
)
from trueline.space.windows import Context, Window, text_hash, window_tokens

Progress = Callable[[int, int], None]  # entries done, entries in all
Values = Literal["auto", "hidden", "logits"]

_ROWS = 32  # answers in one pass


@dataclass(frozen=True, slots=True)
class _Passage:
    """One answer of one example, as tokens."""

    example: int
    answer: int
    prompt: list[int]
    tokens: list[int]


def build(
    lm: LanguageModel,
    examples: str | Path | Sequence[Example],
    *,
    context: Context = 8,
    window: Window = "all",
    end: bool = False,
    prompt: Prompt | None = None,
    embedder: str | Path | Embedder = "all-minilm-l6-v2",
    values: Values = "auto",
    dtype: Literal["float32", "float16"] = "float32",
    out: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> GroundingSpace:
    """Run the model over every truthful answer and keep what it predicts at each token.

    With `out` the space is also written there as it grows: killed at any moment, the same call
    resumes, and the bytes are those of a build that was never interrupted.
    """
    _check_settings(context, window, values, dtype)
    prompt = prompt or Prompt()
    read = read_examples(examples, columns=columns, separator=separator, limit=limit)
    passages = list(_passages(lm, read, prompt))
    if isinstance(embedder, (str, Path)):
        embedder = load_embedder(embedder, device=lm.device)
    head = lm.head_kind((passages[0].prompt + passages[0].tokens)[:64])
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
        prompt=prompt,
        values=_value_kind(values, head),
        head=head,
        dtype=dtype,
    )
    plan = _plan_hash(recipe, read)
    worker = _Worker(lm, embedder, recipe)
    batches = _batches(passages)
    if out is None:
        parts = [worker.entries(batch) for batch in _watched(batches, end, progress)]
        return GroundingSpace(recipe, _join(parts), read, plan, embedder=embedder)
    return _build_on_disk(Path(out), worker, batches, read, plan, progress)


def _build_on_disk(
    folder: Path,
    worker: _Worker,
    batches: list[list[_Passage]],
    examples: Sequence[Example],
    plan: str,
    progress: Progress | None,
) -> GroundingSpace:
    """Keep each finished batch in the folder of the build, and join them when all are there."""
    check_target(folder)
    if (folder / "manifest.json").exists() and read_manifest(folder)["plan"] == plan:
        shutil.rmtree(folder / BUILDING, ignore_errors=True)
        return read_space(folder)
    try:
        with _locked(folder / BUILDING):
            work = folder / BUILDING / plan[:16]
            work.mkdir(exist_ok=True)
            parts = [
                worker.resume(batch, work / f"{place:05d}.safetensors")
                for place, batch in enumerate(_watched(batches, worker.recipe.end, progress))
            ]
            space = GroundingSpace(
                worker.recipe, _join(parts), examples, plan, embedder=worker.embedder
            )
            space = write_space(space, folder)
            shutil.rmtree(folder / BUILDING)
            return space
    except OSError as error:
        raise SpaceError(
            f"the build stopped in {folder} ({error.strerror or error}); what was finished is "
            "kept there, and the same command goes on from it"
        ) from error


class _Worker:
    """Turns batches of passages into entries."""

    def __init__(self, lm: LanguageModel, embedder: Embedder, recipe: Recipe) -> None:
        self.lm, self.embedder, self.recipe = lm, embedder, recipe

    def resume(self, batch: list[_Passage], path: Path) -> Entries:
        """The entries of a batch, from its file if a build before this one finished it."""
        try:
            return Entries(**load_file(path))
        except (OSError, SafetensorError, TypeError):  # not there, or cut short: make it again
            entries = self.entries(batch)
        scratch = path.with_suffix(".tmp")
        save_file(entries.arrays(), scratch)
        os.replace(scratch, path)
        return entries

    def entries(self, batch: list[_Passage]) -> Entries:
        """One entry for every token of every answer; each prompt is read once."""
        places = [_length(passage, self.recipe.end) for passage in batch]
        texts, facts = [], []
        for passage, length in zip(batch, places):
            tokens = passage.prompt + passage.tokens
            for step in range(length):
                start = len(passage.prompt)
                seen = tokens[: start + step]
                texts.append(
                    window_tokens(seen, start, self.recipe.context, self.recipe.window)
                )
                nextone = passage.tokens[step] if step < len(passage.tokens) else self._end
                facts.append((nextone, passage.example, passage.answer, step))
        windows = self.lm.decode_all(texts)
        table = np.array(facts, np.int32)  # (entries, 4)
        return Entries(
            keys=self._keys(windows),
            values=self._values(batch, places),
            tokens=table[:, 0].copy(),
            examples=table[:, 1].copy(),
            answers=table[:, 2].copy(),
            steps=table[:, 3].copy(),
            windows=np.array([text_hash(text) for text in windows], np.int64),
        )

    @property
    def _end(self) -> int:
        token = self.lm.tokenizer.eos_token_id
        return min(self.lm.stop_ids, default=-1) if token is None else int(token)

    def _keys(self, windows: list[str]) -> Array:
        distinct = list(dict.fromkeys(windows))
        vectors = self.embedder.embed(distinct).cpu().numpy().astype(self.recipe.dtype)
        row = {text: place for place, text in enumerate(distinct)}
        keys: Array = vectors[[row[text] for text in windows]]  # (entries, dimension)
        return keys

    @torch.no_grad()
    def _values(self, batch: list[_Passage], lengths: list[int]) -> Array:
        prompts: list[list[int]] = []
        rows = []
        for _, group in groupby(batch, key=lambda passage: passage.example):
            answers = list(group)
            rows += [len(prompts)] * len(answers)
            prompts.append(answers[0].prompt)
        reading = Reading(self.lm, prompts)
        reading.select(rows)
        hidden, logits = reading.finish(
            [passage.tokens[: length - 1] for passage, length in zip(batch, lengths)]
        )
        states = logits if hidden is None else hidden
        assert states is not None
        kept = torch.cat([row[:length] for row, length in zip(states, lengths)])
        if self.recipe.values == "logits" and hidden is not None and self.lm.head is not None:
            kept = self.lm.head(kept)
        values: Array = kept.float().cpu().numpy().astype(self.recipe.dtype)
        if not np.isfinite(values).all():
            raise SettingError(
                f"some values do not fit into {self.recipe.dtype}; build with dtype='float32'"
            )
        return values


def _passages(
    lm: LanguageModel, examples: Sequence[Example], prompt: Prompt
) -> Iterator[_Passage]:
    """Every distinct answer as tokens; all that are too long for the model are named at once."""
    limit = getattr(lm.model.config.get_text_config(), "max_position_embeddings", None)
    problems = []
    for place, example in enumerate(examples):
        tokens = prompt.encode(example.question, lm.tokenizer)
        for number, answer in enumerate(example.answers):
            reply = prompt.encode_answer(example.question, answer, lm.tokenizer)
            if limit and len(tokens) + len(reply) > limit:
                problems.append(f"  example {example.id}: {len(tokens) + len(reply)} tokens")
            yield _Passage(place, number, tokens, reply)
    if problems:
        raise ExampleError(
            f"{lm.id} reads at most {limit} tokens; longer are:\n" + "\n".join(problems)
        )


def _batches(passages: list[_Passage]) -> list[list[_Passage]]:
    """Passages of like length together, the answers of one question side by side."""
    groups = [list(group) for _, group in groupby(passages, key=lambda item: item.example)]
    groups.sort(key=lambda group: len(group[0].prompt))  # stable: ties keep their order
    batches: list[list[_Passage]] = []
    for group in groups:
        for start in range(0, len(group), _ROWS):
            some = group[start : start + _ROWS]
            if batches and len(batches[-1]) + len(some) <= _ROWS:
                batches[-1] += some
            else:
                batches.append(some)
    return batches


def _length(passage: _Passage, end: bool) -> int:
    return len(passage.tokens) + end


def _watched(
    batches: list[list[_Passage]], end: bool, progress: Progress | None
) -> Iterator[list[_Passage]]:
    """Hand out the batches and say after each how many entries are done."""
    sizes = [sum(_length(passage, end) for passage in batch) for batch in batches]
    done, total = 0, sum(sizes)
    for batch, size in zip(batches, sizes):
        if progress:
            progress(done, total)
        yield batch
        done += size
    if progress:
        progress(done, total)


def _join(parts: Iterable[Entries]) -> Entries:
    """All entries in the order of example, answer, step, whatever the batches were."""
    parts = list(parts)
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Entries.__slots__
    }
    order = np.lexsort((arrays["steps"], arrays["answers"], arrays["examples"]))
    return Entries(**{name: array[order] for name, array in arrays.items()})


def _value_kind(values: Values, head: str) -> str:
    if values == "hidden" and head == "opaque":
        raise SettingError(
            "this model's head is of no known form, so its hidden states do not give its logits; "
            "use values='auto' or 'logits'"
        )
    if values == "auto":
        return "logits" if head == "opaque" else "hidden"
    return values


def _plan_hash(recipe: Recipe, examples: Sequence[Example]) -> str:
    content = json.dumps([asdict(recipe), digest(examples), _ROWS], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _check_settings(context: Context, window: str, values: str, dtype: str) -> None:
    if context != "full" and (not isinstance(context, int) or context < 1):
        raise SettingError(f"context is a number of tokens from 1 or 'full', got {context!r}")
    if window not in ("all", "answer"):
        raise SettingError(f"window must be all or answer, got {window!r}")
    if values not in ("auto", "hidden", "logits"):
        raise SettingError(f"values must be auto, hidden or logits, got {values!r}")
    if dtype not in ("float32", "float16"):
        raise SettingError(f"dtype must be float32 or float16, got {dtype!r}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder of a build; the lock goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise SpaceError(
            f"another build is writing to {folder.parent}; wait for it or name another folder"
        ) from error
