"""Measured spaces -> a grid of their figures beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trueline.paper.figures import paper
from trueline.paper.space_costs import SpaceCosts
from trueline.report.grids import Grid, GridText

_HEAD = tuple(
    "benchmark, examples, entries, paper: entries, size, as 32-bit logits, paper: size, "
    "time to build, time to retrieve".split(", ")
)


def space_figure(one: SpaceCosts) -> dict[str, Any]:
    """A space as JSON, with what the paper says of the same benchmark and examples."""
    return {
        **asdict(one),
        "paper_entries": _paper(one, "entries"),
        "paper_gigabytes": _paper(one, "gigabytes"),
    }


def space_grid(measured: Sequence[SpaceCosts]) -> Grid:
    """A row a space."""
    rows = []
    for one in measured:
        entries, size = _paper(one, "entries"), _paper(one, "gigabytes")
        texts = (
            one.benchmark,
            _examples(one),
            f"{one.entries:,}",
            "\N{EN DASH}" if entries is None else f"{entries:,.0f}",
            f"{one.size / 1e6:,.1f} MB",
            f"{one.as_logits / 1e6:,.0f} MB",
            "\N{EN DASH}" if size is None else f"{size:g} GB",
            f"{one.build_seconds:,.1f} s",
            f"{one.retrieval_ms:.2f} ms",
        )
        rows.append(tuple(GridText(text) for text in texts))
    models = ", ".join(dict.fromkeys(one.model for one in measured))
    return Grid(f"Spaces of {models}, the paper's of Qwen2.5-7B", _HEAD, tuple(rows))


def space_facts(measured: Sequence[SpaceCosts]) -> tuple[tuple[str, str], ...]:
    """What is needed to measure the same again."""
    facts = {}
    for name in ("machine", "versions"):
        each = (
            ", ".join(f"{k} {v}" for k, v in getattr(one, name).items()) for one in measured
        )
        facts[name] = "; ".join(dict.fromkeys(each))
    for one in measured:
        name = f"{one.benchmark}, {one.model}, {_examples(one)} examples"
        facts[name] = f"space {one.space_hash}, rule {one.rule}"
    return tuple(facts.items())


def _examples(one: SpaceCosts) -> str:
    is_all = one.wanted in (None, one.ground)
    return str(one.ground) if is_all else f"{one.ground} of {one.wanted} asked for"


def our_times(measured: Sequence[SpaceCosts]) -> dict[str, str]:
    """The times the paper gives in its text, as we measured them."""
    retrievals = [one.retrieval_ms for one in measured]
    minutes = [one.build_seconds / 60 for one in measured]
    grounds = ", ".join(map(str, sorted({one.ground for one in measured})))
    built = f"{min(minutes):.2f} to {max(minutes):.2f}"
    return {
        "retrieval_ms": f"{min(retrievals):.2f} to {max(retrievals):.2f}",
        "construction_minutes": f"{built} ({grounds} examples)",
    }


def _paper(one: SpaceCosts, metric: str) -> float | None:
    for block in paper().blocks:
        if (block.recipe, block.benchmark) == ("sizes", one.benchmark) and (
            metric in block.metrics
        ):
            row = block.rows.get(f"rad ground={one.wanted}")
            return None if row is None else row[block.metrics.index(metric)]
    return None
