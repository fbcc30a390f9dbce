"""Make text of others safe to print: what would steer a terminal is escaped.

Questions, answers, ids and file names come from others. An escape sequence in them can clear a
screen or forge a line, and U+202E reverses the text after it; \\x1b or \\u202e is printed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from unicodedata import category

# Cc: controls; Cf: formats, such as those that reverse text or are invisible; Cs: surrogates;
# Co, Cn: private or unassigned; Zl, Zp: line ends other than a newline.
_STEERING = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_JOINERS = "\u200c\u200d"  # emoji and some scripts are not readable without these
_SHOWN = 80  # characters of a value in a message
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def has_half_character(text: str) -> bool:
    """Whether a text holds a surrogate, as JSON can spell it; UTF-8 cannot hold one."""
    return _SURROGATE.search(text) is not None


def is_safe(character: str) -> bool:
    """Whether a character is printed as it is."""
    return (
        character.isprintable() or character in _JOINERS or category(character) not in _STEERING
    )


def visible(text: str, *, kept: str = "\n\t") -> str:
    """Text with unsafe characters escaped; those in `kept` stay."""
    if text.isprintable():
        return text
    return "".join(
        one if one in kept or is_safe(one) else one.encode("unicode_escape").decode()
        for one in text
    )


def visible_line(text: str) -> str:
    """Text on one line: newlines and tabs are escaped too."""
    return visible(text, kept="")


def visible_json(text: str) -> str:
    """JSON with unsafe characters as JSON escapes; every reader gets the same values."""
    escaped = (one if one == "\n" or is_safe(one) else json.dumps(one)[1:-1] for one in text)
    return "".join(escaped)


def counted(count: int, noun: str) -> str:
    """A number and its noun, as in `1 example` and `1,200 entries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def shown(value: object) -> str:
    """A value as an error message quotes it: on one line, and shortened."""
    try:
        text = visible_line(repr(value))
    except (ValueError, RecursionError) as error:  # such as a number of 5,000 digits
        return f"a value of type {type(value).__name__} ({error})"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]}...{text[-17:]}"


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, without case and punctuation, in one Unicode form."""
    return tuple(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def repeats_itself(text: str) -> bool:
    """Whether four words in a row occur twice."""
    words = words_of(text)
    fours = [words[start : start + 4] for start in range(len(words) - 3)]
    return len(set(fours)) < len(fours)
