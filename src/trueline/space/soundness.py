"""A segment in, its first flaw out: wrong arrays, numbers out of range, bad vectors or values.

Forms and whole numbers are a hundredth of a segment and are checked whenever one is opened.
Vectors and values are nearly all of it; those of a large segment are checked by `verify`. That
they are numbers is checked before any answer: of keys when they are first searched, of values
where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trueline.space.content import Recipe
from trueline.space.segment import QUESTIONS, VECTORS, Array, Entries, Part, Segment

LARGEST = 1e30  # no hidden state or logit is larger; sums of such numbers are still numbers
_BLOCK = 1 << 22  # bytes of an array that are checked at once
_COLUMNS = dict.fromkeys(("tokens", "examples", "answers", "steps"), "int32")
_COLUMNS["windows"] = "int64"


def form_flaw(segment: Segment, recipe: Recipe) -> str:
    """Say which array is missing, unexpected, or of a wrong type or shape; "" if none is."""
    if set(segment.vectors) != set(VECTORS):
        return f"it holds the vectors {sorted(segment.vectors)}, not {', '.join(VECTORS)}"
    wanted = {"entries"} if recipe.context is not None else set()
    sets = set(segment.sets())
    if not wanted <= sets or (sets - wanted and not (wanted and recipe.wrong)):
        return f"it holds the sets {sorted(sets)}, which its recipe does not make"
    count = len(segment.examples)
    for name, vectors in segment.vectors.items():
        if not _is_matrix(vectors, "float16", count):
            return f"the vectors of {name} are {_said(vectors)}"
    if len({vectors.shape for vectors in segment.vectors.values()}) > 1:
        return "its vectors are of different lengths"
    for kind, entries in segment.sets().items():
        if flaw := _entries_form(entries, recipe, segment.vectors[QUESTIONS].shape[1]):
            return f"the {kind}: {flaw}"
    return ""


def number_flaw(segment: Segment, recipe: Recipe) -> str:
    """Say which whole numbers of the entries are out of range or order; "" if none are."""
    for kind, entries in segment.sets().items():
        if not len(entries):
            continue
        least = -1 if recipe.end else 0  # an end without a token of its own
        if not _lie_in(entries.tokens, least, recipe.vocabulary):
            return f"the {kind} have a token that the model does not have"
        if not _lie_in(entries.examples, 0, len(segment.examples)):
            return f"the {kind} name an example that is not there"
        answers = [
            len(one.wrong_answers if kind == "wrong" else one.answers)
            for one in segment.examples
        ]
        most = np.array(answers, np.int64)[entries.examples]
        if not ((entries.answers >= 0) & (entries.answers < most)).all():
            return f"the {kind} name an answer that is not there"
        if not _are_in_order(entries):
            return f"the {kind} are not sorted by example, answer and step"
    return ""


def vector_flaw(segment: Segment, recipe: Recipe) -> str:
    """Say which vectors are not of unit length, or values not finite; "" if none are."""
    for name, vectors in segment.vectors.items():
        if not _are_unit(vectors):
            return f"some vectors of {name} are not of unit length"
    for kind, entries in segment.sets().items():
        if not _are_unit(entries.keys):
            return f"some keys of the {kind} are not of unit length"
        least = -LARGEST if recipe.values == "hidden" else float(np.finfo(np.float32).min)
        if not all(_lie_between(block, least) for block in row_blocks(entries.values)):
            return f"some values of the {kind} are not finite, or larger than any are"
    return ""


def join_flaw(parts: Sequence[Part]) -> str:
    """Say why some parts cannot be those of one space; "" if they can."""
    if not parts:
        return "it holds no segment"
    if any(not part.removed <= part.segment.numbers.keys() for part in parts):
        return "an example is removed that was never there"
    if not all(map(len, parts)):
        return "nothing is left of a segment"
    ids = [example.id for part in parts for example in part.examples]
    if len(set(ids)) != len(ids):
        return "two examples have one id"
    widths = {
        tuple((name, array.shape[1]) for name, array in sorted(part.segment.vectors.items()))
        for part in parts
    }
    sets = [each for part in parts for each in part.segment.sets().values()]
    if len(widths) > 1 or len({each.values.shape[1] for each in sets}) > 1:
        return "its segments have vectors or values of different lengths"
    return ""


def _entries_form(entries: Entries, recipe: Recipe, dimension: int) -> str:
    count, arrays = len(entries), entries.arrays()
    for name in ("keys", "values"):
        if not _is_matrix(arrays[name], recipe.dtype, count):
            return f"{name} are {_said(arrays[name])}"
    for name, dtype in _COLUMNS.items():
        if arrays[name].shape != (count,) or arrays[name].dtype != dtype:
            return f"{name} are {_said(arrays[name])}"
    if entries.keys.shape[1] != dimension:
        return f"keys have {entries.keys.shape[1]} numbers, vectors {dimension}"
    width = entries.values.shape[1]
    if recipe.values == "logits" and width != recipe.vocabulary:
        return f"values have {width} logits, the model has {recipe.vocabulary}"
    return ""


def _is_matrix(array: Array, dtype: str, rows: int) -> bool:
    return (
        array.dtype == dtype and array.ndim == 2 and len(array) == rows and array.shape[1] > 0
    )


def _said(array: Array) -> str:
    return f"{array.dtype} of the shape {array.shape}, which they cannot be"


def _lie_in(numbers: Array, low: int, end: int) -> bool:
    return bool(low <= numbers.min() and numbers.max() < end)


def _are_in_order(entries: Entries) -> bool:
    """Whether every answer's entries follow each other, its steps counted from 0."""
    examples, answers, steps = entries.examples, entries.answers, entries.steps
    is_next = examples[1:] > examples[:-1]
    is_same = examples[1:] == examples[:-1]
    is_next |= is_same & (answers[1:] > answers[:-1])
    is_same &= answers[1:] == answers[:-1]
    wanted = np.where(is_same, steps[:-1] + 1, 0)
    return bool(steps[0] == 0 and (is_same | is_next).all() and (steps[1:] == wanted).all())


def row_blocks(array: Array) -> Iterator[Array]:
    """The rows of an array, a few megabytes at a time."""
    rows = max(1, _BLOCK // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def _are_unit(vectors: Array) -> bool:
    """Whether every row has length 1, or 0 where the embedder knew no word."""
    for block in row_blocks(vectors):
        wide = np.asarray(block, np.float32)
        squares = np.einsum("ij,ij->i", wide, wide)
        if not np.all((np.abs(squares - 1) < 2e-3) | (squares == 0)):
            return False
    return True


def _lie_between(values: Array, least: float) -> bool:
    """Whether all values are numbers that can be computed with; comparing finds NaN too."""
    if values.dtype == np.float16:  # none is too large, and comparing is seven times slower
        return bool(np.isfinite(values).all())
    return least <= float(values.min()) and float(values.max()) <= LARGEST
