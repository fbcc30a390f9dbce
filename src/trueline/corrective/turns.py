"""A user's turn -> its parts, the kind of each question, and the requested form.

Rules for English. In other languages a turn is still split into sentences, and every kind of
question is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

QuestionKind = Literal[
    "yes or no", "quantity", "time", "person", "place", "reason", "manner", "thing", "unknown"
]
_SENTENCES = re.compile(r"(?<=[.?!])[\"')\]]*\s+|\n+")
_CLAUSES = re.compile(
    # `(?<!\s)`: a long run of whitespace is tried once, not from each of its characters.
    r"(?:[,;:]|(?<!\s))\s+(?:and|plus)\s+(?:also\s+)?|[;:]\s+(?:also\s+)?|,\s+also\s+",
    re.I,
)
_SHORTEST = 3  # words of a clause that may be a question by itself
_MOST = 8  # parts of a turn that are read
_BE = "is|are|was|were|am|do|does|did|can|could|will|would|should|has|have|had|may|might|must"
_LEAD = r"(?:so|but|and|ok|okay|hey|well|also|then)\W+|in [^,]{3,30}, ?"
_OPENING = re.compile(rf"(?:{_LEAD})*(?:{_BE})(?:n't)?\b")
_QUESTION = re.compile(
    rf"(?:{_OPENING.pattern}|(?:{_LEAD})*(?:what|which|who|whose|where|when|why|how)\b)"
)
_VERB = re.compile(rf"\b(?:{_BE}|true|myth)\b")
_AMOUNT = "many|much|long|often|far|tall|old|big|high|deep|fast|hot|cold|heavy|large|wide"
_KINDS: dict[QuestionKind, str] = {  # of patterns that begin at one place, the first counts
    "quantity": rf"\bhow (?:{_AMOUNT})\b|\bwhat (?:percent|number|age|temp)|\bat what\b",
    "time": r"\bwhen\b|\bwhat (?:year|day|date|month|time)\b|\bwhich (?:year|century)\b",
    "person": r"\bwho(?:m|se)?\b",
    "place": r"\bwhere\b",
    "reason": r"\bwhy\b|\bhow come\b|\bwhat (?:makes?|made|causes?|caused)\b",
    "manner": r"\bhow\b",
    "thing": r"\bwhat(?:'?s)?\b|\bwhich\b",
}
_NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_TASK = re.compile(
    r"(?:please |can you |could you )?"
    r"(?:write|draft|compose|prepare|create|make|describe|explain)\b",
    re.I,
)
_TOPIC = re.compile(
    r"\b(?:about|on|of|comparing|regarding|how|what|why|whether)\s+(.{8,})", re.S
)
_SENTENCES_WANTED = re.compile(
    r"\b(\d|two|three|four|five|six|a few|several)(?: \w+)? sentences\b|\b(?:a|one) paragraph\b"
)
_WORDS_WANTED = re.compile(
    r"\b(?:at most|no more than|up to|under|within|in|max(?:imum)?)\s+(\d{1,3})\s+words\b"
)
# At most so many characters: a long run of openings without an end is tried from each of them.
_QUOTED = r"[^.?!'\"]{0,60}?(?:'(?P<single>.{1,500}?)'|\"(?P<double>.{1,500}?)\")(?!\w)"
_FORM = "(?:answer|reply|response|bullet|point|item|line|sentence|paragraph)"
_OPENING_WANTED = re.compile(
    r"(?:(?<!\bthe )\b(?:begin|start|open|lead)"
    rf"|\b{_FORM} (?:(?:that|which) )?(?:begin|start|open|lead)s"
    rf"|(?:^|(?<=[,;:] )|\b{_FORM} )(?:beginn|start|open|lead)ing"
    rf"|\byour first words?|\bfirst words? (?:of (?:your|the) {_FORM}|must|should|to)"
    rf"|\b(?:let|make|use) the first words?)\b{_QUOTED}",
    re.I,
)
_CLOSING_WANTED = re.compile(
    r"(?:(?<!\bthe )\b(?:end|finish|close|conclude)"
    rf"|\byour last words?|\blast words? (?:of (?:your|the) {_FORM}|must|should|to)"
    rf"|\b(?:let|make|use) the last words?)\b{_QUOTED}",
    re.I,
)
_REPEAT_WANTED = re.compile(
    r"\brepeat (?:my|the) question\b[^:.?!]{0,80}[:.]\s+([^?]{1,2000}\?)", re.I | re.S
)
_STOPS = re.compile(  # of sentences, and not of titles and initials
    r"(?<=[.!])(?<![A-Z]\.)(?<!\b[DM]r\.)(?<!\bM[rs]s\.)\s+|\n+"
)
_NAME_WANTED = re.compile(
    r"(?<!['\"])\b(?:[Aa]ddress|[Cc]all) me (?:as )?([A-Z]\w+(?: [A-Z]\w+)?)"
)
_CAPITALS_WANTED = re.compile(
    r"\b(?:capital letters|all caps|(?:in|all|only) capitals(?! of)|upper ?case)\b", re.I
)
_WORD = r"(?<!than )(?<!than a )(?:yes or (?:a )?no|yes/no)\b"
_WORD_WANTED = re.compile(
    rf"\b(?:just|only|please|first word)\b(?:\s+\w+){{0,4}}?\s+{_WORD}"
    rf"|(?:^|[.?!,;:(\n])[\"')\]]{{0,3}}\s{{0,9}}(?:an? (?:\w+ )?)?{_WORD}"  # begins a clause
    rf"|\b{_WORD}\W*(?:first|only|please|before|up front)\b"
    rf"|(?<!vote )(?<!voted )(?<!said )(?<!say )(?<!mean )\b{_WORD}\W*$",
    re.I,
)
_WORD_COMMAND = re.compile(
    r"\b(?:answer|say|give|reply|respond|tell|start|begin|open|lead|want|need)\b"
    rf"(?:\s+\w+){{0,4}}?\s+{_WORD}",
    re.I,
)
_BREAKS = re.compile(r"[.?!,;:][)\]]*\s+|[.?!]['\"]\s+|\n")
_NEAR = 300  # characters before a request in which its clause begins
_BETWEEN = (
    "a|an|the|any|my|your|it|you|me|to|with|in|by|for|or|as|be|ever|even|just|only|simply"
    "|always|please|use|using|write|writing|say|saying|give|giving|have|need|want|like"
    "|looking|after|begin|start|open|lead|end|finish|close|words?|all"
    f"|{_FORM}s?|['\"][^'\"]*['\"]"
)
_REFUSED = re.compile(  # what comes before the contrary of a request
    r"(?:\bnot|n['\u2019]t|\bdont|\bnever|\bwithout|\bno need|\bavoid|\brather than"
    rf"|\binstead of|(?:^|\b(?:use|with|want)\s+)no)(?:\s+(?:{_BETWEEN}))*\s+$",
    re.I,
)
_EXCEPTED = re.compile(r"\b(?:but|except)(?: with)?(?: an?)? (?:yes\b|['\"])", re.I)
_TO_US = re.compile(  # words in a question that introduce a request
    rf"\byou\b|\byour {_FORM}\b"
    r"|(?:\b(?:and|then|but|please)\s+(?:\w+\s+)?|^do(?:n't| not)?\s+)\Z",
    re.I,
)
PARTICULAR = ("quantity", "time", "person", "place")  # few answers contain one by chance


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's turn, and its parts: each may be a question."""

    text: str
    parts: tuple[str, ...]  # one or more, in order
    sentences: tuple[str, ...]
    topic: str  # of a longer text that is requested; empty for a question

    @property
    def texts(self) -> tuple[str, ...]:
        """All that may be a question: the whole, its sentences, parts and topic, each once."""
        topic = (self.topic,) if self.topic else ()
        return tuple(dict.fromkeys((self.text, *self.sentences, *self.parts, *topic)))


