"""`trueline ask`: one question, one answer; or many, one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import (
    PATH,
    Asking,
    asking_options,
    check_questions,
    json_option,
    method_option,
)
from trueline.errors import SettingError
from trueline.text import visible_line

if TYPE_CHECKING:
    from trueline.engines.base import Engine
    from trueline.methods.base import Method
    from trueline.types import Answer

_STDIN = "-"  # stands for standard input, as with other commands
_COLUMNS = ("question", "covered", "from", "answer")
_TOLD = """question text is_covered sources finish method prompt_tokens new_tokens seconds
    first_token_seconds""".split()  # of an answer as JSON; with --trace, all the rest too


@click.command()
@click.argument("question", required=False, callback=check_questions)
@click.option(
    "--file",
    type=PATH,
    help="Many questions, one a line, or the column `question` of a JSONL or CSV file.",
)
@method_option()
@asking_options
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, help="Draw from the K most probable tokens.")
@click.option("--top-p", type=float, help="Draw from the most probable tokens of mass P.")
@click.option("--seed", type=int, help="Makes a draw repeatable.")
@click.option("--stop", multiple=True, help="End the answer before this text.")
@json_option
@click.option(
    "--trace",
    is_flag=True,
    help="With --json: also the tokens, the reason for each, and the examples near.",
)
def ask(
    question: str | None,
    file: Path | None,
    method: str,
    asking: Asking,
    as_json: bool,
    trace: bool,
    **options: Any,
) -> None:
    """Answer QUESTION, and say which verified examples spoke, or that none covers it.

    The answer goes to standard output. What it came from goes below it in a terminal, and to
    standard error where the answer is piped.

    Many questions come from --file, or from standard input, one a line, without QUESTION or
    with -. Piped, their answers are one tab-separated line each, with a head: question,
    covered (yes or no), from (ids of the examples that spoke), answer.

    \b
    Examples:
      trueline ask "What happens if you swallow gum?"
      trueline ask --space facts.space --only-covered "Who won the cup in 1990?"
      trueline ask --space facts.space --file questions.txt
    """
    from trueline.cli.screen import is_terminal, print_json
    from trueline.types import Sampling

    Sampling(**options)  # refused before anything is opened
    if trace and not as_json:
        raise SettingError(
            "--trace is for --json; to read why an answer says what it says, use: trueline "
            "explain"
        )
    asked = _asked(question, file)
    session = asking.open([method])
    from trueline.decode.generate import generate  # torch is open by now

    lm, decoder = session.lm, session.methods[method]
    options["max_new_tokens"] = asking.max_new_tokens
    is_one = question not in (None, _STDIN)
    if as_json:
        answers = [
            _as_json(generate(lm, decoder, one, trace=trace, **options)) for one in asked
        ]
        print_json(answers[0] if is_one else answers)
    elif is_one:
        _answer(lm, decoder, asked[0], options)
    elif is_terminal():
        _show_answers(lm, decoder, asked, options)
    else:
        _write_rows(lm, decoder, asked, options)


def _asked(question: str | None, file: Path | None) -> list[str]:
    """The question of the command line, or those of a file or of standard input."""
    from trueline.cli.screen import has_piped_input, read_lines
    from trueline.examples import read_questions
    from trueline.prompts import check_question

    if file is not None:
        if question is not None:
            raise SettingError("give QUESTION or --file, not both")
        return [one.question for one in read_questions(file, needs_ids=False)]
    if question not in (None, _STDIN):
        return [question]
    lines = read_lines() if question == _STDIN or has_piped_input() else {}
    if not lines:
        raise SettingError(
            'there is no question; write one, as in: trueline ask "What happens if you swallow '
            'gum?", or give many with --file or through a pipe, one a line'
        )
    for number, line in lines.items():
        check_question(line, f"line {number} of standard input")
    return [*lines.values()]


def _as_json(answer: Answer) -> dict[str, Any]:
    """An answer with its sources and counts; all that is known of it if it was traced."""
    from dataclasses import asdict

    known = {**asdict(answer), "new_tokens": answer.new_tokens}
    told = {name: known.pop(name) for name in _TOLD}
    return told if answer.trace is None else {**told, **known}


def _answer(lm: Engine, method: Method, question: str, options: Mapping[str, Any]) -> None:
    """Stream an answer, and say below who spoke."""
    from trueline.cli.screen import AnswerWriter, tell
    from trueline.decode.generate import stream
    from trueline.explain.text import source_lines

    writer = AnswerWriter()
    for piece in stream(lm, method, question, **options):  # the last one says who spoke
        writer.write(piece.text)
    writer.end()
    if lines := source_lines(piece):
        tell("\n".join(["", *map(visible_line, lines)]), "dim")


def _show_answers(
    lm: Engine, method: Method, asked: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Stream answers below their questions."""
    from trueline.cli.screen import tell

    for number, question in enumerate(asked):
        tell(f"{chr(10) * (number > 0)}{visible_line(question)}", "prompt")
        _answer(lm, method, question, options)


def _write_rows(
    lm: Engine, method: Method, asked: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Write a line for each question as soon as it is answered."""
    from trueline.cli.screen import flush, write
    from trueline.decode.generate import generate

    write("\t".join(_COLUMNS) + "\n")
    for question in asked:
        answer = generate(lm, method, question, **options)
        covered = {True: "yes", False: "no", None: ""}[answer.is_covered]
        speakers = ", ".join(source.example for source in answer.sources)
        row = (question, covered, speakers, " ".join(answer.text.split()))
        write("\t".join(map(visible_line, row)) + "\n")
        flush()
