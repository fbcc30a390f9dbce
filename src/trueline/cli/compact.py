"""`trueline compact`: a space as one segment, without what was removed."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def compact(folder: Path) -> None:
    """Write the grounding space in FOLDER anew as one segment; removed examples leave the disk.

    \b
    Example:
      trueline compact facts.space
    """
    from trueline.cli.screen import size
    from trueline.space.space import read_space

    facts = read_space(folder).compact().info()
    click.echo(
        f"{folder}: {facts['examples']:,} examples, {facts['entries']:,} entries, "
        f"{size(facts['bytes'])} in one segment"
    )