@dataclass(frozen=True, slots=True)
class FormRequest:
    """The form of an answer that a user requests."""

    sentences: int = 1
    is_counted: bool = False  # whether the user named their number
    is_text: bool = False  # whether it is a longer text, which goes on after the facts
    words: int | None = None  # at most so many
    opening: str = ""  # its first words
    closing: str = ""  # its last words
    is_upper: bool = False  # whether it is in capital letters
    is_open: bool = False  # whether a question is left that no example answers


def read_turn(text: str) -> Turn:
    """Split a turn into sentences, and a sentence where `and` joins two complete ones."""
    whole = text.strip()
    sentences = [one.strip() for one in _SENTENCES.split(whole) if one.strip()][:_MOST]
    parts = []
    for sentence in sentences:
        clauses = [one.strip() for one in _CLAUSES.split(sentence) if one.strip()]
        is_split = all(len(clause.split()) >= _SHORTEST for clause in clauses)
        parts += clauses if is_split and len(clauses) > 1 else [sentence]
    task = _find_task(whole)
    topic = None if task is None else _TOPIC.search(whole, task)
    subject = topic[1].strip() if topic else ""
    return Turn(whole, tuple(parts[:_MOST]) or (whole,), tuple(sentences), subject)


def wants_text(text: str) -> bool:
    """Whether a turn requests a longer text, and not only an answer."""
    return _find_task(text.strip()) is not None


