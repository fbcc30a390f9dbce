"""`trueline build` and the commands that edit, merge, describe, check and tune a space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trueline.cli.options import (
    PATH,
    cluster_options,
    device_options,
    embedder_option,
    engine_option,
    example_options,
    json_option,
    model_options,
    overwrite_option,
    read_cluster,
    space_model_option,
)
from trueline.engines import DEFAULT_EMBEDDER
from trueline.errors import SettingError
from trueline.text import counted, shown

if TYPE_CHECKING:
    from trueline.corrective.tune import Share, Tuning
    from trueline.rad.entries import Context
    from trueline.types import Example

Read = Callable[[str], list["Example"]]
folder_argument = click.argument("folder", type=PATH)
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
    help="Also build the entries that RAD needs: tokens in a window, such as 8, or `full`.",
)
@click.option(
    "--window",
    type=click.Choice(["all", "answer"]),
    default="all",
    show_default=True,
    help="Whether a window may reach into the prompt.",
)
@click.option(
    "--end", is_flag=True, help="Also store an entry after the last token of each answer."
)
@click.option(
    "--values",
    type=click.Choice(["auto", "hidden", "logits"]),
    default="auto",
    show_default=True,
    help="What to store: auto is the smallest exact form.",
)
@click.option(
    "--value-dtype",
    type=click.Choice(["auto", "float32", "float16"]),
    default="auto",
    show_default=True,
    help="The number type of stored keys and values.",
)
@click.option(
    "--wrong", is_flag=True, help="Also store entries of the wrong answers, for RAD's beta."
)
@click.option(
    "--task",
    type=click.Choice(["question", "dialogue", "summary"]),
    default="question",
    show_default=True,
    help="Which of the paper's prompts to use.",
)
@click.option("--template", help="The prompt, with {question} where the question goes.")
@click.option("--system", help="A system line for the prompt.")
@click.option("--no-chat", is_flag=True, help="Leave the model's chat template out.")
@cluster_options
@overwrite_option
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
    read: Read,
    **options: Any,
) -> None:
    """Build a grounding space from EXAMPLES.

    No model is needed, and the space works with any; only --context runs one over every
    answer. EXAMPLES is a JSONL, CSV or Parquet file, a hub dataset (owner/name), `facts`,
    which come with trueline, or another space, also one of version 0.2.0. To resume an
    interrupted build, run the same command again.

    \b
    Examples:
      trueline build facts --out facts.space
      trueline build faq.csv --column question=Q --column answers=A --out faq.space
      trueline build facts.jsonl --context 8 --out rad.space
      trueline build OLD.space --out NEW.space
      trueline build facts.jsonl --context 8 --on ray --workers 4 --out rad.space
    """
    from trueline.cli.screen import progress_bar, show_line
    from trueline.engines import DEFAULT_MODEL, load
    from trueline.prompts import Prompt, prompt_sets
    from trueline.session import check_parts
    from trueline.store import check_folder, examples_of_space

    check_folder(out)  # this and the next lines, before anything heavy is imported
    template = template or prompt_sets()[task].base.template
    prompt = Prompt(template, system=system, chat=False if no_chat else None)
    tokens, lm = _context(context), None
    cluster = read_cluster(on, workers, device)
    if tokens is None:
        _refuse_model_options(model, dtype, device, trust_remote_code)
    check_parts((), model=model, embedder=options["embedder"])
    found = examples_of_space(examples) or read(examples)
    unit = "examples" if tokens is None else "entries"
    with progress_bar("building", unit, f"opening {options['embedder']}") as progress:
        from trueline.space import build as build_space

        if tokens is not None:
            weights: dict[str, Any] = {"dtype": dtype, "device": device, "engine": engine}
            lm = load(model or DEFAULT_MODEL, trust_remote_code=trust_remote_code, **weights)
        options |= {"context": tokens, "prompt": prompt, "dtype": value_dtype}
        space = build_space(lm, found, out=out, on=cluster, progress=progress, **options)
    show_line(f"{out}: {_summary(space.info())}")


def _summary(facts: dict[str, Any]) -> str:
    from trueline.cli.screen import holdings, size

    total = f"{holdings(facts)}, {size(facts['bytes'])}"
    if facts["context"] is None:
        return f"{total} ({facts['bytes_per_example']:,} bytes an example beside its text)"
    return (
        f"{total} ({facts['values']} values, {facts['head']} head, "
        f"{facts['bytes_per_entry']:,} bytes an entry; logits would take "
        f"{facts['logits_would_be']:,})"
    )


def _refuse_model_options(
    model: str | None, dtype: str, device: str | None, is_trusted: bool
) -> None:
    given = {
        "--model": model is not None,
        "--dtype": dtype != "auto",
        "--device": device is not None,
        "--trust-remote-code": is_trusted,
    }
    if flags := [name for name, is_given in given.items() if is_given]:
        raise SettingError(
            f"{flags[0]} is for the model that makes RAD's entries, which needs --context: add "
            f"--context 8, or leave {flags[0]} out, as the space works with any model"
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


@click.command()
@folder_argument
@click.argument("examples")
@click.option("--replace", is_flag=True, help="Replace the examples of known ids.")
@space_model_option
@embedder_option
@engine_option
@device_options
@example_options
def add(
    folder: Path,
    examples: str,
    replace: bool,
    model: str | None,
    embedder: str | None,
    engine: str,
    device: str | None,
    trust_remote_code: bool,
    read: Read,
) -> None:
    """Add EXAMPLES to the grounding space in FOLDER.

    EXAMPLES is what `trueline build` takes. Only the new examples cost time. An id that is
    in the space already is refused, or with --replace gets the new content.

    \b
    Example:
      trueline add facts.space more.jsonl
    """
    from trueline.cli.screen import holdings, progress_bar, show_line
    from trueline.engines import load
    from trueline.session import check_parts

    check_parts((), space=folder, model=model, embedder=embedder)
    found = read(examples)
    with progress_bar("adding", "", f"opening {folder}") as progress:
        from trueline.space import read_space

        space = read_space(folder, embedder=embedder)
        known = [example for example in found if replace and example.id in space]
        new = [example for example in found if not (replace and example.id in space)]
        lm = None
        if space.entries is not None:  # they need their model, in their number type
            made = space.entries.settings
            weights: dict[str, Any] = {"engine": engine, "device": device}
            weights |= {"dtype": made.computed, "trust_remote_code": trust_remote_code}
            lm = load(model or made.model, **weights)
        if known:
            space = space.replace(known, lm, progress=progress)
        if new:
            space = space.add(new, lm, progress=progress)
    show_line(f"{folder}: {holdings(space.counts())}")


@click.command()
@folder_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def remove(folder: Path, ids: tuple[str, ...]) -> None:
    """Remove examples from the grounding space in FOLDER, by their ids.

    No later answer uses them.

    \b
    Example:
      trueline remove facts.space health-001 health-002
    """
    from trueline.cli.screen import holdings, show_line
    from trueline.space import read_space

    counts = read_space(folder).remove(ids).counts()
    show_line(f"{folder}: {holdings(counts)}")


@click.command()
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
@click.option(
    "--out",
    type=PATH,
    required=True,
    help="The folder of the result, which may be one of the two.",
)
@overwrite_option
def merge(first: Path, second: Path, out: Path, overwrite: bool) -> None:
    """Merge the grounding spaces in FIRST and SECOND, which must have been made alike.

    An example that both hold is kept once; two different ones under one id are refused.

    \b
    Example:
      trueline merge facts.space more.space --out both.space
    """
    from trueline.cli.screen import holdings, show_line
    from trueline.space import merge as merge_spaces
    from trueline.space import read_space
    from trueline.store import check_folder

    check_folder(out)
    spaces = read_space(first), read_space(second)
    counts = merge_spaces(*spaces, out=out, overwrite=overwrite).counts()
    show_line(f"{out}: {holdings(counts)}")


@click.command()
@folder_argument
@json_option
def log(folder: Path, as_json: bool) -> None:
    """List the commits to the grounding space in FOLDER, the oldest first.

    \b
    Example:
      trueline log facts.space
    """

    from trueline.cli.screen import print_json, print_table
    from trueline.store import read_manifest

    lines = [msgspec.structs.asdict(commit) for commit in read_manifest(folder).history]
    if as_json:
        print_json(lines)
    else:
        head = ["time", "what", "changed", "examples", "entries"]
        print_table(head, [[str(line[name]) for name in head] for line in lines])


@click.command()
@folder_argument
@click.option("--examples", is_flag=True, help="List the examples, with their ids.")
@json_option
def info(folder: Path, examples: bool, as_json: bool) -> None:
    """Describe the grounding space in FOLDER, or list its examples.

    \b
    Examples:
      trueline info facts.space
      trueline info facts.space --examples
    """
    from trueline.cli.screen import print_facts, print_json, print_table
    from trueline.examples import as_record
    from trueline.space import read_space

    space = read_space(folder)
    if examples and as_json:
        print_json([as_record(example) for example in space.examples])
    elif examples:
        rows = [(one.id, one.question, one.answers[0]) for one in space.examples]
        print_table(("id", "question", "answer"), rows)
    elif as_json:
        print_json(space.info())
    else:  # facts about RAD's entries are None if there are no entries
        facts = space.info()
        print_facts({name: facts[name] for name in facts if facts[name] is not None})


@click.command()
@folder_argument
@json_option
def verify(folder: Path, as_json: bool) -> None:
    """Check the grounding space in FOLDER; exit 1 if anything in it was changed or damaged.

    \b
    Example:
      trueline verify facts.space
    """
    from trueline.cli.screen import holdings, print_json, show_line
    from trueline.space import read_space

    space = read_space(folder)  # which checks all there is to check
    assert space.state is not None
    checked = {"files": len(space.state.files), **space.counts()}
    if as_json:
        print_json(checked)
    else:
        show_line(
            f"{folder} is sound: {counted(checked['files'], 'file')}, {holdings(checked)}"
        )


@click.command()
@folder_argument
@click.option(
    "--questions",
    type=PATH,
    help="JSONL or CSV with the columns question and id: the example that answers, or none.",
)
@click.option(
    "--false-scope",
    type=float,
    default=0.02,
    show_default=True,
    help="Share of questions for which a wrong example may be in scope.",
)
@embedder_option
@click.option("--undo", is_flag=True, help="Remove the tuned settings.")
@json_option
def tune(
    folder: Path,
    questions: Path | None,
    false_scope: float,
    embedder: str | None,
    undo: bool,
    as_json: bool,
) -> None:
    """Fit the threshold of the grounding space in FOLDER, and store it there.

    An example is in scope if the probability that it answers a question is above the threshold.
    Without --questions, each example's own question is used, and no other example may be in
    scope for it. No model runs.

    \b
    Examples:
      trueline tune facts.space
      trueline tune facts.space --undo
    """
    from dataclasses import asdict

    from trueline.cli.screen import print_json, progress_bar, show_line
    from trueline.examples import check_meant, read_asked
    from trueline.session import check_parts

    if undo and questions is not None:
        raise SettingError("--undo takes no --questions: it only removes the tuned settings")
    asked = None if questions is None else read_asked(questions)
    check_parts((), space=folder, embedder=embedder)
    from trueline.space import read_space  # imports torch

    space = read_space(folder, embedder=embedder)
    if undo:
        was_tuned = bool(space.tuned)
        tuned = dict(space.tune({}).tuned)
        if as_json:
            print_json({"tuned": tuned or None})
        else:
            state = "as it was before it was tuned" if was_tuned else "was not tuned"
            show_line(f"{folder}: {state}")
        return
    check_meant(asked or (), {example.id for example in space.examples}, str(questions))
    with progress_bar("tuning", "questions", f"opening {folder}") as progress:
        from trueline.corrective.tune import tune as fit

        fitted = fit(space, asked, false_scope=false_scope, progress=progress)
    space.tune(fitted.settings)
    if as_json:
        print_json({**asdict(fitted), "tuned": fitted.settings})
    else:
        for line in _lines(folder, fitted):
            show_line(line)


def _lines(folder: Path, fitted: Tuning) -> list[str]:
    """The threshold, how well it does, and what is not known about it."""
    source = f"{fitted.questions:,} questions, {fitted.none:,} of which no example answers"
    if fitted.fitted_to == "examples":
        source = f"{fitted.questions:,} examples: each one's question, against all the others"
    is_same = fitted.threshold == fitted.before
    was = "as it was: nothing had to change" if is_same else f"it was {fitted.before:g}"
    if fitted.recall is not None:
        recall = f"{_share(fitted.recall)}: the right example comes first"
    else:
        known = fitted.shipped_recall
        share = "not known for this embedder" if known is None else f"{known:.0%}"
        recall = f"{share} on the questions shipped with trueline; --questions measures yours"
    return [
        f"{folder}: threshold {fitted.threshold:g} ({was})",
        f"  fitted to    {source}",
        f"  false scope  {_share(fitted.false_scope)} where a wrong example would come first",
        f"  recall       {recall}",
        "  strength     not fitted, which would take a model; it stays as it is",
        *(
            f"  still false  {one.probability:.2f}  {one.question}  answered by {one.example}"
            for one in fitted.worst
        ),
        f"`trueline tune {folder} --undo` removes it",
    ]


def _share(share: Share) -> str:
    interval = f"{share.low:.1%} to {share.high:.1%}"
    count = f"{round(share.mean * share.n):,} of {share.n:,}"
    return f"{count} ({share.mean:.1%}; 95 % interval {interval})"
