"""What the fuzzers share: how many rounds, a seed for each, bad bytes, and an end to hangs.

A round is known by the seed, the name of its border and its number; a failure names all three:

    TRUELINE_ATTACK_SEED=1 pytest tests/hostile tests/test_store.py

`make attack` runs the long form: TRUELINE_ATTACK=long.
"""

import os
import signal
import unicodedata
import warnings
from contextlib import contextmanager
from random import Random

from conftest import Ran, Terminal, run_command  # noqa: F401  for the fuzzers

SEED = os.environ.get("TRUELINE_ATTACK_SEED", "20261116")
IS_LONG = os.environ.get("TRUELINE_ATTACK") == "long"

ODD_TEXTS = [
    "",
    " ",
    "\x00",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eesrever",
    "\ufeffmark",
    "\ud800",
    "a" * 5_000,
    "../../etc/passwd",
    "/dev/zero",
    "~nouser/x",
    "=1+1",
    "<script>alert(1)</script>",
    "<|im_end|>",
    "\U0001f9ea e\u0301 \u4e2d",
    "NaN",
    "-1",
    "1e999",
    "9" * 5_000,
]
ODD_NUMBERS = [0, -1, 1, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e-300, 1e308]
ODD_NUMBERS += [float("nan"), float("inf"), float("-inf")]


class Hang(BaseException):
    """Something took longer than anything of its kind may; no `except Exception` hides it."""


@contextmanager
def within(seconds):
    """End what hangs; for the main thread, which is where pytest runs tests."""

    def end(number, frame):
        raise Hang(f"not ended within {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def rounds(border, quick, long):
    """A source of chance for each round: `quick` of them, or `long` under `make attack`."""
    for number in range(long if IS_LONG else quick):
        name = f"seed {SEED}, {border}, round {number}"
        chance = Random(name)
        chance.name = name  # what a failure says
        yield chance


def odd_value(chance, depth=2):
    """Something JSON can hold that nobody expects where it stands."""
    kind = chance.randrange(6 if depth else 4)
    if kind == 0:
        return chance.choice(ODD_TEXTS)
    if kind == 1:
        return chance.choice(ODD_NUMBERS)
    if kind in (2, 3):
        return chance.choice([None, True, False, [], {}])
    if kind == 4:
        return [odd_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {
        chance.choice(ODD_TEXTS): odd_value(chance, depth - 1)
        for _ in range(chance.randrange(4))
    }


def mutated(chance, value):
    """A JSON value with one place changed: replaced, dropped, doubled, or a key renamed."""
    places = list(_places(value))
    path = chance.choice(places)
    return _changed(chance, value, path)


def mutated_bytes(chance, data):
    """Bytes with a few of them flipped, cut, repeated, moved or put in."""
    data = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(data) + 1)
        length = chance.choice([1, 2, 8, 64, 1024])
        kind = chance.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = data[at : at + length]
        elif kind == 3:
            data[at:at] = chance.randbytes(length)
        else:
            data[at : at + length] = bytes(length)
    return bytes(data)


def _places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _changed(chance, value, path):
    if not path:
        return odd_value(chance)
    value, (key, *rest) = value.copy(), path
    if rest:
        value[key] = _changed(chance, value[key], tuple(rest))
        return value
    kind = chance.randrange(4)
    if kind == 0:
        del value[key]
    elif kind == 1 and isinstance(value, dict):
        value[chance.choice(ODD_TEXTS)] = value.pop(key)
    elif kind == 1:
        value.insert(key, value[key])
    else:
        value[key] = odd_value(chance)
    return value


def steering(text):
    """The characters of a text that a terminal would obey, or show as something else."""
    hidden = "\u200b\ufeff\u2028\u2029"
    return [
        sign
        for sign in text
        if sign in hidden
        or (unicodedata.category(sign) == "Cc" and sign not in "\n\t")
        or unicodedata.bidirectional(sign) in ("LRE", "RLE", "LRO", "RLO", "PDF")
        or unicodedata.bidirectional(sign) in ("LRI", "RLI", "FSI", "PDI")
        or "\ud800" <= sign <= "\udfff"
    ]


def as_nobody(work):
    """Do something in a process that may not open what is closed; its result is a text."""
    if os.getuid() != 0:
        return work()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fork, where there are threads
        child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__} escaped: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text
