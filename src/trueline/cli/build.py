"""`trueline build`: examples to a grounding space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.example_options import example_options
from trueline.cli.options import PATH, cluster_options, model_options, read_cluster
from trueline.engines import DEFAULT_EMBEDDER
from trueline.errors import SettingError
from trueline.visible import shown

if TYPE_CHECKING:
    from trueline.records import Example
    from trueline.space.windows import Context

_DIGITS = 9  # of a number of tokens


@click.command()
@click.argument("examples")
@click.option("--out", type=PATH, required=True, help="The folder of the space.")
@model_options
@click.option(
    "--embedder", default=DEFAULT_EMBEDDER, show_default=True, help="Alias, hub id or folder."
)
@click.option(
    "--context",
    default="none",
    show_default=True,
    help="Also make the entries that RAD needs: the tokens in a window, such as 8, or `full`.",
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
    help="Which of the paper's prompts to ask with.",
)
@click.option("--template", help="The prompt, with {question} where the question goes.")
@click.option("--system", help="A system line for the prompt.")
@click.option("--no-chat", is_flag=True, help="Leave the model's chat template out.")
@cluster_options
@click.option("--overwrite", is_flag=True, help="Replace another space that stands there.")
@example_options
def build(
    examples: str,
    out: Path,
    model: str | None,
    engine: str,
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
    context: str,
    task: str,
    template: str | None,
    system: str | None,
    no_chat: bool,
    value_dtype: str,
    on: str | None,
    workers: int | None,
    read: Callable[[str], list[Example]],
    **options: Any,
) -> None:
    """Build a grounding space from EXAMPLES.

    No model is needed, and any may use the space; only --context runs one over every answer.
    EXAMPLES is a JSONL, CSV or Parquet file, a hub dataset (owner/name), or `facts`, which come
    with trueline. An interrupted build goes on when the same command is run again.

    \b
    Examples:
      trueline build facts --out facts.space
      trueline build faq.csv --column question=Q --column answers=A --out faq.space
      trueline build facts.jsonl --context 8 --out rad.space
      trueline build facts.jsonl --context 8 --on ray --workers 4 --out rad.space
    """
    from trueline.cli.progress import progress_bar
    from trueline.cli.screen import show_line
    from trueline.engines import DEFAULT_MODEL, load
    from trueline.preflight import check_parts
    from trueline.prompts import Prompt, prompt_sets
    from trueline.space.folder import check_space_folder

    check_space_folder(out)  # this and what follows before anything heavy is imported
    template = template or prompt_sets()[task].base.template
    prompt = Prompt(template, system=system, chat=False if no_chat else None)
    tokens, lm = _context(context), None
    cluster = read_cluster(on, workers, device)
    _check_weights(tokens, model, dtype, device, trust_remote_code)
    check_parts((), model=model, embedder=options["embedder"])
    found = read(examples)
    unit = "examples" if tokens is None else "entries"
    with progress_bar("building", unit, f"opening {options['embedder']}") as progress:
        from trueline.space.build import build as build_space

        if tokens is not None:
            weights: dict[str, Any] = {"dtype": dtype, "device": device, "engine": engine}
            lm = load(model or DEFAULT_MODEL, trust_remote_code=trust_remote_code, **weights)
        options |= {"context": tokens, "prompt": prompt, "dtype": value_dtype}
        space = build_space(lm, found, out=out, on=cluster, progress=progress, **options)
    show_line(f"{out}: {_summary(space.info())}")


def _summary(facts: dict[str, Any]) -> str:
    from trueline.cli.screen import holdings, size

    found = f"{holdings(facts)}, "
    if facts["context"] is None:
        each = f"{facts['bytes_per_example']:,} bytes an example beside its text"
        return f"{found}{size(facts['bytes'])} ({each})"
    return (
        f"{found}{size(facts['bytes'])} ({facts['values']} values, {facts['head']} head, "
        f"{facts['bytes_per_entry']:,} bytes an entry; logits would take "
        f"{facts['logits_would_be']:,})"
    )


def _check_weights(
    tokens: Context | None, model: str | None, dtype: str, device: str | None, is_trusted: bool
) -> None:
    """Refuse options of a model where none is opened."""
    given = {
        "--model": model is not None,
        "--dtype": dtype != "auto",
        "--device": device is not None,
        "--trust-remote-code": is_trusted,
    }
    for name, is_given in given.items():
        if tokens is None and is_given:
            raise SettingError(
                f"{name} is about the model that makes RAD's entries, and without --context "
                f"none are made; leave {name} out, as any model may use the space, or add "
                "--context 8"
            )


def _context(text: str) -> Context | None:
    if text == "none":
        return None
    if text == "full":
        return "full"
    if not text.isdecimal() or len(text) > _DIGITS or int(text) < 1:
        raise SettingError(
            f"--context takes a number of tokens from 1, `full` or `none`; got {shown(text)}"
        )
    return int(text)
