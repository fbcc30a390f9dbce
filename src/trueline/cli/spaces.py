"""`trueline build`: examples to a grounding space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import (
    PATH,
    cluster_options,
    engine_option,
    example_options,
    json_option,
    model_options,
    read_cluster,
)
from trueline.engines import DEFAULT_EMBEDDER
from trueline.errors import SettingError
from trueline.text import counted, shown

if TYPE_CHECKING:
    from trueline.corrective.tune import Share, Tuning
    from trueline.engines.base import Engine
    from trueline.space.space import GroundingSpace
    from trueline.space.windows import Context
    from trueline.types import Example


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
    from trueline.cli.screen import progress_bar, show_line
    from trueline.engines import DEFAULT_MODEL, load
    from trueline.prompts import Prompt, prompt_sets
    from trueline.session import check_parts
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


@click.command()
@click.argument("folder", type=PATH)
@click.argument("examples")
@click.option("--replace", is_flag=True, help="Let new content take the place of known ids.")
@click.option("--model", help="The model, if not the one the space names.")
@click.option("--embedder", help="The embedder, if not the one the space names.")
@engine_option
@click.option("--device", help="cpu, cuda, mps; the best there is if left out.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model.")
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
    read: Callable[[str], list[Example]],
) -> None:
    """Add EXAMPLES to the grounding space in FOLDER.

    EXAMPLES is what `trueline build` takes. Only the new examples cost time. An id that the
    space already holds is refused, or with --replace gets the new content.

    \b
    Example:
      trueline add facts.space more.jsonl
    """
    from trueline.cli.screen import holdings, progress_bar, show_line
    from trueline.session import check_parts

    check_parts((), space=folder, model=model, embedder=embedder)
    found = read(examples)
    with progress_bar("adding", "", f"opening {folder}") as progress:
        from trueline.space.space import read_space

        space = read_space(folder, embedder=embedder)
        known = [example for example in found if replace and example.id in space]
        new = [example for example in found if not (replace and example.id in space)]
        options = {"engine": engine, "device": device, "trust_remote_code": trust_remote_code}
        lm = _model(space, model, options)
        if known:
            space = space.replace(known, lm, progress=progress)
        if new:
            space = space.add(new, lm, progress=progress)
    counts = space.counts()
    show_line(f"{folder}: {holdings(counts)}")


def _model(space: GroundingSpace, name: str | None, options: dict[str, Any]) -> Engine | None:
    """The model of a space with entries, in the type they were computed in."""
    from trueline.engines import load

    recipe = space.recipe
    if recipe.context is None:
        return None
    found: Engine = load(name or recipe.model, dtype=recipe.computed, **options)
    return found


@click.command()
@click.argument("folder", type=PATH)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def remove(folder: Path, ids: tuple[str, ...]) -> None:
    """Remove examples from the grounding space in FOLDER, by their ids.

    No answer sees them from then on; `trueline compact` also drops their bytes.

    \b
    Example:
      trueline remove facts.space health-001 health-002
    """
    from trueline.cli.screen import holdings, show_line
    from trueline.space.space import read_space

    counts = read_space(folder).remove(ids).counts()
    show_line(f"{folder}: {holdings(counts)}")


@click.command()
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
@click.option(
    "--out",
    type=PATH,
    required=True,
    help="The folder of the result; it may be that of one of the two.",
)
@click.option("--overwrite", is_flag=True, help="Replace another space that stands there.")
def merge(first: Path, second: Path, out: Path, overwrite: bool) -> None:
    """Merge the grounding spaces in FIRST and SECOND, which must have been made alike.

    An example that both hold is kept once; two different ones under one id are refused.

    \b
    Example:
      trueline merge facts.space more.space --out both.space
    """
    from trueline.cli.screen import holdings, show_line
    from trueline.space.folder import check_space_folder
    from trueline.space.space import merge as merge_spaces
    from trueline.space.space import read_space

    check_space_folder(out)
    spaces = read_space(first), read_space(second)
    counts = merge_spaces(*spaces, out=out, overwrite=overwrite).counts()
    show_line(f"{out}: {holdings(counts)}")


@click.command()
@click.argument("folder", type=PATH)
def compact(folder: Path) -> None:
    """Write the grounding space in FOLDER anew as one segment; removed examples leave the disk.

    \b
    Example:
      trueline compact facts.space
    """
    from trueline.cli.screen import holdings, show_line, size
    from trueline.space.space import read_space

    facts = read_space(folder).compact().info()
    show_line(f"{folder}: {holdings(facts)}, {size(facts['bytes'])} in one segment")


@click.command()
@click.argument("folder", type=PATH)
@json_option
def log(folder: Path, as_json: bool) -> None:
    """List what was committed to the grounding space in FOLDER, the oldest first.

    \b
    Example:
      trueline log facts.space
    """
    from trueline.cli.screen import print_json, print_table
    from trueline.space.storage import read_manifest

    lines = [asdict(commit) for commit in read_manifest(folder).history]
    if as_json:
        print_json(lines)
    else:
        head = ["time", "what", "changed", "examples", "entries"]
        print_table(head, [[str(line[name]) for name in head] for line in lines])


@click.command()
@click.argument("folder", type=PATH)
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
    from trueline.space.storage import read_content

    content = read_content(folder)
    if examples and as_json:
        print_json([as_record(example) for example in content.examples])
    elif examples:
        rows = [(one.id, one.question, one.answers[0]) for one in content.examples]
        print_table(("id", "question", "answer"), rows)
    elif as_json:
        print_json(content.info())
    else:  # what is about RAD's entries says nothing where there are none
        facts = content.info()
        print_facts({name: facts[name] for name in facts if facts[name] is not None})


@click.command()
@click.argument("folder", type=PATH)
@json_option
def verify(folder: Path, as_json: bool) -> None:
    """Check the grounding space in FOLDER; exit 1 if anything in it is not as it was written.

    \b
    Example:
      trueline verify facts.space
    """
    from trueline.cli.screen import holdings, print_json, show_line
    from trueline.space.storage import verify_folder

    checked = verify_folder(folder)
    if as_json:
        print_json(checked)
    else:
        show_line(
            f"{folder} is sound: {counted(checked['files'], 'file')}, {holdings(checked)}"
        )


@click.command()
@click.argument("folder", type=PATH)
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
    help="Share of questions that a wrong example may speak for.",
)
@click.option("--embedder", help="The embedder, if not the one the space names.")
@click.option("--undo", is_flag=True, help="Forget what was tuned.")
@json_option
def tune(
    folder: Path,
    questions: Path | None,
    false_scope: float,
    embedder: str | None,
    undo: bool,
    as_json: bool,
) -> None:
    """Fit the threshold of the grounding space in FOLDER, and keep it there.

    An example speaks if the probability that it answers a question is above the threshold.
    Without --questions, each example's own question is asked, and no other example may speak.
    No model runs.

    \b
    Examples:
      trueline tune facts.space
      trueline tune facts.space --undo
    """
    from trueline.cli.screen import print_json, progress_bar, show_line
    from trueline.examples import check_meant, read_asked
    from trueline.session import check_parts

    if undo and questions is not None:
        raise SettingError("--undo takes no --questions: it only forgets what was tuned")
    asked = None if questions is None else read_asked(questions)
    check_parts((), space=folder, embedder=embedder)
    from trueline.space.space import read_space  # takes a while: behind what can be wrong

    space = read_space(folder, embedder=embedder)
    if undo:
        was_tuned = bool(space.tuned)
        tuned = dict(space.tune({}).tuned)
        if as_json:
            print_json({"tuned": tuned or None})
        else:
            told = "as it was before it was tuned" if was_tuned else "was not tuned"
            show_line(f"{folder}: {told}")
        return
    check_meant(asked or (), {example.id for example in space.examples}, str(questions))
    with progress_bar("tuning", "questions", f"opening {folder}") as progress:
        from trueline.corrective.tune import tune as find

        found = find(space, asked, false_scope=false_scope, progress=progress)
    space.tune(found.settings)
    if as_json:
        print_json(_as_json(found))
    else:
        for line in _lines(folder, found):
            show_line(line)


def _as_json(found: Tuning) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(found), "tuned": found.settings}


def _lines(folder: Path, found: Tuning) -> list[str]:
    """What was found, how well it does, and what it does not know."""
    source = f"{found.questions:,} questions, {found.none:,} of which no example answers"
    if found.fitted_to == "examples":
        source = f"{found.questions:,} examples: each one's question, asked of all the others"
    is_same = found.threshold == found.before
    was = "as it was: nothing had to change" if is_same else f"it was {found.before:g}"
    lines = [
        f"{folder}: threshold {found.threshold:g} ({was})",
        f"  fitted to    {source}",
        f"  false scope  {_share(found.false_scope)} where a wrong example would speak first",
    ]
    if found.recall is not None:
        lines.append(f"  recall       {_share(found.recall)}: the right example speaks first")
    else:
        known = found.shipped_recall
        share = "not known for this embedder" if known is None else f"{known:.0%}"
        lines.append(
            f"  recall       {share} on the questions shipped with trueline; --questions tells "
            "that of yours"
        )
    lines.append("  strength     not fitted, which would take a model; it stays as it is")
    for one in found.worst:
        lines.append(
            f"  still false  {one.probability:.2f}  {one.question}  spoken for by {one.example}"
        )
    return [*lines, f"`trueline tune {folder} --undo` forgets it"]


def _share(share: Share) -> str:
    interval = f"{share.low:.1%} to {share.high:.1%}"
    found = f"{round(share.mean * share.n):,} of {share.n:,}"
    return f"{found} ({share.mean:.1%}; 95 % interval {interval})"
