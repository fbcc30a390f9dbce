"""Methods and questions in, their answers side by side out, with what each cost and changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from trueline.decoders import PLAIN
from trueline.decoders.base import Decoder
from trueline.engines.base import Engine
from trueline.errors import SettingError
from trueline.explain.difference import first_difference
from trueline.generation import answer_all
from trueline.records import Answer, GenerateOptions, several
from trueline.requests import check_method
from trueline.visible import shown


@dataclass(frozen=True, slots=True)
class Compared:
    """One method over all questions."""

    name: str
    answers: list[Answer]
    seconds: float
    changed: float | None  # share of tokens that differ from the plain model's, in all answers
    diverges: list[int | None]  # the first token of each answer that differs; None: none does

    @property
    def tokens_per_second(self) -> float:
        """How fast its answers came, prompts included."""
        return sum(len(answer.token_ids) for answer in self.answers) / self.seconds

    @property
    def did_nothing(self) -> bool:
        """Whether every answer is the plain model's own."""
        return self.changed == 0.0


def compare(
    lm: Engine,
    methods: Mapping[str, Decoder] | Sequence[Decoder],
    questions: Sequence[str],
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Sequence[int] = (),
    batch_size: int = 16,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Compared]:
    """Answer every question with every method, timed; changes are counted against greedy.

    Methods come as a list, or under names of one's own.
    """
    named = _named(methods)
    asked = several(questions)
    if not isinstance(asked, tuple) or not asked:
        raise SettingError(f"questions must be a list of one or more, got {shown(questions)}")
    options = GenerateOptions(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=several(stop),
        stop_ids=several(stop_ids),
    )
    for method in named.values():
        check_method(method, lm)  # all of them before the first answers
    found = {}
    for name, method in named.items():
        answer_all(lm, method, asked[:1], replace(options, max_new_tokens=1))  # warms up
        begun = perf_counter()
        answers = answer_all(
            lm,
            method,
            asked,
            options,
            batch_size=batch_size,
            progress=None if progress is None else _under(progress, name),
        )
        found[name] = (answers, perf_counter() - begun)
    plain = found[PLAIN][0] if PLAIN in found else None
    return {name: _compared(name, *run, plain) for name, run in found.items()}


def _named(methods: Mapping[str, Decoder] | Sequence[Decoder]) -> Mapping[str, Decoder]:
    if isinstance(methods, Mapping):
        return methods
    given = several(methods)
    if not isinstance(given, tuple) or not all(isinstance(one, Decoder) for one in given):
        raise SettingError(
            f"methods must be a list such as [tl.Greedy(), tl.RAD(space)], got {shown(methods)}"
        )
    named = {method.name: method for method in given}
    if len(named) < len(given):
        raise SettingError("two methods have one name; give them as {name: method}")
    return named


def _compared(
    name: str, answers: list[Answer], seconds: float, plain: list[Answer] | None
) -> Compared:
    if plain is None:
        return Compared(name, answers, seconds, None, [None] * len(answers))
    pairs = [(a.token_ids, b.token_ids) for a, b in zip(answers, plain, strict=True)]
    longest = sum(max(len(one), len(other)) for one, other in pairs)
    same = sum(a == b for one, other in pairs for a, b in zip(one, other, strict=False))
    diverges = [first_difference(one, other) for one, other in pairs]
    return Compared(name, answers, seconds, 1 - same / longest, diverges)


def _under(progress: Callable[[str, int, int], None], name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(name, done, total)
