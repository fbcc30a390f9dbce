"""`trueline info`: what a space holds."""

from __future__ import annotations

from pathlib import Path

import click

from trueline.cli.options import PATH, json_option


@click.command()
@click.argument("folder", type=PATH)
@json_option
def info(folder: Path, as_json: bool) -> None:
    """Describe the grounding space in FOLDER.

    \b
    Example:
      trueline info facts.space
    """
    from trueline.cli.screen import print_facts, print_json
    from trueline.space.storage import read_content

    facts = read_content(folder).info()
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
