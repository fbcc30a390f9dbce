"""An explanation -> one HTML page that needs no other file and no network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueline.explain import Explanation

_UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}  # may end a script element
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # HTML has no place for them


def as_page(explanation: Explanation) -> str:
    """Fill the template; its marks hold a `<`, which no text that is filled in does."""
    page = files("trueline.explain").joinpath("page.html").read_text("utf-8")
    moves = (abs(step.move) for step in explanation.steps)
    data = {**explanation.as_dict(), "scale": max([1.0, *moves])}  # of the deepest shade
    marks = {
        "policy": policy(page),
        "question": _escape(explanation.question),
        "method": _escape(explanation.method),
        "answer": _escape(explanation.answer),
        "beside": _beside(explanation),
        "data": json.dumps(data, allow_nan=False).translate(_UNSAFE),
    }
    for name, text in marks.items():
        page = page.replace(f"<!--{name}-->", text)
    return page


def _beside(explanation: Explanation) -> str:
    """The other answer, and where it differs."""
    other, split = explanation.beside, explanation.summary.divergence
    if other is None:
        return ""
    if split is None:
        text, note = _escape(other.answer), "The same, token for token."
    else:
        rest = split.beside.lstrip()
        gap, word = split.beside.removesuffix(rest), "".join(rest.split()[:1])
        text = (
            f'<span class="shared">{_escape(split.shared + gap)}</span>'
            f'<span class="split"></span><mark>{_escape(word)}</mark>'
            f"{_escape(rest.removeprefix(word))}"
        )
        note = f"The two differ from token {split.token}."
        if not rest:
            note = f"It ends before the other, at token {split.token}."
    return (
        '  <section id="beside" aria-labelledby="beside-head">\n'
        f'    <h2 id="beside-head">Answer with {_escape(other.method)}'
        '<span class="soft"> · for comparison</span></h2>\n'
        f'    <p class="prose" dir="auto">{text}</p>\n'
        f'    <p class="note">{note}</p>\n'
        "  </section>"
    )


def _escape(text: str) -> str:
    return escape(_CONTROLS.sub("\ufffd", text))


def policy(page: str, more: str = "") -> str:
    """Allow only the page's own style and script, by their hashes, and what `more` allows."""
    hashes = []
    for tag in ("style", "script"):
        text = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes.append(f"{tag}-src 'sha256-{digest}'; ")
    return (
        f"default-src 'none'; {''.join(hashes)}{more}img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
