"""`trueline report` and `trueline reproduce`: the tables and plots of a run, or of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.eval import PlanCommand, show_costs, with_flags, words_of
from trueline.cli.options import (
    PATH,
    FlagEnvvarOption,
    cluster_options,
    dry_run_options,
    json_option,
    read_cluster,
)
from trueline.engines import DEFAULT_MODEL
from trueline.errors import SettingError

if TYPE_CHECKING:
    from trueline.lab.report.tables import Document

_PAGES = ("reproduce.md", "reproduce.html")


@click.command()
@click.argument("folder", type=PATH)
@click.option("--out", type=PATH, help="Where to write; next to the results if left out.")
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
def report(folder: Path, formats: str, plots: str, **where: Any) -> None:
    """Write the report of the run in FOLDER, and print the names of its files.

    Files of an earlier report are replaced, others only with --overwrite.

    \b
    Examples:
      trueline report results
      trueline report results --out report --format html,latex --plots svg,png
    """
    from trueline.cli.screen import show_line
    from trueline.lab.report.pages import write_report

    drawn = [] if plots.strip() == "none" else words_of(plots)
    for path in write_report(folder, formats=words_of(formats), plots=drawn, **where):
        show_line(str(path))


class _RecipeCommand(PlanCommand):
    """Its defaults are those of the recipe."""

    own = frozenset(("out", "settings", "sweep", "columns", "questions", "tasks"))
    shows_defaults = False


@click.command(cls=_RecipeCommand)
@click.argument("name", required=False)
@click.option(
    "--list", "is_list", cls=FlagEnvvarOption, is_flag=True, help="Print the recipes and stop."
)
@click.option("--full", is_flag=True, help="As many examples and questions as in the paper.")
@click.option("--out", type=PATH, help="The folder.  [reproduced/NAME]")
@click.option(
    "--overwrite", is_flag=True, help="Replace pages there that no earlier recipe wrote."
)
@cluster_options
@dry_run_options
@json_option
def reproduce(
    name: str | None,
    is_list: bool,
    full: bool,
    out: Path | None,
    overwrite: bool,
    on: str | None,
    workers: int | None,
    dry_run: bool,
    price: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run the recipe NAME and print the paper's figures next to ours.

    A recipe takes 25 examples and 16 questions of each benchmark if it names no numbers of its
    own; --full takes the paper's, with --as paper and --controls. The same command goes on
    where it was stopped.

    \b
    Examples:
      trueline reproduce --list
      trueline reproduce alpha --benchmark facts --test 8
      trueline reproduce cases --benchmark facts --ground 10 --test 4 --json
    """
    from trueline.cli.screen import note, print_json, progress_bars, show
    from trueline.lab.cost import costs_of
    from trueline.lab.paper.recipes import plans_of, recipe_named, recipes
    from trueline.lab.paper.reproduce import reproduce as run
    from trueline.lab.report.pages import as_html, as_markdown, check_free, write_files

    if is_list:
        _list_recipes(as_json)
        return
    if name is None:
        raise SettingError(f"name a recipe: {', '.join(recipes())}")
    table = with_flags({}, flags)
    plans = plans_of(recipe_named(name), table, is_full=full)
    if dry_run:
        show_costs(plans, price, as_json)
        return
    if others := sum(one.control_answers for one in costs_of(plans)):
        note(f"{others:,} answers are of controls and baselines: --no-controls leaves them out")
    cluster = read_cluster(on, workers, flags["device"])
    folder = out or Path("reproduced") / name
    plots = [path.name for path in folder.glob("*.svg")]
    check_free(folder, [*_PAGES, *plots], overwrite=overwrite)  # before hours of work
    with progress_bars("done") as progress:
        made = run(name, folder, table, is_full=full, on=cluster, progress=progress)
    texts = (as_markdown(made.document, figures="svg"), as_html(made.document))
    contents = {page: text.encode() for page, text in zip(_PAGES, texts, strict=True)}
    contents |= {f"{plot.name}.svg": plot.svg.encode() for plot in made.document.plots}
    written = write_files(folder, contents, overwrite=overwrite)
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
    if as_json:
        print_json([{name: getattr(x, name) for name in names} for x in recipes().values()])
        return
    rows = [
        (x.name, x.about, str(x.answers), f"about {x.minutes:.0f}" if x.minutes >= 1.5 else "1")
        for x in recipes().values()
    ]
    print_table(["name", "what it runs", "answers", "minutes"], rows)
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
