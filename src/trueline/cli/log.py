"""`trueline log`: what was committed to a space, and when."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from trueline.cli.options import PATH, json_option


@click.command()
@click.argument("folder", type=PATH)
@json_option
def log(folder: Path, as_json: bool) -> None:
    """List what was committed to the grounding space in FOLDER, the oldest first.

    \b
    Example:
      trueline log facts.space
    """
    from trueline.cli.screen import print_json, print_table
    from trueline.space.storage import read_manifest

    lines = [asdict(commit) for commit in read_manifest(folder).history]
    if as_json:
        print_json(lines)
    else:
        head = ["time", "what", "changed", "examples", "entries"]
        print_table(head, [[str(line[name]) for name in head] for line in lines])
