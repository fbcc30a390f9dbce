"""`trueline ask`: one question, one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import (
    Asking,
    asking_options,
    check_questions,
    json_option,
    method_option,
)
from trueline.errors import SettingError
from trueline.visible import visible_line

if TYPE_CHECKING:
    from trueline.decoders.base import Decoder
    from trueline.engines.base import Engine

_STDIN = "-"  # stands for standard input, as with other commands


@click.command()
@click.argument("question", required=False, callback=check_questions)
@method_option()
@asking_options
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, help="Draw from the K most probable tokens.")
@click.option("--top-p", type=float, help="Draw from the most probable tokens of mass P.")
@click.option("--p-less", is_flag=True, help="Draw from the tokens that p-less sampling keeps.")
@click.option("--seed", type=int, help="Makes a draw repeatable.")
@click.option("--stop", multiple=True, help="End the answer before this text.")
@json_option
def ask(
    question: str | None, method: str, asking: Asking, as_json: bool, **options: Any
) -> None:
    """Answer QUESTION, and say which verified examples spoke, or that none covers it.

    Without QUESTION, or with -, questions are read from standard input, one a line. The answer
    goes to standard output; what it came from goes beside it, where it is piped to standard
    error.

    \b
    Examples:
      trueline ask "What happens if you swallow gum?"
      trueline ask --space facts.space --only-covered "Who won the cup in 1990?"
    """
    from dataclasses import asdict

    from trueline.cli.screen import print_json
    from trueline.records import GenerateOptions

    GenerateOptions(**options)  # refused before anything is opened
    asked = _asked(question)
    session = asking.open([method])
    from trueline.generation import generate  # torch is open by now

    lm, decoder = session.lm, session.methods[method]
    options["max_new_tokens"] = asking.max_new_tokens
    if not as_json:
        for number, one in enumerate(asked):
            _answer(lm, decoder, one, options, is_first=number == 0)
        return
    answers = [asdict(generate(lm, decoder, one, trace=True, **options)) for one in asked]
    print_json(answers if question in (None, _STDIN) else answers[0])


def _asked(question: str | None) -> list[str]:
    """The question of the command line, or those of standard input."""
    from trueline.cli.screen import has_piped_input, read_lines
    from trueline.prompts import check_question

    if question not in (None, _STDIN):
        return [question]
    asked = read_lines() if question == _STDIN or has_piped_input() else []
    if not asked:
        raise SettingError(
            'there is no question; write one, as in: trueline ask "What happens if you swallow '
            'gum?", or pipe some in, one a line'
        )
    for number, one in enumerate(asked, 1):
        check_question(one, f"question {number}")
    return asked


def _answer(
    lm: Engine, method: Decoder, question: str, options: dict[str, Any], *, is_first: bool
) -> None:
    """Stream an answer, and say below who spoke."""
    from trueline.cli.answers import AnswerWriter
    from trueline.cli.screen import tell
    from trueline.explain.sources import source_lines
    from trueline.generation import stream

    if not is_first:
        tell("")
    writer = AnswerWriter()
    for piece in stream(lm, method, question, **options):  # the last one says who spoke
        writer.write(piece.text)
    writer.end()
    if lines := source_lines(piece):
        tell("\n".join(["", *map(visible_line, lines)]), "dim")
