"""`trueline merge`: two spaces to one."""

from __future__ import annotations

from pathlib import Path

import click

from trueline.cli.options import PATH


@click.command()
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
@click.option(
    "--out",
    type=PATH,
    required=True,
    help="The folder of the result; it may be that of one of the two.",
)
@click.option("--overwrite", is_flag=True, help="Replace another space that stands there.")
def merge(first: Path, second: Path, out: Path, overwrite: bool) -> None:
    """Merge the grounding spaces in FIRST and SECOND, which must have been made alike.

    An example that both hold is kept once; two different ones under one id are refused.

    \b
    Example:
      trueline merge facts.space more.space --out both.space
    """
    from trueline.cli.screen import holdings, show_line
    from trueline.space.folder import check_space_folder
    from trueline.space.space import merge as merge_spaces
    from trueline.space.space import read_space

    check_space_folder(out)
    spaces = read_space(first), read_space(second)
    counts = merge_spaces(*spaces, out=out, overwrite=overwrite).counts()
    show_line(f"{out}: {holdings(counts)}")
