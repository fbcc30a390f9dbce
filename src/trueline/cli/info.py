"""`trueline info`: what a space holds."""

from __future__ import annotations

from pathlib import Path

import click

from trueline.cli.options import PATH, json_option


@click.command()
@click.argument("folder", type=PATH)
@click.option("--examples", is_flag=True, help="List the examples, with their ids.")
@json_option
def info(folder: Path, examples: bool, as_json: bool) -> None:
    """Describe the grounding space in FOLDER, or list its examples.

    \b
    Examples:
      trueline info facts.space
      trueline info facts.space --examples
    """
    from trueline.cli.screen import print_facts, print_json, print_table
    from trueline.examples import as_record
    from trueline.space.storage import read_content

    content = read_content(folder)
    if examples and as_json:
        print_json([as_record(example) for example in content.examples])
    elif examples:
        rows = [(one.id, one.question, one.answers[0]) for one in content.examples]
        print_table(("id", "question", "answer"), rows)
    elif as_json:
        print_json(content.info())
    else:  # what is about RAD's entries says nothing where there are none
        facts = content.info()
        print_facts({name: facts[name] for name in facts if facts[name] is not None})
