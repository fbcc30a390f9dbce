"""`trueline models`: the names that work without a hub."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from trueline.cli.options import json_option


@click.command()
@json_option
def models(as_json: bool) -> None:
    """List the models that come from the package registry, and which are already here.

    \b
    Example:
      trueline models
    """
    from trueline.cli.screen import print_table, size
    from trueline.models.sources import listing

    rows = listing()
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print_table(
        ["name", "kind", "to fetch", "licence", "here", "what it is"],
        [
            [
                r.name,
                r.kind,
                size(r.size),
                r.licence,
                "yes" if r.cached else "no",
                r.description,
            ]
            for r in rows
        ],
    )
