"""Examples in, batches of answers out: each answer as tokens, like lengths together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from trueline.engines.base import Engine
from trueline.errors import ExampleError
from trueline.prompts import Prompt
from trueline.types import Example

ROWS = 32  # answers in one pass


@dataclass(frozen=True, slots=True)
class Passage:
    """One answer of one example, as tokens."""

    example: int
    answer: int
    prompt: list[int]
    tokens: list[int]
    is_wrong: bool


def passages(
    lm: Engine, examples: Sequence[Example], prompt: Prompt, *, wrong: bool
) -> Iterator[Passage]:
    """The truthful answers, or the wrong ones; all that are too long are named at once."""
    problems = []
    for index, example in enumerate(examples):
        prompt_ids = prompt.encode(example.question, lm.tokenizer)
        for number, answer in enumerate(example.wrong_answers if wrong else example.answers):
            tokens = prompt.encode_answer(example.question, answer, lm.tokenizer)
            if lm.limit and len(prompt_ids) + len(tokens) > lm.limit:
                problems.append(
                    f"  example {example.id}: {len(prompt_ids) + len(tokens)} tokens"
                )
            yield Passage(index, number, prompt_ids, tokens, wrong)
    if problems:
        raise ExampleError(
            f"{lm.id} reads at most {lm.limit} tokens; longer are:\n" + "\n".join(problems)
        )


def batches(found: Sequence[Passage]) -> list[list[Passage]]:
    """Prompts of like length together, the answers of one question side by side."""
    groups = [list(group) for _, group in groupby(found, key=lambda item: item.example)]
    groups.sort(key=lambda group: len(group[0].prompt))  # stable: ties keep their order
    made: list[list[Passage]] = []
    for group in groups:
        for start in range(0, len(group), ROWS):
            rows = group[start : start + ROWS]
            if made and len(made[-1]) + len(rows) <= ROWS:
                made[-1] += rows
            else:
                made.append(rows)
    return made
