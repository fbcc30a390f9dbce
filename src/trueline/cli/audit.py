"""`trueline audit`: one page with a verdict on one decoding method."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from trueline.cli.eval import PlanCommand, with_flags
from trueline.cli.options import (
    PATH,
    FlagEnvvarOption,
    json_option,
)
from trueline.settings import read_settings

_PAGES = ("audit.md", "audit.html", "audit.json")


class _AuditCommand(PlanCommand):
    own = frozenset(("out", "methods", "settings", "sweep", "tasks", "seeds", "confidence"))


@click.command(cls=_AuditCommand)
@click.argument("method")
@click.option(
    "--set",
    "settings",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the method, or an argument of the processor.",
)
@click.option(
    "--build",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="NAME=VALUE",
    help="How its space is built, such as window=text.",
)
@click.option("--out", type=PATH, required=True, help="The folder of answers and pages.")
@click.option(
    "--overwrite", is_flag=True, help="Replace pages there that no earlier audit wrote."
)
@json_option
def audit(
    method: str,
    settings: tuple[str, ...],
    build: tuple[str, ...],
    out: Path,
    overwrite: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run METHOD with its controls, and write a page with a verdict.

    METHOD is a method's name, or module:Name of a transformers LogitsProcessor. The page gives
    its effect against greedy, that of wrong, shuffled and unrelated evidence, where in an
    answer it changes tokens, its speed, and how far the judge can be trusted. The same command
    goes on where it was stopped.

    \b
    Examples:
      trueline audit rad --test 8 --out audits/rad
      trueline audit rad --build window=text --test 8 --out audits/rad-text
      trueline audit transformers:MinPLogitsWarper --set min_p=0.2 --out audits/min-p
    """
    from dataclasses import asdict

    from trueline.cli.screen import json_text, note, print_json, progress_bars, show
    from trueline.lab.audit import audits_of
    from trueline.lab.plan import plan_from
    from trueline.lab.report.pages import as_html, as_markdown, check_free, write_files
    from trueline.lab.report.tables import MARK
    from trueline.lab.results import read_results
    from trueline.lab.run import run_plan
    from trueline.methods import PLAIN, processor_added

    check_free(out, _PAGES, overwrite=overwrite)
    table = with_flags({"benchmarks": ["facts"], "judges": ["offline"]}, flags)
    table["methods"] = list(dict.fromkeys([PLAIN, method]))
    table["settings"] = {method: read_settings(settings)} if settings else {}
    table["build"] = read_settings(build)
    added = processor_added(method) if ":" in method else nullcontext()
    with added, progress_bars("samples") as progress:
        done = run_plan(plan_from(table, "the command"), out, progress=progress)
    document, audits = audits_of(read_results(out), method)
    facts = {"made by": MARK, "method": method, "audits": [asdict(one) for one in audits]}
    facts["warnings"] = done.warnings
    texts = (as_markdown(document), as_html(document), json_text(facts))
    write_files(
        out,
        {page: text.encode() for page, text in zip(_PAGES, texts, strict=True)},
        overwrite=overwrite,
    )
    if as_json:
        print_json(facts)
        return
    for warning in done.warnings:
        note(f"note: {warning}")
    for text in document.lead:
        show(text)
    show(f"written to {out}: {', '.join(_PAGES)}")
