"""`trueline report` and `trueline reproduce`: the tables and plots of a run, or of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import PATH, FlagEnvvarOption, json_option
from trueline.engines import DEFAULT_MODEL
from trueline.errors import SettingError

if TYPE_CHECKING:
    from trueline.lab.report.tables import Document

_PAGES = ("reproduce.md", "reproduce.html")


@click.command()
@click.argument("folder", type=PATH)
@click.option("--out", type=PATH, help="Where to write; beside the results if left out.")
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
    from trueline.lab.report.pages import write_report

    drawn = [] if plots.strip() == "none" else _names(plots)
    written = write_report(
        folder, out=out, formats=_names(formats), plots=drawn, overwrite=overwrite
    )
    for path in written:
        show_line(str(path))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@click.command()
@click.argument("name", required=False)
@click.option(
    "--list", "is_list", cls=FlagEnvvarOption, is_flag=True, help="Print the recipes and stop."
)
@click.option("--model", help=f"Alias, hub id or folder.  [{DEFAULT_MODEL}]")
@click.option(
    "--engine", envvar="TRUELINE_ENGINE", help="transformers or llama.cpp.  [transformers]"
)
@click.option("--data", help="A folder of benchmark files; the hub if left out.")
@click.option(
    "--benchmark",
    "benchmarks",
    cls=FlagEnvvarOption,
    multiple=True,
    help="Others than the recipe's, such as facts, which needs no data.",
)
@click.option("--ground", type=int, help="Examples to ground with; the most where they vary.")
@click.option("--test", type=int, help="Questions of each benchmark.")
@click.option(
    "--judge", "judges", cls=FlagEnvvarOption, multiple=True, help="One or more.  [offline]"
)
@click.option("--max-new-tokens", type=int, help="Of each answer.  [64]")
@click.option("--bertscore", help="The folder of an encoder, for BERTScore.")
@click.option("--bertscore-layers", type=int, help="Which layer of it is compared.")
@click.option(
    "--controls/--no-controls", default=None, help="As in eval.  [on with --full alone]"
)
@click.option("--as", "as", help="paper: as in eval.  [with --full alone]")
@click.option("--full", is_flag=True, help="As many examples and questions as in the paper.")
@click.option("--out", type=PATH, help="The folder.  [reproduced/NAME]")
@click.option(
    "--overwrite", is_flag=True, help="Replace pages there that no earlier recipe wrote."
)
@json_option
def reproduce(
    name: str | None,
    is_list: bool,
    model: str | None,
    full: bool,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run the recipe NAME and print the paper's figures beside ours.

    A recipe takes 25 examples and 16 questions of each benchmark if it names no numbers of its
    own; --full takes the paper's. The same command goes on where it was stopped.

    \b
    Examples:
      trueline reproduce --list
      trueline reproduce alpha --benchmark facts --test 8
      trueline reproduce cases --benchmark facts --ground 10 --test 4 --json
    """
    from trueline.cli.screen import print_json, progress_bars, show
    from trueline.lab.paper.recipes import recipes
    from trueline.lab.paper.reproduce import reproduce as run
    from trueline.lab.report.pages import (
        as_html,
        as_markdown,
        check_free,
        svg_files,
        write_files,
    )

    if is_list:
        _list_recipes(as_json)
        return
    if name is None:
        raise SettingError(f"name a recipe: {', '.join(recipes())}")
    given = {key: value for key, value in flags.items() if value not in (None, ())}
    given |= {key: list(x) for key, x in given.items() if isinstance(x, tuple)}
    given |= {"models": [model]} if model else {}
    folder = out or Path("reproduced") / name
    plots = [path.name for path in folder.glob("*.svg")]
    check_free(folder, [*_PAGES, *plots], overwrite=overwrite)  # before hours of work
    with progress_bars("done") as progress:
        made = run(name, folder, given, is_full=full, progress=progress)
    texts = (as_markdown(made.document, figures="svg"), as_html(made.document))
    pages = {page: text.encode() for page, text in zip(_PAGES, texts, strict=True)}
    figures = svg_files(x for section in made.document.sections for x in section.figures)
    written = write_files(folder, {**pages, **figures}, overwrite=overwrite)
    if as_json:
        print_json(made.data)
        return
    _show(made.document)
    show(f"\nwritten to {folder}: {', '.join(path.name for path in written)}")


def _list_recipes(as_json: bool) -> None:
    """Print each recipe with its number of answers and an estimate of its time."""
    from trueline.cli.screen import print_json, print_table, tell
    from trueline.lab.paper.recipes import recipes

    names = ("name", "about", "answers", "minutes")
    rows = [{name: getattr(one, name) for name in names} for one in recipes().values()]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row["minutes"] = f"about {row['minutes']:.0f}" if row["minutes"] >= 1.5 else "1"
    head = ["name", "what it runs", "answers", "minutes"]
    print_table(head, [[str(value) for value in row.values()] for row in rows])
    tell(
        "Minutes are estimated from the number of answers and examples, for "
        f"{DEFAULT_MODEL} on two cores; --full and other models take longer."
    )


def _show(document: Document) -> None:
    from trueline.cli.screen import print_table, show

    show(document.title)
    for section in document.sections:
        show(f"\n{section.title}")
        for text in (*section.notes, *(f"Warning: {text}" for text in section.warnings)):
            show(f"- {text}")
        for grid in section.grids:
            show(f"\n{grid.title}")
            rows = [[" ".join([*x.text.split(), *x.below]) for x in row] for row in grid.rows]
            print_table(grid.head, rows)
            for note in grid.notes:
                show(note)
