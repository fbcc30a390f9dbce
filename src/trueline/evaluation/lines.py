"""results.jsonl <-> typed lines: every kind of line, how it is written and how it is read."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from trueline.errors import MissingExtraError, SettingError
from trueline.evaluation.plan import Control, Mode
from trueline.evaluation.samples import About
from trueline.examples.asked import LOCAL, Regime
from trueline.files import read_bytes

try:
    import msgspec
    from msgspec import Meta
except ImportError as error:
    raise MissingExtraError("results need msgspec: pip install 'trueline[eval]'") from error

RESULTS = "results.jsonl"
_HEAD = b'{"kind"'  # how every line begins
_IN_ROW_LABEL = ("context", "embedder")  # build options a report tells only where they vary
_LARGEST_FILE = 2_000_000_000  # bytes of results; a line has about 1,000
_ADVICE = "mend or remove the line, move the file away, or name another folder with --out"
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Flag = Annotated[int, Meta(ge=0, le=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
# A share, or BERTScore: a cosine, which a baseline may push far below 0.
Score = Annotated[float, Meta(ge=-100, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]  # of seconds, megabytes, dollars, entropy
LogProbability = Annotated[float, Meta(ge=-1e9, le=1e9)]


class ResultLine(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """One line of results."""


class PartOfCell(ResultLine, frozen=True, kw_only=True):
    """A line that belongs to one cell."""

    cell: str  # the cell's id


class StopRule(msgspec.Struct, frozen=True):
    """What ends an answer besides its length."""

    strings: tuple[str, ...]
    ids: tuple[Count, ...]


class SpaceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The grounding space of a cell."""

    hash: str  # of what the method sees of it
    entries: Count
    build: dict[str, Any]  # the options it was asked for
    default_build: dict[str, Any]  # what they are for this method if nobody says anything
    built: dict[str, Any]  # what came of them: `auto` is resolved


class CellLine(PartOfCell, frozen=True, kw_only=True, tag="cell"):
    """How one cell is run: all that shapes its results, and all that a report tells."""

    task: Mode
    samples: Count  # how many lines of answers, choices or failures will follow
    batch_size: Positive
    max_new_tokens: Positive | None
    temperature: Amount
    stop: StopRule | None
    seed: Count | None
    method: str
    is_plain: bool  # whether it is the model as it is, which the others are compared with
    has_own_prompt: bool  # whether the method rewrites the prompt for each question
    settings: dict[str, Any]
    defaults: dict[str, Any]  # the settings if nobody says anything, on this benchmark
    prompt_hashes: Annotated[tuple[str, ...], Meta(min_length=1)]
    space: SpaceFacts | None
    model: str
    fingerprint: str
    tokenizer_hash: str  # of the tokenizer and its chat template
    dtype: str
    device: str
    benchmark: str
    data_hash: str
    counts: dict[str, Count]  # rows read, kept, left out
    ground_from: str | None
    ground: Count
    test: Count
    draw: Count | None
    rule: str
    bertscore: tuple[str, Positive] | None  # the encoder's folder and layer
    versions: dict[str, str]
    bertscore_hash: str = ""  # of the encoder's files
    fidelity: dict[str, Any] = {}  # how answers were measured, where it is not as usual
    control: Control | None = None  # what was taken out; None: it is the method itself
    is_instead: bool = False  # whether it is there as what a user would do instead of a method
    machine: dict[str, Any] = {}  # every line gets one of its own
    time: str = ""

    @property
    def label(self) -> str:
        """Its method and what differs from the defaults: `rad alpha=0.3 window=answer`.

        Context and embedder are left out: a report adds them where rows differ in them.
        """
        told = (f"{name}={_short(value)}" for name, value in self.changed.items())
        return " ".join([self.method, *told])

    @property
    def changed(self) -> dict[str, Any]:
        """The settings of the method and its space that differ from the defaults."""
        found = _changed(self.settings, self.defaults)
        if self.space is not None:
            build = _changed(self.space.build, self.space.default_build)
            found |= {name: x for name, x in build.items() if name not in _IN_ROW_LABEL}
        return found

    @property
    def context(self) -> int | str | None:
        """How many tokens a window of its space has; None without entries."""
        return None if self.space is None else self.space.built.get("context")

    @property
    def embedder(self) -> str | None:
        """The embedder of its space; None without a space."""
        return None if self.space is None else self.space.built.get("embedder")


class AnswerLine(PartOfCell, frozen=True, kw_only=True, tag="answer"):
    """An answer to one sample; `hits`, `flipped` and `entropy` have a number a token."""

    sample: str
    index: Count  # its place in the benchmark
    question: str
    text: str
    tokens: Count
    finish: str
    prompt_tokens: Count
    prompt_hashes: tuple[str, ...]
    seconds: Amount  # its share of its chunk's, all told
    decoding_seconds: Amount | None = None  # of these, from the chunk's first token on
    scores: dict[str, Score | None]
    confidence: Share | None
    hits: tuple[Count, ...]
    flipped: tuple[Flag, ...]
    entropy: tuple[Amount | None, ...]
    regime: Regime | None = None  # how its question stands to the grounding examples
    token_hash: str = ""  # of the tokens: equal where two answers are, token for token
    time: str = ""

    def __post_init__(self) -> None:
        if not len(self.hits) == len(self.flipped) == len(self.entropy):
            raise ValueError("hits, flipped and entropy of different lengths")

    @property
    def is_local(self) -> bool:
        """Whether no example answers its question, so that there is nothing to judge."""
        return self.regime in LOCAL


