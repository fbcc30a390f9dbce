"""`trueline reproduce`: the paper's tables and figures, run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import PATH, FlagEnvvarOption, json_option
from trueline.engines import DEFAULT_MODEL
from trueline.errors import SettingError

if TYPE_CHECKING:
    from trueline.report.grids import Document

_PAGES = ("reproduce.md", "reproduce.html")


@click.command()
@click.argument("name", required=False)
@click.option(
    "--list", "is_list", cls=FlagEnvvarOption, is_flag=True, help="Print the recipes and stop."
)
@click.option("--model", help=f"Alias, hub id or folder.  [{DEFAULT_MODEL}]")
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

    Unless a recipe says else it takes 25 examples and 16 questions of each benchmark; --full
    takes the paper's numbers. The same command goes on where it was stopped.

    \b
    Examples:
      trueline reproduce --list
      trueline reproduce alpha --benchmark facts --test 8
      trueline reproduce cases --benchmark facts --ground 10 --test 4 --json
    """
    from trueline.cli.screen import print_json, progress_bars, show
    from trueline.paper.recipes import recipes
    from trueline.paper.reproduce import reproduce as run
    from trueline.report.output import check_free

    if is_list:
        show("\n".join(f"{one.name}\t{one.about}" for one in recipes().values()))
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
    written = _save(made.document, folder, overwrite)
    if as_json:
        print_json(made.data)
        return
    _show(made.document)
    show(f"\nwritten to {folder}: {', '.join(path.name for path in written)}")


def _save(document: Document, folder: Path, overwrite: bool) -> list[Path]:
    from trueline.report.formats import as_html, as_markdown
    from trueline.report.output import write_files
    from trueline.report.writing import svg_files

    texts = (as_markdown(document, figures="svg"), as_html(document))
    pages = {name: text.encode() for name, text in zip(_PAGES, texts, strict=True)}
    figures = [figure for section in document.sections for figure in section.figures]
    return write_files(folder, {**pages, **svg_files(figures)}, overwrite=overwrite)


def _show(document: Document) -> None:
    from trueline.cli.screen import print_table, show

    show(document.title)
    for section in document.sections:
        show(f"\n{section.title}")
        for text in (*section.notes, *(f"Warning: {text}" for text in section.warnings)):
            show(f"- {text}")
        for grid in section.grids:
            show(f"\n{grid.title}")
            rows = [[_cell(entry.text, entry.below) for entry in row] for row in grid.rows]
            print_table(grid.head, rows)
            for note in grid.notes:
                show(note)


def _cell(text: str, below: tuple[str, ...]) -> str:
    return " ".join([*text.split(), *below])
