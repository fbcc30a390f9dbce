"""`trueline build`: examples to a grounding space."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import FlagEnvvarOption, model_options
from trueline.errors import SettingError

if TYPE_CHECKING:
    from trueline.space.windows import Context


@click.command()
@click.argument("examples")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The folder of the space."
)
@model_options
@click.option(
    "--embedder", default="all-minilm-l6-v2", show_default=True, help="Alias, hub id or folder."
)
@click.option(
    "--context", default="8", show_default=True, help="Tokens in a window, or `full`."
)
@click.option(
    "--window",
    type=click.Choice(["all", "answer"]),
    default="all",
    show_default=True,
    help="Whether a window may reach into the prompt.",
)
@click.option(
    "--end", is_flag=True, help="Also keep an entry after the last token of each answer."
)
@click.option(
    "--values",
    type=click.Choice(["auto", "hidden", "logits"]),
    default="auto",
    show_default=True,
    help="What is kept: auto is the smallest exact form.",
)
@click.option(
    "--value-dtype",
    type=click.Choice(["auto", "float32", "float16"]),
    default="auto",
    show_default=True,
    help="How keys and values are kept.",
)
@click.option("--wrong", is_flag=True, help="Also keep the wrong answers, for RAD's beta.")
@click.option(
    "--task",
    type=click.Choice(["question", "dialogue", "summary"]),
    default="question",
    show_default=True,
    help="Whose of the paper's prompts to use.",
)
@click.option("--template", help="The prompt, with {question} where the question goes.")
@click.option("--system", help="A system line for the prompt.")
@click.option("--no-chat", is_flag=True, help="Leave the model's chat template out.")
@click.option(
    "--column",
    "columns",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Which column holds a field: question, answers, wrong_answers, id, source.",
)
@click.option("--separator", help="Split an answers cell at this text.")
@click.option("--split", default="train", show_default=True, help="Of a hub dataset.")
@click.option("--config", help="Of a hub dataset.")
@click.option("--limit", type=int, help="Take the first N examples only.")
def build(
    examples: str,
    out: Path,
    model: str,
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
    context: str,
    task: str,
    template: str | None,
    system: str | None,
    no_chat: bool,
    columns: tuple[str, ...],
    split: str,
    config: str | None,
    limit: int | None,
    separator: str | None,
    value_dtype: str,
    **options: Any,
) -> None:
    """Build a grounding space from EXAMPLES.

    EXAMPLES is a JSONL, CSV or Parquet file, a hub dataset (owner/name), or `facts`, which come
    with trueline. An interrupted build goes on when the same command is run again.

    \b
    Examples:
      trueline build facts --out facts.space
      trueline build faq.csv --column question=Q --column answers=A --out faq.space
    """
    from trueline.cli.screen import progress_bar
    from trueline.engines.transformers.language import load
    from trueline.examples import read_examples
    from trueline.prompts import Prompt, prompt_sets
    from trueline.space.build import build as build_space
    from trueline.space.folder import check_target

    check_target(out)  # this and what follows before any model is opened: mistakes show at once
    template = template or prompt_sets()[task].base.template
    prompt = Prompt(template, system=system, chat=False if no_chat else None)
    tokens = _context(context)
    read = read_examples(
        examples,
        columns=dict(_pair(column) for column in columns) or None,
        separator=separator,
        split=split,
        config=config,
        limit=limit,
    )
    lm = load(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    with progress_bar("building", "entries") as progress:
        space = build_space(
            lm,
            read,
            context=tokens,
            prompt=prompt,
            dtype=value_dtype,  # type: ignore[arg-type]
            out=out,
            progress=progress,
            **options,
        )
    click.echo(f"{out}: {_told(space.info())}")


def _told(facts: dict[str, Any]) -> str:
    from trueline.cli.screen import size

    return (
        f"{facts['entries']:,} entries from {facts['examples']:,} examples, "
        f"{size(facts['bytes'])} ({facts['values']} values, {facts['head']} head, "
        f"{facts['bytes_per_entry']:,} bytes an entry; logits would take "
        f"{facts['logits_would_be']:,})"
    )


def _pair(text: str) -> tuple[str, str]:
    field, sign, column = text.partition("=")
    if not sign:
        raise SettingError(
            f"--column takes FIELD=COLUMN, such as question=Question; got {text!r}"
        )
    return field, column


def _context(text: str) -> Context:
    if text == "full":
        return "full"
    if not text.isdecimal() or int(text) < 1:
        raise SettingError(
            f"--context takes a number of tokens from 1, or `full`; got {text!r}"
        )
    return int(text)
