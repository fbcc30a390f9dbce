"""`trueline report`: the tables and plots of a run."""

from __future__ import annotations

from pathlib import Path

import click

from trueline.cli.options import PATH, FlagEnvvarOption


@click.command()
@click.argument("folder", type=PATH)
@click.option(
    "--out",
    type=PATH,
    help="Where to write; beside the results if left out.",
)
@click.option(
    "--format",
    "formats",
    cls=FlagEnvvarOption,
    default="md,html,csv,latex",
    show_default=True,
    help="Separated by commas.",
)
@click.option(
    "--plots", default="svg", show_default=True, help="svg, png, both with a comma, or none."
)
@click.option(
    "--overwrite", is_flag=True, help="Replace files there that no earlier report wrote."
)
def report(folder: Path, out: Path | None, formats: str, plots: str, overwrite: bool) -> None:
    """Write the report of the run in FOLDER, and print the names of its files.

    Files of an earlier report are replaced, others only with --overwrite.

    \b
    Examples:
      trueline report results
      trueline report results --out report --format html,latex --plots svg,png
    """
    from trueline.cli.screen import show_line
    from trueline.report.writing import write_report

    drawn = [] if plots.strip() == "none" else _names(plots)
    written = write_report(
        folder, out=out, formats=_names(formats), plots=drawn, overwrite=overwrite
    )
    for path in written:
        show_line(str(path))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
