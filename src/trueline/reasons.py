"""What speaks for and against an example -> a few plain words for whoever wrote it.

The signals of scope overlap, and some of their weights are negative only to make up for others.
Read one by one they puzzle; here those about the same thing are added up, and are told only
where what they say is also true of their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trueline.embedders.words import Words
from trueline.records import Signal
from trueline.turns import PARTICULAR, asked_for

_CLOSENESS = {  # what is compared with the question: its signals, the plainest one first
    "its question": ("question", "own_question"),
    "its answer": ("answers", "own_answers"),
    "its wrong answers": ("wrong",),
}
_LEAST = 0.25  # of an effect on the log-odds that is worth a word
_CLOSER = 0.1  # how far a cosine lies above that of a near example on average if it is close
_MOST_WORDS = 0.6  # share of the asked words that an example has, from which on it has most
_SAME = 0.6  # cosine of two words from which on one stands for the other
_TELLING = 1.2  # weight of a word that says what a question is about
_FEW = 3  # words that are named
_ASKING = frozenset(  # words that ask, and do not say about what
    "what which who whom whose when where why how do does did is are was were can could will "
    "would should has have had may might must am".split()
)
_WANTED = {
    "yes or no": "a yes or no",
    "quantity": "a number",
    "time": "a time",
    "person": "a person",
    "place": "a place",
    "reason": "a reason",
    "manner": "how something is done",
    "thing": "what something is",
}


def plain_reasons(
    asked: str,
    question: str,
    signals: Sequence[Signal],
    mean: Mapping[str, float],
    missing: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What speaks for the example with this question, and what against it, in words.

    `mean` is what each signal is for a near example on average; `missing` are the words of
    what was asked that the example lacks.
    """
    by_name = {signal.name: signal for signal in signals}
    near, far = _closeness(by_name, mean)
    reasons_for = [f"{_listed(near)} {_are(near)} close to what you ask"] if near else []
    against = [f"{_listed(far)} {_are(far)} not close to what you ask"] if far else []
    if missing:
        quoted = _listed([f"'{word}'" for word in missing])
        against.append(f"you say {quoted}, it does not")
    elif "words" in by_name and by_name["words"].value >= _MOST_WORDS:
        reasons_for.append("it has most of your words")
    ours, theirs = asked_for(asked), asked_for(question)
    if ours == theirs and ours in _WANTED:
        reasons_for.append(f"both ask for {_WANTED[ours]}")
    elif ours in PARTICULAR:
        against.append(f"you ask for {_WANTED[ours]}, it does not")
    return tuple(reasons_for), tuple(against)


def missing_words(asked: Words, example: torch.Tensor) -> tuple[str, ...]:
    """The words that tell most of what was asked, and that no word of an example stands for.

    Neighbors among them are one: `red light`. `example` holds its words' vectors.
    """
    coverage = asked.coverage(example).tolist()
    weights = asked.weights.tolist()
    lacking = [
        index
        for index, (covered, weight) in enumerate(zip(coverage, weights, strict=True))
        if covered < _SAME and weight >= _TELLING and asked.texts[index].lower() not in _ASKING
    ]
    most = sorted(lacking, key=lambda index: weights[index] * (coverage[index] - 1))[:_FEW]
    phrases: list[list[int]] = []
    for index in sorted(most):
        if phrases and phrases[-1][-1] == index - 1:
            phrases[-1].append(index)
        else:
            phrases.append([index])
    named = [" ".join(asked.texts[index] for index in phrase) for phrase in phrases]
    return tuple(dict.fromkeys(named))


def _closeness(
    signals: Mapping[str, Signal], mean: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Which texts of an example are closer to what was asked than usual, and which less."""
    near, far = [], []
    for part, names in _CLOSENESS.items():
        found = [signals[name] for name in names if name in signals]
        if not found:
            continue
        effect = sum(one.effect for one in found)
        above = found[0].value - mean.get(found[0].name, 0.0)
        if effect >= _LEAST and above >= _CLOSER:
            near.append(part)
        elif effect <= -_LEAST and above < 0:
            far.append(part)
    return near, far


def _are(parts: Sequence[str]) -> str:
    return "is" if len(parts) == 1 and not parts[0].endswith("answers") else "are"


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
