"""Foreign text in, text out that a terminal shows and never obeys.

Questions, answers, ids, names and file names come from others. An escape sequence among them
can clear a screen or forge a line, and U+202E turns what follows it round. Every face sends
such text through here: what steers a terminal is spelled out, as in \\x1b and \\u202e.
"""

from __future__ import annotations

import re
from unicodedata import category

# Cc: controls; Cf: formats, such as those that turn the direction round or are not seen at all;
# Cs: halves of characters; Co, Cn: what means nothing, or not the same everywhere; Zl, Zp: ends
# of lines that are no newline.
_STEERING = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_JOINERS = "\u200c\u200d"  # emoji and some scripts are not readable without these
_SHOWN = 80  # characters of a value in a message
_HALF = re.compile(r"[\ud800-\udfff]")


def half_character(text: str) -> re.Match[str] | None:
    """The first half of a character (a surrogate) in a text; UTF-8 cannot hold one."""
    return _HALF.search(text)


def has_half_character(text: str) -> bool:
    """Whether a text holds half of a character, as JSON can spell it; UTF-8 cannot hold one."""
    return _HALF.search(text) is not None


def is_safe(sign: str) -> bool:
    """Whether a terminal shows a character as it is."""
    return sign.isprintable() or sign in _JOINERS or category(sign) not in _STEERING


def visible(text: str) -> str:
    """Text of several lines; newlines and tabs stay, what steers a terminal is spelled out."""
    return _spelled(text, "\n\t")


def visible_line(text: str) -> str:
    """Text on one line: newlines and tabs are spelled out too."""
    return _spelled(text, "")


def _spelled(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        sign if sign in kept or is_safe(sign) else sign.encode("unicode_escape").decode()
        for sign in text
    )


def visible_json(text: str) -> str:
    """JSON with what steers a terminal spelled as JSON has it; every reader gets the same."""
    return "\n".join(
        line if line.isprintable() else "".join(map(_in_json, line))
        for line in text.split("\n")
    )


def _in_json(sign: str) -> str:
    if is_safe(sign):
        return sign
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def counted(count: int, noun: str) -> str:
    """A number and what it is of, as in `1 example` and `1,200 entries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def shown(value: object) -> str:
    """A value as an error message quotes it: on one line, and not much of it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # such as a number of 5,000 digits
        return f"a value of type {type(value).__name__} ({error})"
    text = visible_line(text)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]}...{text[-17:]}"
