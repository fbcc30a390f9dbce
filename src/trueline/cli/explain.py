"""`trueline explain`: an answer, and which examples moved which token."""

from __future__ import annotations

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
from trueline.methods import PLAIN, default_settings
from trueline.text import counted

if TYPE_CHECKING:
    from trueline.methods.base import Method
    from trueline.space import GroundingSpace
    from trueline.types import Answer


@click.command()
@click.argument("question", callback=check_questions)
@method_option("The method to explain.")
@asking_options
@click.option(
    "--out",
    type=PATH,
    help="Write it to this file: .html (one page that needs no other file), .json or .txt.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that stands there.")
@click.option(
    "--signals", is_flag=True, help="Show the numbers that decide which examples speak."
)
@json_option
def explain(
    question: str,
    method: str,
    asking: Asking,
    out: Path | None,
    overwrite: bool,
    signals: bool,
    as_json: bool,
) -> None:
    """Answer QUESTION and tell which examples speak and why, and which token they moved.

    The greedy answer stands beside it.

    \b
    Examples:
      trueline explain "What happens if you swallow gum?"
      trueline explain --space facts.space --out gum.html "What happens if you swallow gum?"
    """
    from trueline.cli.screen import print_json, show, show_line, text_width
    from trueline.explain import check_explanation_path
    from trueline.explain.text import coverage_lines

    if out is not None:
        check_explanation_path(out, overwrite=overwrite)  # before a model is opened
    session = asking.open(list(dict.fromkeys([method, PLAIN])))
    from trueline.decode.generate import generate  # torch is open by now

    lm, methods = session.lm, session.methods
    length = asking.max_new_tokens
    answer = generate(lm, methods[method], question, max_new_tokens=length, trace=True)
    beside: Answer | None = None
    if method != PLAIN:
        beside = generate(lm, methods[PLAIN], question, max_new_tokens=length)
    settings = {"model": lm.id, **_held(session.space), **_settings(methods[method])}
    explanation = answer.explain(beside, settings=settings)
    if out is not None:
        explanation.save(out, with_signals=signals)
    if as_json:
        print_json(explanation.as_dict())
    elif out is None:
        show(explanation.text(text_width(), with_signals=signals))
    else:
        told = explanation.summary
        covered = f"; {lines[0]}" if (lines := coverage_lines(explanation)) else ""
        show_line(
            f"{out}: {counted(told.tokens, 'token')}, {told.grounded} grounded, "
            f"{told.flips} changed, {counted(len(told.cited), 'example')} cited{covered}"
        )


def _held(space: GroundingSpace | None) -> dict[str, int]:
    """How much the space holds."""
    if space is None:
        return {}
    return {name: count for name, count in space.counts().items() if name != "wrong" and count}


def _settings(decoder: Method) -> dict[str, Any]:
    """The numbers of a method, and whatever else is not as it comes."""
    known = default_settings(decoder.name)
    return {
        name: value
        for name, value in decoder.settings().items()
        if type(value) in (int, float)
        or (isinstance(value, bool | str) and value != known.get(name))
    }
