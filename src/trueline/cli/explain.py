"""`trueline explain`: an answer, and which examples moved which token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trueline.cli import options
from trueline.cli.screen import print_json, show, show_line, text_width
from trueline.methods import PLAIN, default_settings
from trueline.text import counted


@click.command()
@click.argument("question")
@options.method_option("The method to explain.")
@options.answer_options
@click.option(
    "--out",
    type=options.PATH,
    help="Write it to this file: .html (one page that needs no other file), .json or .txt.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option(
    "--signals", is_flag=True, help="Show the numbers that decide which examples are in scope."
)
@options.json_option
def explain(
    question: str,
    method: str,
    out: Path | None,
    overwrite: bool,
    signals: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Answer QUESTION; show which examples are in scope and why, and which token they moved.

    The answer of the model without a method is shown next to it.

    \b
    Examples:
      trueline explain "What happens if you swallow gum?"
      trueline explain --space facts.space --out gum.html "What happens if you swallow gum?"
    """
    from trueline.explain import check_explanation_path
    from trueline.explain.text import coverage_lines

    if out is not None:
        check_explanation_path(out, overwrite=overwrite)  # before a model is opened
    setup = options.AnswerOptions(given)
    session = setup.open(list(dict.fromkeys([method, PLAIN])))
    from trueline.decode.generate import generate  # torch is imported by now

    lm, methods, sampling = session.lm, session.methods, setup.sampling
    answer = generate(lm, methods[method], question, trace=True, **sampling)
    plain = None if method == PLAIN else generate(lm, methods[PLAIN], question, **sampling)
    counts = {} if session.space is None else session.space.counts()
    settings = {name: count for name, count in counts.items() if name != "wrong" and count}
    usual = default_settings(method)
    for name, value in methods[method].settings().items():
        is_other = isinstance(value, bool | str) and value != usual.get(name)
        if type(value) in (int, float) or is_other:
            settings[name] = value
    explanation = answer.explain(plain, settings={"model": lm.id, **settings})
    if out is not None:
        explanation.save(out, with_signals=signals)
    if as_json:
        print_json(explanation.as_dict())
    elif out is None:
        show(explanation.text(text_width(), with_signals=signals))
    else:
        summary = explanation.summary
        figures = [
            f"{counted(summary.tokens, 'token')}, {summary.grounded} grounded, "
            f"{summary.flips} changed, {counted(len(summary.cited), 'example')} cited",
            *coverage_lines(explanation),
        ]
        show_line(f"{out}: {'; '.join(figures)}")