class ChoiceLine(PartOfCell, frozen=True, kw_only=True, tag="choice"):
    """The scored candidates of one sample."""

    sample: str
    index: Count
    single: tuple[LogProbability | None, ...]
    multiple: tuple[LogProbability | None, ...]
    mc1: Share | None
    mc2: Share | None
    mc3: Share | None
    seconds: Amount
    time: str = ""


class FailedLine(PartOfCell, frozen=True, kw_only=True, tag="failed"):
    """A sample that could not be asked."""

    sample: str
    index: Count
    reason: str
    time: str = ""


class VerdictLine(PartOfCell, frozen=True, kw_only=True, tag="verdict"):
    """What a judge said of one answer."""

    sample: str
    judge: str
    about: About
    label: bool | None
    basis: str = ""  # under which name the judge's agreement with people was measured
    raw: str = ""
    prompt_tokens: Count = 0
    answer_tokens: Count = 0
    cost: Amount | None = None
    is_cached: bool = False
    is_answered: bool = True
    judge_hash: str = ""  # of all that can change the judge's verdicts
    time: str = ""


class DoneLine(PartOfCell, frozen=True, kw_only=True, tag="done", omit_defaults=True):
    """The end of a cell."""

    seconds: Amount
    time: str = ""


class Leak(msgspec.Struct, frozen=True):
    """A test text and a grounding text that are near each other."""

    sample: str  # its id
    example: str  # its id
    part: str  # `question` or `answer`
    near: str  # how they are near: equal, 13 words, overlap or cosine
    score: Score  # share of common words, or the cosine
    texts: tuple[str, str]  # of the test, of the grounding example

    @property
    def kind(self) -> str:
        """Its part and how the texts are near."""
        return f"{self.part} {self.near}"


class LeaksLine(ResultLine, frozen=True, kw_only=True, tag="leaks"):
    """What the grounding examples of a benchmark give away, whatever is run on it."""

    benchmark: str
    data_hash: str
    embedder: str | None
    ground: Count
    counts: dict[str, Count]
    nearest: tuple[Leak, ...]
    time: str = ""


StructT = TypeVar("StructT", bound=msgspec.Struct)
SampleLine = AnswerLine | ChoiceLine | FailedLine  # what a sample of a cell can end in
AnyLine = CellLine | SampleLine | VerdictLine | DoneLine | LeaksLine
_READER: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


def encode_lines(lines: Iterable[AnyLine]) -> bytes:
    """The bytes of lines, each with its newline."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


@dataclass(frozen=True, slots=True)
class WrittenLines:
    """What a results file holds."""

    lines: list[AnyLine]
    sizes: list[int]  # the bytes of each
    torn: bool  # whether one more was cut off at the end, as by a kill


def read_written(path: Path) -> WrittenLines:
    """Read a results file; a line that is none is refused with its number."""
    *pieces, torn = _content(path).split(b"\n")
    lines = [_line(path, number, piece) for number, piece in enumerate(pieces, 1)]
    if torn[: len(_HEAD)] != _HEAD[: len(torn)]:  # a run never begins a line otherwise
        raise SettingError(
            f"{path}:{len(pieces) + 1} ends in something that is no line of results; {_ADVICE}"
        )
    return WrittenLines(lines, [len(piece) + 1 for piece in pieces], bool(torn))


def _content(path: Path) -> bytes:
    """The bytes of a results file, none where it is not there."""
    try:
        path.stat()
    except FileNotFoundError:
        return b""
    except OSError:
        pass  # to read it says the same
    try:
        return read_bytes(path, "the results", most=_LARGEST_FILE)
    except SettingError as error:
        raise SettingError(f"{error}; mend that, or name another folder with --out") from error


def _line(path: Path, number: int, piece: bytes) -> AnyLine:
    if number == 1:
        piece = piece.removeprefix(codecs.BOM_UTF8)  # some editors put one there
    try:
        return _READER.decode(piece)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SettingError(
            f"{path}:{number} is no line of results of this release ({error}); {_ADVICE}"
        ) from error


def plain(line: object) -> dict[str, Any]:
    """A line as JSON has it."""
    found: dict[str, Any] = msgspec.to_builtins(line)
    return found


def replace_line(line: StructT, **changes: Any) -> StructT:
    """A line with other values in some of its fields."""
    return msgspec.structs.replace(line, **changes)


def now() -> str:
    """The time of a line."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {n: x for n, x in values.items() if n not in defaults or x != defaults[n]}


def _short(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
