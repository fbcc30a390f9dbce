"""`trueline remove`: examples out of a space."""

from __future__ import annotations

from pathlib import Path

import click

from trueline.cli.options import PATH


@click.command()
@click.argument("folder", type=PATH)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def remove(folder: Path, ids: tuple[str, ...]) -> None:
    """Remove examples from the grounding space in FOLDER, by their ids.

    No answer sees them from then on; `trueline compact` also drops their bytes.

    \b
    Example:
      trueline remove facts.space health-001 health-002
    """
    from trueline.cli.screen import holdings, show_line
    from trueline.space.space import read_space

    counts = read_space(folder).remove(ids).counts()
    show_line(f"{folder}: {holdings(counts)}")
