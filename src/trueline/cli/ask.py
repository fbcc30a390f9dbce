"""`trueline ask`: one question, one answer; or many, one line each."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli import options
from trueline.cli.screen import AnswerWriter, is_terminal, print_json, tell, write
from trueline.errors import SettingError
from trueline.text import repeats_itself, visible_line

if TYPE_CHECKING:
    from trueline.types import Answer

_STDIN = "-"  # stands for standard input, as with other commands
_JSON = """question text is_covered sources finish method prompt_tokens new_tokens seconds
    first_token_seconds""".split()  # fields without --trace


@click.command()
@click.argument("question", required=False)
@click.option(
    "--file",
    type=options.PATH,
    help="Many questions, one a line, or the column `question` of a JSONL or CSV file.",
)
@options.method_option()
@options.answer_options
@options.json_option
@click.option(
    "--trace",
    is_flag=True,
    help="With --json: also the tokens, the reason for each, and the examples near.",
)
def ask(
    question: str | None,
    file: Path | None,
    method: str,
    as_json: bool,
    trace: bool,
    **given: Any,
) -> None:
    """Answer QUESTION, with the verified examples it is from, or that none covers it.

    The answer goes to standard output. Its sources go below it in a terminal, and to standard
    error if the answer is piped.

    Many questions come from --file, or from standard input, one a line, without QUESTION or
    with -. Piped, their answers are one tab-separated line each, with a head: question,
    covered (yes or no), from (ids of the examples it is from), answer.

    \b
    Examples:
      trueline ask "What happens if you swallow gum?"
      trueline ask --space facts.space --only-covered "Who won the cup in 1990?"
      trueline ask --space facts.space --file questions.txt
    """
    if trace and not as_json:
        raise SettingError(
            "--trace needs --json; to read the reasons for an answer, use: trueline explain"
        )
    questions = _questions(question, file)
    setup = options.AnswerOptions(given)
    session = setup.open([method])
    from trueline.decode.generate import generate, stream  # torch is imported by now
    from trueline.explain.text import REPEATS, source_lines

    parts = session.lm, session.methods[method]
    is_one = question not in (None, _STDIN)
    if not as_json and (is_one or is_terminal()):
        for number, text in enumerate(questions):
            if not is_one:
                tell(f"{chr(10) * (number > 0)}{visible_line(text)}", "prompt")
            writer = AnswerWriter()
            for piece in stream(*parts, text, **setup.sampling):
                writer.write(piece.text)
            writer.end()
            lines = source_lines(piece)  # the last piece has the sources
            if piece.answer is not None and repeats_itself(piece.answer.text):
                lines.append(REPEATS)
            if lines:
                tell("\n".join(["", *map(visible_line, lines)]), "dim")
        return
    answers = (generate(*parts, text, trace=trace, **setup.sampling) for text in questions)
    if as_json:
        listed = [_as_json(answer) for answer in answers]
        print_json(listed[0] if is_one else listed)
        return
    write("question\tcovered\tfrom\tanswer\n")
    for answer in answers:
        covered = {True: "yes", False: "no", None: ""}[answer.is_covered]
        sources = ", ".join(source.example for source in answer.sources)
        row = (answer.question, covered, sources, " ".join(answer.text.split()))
        write("\t".join(map(visible_line, row)) + "\n", flush=True)


def _questions(question: str | None, file: Path | None) -> list[str]:
    """The question of the command line, or those of a file or of standard input."""
    from trueline.examples import read_questions
    from trueline.prompts import check_question

    if file is not None:
        if question is not None:
            raise SettingError("give QUESTION or --file, not both")
        return [row.question for row in read_questions(file, needs_ids=False)]
    if question is not None and question != _STDIN:
        return [question]
    lines = enumerate(sys.stdin if question == _STDIN or not sys.stdin.isatty() else (), 1)
    found = {number: line.strip() for number, line in lines if line.strip()}
    for number, line in found.items():
        check_question(line, f"line {number} of standard input")
    if not found:
        raise SettingError(
            'there is no question; write one, as in: trueline ask "What happens if you swallow '
            'gum?", or give many with --file or through a pipe, one a line'
        )
    return [*found.values()]


def _as_json(answer: Answer) -> dict[str, Any]:
    """An answer with its sources and counts, and everything else if it has a trace."""
    fields = {**asdict(answer), "new_tokens": answer.new_tokens}
    first = {name: fields.pop(name) for name in _JSON}
    return first if answer.trace is None else {**first, **fields}
