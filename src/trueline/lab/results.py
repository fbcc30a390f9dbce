"""Every kind of line of results.jsonl: append, mend, check, read, and group by cell."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from trueline.errors import SettingError
from trueline.examples import LOCAL, Regime
from trueline.files import read_bytes, reason, replacing, sync
from trueline.lab.judges.questions import About
from trueline.lab.plan import Control, Mode

RESULTS = "results.jsonl"
_IDENTITY = ("cell", "sample", "judge", "about")  # no two lines of a kind share all of these
_LARGEST_FILE = 2_000_000_000  # bytes of results; a line has about 1,000
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
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
    build: dict[str, Any]  # the given options
    default_build: dict[str, Any]  # the method's default options
    built: dict[str, Any]  # the options with `auto` resolved


class ModelPart(PartOfCell, frozen=True, kw_only=True):
    """The model of a cell. A cell has four parts; together they shape its results."""

    fingerprint: str
    tokenizer_hash: str  # of the tokenizer and its chat template
    dtype: str
    device: str


class DataPart(ModelPart, frozen=True, kw_only=True):
    """Adds the data."""

    benchmark: str
    data_hash: str
    samples: Count  # how many lines of answers, choices or failures will follow
    ground: Count
    test: Count
    bertscore: tuple[str, Positive] | None  # the encoder's folder and layer
    bertscore_hash: str = ""  # of the encoder's files


class DecodingPart(DataPart, frozen=True, kw_only=True):
    """Adds how answers are generated and measured."""

    task: Mode
    batch_size: Positive
    max_new_tokens: Positive | None
    temperature: Amount
    stop: StopRule | None
    seed: Count | None
    sampling: dict[str, Any] = {}  # other options of `Sampling` that differ from its defaults
    fidelity: dict[str, Any] = {}  # keys of the plan that are not usual


class MethodPart(DecodingPart, frozen=True, kw_only=True):
    """Adds the method and its space."""

    method: str
    control: Control | None = None  # None: it is the method itself
    settings: dict[str, Any]
    prompt_hashes: Annotated[tuple[str, ...], Meta(min_length=1)]
    space: SpaceFacts | None
    versions: dict[str, str]


class CellLine(MethodPart, frozen=True, kw_only=True, tag="cell"):
    """How one cell is run: the four parts, and what else a report shows."""

    model: str
    is_plain: bool  # whether it is the plain model, which the others are compared with
    is_instead: bool = False  # whether it is a baseline that the plan does not name
    has_own_prompt: bool  # whether the method rewrites the prompt for each question
    defaults: dict[str, Any]  # the default settings on this benchmark
    counts: dict[str, Count]  # rows read, kept, left out
    ground_from: str | None
    draw: Count | None
    rule: str
    machine: dict[str, Any] = {}  # of the run that began it
    time: str = ""

    def part(self, kind: type[PartOfCell]) -> dict[str, Any]:
        """The fields that one of the four parts adds."""
        return {name: getattr(self, name) for name in kind.__annotations__}

    @property
    def label(self) -> str:
        """Its method and what differs from the defaults: `rad alpha=0.3 window=answer`."""
        words = [self.method]
        for name, value in self.changed.items():
            texts = map(str, value) if isinstance(value, tuple | list) else [str(value)]
            text = f"{value:g}" if isinstance(value, float) else ",".join(texts)
            words.append(f"{name}={text}")
        return " ".join(words)

    @property
    def changed(self) -> dict[str, Any]:
        """The settings of the method and its space that differ from the defaults."""
        given, usual = self.settings, self.defaults
        if self.space is not None:
            build, default = dict(self.space.build), self.space.default_build
            for name in ("context", "embedder"):  # a report adds these if rows differ in them
                build.pop(name, None)
            given, usual = given | build, usual | default
        return {n: x for n, x in given.items() if n not in usual or x != usual[n]}

    @property
    def context(self) -> int | str | None:
        """The number of tokens in a window of its space; None without entries."""
        return None if self.space is None else self.space.built.get("context")

    @property
    def embedder(self) -> str | None:
        return None if self.space is None else self.space.built.get("embedder")


class SampleLine(PartOfCell, frozen=True, kw_only=True):
    """The line of one sample."""

    sample: str  # its id
    index: Count  # its place in the benchmark


class AnswerLine(SampleLine, frozen=True, kw_only=True, tag="answer"):
    """An answer to one sample; `hits`, `flipped` and `entropy` have a number a token."""

    question: str
    text: str
    tokens: Count
    finish: str
    prompt_tokens: Count
    prompt_hashes: tuple[str, ...]
    seconds: Amount  # its share of its chunk's seconds
    decoding_seconds: Amount | None = None  # the part of them after the chunk's first token
    scores: dict[str, Score | None]
    confidence: Share | None
    hits: tuple[Count, ...]
    flipped: tuple[Count, ...]  # 1 if the method changed the most probable token
    entropy: tuple[Amount | None, ...]
    regime: Regime | None = None  # of its question
    token_hash: str = ""  # of the tokens: equal where two answers are, token for token
    time: str = ""

    @property
    def is_local(self) -> bool:
        """Whether no example answers its question: there is nothing to judge."""
        return self.regime in LOCAL


class ChoiceLine(SampleLine, frozen=True, kw_only=True, tag="choice"):
    """The scored candidates of one sample."""

    single: tuple[LogProbability | None, ...]
    multiple: tuple[LogProbability | None, ...]
    mc1: Share | None
    mc2: Share | None
    mc3: Share | None
    seconds: Amount
    time: str = ""


class FailedLine(SampleLine, frozen=True, kw_only=True, tag="failed"):
    """A sample without an answer."""

    reason: str
    time: str = ""


class VerdictLine(PartOfCell, frozen=True, kw_only=True, tag="verdict"):
    """A judge's verdict on one answer."""

    sample: str
    judge: str
    about: About
    label: bool | None
    basis: str = ""  # the rule whose agreement with people was measured
    raw: str = ""
    prompt_tokens: Count = 0
    answer_tokens: Count = 0
    cost: Amount | None = None
    is_cached: bool = False
    is_answered: bool = True
    judge_hash: str = ""  # of everything that can change its verdicts
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
    near: str  # equal, 13 words, overlap or cosine
    score: Score  # share of common words, or the cosine
    texts: tuple[str, str]  # of the test, of the grounding example

    @property
    def kind(self) -> str:
        """Its part and how the texts are near."""
        return f"{self.part} {self.near}"


