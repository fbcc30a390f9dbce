"""`trueline ask`: one question, one answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from trueline.cli.options import asking_options, method_named, open_pair, settings_of


@click.command()
@click.argument("question")
@click.option(
    "--method",
    default="rad",
    show_default=True,
    help="How to answer; compare --help lists all.",
)
@asking_options
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, help="Draw from the K most probable tokens.")
@click.option("--top-p", type=float, help="Draw from the most probable tokens of mass P.")
@click.option("--p-less", is_flag=True, help="Draw from the tokens that p-less sampling keeps.")
@click.option("--seed", type=int, help="Makes a draw repeatable.")
@click.option("--stop", multiple=True, help="End the answer before this text.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, with what happened at each step."
)
def ask(
    question: str,
    method: str,
    space: Path | None,
    model: str | None,
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
    alpha: float | None,
    tau: float | None,
    sets: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Answer QUESTION.

    \b
    Examples:
      trueline ask "What happens if you swallow gum?"
      trueline ask --space facts.space --method greedy "What happens if you swallow gum?"
    """
    from dataclasses import asdict

    from trueline.generation import generate, stream

    lm, grounding = open_pair(space, model, dtype, device, trust_remote_code)
    decoder = method_named(method, grounding, settings_of(sets, alpha=alpha, tau=tau))
    if as_json:
        answer = generate(lm, decoder, question, trace=True, **options)
        click.echo(json.dumps(asdict(answer), indent=1, ensure_ascii=False))
        return
    for piece in stream(lm, decoder, question, **options):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
