"""`trueline compare`: methods side by side, and what moved each changed token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import PATH, Asking, asking_options, check_questions, json_option
from trueline.decoders import DEFAULT, PLAIN, built_in_names, method_names
from trueline.errors import SettingError
from trueline.files import read_text

if TYPE_CHECKING:
    from trueline.comparison import Compared
    from trueline.records import Answer


@click.command()
@click.argument("questions", nargs=-1, callback=check_questions)
@click.option("--file", type=PATH, help="Questions, one a line.")
@click.option(
    "--methods",
    default=f"{PLAIN},{DEFAULT}",
    show_default=True,
    help=f"Separated by commas, or `all`: {', '.join(built_in_names())}.",
)
@asking_options
@click.option("--flips", is_flag=True, help="Show which example moved which token.")
@json_option
def compare(
    questions: tuple[str, ...],
    file: Path | None,
    methods: str,
    asking: Asking,
    flips: bool,
    as_json: bool,
) -> None:
    """Answer QUESTIONS with several methods, side by side.

    Speed is measured without traces; with --flips the methods that retrieve answer once more.

    \b
    Examples:
      trueline compare --space facts.space --flips "What happens if you swallow gum?"
      trueline compare --methods all --set kate.k=4 "What happens if you swallow gum?"
    """
    from trueline.cli.screen import print_json, progress_bars
    from trueline.comparison import compare as run
    from trueline.generation import generate

    asked = _questions(questions, file)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    session = asking.open(method_names() if names == ["all"] else names)
    lm, decoders = session.lm, session.methods
    length = asking.max_new_tokens
    with progress_bars("answers") as progress:
        found = run(lm, decoders, asked, max_new_tokens=length, progress=progress)
    traced: dict[str, list[Answer]] = {
        name: generate(lm, decoder, asked, max_new_tokens=length, trace=True)
        for name, decoder in decoders.items()
        if flips and decoder.needs.context is not None
    }
    if as_json:
        print_json(_as_json(found, traced))
    else:
        _show(asked, found, traced)


def _questions(given: tuple[str, ...], file: Path | None) -> list[str]:
    lines = [] if file is None else read_text(file, "--file").split("\n")
    asked = [text.strip() for text in (*given, *lines) if text.strip()]
    if not asked:
        raise SettingError("there is no question; give some as arguments or with --file")
    return asked


def _as_json(found: dict[str, Compared], traced: dict[str, list[Answer]]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        name: {
            "answers": [asdict(answer) for answer in traced.get(name, run.answers)],
            "seconds": round(run.seconds, 3),
            "tokens_per_second": round(run.tokens_per_second, 2),
            "changed": run.changed,
            "diverges": run.diverges,
            "did_nothing": run.did_nothing,
        }
        for name, run in found.items()
    }


def _show(
    asked: list[str], found: dict[str, Compared], traced: dict[str, list[Answer]]
) -> None:
    """One block a question: its answers, and the tokens a method changed; then the sums."""
    from trueline.cli.screen import print_answers, print_table
    from trueline.explain.moves import moves

    for place, question in enumerate(asked):
        answers = {name: run.answers[place].text for name, run in found.items()}
        notes = [
            f"{name}, {line}"
            for name, given in traced.items()
            for line in moves(given[place].trace)
        ]
        print_answers(question, answers, notes)
    print_table(
        ["method", "tokens", "tokens/s", "changed", "first change at token", ""],
        [_row(name, run) for name, run in found.items()],
    )


def _row(name: str, run: Compared) -> list[str]:
    places = [place + 1 for place in run.diverges if place is not None]
    count = sum(len(answer.token_ids) for answer in run.answers)
    changed = "" if run.changed is None else f"{run.changed:.0%}"
    note = (
        "did nothing: equals the plain model everywhere"
        if run.did_nothing and name != PLAIN
        else ""
    )
    first = ", ".join(map(str, places))
    return [name, str(count), f"{run.tokens_per_second:.1f}", changed, first, note]
