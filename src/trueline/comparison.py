"""Methods and questions in, their answers side by side out, with what each cost and changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from trueline.decoders.base import Decoder
from trueline.engines.base import Engine
from trueline.errors import SettingError
from trueline.generation import generate
from trueline.records import Answer

_REFERENCE = "greedy"


@dataclass(frozen=True, slots=True)
class Compared:
    """One method over all questions."""

    name: str
    answers: list[Answer]
    seconds: float
    changed: float | None  # share of tokens that differ from greedy's, over all questions
    diverges: list[int | None]  # where each answer first differs from greedy's; None: nowhere

    @property
    def tokens_per_second(self) -> float:
        """How fast its answers came, prompts included."""
        return sum(len(answer.token_ids) for answer in self.answers) / self.seconds

    @property
    def did_nothing(self) -> bool:
        """Whether every answer is greedy's own."""
        return self.changed == 0.0


def compare(
    lm: Engine,
    methods: Mapping[str, Decoder] | Sequence[Decoder],
    questions: Sequence[str],
    *,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> dict[str, Compared]:
    """Answer every question with every method, timed; what changed is counted against greedy.

    Methods come as a list, or under names of one's own. `options` are those of `generate`.
    """
    named = methods if isinstance(methods, Mapping) else {m.name: m for m in methods}
    if not isinstance(methods, Mapping) and len(named) < len(methods):
        raise SettingError("two methods have one name; give them as {name: method}")
    if isinstance(questions, str) or not questions:
        raise SettingError(f"questions must be a list of one or more, got {questions!r}")
    found = {}
    for name, method in named.items():
        tell = None if progress is None else _teller(progress, name)
        generate(
            lm, method, questions[0], **{**options, "max_new_tokens": 1}
        )  # opens what it needs
        begun = perf_counter()
        answers = generate(lm, method, list(questions), progress=tell, **options)
        found[name] = (answers, perf_counter() - begun)
    plain = found[_REFERENCE][0] if _REFERENCE in found else None
    return {name: _compared(name, *run, plain) for name, run in found.items()}


def _compared(
    name: str, answers: list[Answer], seconds: float, plain: list[Answer] | None
) -> Compared:
    if plain is None:
        return Compared(name, answers, seconds, None, [None] * len(answers))
    pairs = [(a.token_ids, b.token_ids) for a, b in zip(answers, plain, strict=True)]
    longest = sum(max(len(one), len(other)) for one, other in pairs)
    same = sum(a == b for one, other in pairs for a, b in zip(one, other, strict=False))
    diverges = [divergence(one, other) for one, other in pairs]
    return Compared(name, answers, seconds, 1 - same / longest, diverges)


def divergence(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two token lists differ, from 0; None if they are equal."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def _teller(progress: Callable[[str, int, int], None], name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(name, done, total)
