"""Which entries count: strictly above tau, all of them, exact matches by name."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trueline.errors import SpaceMismatchError
from trueline.prompts import Prompt
from trueline.space.content import Content, Recipe
from trueline.space.segment import Entries, Part, Segment
from trueline.space.space import space_of as space_of_content
from trueline.space.windows import window_hash, window_tokens
from trueline.types import Example


class Compass:
    """An embedder of the plane: a text names an angle in degrees."""

    id, hash, dimension = "compass", "north", 2

    def embed(self, texts):
        angles = torch.tensor([float(text.strip()) for text in texts]).deg2rad()
        return torch.stack([angles.cos(), angles.sin()], 1)


def space_of(angles, *, values=None, embedder_hash="north", **recipe):
    count = len(angles)
    keys = Compass().embed([str(angle) for angle in angles]).numpy()
    kept = np.eye(count, dtype=np.float32) if values is None else np.asarray(values, np.float32)
    zeros = np.zeros(count, np.int32)
    entries = Entries(
        keys,
        kept,
        zeros,
        np.arange(count, dtype=np.int32),
        zeros,
        zeros,
        np.array([window_hash(str(angle)) for angle in angles], np.int64),
    )
    settings = dict(
        model="none",
        model_fingerprint="",
        vocabulary=kept.shape[1],
        tokenizer_hash="",
        embedder="compass",
        embedder_hash=embedder_hash,
        context=8,
        window="all",
        end=False,
        wrong=False,
        prompt=Prompt(),
        values="logits",
        head="opaque",
        dtype="float32",
        computed="float32",
    )
    examples = [Example(f"{angle}?", f"{angle}.", id=str(n)) for n, angle in enumerate(angles)]
    segment = Segment(examples, {"questions": np.zeros((count, 2), np.float16)}, entries)
    content = Content(Recipe(**{**settings, **recipe}), (Part(segment),))
    return space_of_content(content, embedder=Compass())


def retriever_of(angles):
    return space_of(angles).retriever("cpu")


def with_arrays(space, **changes):
    """The space with other fields of its one segment, such as entries=... or wrong=..."""
    (part,) = space.parts
    recipe = replace(space.recipe, wrong=space.recipe.wrong or "wrong" in changes)
    segment = replace(part.segment, records={}, **changes)
    return replace(space, recipe=recipe, parts=(Part(segment),))


def above(angles, queries, **options):
    retriever, texts = retriever_of(angles), [str(query) for query in queries]
    return retriever.above(retriever.embed(texts), texts, **options)


def found(angles, query, **options):
    hits = above(angles, [query], **options)
    return hits.entries.tolist()


def test_every_entry_above_tau_is_taken():
    assert found([0, 10, 20, 80, 170], 0, tau=0.5) == [0, 1, 2]


def test_there_is_no_cap_on_the_number_of_entries():
    assert len(found([0.001 * n for n in range(3000)], 0, tau=0.9)) == 3000


def test_tau_itself_is_not_above_tau():
    cosine = float(Compass().embed(["0"])[0] @ Compass().embed(["60"])[0])
    assert found([60], 0, tau=cosine) == []
    assert found([60], 0, tau=np.nextafter(np.float32(cosine), np.float32(0))) == [0]


def test_nothing_is_above_one_even_if_rounding_says_so():
    keys = [angle / 7 for angle in range(0, 2500, 3)]
    for angle in keys:
        assert found([angle], angle, tau=1.0) == []


def test_opposite_contexts_have_a_cosine_of_minus_one():
    hits = above([180], [0], tau=-1.5)
    assert hits.similarities.tolist() == pytest.approx([-1.0])


def test_exact_matches_can_be_left_out_or_taken_alone():
    angles = [0, 0, 5, 10]
    assert found(angles, 0, tau=0.9, matches="without") == [2, 3]
    assert found(angles, 0, tau=0.9, matches="only") == [0, 1]


def test_each_window_of_a_batch_gets_its_own_hits():
    hits = above([0, 90], [0, 45, 90], tau=0.6)
    assert list(zip(hits.rows.tolist(), hits.entries.tolist())) == [
        (0, 0),
        (1, 0),
        (1, 1),
        (2, 1),
    ]
    assert hits.count(3).tolist() == [1, 2, 1]


def test_another_embedder_is_refused_with_both_names():
    with pytest.raises(SpaceMismatchError, match=r"embedder compass .*this is compass"):
        space_of([0], embedder_hash="south").open_embedder("cpu")


@given(st.lists(st.integers(0, 359), min_size=1, max_size=30), st.floats(-0.99, 0.99))
def test_the_hits_are_exactly_those_a_loop_finds(angles, tau):
    query = Compass().embed(["0"])[0]
    wanted = []
    for n, angle in enumerate(angles):
        cosine = float(query @ Compass().embed([str(angle)])[0])
        if abs(cosine - tau) < 1e-6:
            return  # on the edge the two may round differently
        if cosine > tau:
            wanted.append(n)
    assert found(angles, 0, tau=tau) == wanted


@pytest.mark.parametrize(
    ("context", "window", "wanted"),
    [
        (2, "all", [4, 5]),
        (8, "all", [1, 2, 3, 4, 5]),
        ("full", "all", [1, 2, 3, 4, 5]),
        (8, "answer", [4, 5]),
        (1, "answer", [5]),
        ("full", "answer", [4, 5]),
    ],
)
def test_a_window_is_the_last_tokens_and_may_keep_out_the_prompt(context, window, wanted):
    assert window_tokens([1, 2, 3, 4, 5], 3, context, window) == wanted
