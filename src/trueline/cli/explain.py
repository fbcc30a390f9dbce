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
from trueline.decoders import PLAIN, default_settings

if TYPE_CHECKING:
    from trueline.decoders.base import Decoder
    from trueline.records import Answer


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
@json_option
def explain(
    question: str,
    method: str,
    asking: Asking,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Answer QUESTION and tell which examples moved which token, beside the greedy answer.

    \b
    Examples:
      trueline explain "What happens if you swallow gum?"
      trueline explain --space facts.space --out gum.html "What happens if you swallow gum?"
    """
    from trueline.cli.screen import print_json, show, show_line
    from trueline.explain import check_explanation_path
    from trueline.generation import generate

    if out is not None:
        check_explanation_path(out, overwrite=overwrite)  # before a model is opened
    session = asking.open(list(dict.fromkeys([method, PLAIN])))
    lm, methods = session.lm, session.methods
    length = asking.max_new_tokens
    answer = generate(lm, methods[method], question, max_new_tokens=length, trace=True)
    beside: Answer | None = None
    if method != PLAIN:
        beside = generate(lm, methods[PLAIN], question, max_new_tokens=length)
    facts = {} if session.space is None else {"entries": session.space.info()["entries"]}
    settings = {"model": lm.id, **facts, **_settings(methods[method])}
    explanation = answer.explain(beside, settings=settings)
    if out is not None:
        explanation.save(out)
    if as_json:
        print_json(explanation.as_dict())
    elif out is None:
        show(explanation.text())
    else:
        told = explanation.summary
        show_line(
            f"{out}: {told.tokens} tokens, {told.grounded} grounded, {told.flips} changed, "
            f"{len(told.cited)} examples cited"
        )


def _settings(decoder: Decoder) -> dict[str, Any]:
    """The numbers of a method, and whatever else is not as it comes."""
    known = default_settings(decoder.name)
    return {
        name: value
        for name, value in decoder.settings().items()
        if isinstance(value, int | float)
        or (isinstance(value, str) and value != known.get(name))
    }
