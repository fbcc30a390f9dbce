"""`trueline info`: what a space holds."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def info(folder: Path, as_json: bool) -> None:
    """Describe the grounding space in FOLDER.

    \b
    Example:
      trueline info facts.space
    """
    from trueline.cli.screen import print_facts
    from trueline.space.storage import read_space

    facts = read_space(folder).info()
    if as_json:
        click.echo(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        print_facts(facts)
