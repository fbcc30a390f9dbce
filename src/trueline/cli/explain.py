"""`trueline explain`: an answer, and which examples moved which token."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import asking_options, method_named, open_pair, settings_of

if TYPE_CHECKING:
    from trueline.answers import Answer
    from trueline.decoders.base import Decoder


@click.command()
@click.argument("question")
@click.option("--method", default="rad", show_default=True, help="The method to explain.")
@asking_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write it to this file: .html (one page that needs no other file), .json or .txt.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every step.")
def explain(
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
    max_new_tokens: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Answer QUESTION and tell which examples moved which token, beside the greedy answer.

    \b
    Examples:
      trueline explain "What happens if you swallow gum?"
      trueline explain --space facts.space --out gum.html "What happens if you swallow gum?"
    """
    from trueline.explain import check_target
    from trueline.generation import generate

    if out is not None:
        check_target(out)  # before a model is opened: a wrong name shows at once
    lm, grounding = open_pair(space, model, dtype, device, trust_remote_code)
    decoder = method_named(method, grounding, settings_of(sets, alpha=alpha, tau=tau))
    answer = generate(lm, decoder, question, max_new_tokens=max_new_tokens, trace=True)
    beside: Answer | None = None
    if method != "greedy":
        greedy = method_named("greedy", grounding, {})
        beside = generate(lm, greedy, question, max_new_tokens=max_new_tokens)
    settings = {"model": lm.id, "entries": len(grounding), **_settings(decoder)}
    explanation = answer.explain(beside, settings=settings)
    if out is not None:
        explanation.save(out)
    if as_json:
        _print(explanation.json())
    elif out is None:
        _print(explanation.text())
    else:
        told = explanation.summary
        _print(
            f"{out}: {told.tokens} tokens, {told.grounded} grounded, {told.flips} changed, "
            f"{len(told.cited)} examples cited"
        )


def _settings(decoder: Decoder) -> dict[str, Any]:
    """The numbers of a method, and whatever else is not as it comes."""
    known = {field.name: field.default for field in fields(decoder)}  # type: ignore[arg-type]
    given = {name: getattr(decoder, name) for name in known}
    return {
        name: value
        for name, value in given.items()
        if isinstance(value, int | float) or (isinstance(value, str) and value != known[name])
    }


def _print(text: str) -> None:
    """Print what our output can carry; signs it has no code for are spelled out."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding))
