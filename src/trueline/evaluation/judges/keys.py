"""The key of a service -> where it may go, and whether a text shows it in some spelling."""

from __future__ import annotations

import os
import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterable, Iterator
from html import unescape

from trueline.errors import SettingError

_SHORTEST, _LONGEST = 12, 4_000  # letters and digits of a key; its characters
_SHORTEST_RUN = 8  # letters and digits of a key that give it away
_ESCAPE = re.compile(  # one character, written by its number; or a blank, by its letter
    r"(?:\\u|%u|U\+)([0-9a-fA-F]{4})|\\u\{([0-9a-fA-F]{1,6})\}|\\U([0-9a-fA-F]{8})"
    r"|(?:\\x|0x|[%=])([0-9a-fA-F]{2})|\\([0-7]{3})|\\[abfnrtv]"
)
_ROUNDS = 4  # how often a text is read as escaped: a message in a message in a message


class Key:
    """The key of a service; no text this object gives shows it."""

    def __init__(self, value: str, variable: str, *, is_local: bool = False) -> None:
        """A server on this machine often wants any word at all, which is no secret."""
        is_secret = len(_bare(value)) >= _SHORTEST
        if problem := _problem(value, is_secret or is_local):
            raise SettingError(
                f"the key in {variable} {problem}; set it again, as the service gave it"
            )
        self.value, self.variable = value, variable
        self._runs = _runs_of(value) if is_secret else {}

    def __repr__(self) -> str:
        return f"Key(from {self.variable})"

    def is_in(self, text: str) -> bool:
        """Whether a text shows the key, or half of it, in one of the spellings of `_spellings`.

        Only letters and digits are compared, in lower case, in the text as it is and as it
        reads when escapes are undone: JSON's, Python's, HTML's and those of addresses. So
        blanks, line breaks, case and padding hide nothing.
        """
        return any(
            view[start : start + size] in runs
            for view in _views(text)
            for size, runs in self._runs.items()
            for start in range(len(view) - size + 1)
        )


def key_from(variables: Iterable[str], *, is_local: bool = False) -> Key | None:
    """The key in the first of these environment variables that is set, for one address."""
    for name in variables:
        if value := os.environ.get(name, "").strip():
            return Key(value, name, is_local=is_local)
    return None


def _problem(value: str, is_long: bool) -> str:
    """What is wrong with a key, in words that do not show it; empty if nothing is."""
    if not re.fullmatch(r"[!-~]+", value):
        return "holds a blank, a line break, a control character or one that is not ASCII"
    if len(value) > _LONGEST:
        return f"has {len(value):,} characters, and no key has more than {_LONGEST:,}"
    if not is_long:
        return (
            f"has fewer than {_SHORTEST} letters and digits, which is no key (a server that "
            "asks for none needs no variable)"
        )
    return ""


def _runs_of(key: str) -> dict[int, set[str]]:
    """Runs of letters and digits that give a key away, by their length.

    A run is half of the key, but 8 to 16 characters: what services show of a key on purpose,
    as in sk-ab...wxyz, is shorter.
    """
    size = max(_SHORTEST_RUN, min(16, len(_bare(key)) // 2))
    runs: dict[int, set[str]] = {}
    for text in map(_bare, _spellings(key)):
        length = min(size, len(text))
        runs.setdefault(length, set()).update(
            text[start : start + length] for start in range(len(text) - length + 1)
        )
    return runs


def _spellings(key: str) -> Iterator[str]:
    """A key plain, backwards, in hex, as numbers and in base64, whatever stands before it."""
    data = key.encode()
    yield from (key, _unescaped(key), key[::-1], data.hex(), "".join(map(str, data)))
    for before in range(3):  # bytes; base64 writes 3 as 4 characters
        packed = b64encode(bytes(before) + data).decode()
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        yield packed[first:last]  # without the characters that its neighbors have a part in


def _views(text: str) -> Iterator[str]:
    """The letters and digits of a text as it is, and as it reads with its escapes undone."""
    for _ in range(_ROUNDS):
        yield _bare(text)
        before, text = text, _unescaped(text)
        if text == before:
            return


def _bare(text: str) -> str:
    return re.sub("[^a-z0-9]+", "", unicodedata.normalize("NFKC", text).lower())


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, unescape(text))


def _character(found: re.Match[str]) -> str:
    *hexes, octal = found.groups()
    digits = next(filter(None, hexes), None)
    number = int(digits, 16) if digits else int(octal or "40", 8)  # 40: a blank
    return chr(number) if number <= 0x10FFFF else ""
