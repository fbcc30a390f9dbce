"""The parts of spaces in, the parts after an edit out; refuses what cannot be done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from trueline.errors import ExampleError, SpaceError, SpaceMismatchError
from trueline.examples import content_hash
from trueline.space.content import Content
from trueline.space.segment import Part, join_parts
from trueline.types import Example

_LISTED = 10  # ids that an error lists


def check_new(space: Content, examples: Sequence[Example]) -> None:
    """Refuse examples whose ids are taken."""
    taken = [example for example in examples if example.id in space]
    if not taken:
        return
    equal = sum(_is_equal(space, example) for example in taken)
    raise ExampleError(
        f"the space already holds {_listed([one.id for one in taken])} ({equal} of these "
        f"{len(taken)} with this very content); nothing was added; change what is there with "
        "space.replace(...) (`trueline add --replace`), or leave these out"
    )


def check_known(space: Content, ids: Sequence[str], advice: str = "") -> None:
    """Refuse ids that no example has, with names near to them."""
    if unknown := [id for id in dict.fromkeys(ids) if id not in space]:
        known = [example.id for example in space.examples]
        near = [name for id in unknown[:_LISTED] for name in get_close_matches(id, known)]
        raise ExampleError(
            f"no example of the space has the id {_listed(unknown)}; nothing was changed; near "
            f"names: {_listed([*dict.fromkeys(near)]) or 'none'}{advice}"
        )


def changed_examples(space: Content, examples: Sequence[Example]) -> list[Example]:
    """Those of the examples whose content differs from what the space holds under their id."""
    return [example for example in examples if not _is_equal(space, example)]


def parts_without(space: Content, ids: Iterable[str]) -> list[Part]:
    """The parts of a space parts_without some of its examples."""
    gone = frozenset(ids)
    parts = [part.without(gone) for part in space.parts]
    if not any(len(part) for part in parts):
        raise SpaceError(
            "nothing would be left, and a space holds one example at least; nothing was "
            "changed; add others first, or delete its folder"
        )
    return parts


def merged(one: Content, other: Content) -> list[Part]:
    """The parts of both; an example that both hold, with the same content, is kept once."""
    if differing := one.recipe.differences(other.recipe):
        values = "; ".join(
            f"{name} {getattr(one.recipe, name)!r} and {getattr(other.recipe, name)!r}"
            for name in differing
        )
        raise SpaceMismatchError(
            f"the two spaces were not made alike: {values}; build one of them anew with the "
            "settings of the other (`trueline info` lists them)"
        )
    shared = [example for example in other.examples if example.id in one]
    if unlike := [example.id for example in shared if not _is_equal(one, example)]:
        raise ExampleError(
            f"the two spaces hold different examples under one id: {_listed(unlike)}; rename "
            "or remove them in one of the two, then merge again"
        )
    twice = frozenset(example.id for example in shared)
    return [*one.parts, *(part.without(twice) for part in other.parts)]


def is_compact(space: Content) -> bool:
    """Whether there is nothing to gather and nothing to drop."""
    return len(space.parts) == 1 and not space.parts[0].removed


def compacted(space: Content) -> list[Part]:
    """One part of all that is left."""
    return [Part(join_parts(space.parts))]


def _is_equal(space: Content, example: Example) -> bool:
    return content_hash(space.example(example.id)) == content_hash(example)


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    return ", ".join(map(repr, ids[:_LISTED])) + more