class LeaksLine(ResultLine, frozen=True, kw_only=True, tag="leaks"):
    """The test samples that the grounding examples of a benchmark give away."""

    benchmark: str
    data_hash: str
    embedder: str | None
    ground: Count
    counts: dict[str, Count]
    nearest: tuple[Leak, ...]
    time: str = ""


PartT = TypeVar("PartT", bound=PartOfCell)
_READER = msgspec.json.Decoder(
    CellLine | AnswerLine | ChoiceLine | FailedLine | VerdictLine | DoneLine | LeaksLine
)
Key = tuple[object, ...]
plain = msgspec.to_builtins  # a line as JSON has it
replace_line = msgspec.structs.replace  # a line with other values in some of its fields


def encode_lines(lines: Iterable[ResultLine]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def read_written(path: Path) -> tuple[list[ResultLine], bool]:
    """The lines of a results file, if it exists, and whether an incomplete one follows them.

    The first line is refused, with its number, that cannot be read, repeats an earlier one, or
    whose cell or answer is missing.
    """
    is_there = os.path.lexists(path)
    content = read_bytes(path, "the results", most=_LARGEST_FILE) if is_there else b""
    *pieces, torn = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    lines: list[ResultLine] = []
    seen: dict[Key, int] = {}  # what identifies a line -> its number
    try:
        for number, piece in enumerate(pieces, 1):
            line = _READER.decode(piece)
            if isinstance(line, PartOfCell):
                kind = SampleLine if isinstance(line, SampleLine) else type(line)
                key = (kind, *(getattr(line, name, "") for name in _IDENTITY))
                needed: Key = (CellLine, line.cell, "", "", "")
                if isinstance(line, VerdictLine):
                    needed = (SampleLine, line.cell, line.sample, "", "")
                if kind is not CellLine and needed not in seen:
                    raise ValueError("no line before it has its cell, or the answer judged")
                if (first := seen.setdefault(key, number)) != number:
                    raise ValueError(f"it repeats line {first}")
            lines.append(line)
        if torn[:7] != b'{"kind"'[: len(torn)]:  # a run begins no line in another way
            raise ValueError("it has another beginning")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SettingError(
            f"{path}:{len(lines) + 1} is not a line of results of this release ({error}); mend "
            "or remove it, move the file away, or name another folder with --out"
        ) from error
    return lines, bool(torn)


@dataclass(slots=True)
class Journal:
    """The results of a folder while a run holds it."""

    path: Path
    lines: list[ResultLine]
    dropped: int = 0  # lines of an incomplete chunk, left by a kill

    def append(self, lines: Sequence[ResultLine]) -> None:
        """Add the lines of one chunk in one write that is on the disk when this returns."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        lines = [replace_line(line, time=now) for line in lines]
        with _as_setting_error(self.path), self.path.open("ab", buffering=0) as file:
            rest = memoryview(encode_lines(lines))
            while rest:
                rest = rest[file.write(rest) :]
            sync(self.path)
        self.lines.extend(lines)

    def keep(self, lines: Sequence[ResultLine]) -> None:
        """Remove all other lines; the old file stays until the new one is complete."""
        with _as_setting_error(self.path), replacing(self.path) as scratch:
            scratch.write_bytes(encode_lines(lines))
        self.lines[:] = lines

    def lines_of(self, cell: str, kind: type[PartT]) -> list[PartT]:
        return [line for line in self.lines if isinstance(line, kind) and line.cell == cell]


@contextmanager
def open_journal(folder: Path) -> Iterator[Journal]:
    """Hold a folder of results; a second run on it is refused at once.

    An incomplete chunk at the end of the results, left by a kill, is removed.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock", timeout=0)
    with _as_setting_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held = lock.acquire()
        except Timeout as error:
            raise SettingError(
                f"another run is writing to {folder}; wait for it, or name another with --out"
            ) from error
    with held:
        lines, torn = read_written(folder / RESULTS)
        journal, extra = Journal(folder / RESULTS, lines), 0
        if lines and isinstance(last := lines[-1], SampleLine):
            (head,) = journal.lines_of(last.cell, CellLine)
            count = len(journal.lines_of(last.cell, SampleLine))
            extra = 0 if count == head.samples else count % head.batch_size
        journal.dropped = extra + torn
        if journal.dropped:
            journal.keep(lines[: len(lines) - extra])
        yield journal


@contextmanager
def _as_setting_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingError(
            f"{path} cannot be written ({reason(error)}); finished samples are saved: fix the "
            "cause or name another folder with --out, then run the same command again"
        ) from error


@dataclass(frozen=True, slots=True)
class CellResults:
    """One cell of a run with its lines."""

    head: CellLine
    answers: tuple[AnswerLine, ...] = ()  # in the order of the samples
    choices: tuple[ChoiceLine, ...] = ()
    failed: tuple[FailedLine, ...] = ()
    verdicts: tuple[VerdictLine, ...] = ()
    done: DoneLine | None = None  # None: the cell is not complete
    # The token hashes of the plain model's answers under the same conditions, by sample.
    plain: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.head.cell

    @property
    def cut_off(self) -> int:
        return sum(line.finish == "length" for line in self.answers)

    @property
    def judges(self) -> tuple[str, ...]:
        """The judges, in the order of their first verdicts."""
        return tuple(dict.fromkeys(line.judge for line in self.verdicts))

    def labels(self, about: About, judge: str) -> dict[str, bool | None]:
        """A judge's verdicts by sample; None if one could not be read."""
        wanted = (judge, about)
        return {x.sample: x.label for x in self.verdicts if (x.judge, x.about) == wanted}

    @property
    def description(self) -> str:
        """Model, benchmark, method, task and seed in words."""
        seed = "" if self.head.seed is None else f" seed {self.head.seed}"
        where = f"{self.head.model} on {self.head.benchmark}"
        return f"{where}: {self.title} ({self.head.task}){seed}"

    @property
    def title(self) -> str:
        """The label with the context of its space and its control."""
        context, control = self.head.context, self.head.control
        title = self.head.label + ("" if context is None else f" context={context}")
        return title if control is None else f"{title}, control: {control}"

    @property
    def experiment(self) -> str:
        """What a method and its controls share: everything but the control and the seed."""
        head = replace_line(self.head, seed=None)
        parts = [head.part(kind) for kind in (ModelPart, DataPart, DecodingPart)]
        return repr((parts, head.model, head.method, head.changed, head.context, head.embedder))


@dataclass(frozen=True, slots=True)
class RunResults:
    """The results of a run so far."""

    folder: Path
    cells: tuple[CellResults, ...]  # in the order they were begun
    leaks: tuple[LeaksLine, ...] = ()
    torn: bool = False  # whether an incomplete last line was left out, as after a kill


def read_results(folder: str | Path) -> RunResults:
    """Read a run, also one that is not complete."""
    path = Path(folder)
    if os.path.isdir(path) or not path.suffix:
        path /= RESULTS
    lines, torn = read_written(path)
    if not (cells := gather_cells(lines)):
        raise SettingError(
            f"{path} holds no results; give the folder of a run that `trueline eval` has begun"
        )
    leaks = tuple(line for line in lines if isinstance(line, LeaksLine))
    return RunResults(path.parent, cells, leaks, torn)


def gather_cells(lines: Iterable[ResultLine]) -> tuple[CellResults, ...]:
    """The lines by cell, in the order the cells were begun."""
    by_cell: dict[str, list[PartOfCell]] = {}
    for line in lines:
        if isinstance(line, PartOfCell):
            by_cell.setdefault(line.cell, []).append(line)
    cells = []
    plain: dict[str, dict[str, str]] = {}
    for head, *rest in by_cell.values():
        assert isinstance(head, CellLine)  # the first line of every cell
        order = {line.sample: line.index for line in rest if isinstance(line, SampleLine)}
        rest.sort(key=lambda line: order.get(getattr(line, "sample", ""), -1))
        answers = tuple(line for line in rest if isinstance(line, AnswerLine))
        # Everything but the method that shapes an answer.
        shape = repr((head.part(ModelPart), head.part(DecodingPart), head.benchmark))
        if head.is_plain:
            hashes = {line.sample: line.token_hash for line in answers if line.token_hash}
            plain.setdefault(shape, {}).update(hashes)
        cells.append(
            CellResults(
                head,
                answers,
                tuple(line for line in rest if isinstance(line, ChoiceLine)),
                tuple(line for line in rest if isinstance(line, FailedLine)),
                tuple(line for line in rest if isinstance(line, VerdictLine)),
                next((line for line in rest if isinstance(line, DoneLine)), None),
                plain.setdefault(shape, {}),
            )
        )
    return tuple(cells)
