"""`trueline verify`: every byte and every number of a space."""

from __future__ import annotations

from pathlib import Path

import click

from trueline.cli.options import PATH, json_option
from trueline.visible import counted


@click.command()
@click.argument("folder", type=PATH)
@json_option
def verify(folder: Path, as_json: bool) -> None:
    """Check the grounding space in FOLDER; exit 1 if anything in it is not as it was written.

    \b
    Example:
      trueline verify facts.space
    """
    from trueline.cli.screen import holdings, print_json, show_line
    from trueline.space.storage import verify_folder

    checked = verify_folder(folder)
    if as_json:
        print_json(checked)
    else:
        show_line(
            f"{folder} is sound: {counted(checked['files'], 'file')}, {holdings(checked)}"
        )
