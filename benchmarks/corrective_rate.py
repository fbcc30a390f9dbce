"""Corrective decoding against greedy, and what scope costs a request."""

import random
import sys
from statistics import median
from unittest.mock import patch

import numpy as np
from measure import SEED, model, questions, rate, seconds
from rates import _steps

import trueline as tl
from trueline import space as spaces
from trueline.corrective.scope import find_scope
from trueline.examples import read_examples

SIZES = (100, 100_000)  # examples of a space whose scope is timed


def corrective(quick):
    """Tokens a second of corrective decoding over greedy's, in scope and with nothing in scope.

    The sides take turns token by token and write equally many; scope is timed apart. Ratios are
    medians over answers. In scope, every token of the answer is a verified one.
    """
    found = {}
    for batch in (1, 16):
        length = 8 if quick else 64
        asked = questions(batch)
        taken = {"greedy": [], "in scope": [], "nothing in scope": []}
        for _ in range(1 if quick else 5 if batch == 1 else 3):
            for name, times in _turns(asked, length).items():
                taken[name].append(sum(times))
        found[f"batch {batch}"] = {
            "new_tokens": length,
            "answers": len(taken["greedy"]),
            "in_scope_over_greedy": rate(taken, "in scope", "greedy"),
            "nothing_in_scope_over_greedy": rate(taken, "nothing in scope", "greedy"),
        }
        print(f"corrective: batch {batch} {found[f'batch {batch}']}", file=sys.stderr)
    return found


def _turns(asked, length):
    """The seconds of every token of each side."""
    lm = model()
    far = tl.build(None, [tl.Example("Which gate does the harbour ferry use?", ["Gate nine."])])
    methods = {
        "greedy": tl.Greedy(),
        "in scope": tl.Corrective(_long_answers(asked), threshold=0.0),
        "nothing in scope": tl.Corrective(far),
    }
    loops = {name: _steps(lm, method, asked, length) for name, method in methods.items()}
    times = {name: [] for name in loops}
    for turn in range(length):
        for name in loops if turn % 2 else reversed(loops):
            times[name].append(seconds(lambda: next(loops[name])))
    return times


def _long_answers(asked):
    """A space that answers these questions at length, so that no answer ends before its time."""
    told = [answer for fact in read_examples("facts:ground") for answer in fact.answers]
    drawn = random.Random(SEED)
    return tl.build(
        None, [tl.Example(question, [" ".join(drawn.sample(told, 12))]) for question in asked]
    )


def scope(quick):
    """Milliseconds of scope a request, medians over questions, by the size of the space.

    The vectors of the examples are random; those of the questions come from the embedder.
    """
    facts, found = read_examples("facts:ground"), {}
    asked = [fact.question for fact in read_examples("facts:test")][: 10 if quick else 60]
    for size in SIZES[:1] if quick else SIZES:
        with patch.object(spaces, "embed_examples", _random_vectors):
            space = tl.build(
                None,
                [
                    tl.Example(f"{facts[at % 100].question} {at}", facts[at % 100].answers)
                    for at in range(size)
                ],
            )
        find_scope(space, asked[0])  # opens what is needed
        times = [1000 * seconds(lambda: find_scope(space, one)) for one in asked]
        found[str(size)] = round(median(times), 1)
        print(f"scope: {size} examples {found[str(size)]} ms", file=sys.stderr)
    return found


def _random_vectors(examples, embedder, **_):
    """Unit vectors for the questions and answers of examples."""
    drawn = np.random.default_rng(len(examples))
    made = {}
    for name in ("questions", "answers", "wrong_answers"):
        vectors = drawn.standard_normal((len(examples), embedder.dimension))
        made[name] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(
            np.float16
        )
    return made
