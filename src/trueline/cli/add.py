"""`trueline add`: more examples for a space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.example_options import example_options
from trueline.cli.options import PATH, engine_option

if TYPE_CHECKING:
    from trueline.engines.base import Engine
    from trueline.records import Example
    from trueline.space.space import GroundingSpace


@click.command()
@click.argument("folder", type=PATH)
@click.argument("examples")
@click.option("--replace", is_flag=True, help="Let new content take the place of known ids.")
@click.option("--model", help="The model, if not the one the space names.")
@click.option("--embedder", help="The embedder, if not the one the space names.")
@engine_option
@click.option("--device", help="cpu, cuda, mps; the best there is if left out.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model.")
@example_options
def add(
    folder: Path,
    examples: str,
    replace: bool,
    model: str | None,
    embedder: str | None,
    engine: str,
    device: str | None,
    trust_remote_code: bool,
    read: Callable[[str], list[Example]],
) -> None:
    """Add EXAMPLES to the grounding space in FOLDER.

    EXAMPLES is what `trueline build` takes. Only the new examples cost time. An id that the
    space already holds is refused, or with --replace gets the new content.

    \b
    Example:
      trueline add facts.space more.jsonl
    """
    from trueline.cli.progress import progress_bar
    from trueline.cli.screen import holdings, show_line
    from trueline.preflight import check_parts

    check_parts((), space=folder, model=model, embedder=embedder)
    found = read(examples)
    with progress_bar("adding", "", f"opening {folder}") as progress:
        from trueline.space.space import read_space

        space = read_space(folder, embedder=embedder)
        known = [example for example in found if replace and example.id in space]
        new = [example for example in found if not (replace and example.id in space)]
        options = {"engine": engine, "device": device, "trust_remote_code": trust_remote_code}
        lm = _model(space, model, options)
        if known:
            space = space.replace(known, lm, progress=progress)
        if new:
            space = space.add(new, lm, progress=progress)
    counts = space.counts()
    show_line(f"{folder}: {holdings(counts)}")


def _model(space: GroundingSpace, name: str | None, options: dict[str, Any]) -> Engine | None:
    """The model of a space with entries, in the type they were computed in."""
    from trueline.engines import load

    recipe = space.recipe
    if recipe.context is None:
        return None
    found: Engine = load(name or recipe.model, dtype=recipe.computed, **options)
    return found
