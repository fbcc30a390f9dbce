"""A space with entries and a model of another engine in; out: whether they agree on states.

The entries of RAD are states of the model that built them. The same weights give nearly the
same states in another engine, also where they are packed into fewer bits; others do not.
"""

from __future__ import annotations

import numpy as np

from trueline.engines.base import Engine
from trueline.errors import SpaceMismatchError
from trueline.space.content import Content
from trueline.space.passages import ROWS, Passage, passages
from trueline.space.segment import Array
from trueline.space.worker import passage_length, read_values

# The mean cosine that is asked for. SmolLM2-135M in transformers and the same 4-bit weights in
# llama.cpp have 0.9995; weights with noise of 2 % of their own deviation have 0.997, with 5 %
# 0.977, where one best token in five is another (benchmarks/engine_agreement.py).
LEAST = 0.99
_EXAMPLES = 16  # of these, the first answers that one pass takes are read again


def is_of_another_engine(space: Content, lm: Engine) -> bool:
    """Whether the entries may be the model's own after all: one of the two is a GGUF file."""
    prints = (space.recipe.model_fingerprint, lm.fingerprint)
    return prints[0] != prints[1] and any(name.startswith("gguf-") for name in prints)


def agreement(space: Content, lm: Engine) -> float:
    """The mean cosine of the stored values and the model's own; 0 where its tokens differ."""
    first = list(passages(lm, space.examples[:_EXAMPLES], space.recipe.prompt, wrong=False))
    batch = first[:ROWS]
    lengths = [passage_length(passage, space.recipe.end) for passage in batch]
    stored = [_stored(space, passage) for passage in batch]
    if lm.vocabulary != space.recipe.vocabulary or any(one is None for one in stored):
        return 0.0
    theirs = np.concatenate([one for one in stored if one is not None])
    own = read_values(lm, space.recipe, batch, lengths).astype(np.float32)
    if own.shape != theirs.shape:
        return 0.0
    norms = np.linalg.norm(own, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((own * theirs).sum(1) / norms).mean())


def check_agreement(space: Content, lm: Engine, found: float) -> None:
    """Refuse a model whose states are not those of the entries."""
    if found >= LEAST:
        return
    recipe = space.recipe
    raise SpaceMismatchError(
        f"the space was built with the model {recipe.model} in another engine, and the states "
        f"of {lm.id} are not those of its entries: their mean cosine on the space's own "
        f"answers is {found:.3f}, and {LEAST} is needed; build it anew with `trueline build "
        f"--model {lm.id} --context {recipe.context}` and the engine you ask with"
    )


def _stored(space: Content, passage: Passage) -> Array | None:
    """The values that stand for an answer; None where it was cut into other tokens."""
    entries = space.entries
    is_own = (entries.examples == passage.example) & (entries.answers == passage.answer)
    rows = np.flatnonzero(is_own)
    rows = rows[np.argsort(entries.steps[rows], kind="stable")]
    tokens = entries.tokens[rows][: len(passage.tokens)].tolist()
    if tokens != passage.tokens or len(rows) != passage_length(passage, space.recipe.end):
        return None
    return entries.values[rows].astype(np.float32)