def wants_yes_or_no(text: str) -> bool:
    commands = _requests(_WORD_COMMAND, text)
    return any(not _is_question(one) for one in commands) or any(_requests(_WORD_WANTED, text))


def leaves_open(turn: Turn, answered: Sequence[tuple[str, int]]) -> bool:
    """Whether a turn has several questions, and one of them is not answered.

    `answered` are texts of the turn, each with the number of the part that is answered best: of
    a text with several questions only the sentence with that part counts.
    """
    texts = []
    for text, part in answered:
        if sum(one.endswith("?") for one in turn.sentences if one in text) > 1:
            text = next((one for one in turn.sentences if turn.parts[part] in one), text)
        texts.append(text)
    questions = [
        part for part in turn.parts if part.endswith("?") or _QUESTION.match(part.lower())
    ]
    is_open = [not any(part in text for text in texts) for part in questions]
    return any(is_open) and not all(is_open)


def _find_task(text: str) -> int | None:
    """Where the first sentence begins that requests a text; None: none does.

    After a question, "write it in two lines" is about its form.
    """
    first = text.find("?") if "?" in text else len(text)
    starts = [0, *(match.end() for match in _SENTENCES.finditer(text))]
    before = (start for start in starts if start <= first)
    return next((start for start in before if _TASK.match(text, start)), None)


def question_kind(text: str) -> QuestionKind:
    """The kind of thing that the last question of a text is about."""
    found = [one for one in _SENTENCES.split(text.lower().strip()) if one.strip()]
    last = ([one for one in found if one.rstrip(" \"')").endswith("?")] or found or [""])[-1]
    if _OPENING.match(last):
        return "yes or no"
    matches = {
        kind: match.start() for kind in _KINDS if (match := re.search(_KINDS[kind], last))
    }
    if matches:
        return min(matches, key=lambda kind: matches[kind])
    return "yes or no" if _VERB.search(last) else "unknown"


def read_form(text: str) -> FormRequest:
    """The form that a turn requests in known words; any other request is left to the model."""
    lower, is_text = text.lower().strip(), wants_text(text)
    sentences, is_counted = 1 + is_text, False
    if found := _SENTENCES_WANTED.search(lower):
        number = found[1] or "a few"
        is_counted = number.isdigit() or number in _NUMBERS
        sentences = int(number) if number.isdigit() else _NUMBERS.get(number, 3)
    words = _WORDS_WANTED.search(lower)
    name = next(_requests(_NAME_WANTED, text), None)
    repeated = next(_requests(_REPEAT_WANTED, text), None)
    opening = f"{name[1]}," if name else _STOPS.split(repeated[1])[-1] if repeated else ""
    return FormRequest(
        sentences=max(1, sentences),
        is_counted=is_counted,
        is_text=is_text,
        words=int(words[1]) if words else None,
        opening=_quoted(_OPENING_WANTED, text) or opening,
        closing=_quoted(_CLOSING_WANTED, text),
        is_upper=any(_requests(_CAPITALS_WANTED, text)),
    )


def _quoted(pattern: re.Pattern[str], text: str) -> str:
    found = next((one for one in _requests(pattern, text) if not _is_question(one)), None)
    return "" if found is None else (found["single"] or found["double"]).strip()


def _requests(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches that are requests, and not the contrary: "do not repeat" it."""
    for match in pattern.finditer(text):
        if not _REFUSED.search(_clause_before(match)) or _EXCEPTED.search(match[0]):
            yield match


def _is_question(match: re.Match[str]) -> bool:
    """Whether a match is part of a question: "which tales begin with 'Once'?"."""
    before = _clause_before(match)
    unquoted = re.split("['\"]", match[0])[0]
    is_to_us = _TO_US.search(before) or _TO_US.search(unquoted)
    return _QUESTION.match(before.lower()) is not None and not is_to_us


def _clause_before(match: re.Match[str]) -> str:
    start = match.start()
    return _BREAKS.split(match.string[max(0, start - _NEAR) : start])[-1].lstrip()
