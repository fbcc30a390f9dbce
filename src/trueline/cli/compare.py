"""`trueline compare`: methods side by side, and what moved each changed token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import asking_options, method_named, open_pair
from trueline.errors import SettingError

if TYPE_CHECKING:
    from trueline.answers import Answer


@click.command()
@click.argument("questions", nargs=-1)
@click.option("--file", type=click.Path(path_type=Path), help="Questions, one a line.")
@click.option("--methods", default="greedy,rad", show_default=True, help="Separated by commas.")
@asking_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, with what happened at each step."
)
def compare(
    questions: tuple[str, ...],
    file: Path | None,
    methods: str,
    space: Path | None,
    model: str | None,
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
    alpha: float,
    tau: float,
    max_new_tokens: int,
    as_json: bool,
) -> None:
    """Answer QUESTIONS with several methods and show which example moved which token.

    \b
    Example:
      trueline compare --space facts.space "What happens if you swallow gum?"
    """
    from dataclasses import asdict

    from trueline.cli.screen import progress_bar
    from trueline.generation import generate

    asked = _questions(questions, file)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    lm, grounding = open_pair(space, model, dtype, device, trust_remote_code)
    decoders = {name: method_named(name, grounding, alpha=alpha, tau=tau) for name in names}
    answers: dict[str, list[Answer]] = {}
    for name, decoder in decoders.items():
        with progress_bar(name, "answers") as progress:
            answers[name] = generate(
                lm, decoder, asked, max_new_tokens=max_new_tokens, trace=True, progress=progress
            )
    if as_json:
        table: dict[str, Any] = {n: [asdict(a) for a in given] for n, given in answers.items()}
        click.echo(json.dumps(table, indent=1, ensure_ascii=False))
        return
    _show(asked, answers)


def _questions(given: tuple[str, ...], file: Path | None) -> list[str]:
    lines: list[str] = []
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"--file {file} cannot be read ({error})") from error
    asked = [*given, *(line.strip() for line in lines if line.strip())]
    if not asked:
        raise SettingError("there is no question; give some as arguments or with --file")
    return asked


def _show(asked: list[str], answers: dict[str, list[Answer]]) -> None:
    """One block a question: its answers, then the tokens a method changed and who moved them."""
    from rich.markup import escape

    from trueline.cli.screen import console

    screen = console()
    width = max(map(len, answers)) + 2
    for place, question in enumerate(asked):
        screen.print(f"[bold]{escape(question)}[/bold]")
        for name, given in answers.items():
            text = " ".join(given[place].text.split())
            screen.print(f"  [cyan]{name:<{width}}[/cyan]{escape(text)}")
        for given in answers.values():
            for line in _flips(given[place]):
                screen.print(f"    [dim]{escape(line)}[/dim]")
        screen.print()
    for name, given in answers.items():
        screen.print(_summary(name, given))


def _flips(answer: Answer) -> list[str]:
    lines = []
    for number, step in enumerate(answer.trace or (), 1):
        if step.flipped and step.neighbors:
            best = max(step.neighbors, key=lambda neighbor: neighbor.push)
            lines.append(
                f"token {number}: {step.base[0].text!r} became {step.text!r}, moved by "
                f"{best.example} ({best.question} cosine {best.similarity:.2f}, "
                f"{best.push:+.2f}; {step.hits} hits)"
            )
    return lines


def _summary(name: str, answers: list[Answer]) -> str:
    steps = [step for answer in answers for step in answer.trace or ()]
    grounded = sum(1 for step in steps if step.hits)
    flipped = sum(1 for step in steps if step.flipped)
    return f"{name}: {len(steps)} tokens, {grounded} grounded, {flipped} changed"
