"""`trueline ask`: one question, one answer."""

from __future__ import annotations

from typing import Any

import click

from trueline.cli.options import (
    Asking,
    asking_options,
    check_questions,
    json_option,
    method_option,
)
from trueline.visible import visible_line


@click.command()
@click.argument("question", callback=check_questions)
@method_option()
@asking_options
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, help="Draw from the K most probable tokens.")
@click.option("--top-p", type=float, help="Draw from the most probable tokens of mass P.")
@click.option("--p-less", is_flag=True, help="Draw from the tokens that p-less sampling keeps.")
@click.option("--seed", type=int, help="Makes a draw repeatable.")
@click.option("--stop", multiple=True, help="End the answer before this text.")
@json_option
def ask(question: str, method: str, asking: Asking, as_json: bool, **options: Any) -> None:
    """Answer QUESTION, and say which verified examples spoke, or that none covers it.

    The answer goes to standard output; what it came from goes beside it, where it is piped to
    standard error.

    \b
    Examples:
      trueline ask "What happens if you swallow gum?"
      trueline ask --space facts.space --only-covered "Who won the cup in 1990?"
    """
    from dataclasses import asdict

    from trueline.cli.screen import print_json, show_answer, tell
    from trueline.explain.sources import source_lines
    from trueline.records import GenerateOptions

    GenerateOptions(**options)  # refused before anything is opened
    session = asking.open([method])
    from trueline.generation import generate, stream  # torch is open by now

    lm, decoder = session.lm, session.methods[method]
    options["max_new_tokens"] = asking.max_new_tokens
    if as_json:
        answer = generate(lm, decoder, question, trace=True, **options)
        print_json(asdict(answer))
        return
    for piece in stream(lm, decoder, question, **options):  # the last one says who spoke
        show_answer(piece.text)
    show_answer("\n")
    if lines := source_lines(piece):
        tell("\n".join(["", *map(visible_line, lines)]))
