"""Cells -> the lines they still lack, chunk by chunk, made here or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trueline.errors import ClusterError
from trueline.evaluation.answering import sample_lines
from trueline.evaluation.cells import Cell, cells_of
from trueline.evaluation.journal import Journal
from trueline.evaluation.lines import CellLine, DoneLine, SampleLine, plain
from trueline.evaluation.plan import Plan, Variant
from trueline.evaluation.samples import Benchmark

if TYPE_CHECKING:
    from trueline.cluster import Cluster
    from trueline.engines.base import Engine
    from trueline.engines.origins import Origin
    from trueline.space.content import Recipe
    from trueline.space.segment import Segment
    from trueline.space.space import GroundingSpace

Chunk = tuple[str, int]  # the id of a cell, and the number of its first sample


def answer_chunks(
    plan: Plan, cells: Sequence[Cell], journal: Journal, on: Cluster | None
) -> Iterator[list[SampleLine]]:
    """The lines of every chunk that cells still lack, in the order of cells and samples."""
    chunks: list[Chunk] = []
    for cell in {cell.id: cell for cell in cells}.values():
        if not journal.has(cell.id, DoneLine):
            ready = len(journal.samples_of(cell.id))
            starts = range(ready, len(cell.samples), plan.batch_size)
            chunks += [(cell.id, start) for start in starts]
    run = map if on is None else on.map
    return run(Answerer(plan, cells).lines, chunks)


class Answerer:
    """Answers the samples of the cells of one model and one benchmark, chunk by chunk.

    It is pickled as what its cells are made of: another process opens the model and the
    embedders by name, and refuses to go on if its cells would be others.
    """

    def __init__(self, plan: Plan, cells: Sequence[Cell]) -> None:
        self.plan, self.cells = plan, {cell.id: cell for cell in cells}

    def __reduce__(self) -> tuple[object, ...]:
        from trueline.engines.origins import origin_of

        cells = list(self.cells.values())
        spaces = {id(cell.space): cell.space for cell in cells if cell.space is not None}
        packed = {key: _packed(space) for key, space in spaces.items()}
        made_of = [(cell.head, cell.variant, id(cell.space)) for cell in cells]
        origin, benchmark = origin_of(cells[0].lm), cells[0].benchmark
        return _reopened, (self.plan, origin, benchmark, made_of, packed)

    def lines(self, chunk: Chunk) -> list[SampleLine]:
        """The lines of a chunk of samples, one each and in their order."""
        plan, (id, start) = self.plan, chunk
        scorer = None
        if plan.bertscore is not None and plan.bertscore_layers is not None:
            scorer = (plan.bertscore, plan.bertscore_layers)
        cell = self.cells[id]
        return sample_lines(cell, cell.samples[start : start + plan.batch_size], scorer)


@dataclass(frozen=True, slots=True)
class _PackedSpace:
    """A space without what is open in it."""

    recipe: Recipe
    segment: Segment
    embedder: Origin


def _packed(space: GroundingSpace) -> _PackedSpace:
    from trueline.engines.origins import origin_of
    from trueline.space.segment import join_parts

    return _PackedSpace(space.recipe, join_parts(space.parts), origin_of(space.embedder))


def _unpacked(packed: _PackedSpace) -> GroundingSpace:
    from trueline.space.content import Content
    from trueline.space.segment import Part
    from trueline.space.space import space_of

    content = Content(packed.recipe, (Part(packed.segment),))
    return space_of(content, embedder=packed.embedder())


def _reopened(
    plan: Plan,
    origin: Origin,
    benchmark: Benchmark,
    made_of: Sequence[tuple[CellLine, Variant, int]],
    packed: dict[int, _PackedSpace],
) -> Answerer:
    """The same cells in another process."""
    lm: Engine = origin()
    spaces = {key: _unpacked(space) for key, space in packed.items()}
    found: dict[str, Cell] = {}
    for head, variant, key in made_of:
        if head.cell not in found:
            cells = cells_of(plan, lm, benchmark, variant, spaces.get(key))
            found |= {cell.id: cell for cell in cells}
            _check_same(head, cells)
    return Answerer(plan, [found[head.cell] for head, _, _ in made_of])


def _check_same(head: CellLine, cells: Sequence[Cell]) -> None:
    """Refuse to run a cell that is not the one asked for, and say in what it differs."""
    if any(cell.id == head.cell for cell in cells):
        return
    here = plain(next(cell.head for cell in cells if cell.head.task == head.task))
    wanted: dict[str, Any] = plain(head)
    differing = [name for name in wanted if name != "cell" and wanted[name] != here[name]]
    raise ClusterError(
        f"{head.label} on {head.benchmark} would be run otherwise there than here: its "
        f"{', '.join(differing)} differ; put the same files and versions on every machine"
    )
