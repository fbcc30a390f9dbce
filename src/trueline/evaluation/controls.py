"""Variants and grounding examples -> their controls: the same run with the truth taken out.

A gain that a control has too does not come from what the examples say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from trueline.decoders import built_in_names, method_class
from trueline.evaluation.plan import BuildOptions, Control, Variant
from trueline.records import Example

_OFF = 3  # by how much the wrong answers of sums are wrong


def with_controls(
    variants: Sequence[Variant], build_of: Callable[[str], BuildOptions | None]
) -> list[Variant]:
    """The variants, each with its controls behind it, then what a user would do instead.

    What is swept has no controls of its own: name a value as a variant to have them.
    `build_of` says how the space of a method is built.
    """
    found: list[Variant] = []
    for variant in variants:
        found += [variant, *(() if variant.is_swept else controls_of(variant))]
    if not any(variant.build is not None for variant in variants):
        return found
    known = [(variant.method, dict(variant.settings)) for variant in variants]
    for name in built_in_names():
        for settings in method_class(name).instead:
            if (name, dict(settings)) not in known:
                found.append(Variant(name, settings, build_of(name), is_instead=True))
    return found


def controls_of(variant: Variant) -> list[Variant]:
    """The controls of one variant; none for a method without a space."""
    if variant.build is None:
        return []
    of_examples = (Control.SHUFFLED, Control.WRONG, Control.UNRELATED)
    found = [replace(variant, control=control) for control in of_examples]
    past = method_class(variant.method).settings_past_boundary(variant.build.context)
    if past is not None:
        settings = {**variant.settings, **past}
        found.append(replace(variant, settings=settings, control=Control.BOUNDARY))
    return found


def controlled_examples(
    ground: Sequence[Example], control: Control | None
) -> tuple[Example, ...]:
    """The examples a control is grounded in; empty where it cannot be had of these.

    Wrong answers change places with the truthful ones, which stand as the wrong ones: a method
    that goes by other rules where an example has no wrong answer, as scope does, then goes by
    the rules of the real run.
    """
    if control is Control.SHUFFLED:
        return _shuffled(ground) if len(ground) > 1 else ()
    if control is Control.WRONG:
        return tuple(
            replace(one, answers=one.wrong_answers, wrong_answers=one.answers)
            for one in ground
            if one.wrong_answers
        )
    if control is Control.UNRELATED:
        return tuple(unrelated_examples(len(ground)))
    return tuple(ground)


def _shuffled(ground: Sequence[Example]) -> tuple[Example, ...]:
    """Every question with the answers of another, half the list away: neighbors are alike."""
    apart = len(ground) // 2
    others = [*ground[apart:], *ground[:apart]]
    return tuple(
        replace(one, answers=other.answers, wrong_answers=other.wrong_answers)
        for one, other in zip(ground, others, strict=True)
    )


def unrelated_examples(count: int) -> Iterator[Example]:
    """True sentences on sums of two numbers, which no benchmark here asks about."""
    for number in range(count):
        a, b = 11 + 7 * number, 23 + 5 * number
        texts = [
            f"If you add {a} and {b}, the sum that you get is {total}."
            for total in (a + b, a + b + _OFF)
        ]
        question = f"What do you get if you add {a} and {b}?"
        yield Example(question, texts[0], texts[1], f"unrelated-{number + 1}")
