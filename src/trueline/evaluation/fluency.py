"""An answer's words -> whether it repeats itself, runs answers together, keeps a form."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trueline.errors import ExampleError

_GRAM = 4  # words in a row that come twice in text that repeats itself
_GLUED = re.compile(r"[a-z]{2}[.!?][\"')\u201d]*[A-Z][a-z]|\b([A-Z][a-z]{2,})\1")
_LINK = re.compile(r"\S*(?:://|www\.)\S*")  # in which a capital may follow a dot


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text; case, signs and the form of characters do not count."""
    return tuple(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def is_repeated(text: str) -> bool:
    """Whether four words in a row come twice."""
    words = words_of(text)
    grams = [words[start : start + _GRAM] for start in range(len(words) - _GRAM + 1)]
    return len(set(grams)) < len(grams)


def is_run_together(text: str, answers: Sequence[str]) -> bool:
    """Whether two answers stand where one was asked for, or are glued without a blank.

    Two of the given answers stand in a text if the words of both do, each in a row, and
    neither is a part of the other.
    """
    if _GLUED.search(_LINK.sub("", text)):
        return True
    said = words_of(text)
    found = [words for words in map(words_of, answers) if is_part(words, said)]
    return any(
        not is_part(one, other) and not is_part(other, one)
        for index, one in enumerate(found)
        for other in found[index + 1 :]
    )


def is_part(words: Sequence[str], of: Sequence[str]) -> bool:
    """Whether words stand in a row in others."""
    size = len(words)
    return any(tuple(of[at : at + size]) == tuple(words) for at in range(len(of) - size + 1))


def says_wrong_polarity(text: str, polarity: str) -> bool:
    """Whether a question of yes or no is answered with the wrong one."""
    first = re.match(r"\W*(yes|no)\b", text.lower())
    return first is not None and first[1] != polarity


def keeps_form(text: str, check: Mapping[str, Any]) -> bool:
    """Whether an answer has the form that was asked for."""
    return all(_FORMS[name](text.strip(), value) for name, value in check.items())


def check_form(check: Mapping[str, Any]) -> None:
    """Refuse a form that no program can check."""
    if unknown := [name for name in check if name not in _FORMS]:
        raise ExampleError(f"there is no form {unknown[0]!r}; there are {', '.join(_FORMS)}")


def _starts(text: str, wanted: Sequence[str]) -> bool:
    begins = tuple(one.lower() for one in wanted)
    return text.lower().startswith(begins) or text.strip("\"' ").lower().startswith(begins)


def _sentences(text: str) -> int:
    parts = re.split(r"(?<=[.?!])[\"']*\s+", text)
    return sum(bool(part.strip()) for part in parts)


_FORMS: dict[str, Callable[[str, Any], bool]] = {
    "starts_with": _starts,
    "ends_with": lambda text, wanted: text.lower().endswith(tuple(x.lower() for x in wanted)),
    "contains": lambda text, wanted: all(one.lower() in text.lower() for one in wanted),
    "max_words": lambda text, most: len(text.split()) <= most,
    "min_sentences": lambda text, least: _sentences(text) >= least,
    "max_sentences": lambda text, most: _sentences(text) <= most,
    "uppercase": lambda text, _: text == text.upper(),
}
