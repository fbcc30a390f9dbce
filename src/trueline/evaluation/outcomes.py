"""Lines of results -> cells, each with all that was written for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from trueline.errors import SettingError
from trueline.evaluation.line_checks import check_lines
from trueline.evaluation.lines import (
    RESULTS,
    AnswerLine,
    AnyLine,
    CellLine,
    ChoiceLine,
    DoneLine,
    FailedLine,
    LeaksLine,
    PartOfCell,
    SampleLine,
    VerdictLine,
    read_written,
)
from trueline.evaluation.samples import About
from trueline.files import reason

_CONDITIONS = (
    "fingerprint tokenizer_hash dtype device benchmark task temperature seed max_new_tokens "
    "stop fidelity"
).split()
_SHARED = (
    "model fingerprint dtype benchmark test task temperature method changed ground ground_from "
    "max_new_tokens stop fidelity"
).split()
LineT = TypeVar("LineT", bound=PartOfCell)


@dataclass(frozen=True, slots=True)
class CellResults:
    """One cell of a run: how it was run, and every line that was written for it."""

    head: CellLine
    answers: tuple[AnswerLine, ...] = ()  # in the order of the samples
    choices: tuple[ChoiceLine, ...] = ()
    failed: tuple[FailedLine, ...] = ()
    verdicts: tuple[VerdictLine, ...] = ()
    done: DoneLine | None = None  # None: the cell has not come to its end
    # The token hashes of the plain model's answers under the same conditions, by sample.
    plain: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """A short hash of everything that shapes the results."""
        return self.head.cell

    @property
    def cut_off(self) -> int:
        """How many answers reached the limit of new tokens before they ended."""
        return sum(line.finish == "length" for line in self.answers)

    @property
    def judges(self) -> tuple[str, ...]:
        """The judges that gave verdicts, in the order they first did."""
        return tuple(dict.fromkeys(line.judge for line in self.verdicts))

    def labels(self, about: About, judge: str) -> dict[str, bool | None]:
        """A judge's verdicts by sample; None where one could not be read."""
        wanted = (judge, about)
        return {x.sample: x.label for x in self.verdicts if (x.judge, x.about) == wanted}

    @property
    def description(self) -> str:
        """What was run on what, in words."""
        words = [self.title, f"({self.head.task})"]
        if self.head.seed is not None:
            words.append(f"seed {self.head.seed}")
        return f"{self.head.model} on {self.head.benchmark}: {' '.join(words)}"

    @property
    def title(self) -> str:
        """The method, what differs from its defaults, its space's context, its control."""
        context, control = self.head.context, self.head.control
        told = self.head.label + ("" if context is None else f" context={context}")
        return told if control is None else f"{told}, control: {control}"

    @property
    def experiment(self) -> str:
        """What a method and its controls share: everything but the control and the seed."""
        names = (*_SHARED, "context", "embedder")
        return repr([getattr(self.head, name) for name in names])


@dataclass(frozen=True, slots=True)
class RunResults:
    """What a run has written so far."""

    folder: Path
    cells: tuple[CellResults, ...]  # in the order they were begun
    leaks: tuple[LeaksLine, ...] = ()  # what the grounding examples of a benchmark give away
    torn: bool = False  # whether the last line was cut off, as by a kill; it does not count


def read_results(folder: str | Path) -> RunResults:
    """Read a run, also one that is still going; a last line that was cut off does not count."""
    path = Path(folder)
    try:
        path = path / RESULTS if path.is_dir() or not path.suffix else path
        is_there = path.exists()
    except OSError as error:
        raise SettingError(f"{path} cannot be read ({reason(error)})") from error
    if not is_there:
        raise SettingError(
            f"there is no {path}; give the folder of a run that `trueline eval` has begun"
        )
    written = read_written(path)
    lines = written.lines
    check_lines(path, lines)
    cells = gather_cells(lines)
    if not cells:
        raise SettingError(f"{path} holds no results yet; run `trueline eval` first")
    leaks = tuple(line for line in lines if isinstance(line, LeaksLine))
    return RunResults(path.parent, cells, leaks, written.torn)


def gather_cells(lines: Iterable[AnyLine]) -> tuple[CellResults, ...]:
    """The lines by cell; one that is written again replaces the first."""
    kept: dict[str, dict[object, PartOfCell]] = {}
    for line in lines:
        if isinstance(line, PartOfCell):
            names = ("sample", "judge", "about")
            key = (type(line), *(getattr(line, name, None) for name in names))
            kept.setdefault(line.cell, {})[key] = line
    found = [
        _gather(head, list(parts.values()))
        for parts in kept.values()
        for head in parts.values()
        if isinstance(head, CellLine)
    ]
    plain: dict[str, dict[str, str]] = {}
    for cell in found:
        if cell.head.is_plain:
            hashes = {x.sample: x.token_hash for x in cell.answers if x.token_hash}
            plain.setdefault(_conditions(cell.head), {}).update(hashes)
    return tuple(replace(x, plain=plain.get(_conditions(x.head), {})) for x in found)


def _conditions(head: CellLine) -> str:
    """All but the method that shapes an answer."""
    return repr([getattr(head, name) for name in _CONDITIONS])


def _gather(head: CellLine, lines: list[PartOfCell]) -> CellResults:
    order = {line.sample: line.index for line in lines if isinstance(line, SampleLine)}

    def ordered(kind: type[LineT]) -> tuple[LineT, ...]:
        found = [line for line in lines if isinstance(line, kind)]
        return tuple(sorted(found, key=lambda line: order.get(getattr(line, "sample", ""), 0)))

    return CellResults(
        head,
        ordered(AnswerLine),
        ordered(ChoiceLine),
        ordered(FailedLine),
        ordered(VerdictLine),
        next(iter(ordered(DoneLine)), None),
    )
