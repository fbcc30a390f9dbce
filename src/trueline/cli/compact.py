"""`trueline compact`: a space as one segment, without what was removed."""

from __future__ import annotations

from pathlib import Path

import click

from trueline.cli.options import PATH


@click.command()
@click.argument("folder", type=PATH)
def compact(folder: Path) -> None:
    """Write the grounding space in FOLDER anew as one segment; removed examples leave the disk.

    \b
    Example:
      trueline compact facts.space
    """
    from trueline.cli.screen import holdings, show_line, size
    from trueline.space.space import read_space

    facts = read_space(folder).compact().info()
    show_line(f"{folder}: {holdings(facts)}, {size(facts['bytes'])} in one segment")
