"""`trueline verify`: every byte and every number of a space."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a line.")
def verify(folder: Path, as_json: bool) -> None:
    """Check the grounding space in FOLDER; exit 1 if anything in it is not as it was written.

    \b
    Example:
      trueline verify facts.space
    """
    from trueline.space.storage import read_space

    checked = read_space(folder).verify()
    if as_json:
        click.echo(json.dumps(checked, indent=1))
    else:
        click.echo(
            f"{folder} is sound: {checked['files']} files, {checked['entries']:,} entries, "
            f"{checked['examples']:,} examples"
        )
