"""`trueline models`: the names that work without a hub."""

from __future__ import annotations

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
    from trueline.cli.screen import print_json, print_table, size
    from trueline.engines.sources import list_models

    rows = list_models()
    if as_json:
        print_json([asdict(row) for row in rows])
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
