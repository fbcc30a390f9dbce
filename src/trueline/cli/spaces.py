"""`trueline build` and the commands that edit, merge, describe, check and tune a space."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trueline.cli import options, screen
from trueline.engines import DEFAULT_EMBEDDER, DEFAULT_MODEL, load
from trueline.errors import SettingError
from trueline.text import counted, shown

if TYPE_CHECKING:
    from trueline.corrective.tune import Share, Tuning
    from trueline.rad.entries import Context
    from trueline.space import GroundingSpace

folder_argument = click.argument("folder", type=options.PATH)


def _read_context(_ctx: Any, _param: Any, text: str) -> Context | None:
    if text in ("none", "full"):
        return "full" if text == "full" else None
    if not text.isdecimal() or not 0 < int(text[:10]) < 10**9:
        raise SettingError(
            f"--context takes a number of tokens from 1, `full` or `none`; got {shown(text)}"
        )
    return int(text)


@click.command()
@click.argument("examples")
@click.option("--out", type=options.PATH, required=True, help="The folder of the space.")
@click.option(
    "--model",
    help="What --context reads the answers with: alias, hub id, folder or .gguf file; "
    f"{DEFAULT_MODEL} if left out.",
)
@options.weights_options
@click.option("--embedder", default=DEFAULT_EMBEDDER, help="Alias, hub id or folder.")
@click.option(
    "--context",
    default="none",
    callback=_read_context,
    help="Also build the entries that RAD needs: tokens in a window, such as 8, or `full`.",
)
@options.several(
    options.choice_option(
        "--window",
        "template text answer",
        "Windows end all that is read, question and answer, or the answer alone.",
    ),
    click.option(
        "--end", is_flag=True, help="Also store an entry after the last token of each answer."
    ),
    options.choice_option(
        "--values", "auto hidden logits", "What to store: auto is the smallest exact form."
    ),
    options.choice_option(
        "--value-dtype", "auto float32 float16", "The number type of stored keys and values."
    ),
    click.option(
        "--wrong", is_flag=True, help="Also store entries of the wrong answers, for RAD's beta."
    ),
    into="entries",
)
@options.several(
    options.choice_option(
        "--task", "question dialogue summary", "Which of the paper's prompts to use."
    ),
    click.option("--template", help="The prompt, with {question} where the question goes."),
    click.option("--system", help="A system line for the prompt."),
    click.option("--no-chat", is_flag=True, help="Leave the model's chat template out."),
    into="prompting",
)
@options.cluster_options
@options.overwrite_option
@options.example_options
def build(
    examples: str,
    out: Path,
    model: str | None,
    weights: dict[str, Any],
    embedder: str,
    context: Context | None,
    entries: dict[str, Any],
    prompting: dict[str, Any],
    on: str | None,
    workers: int | None,
    overwrite: bool,
    reading: dict[str, Any],
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
    from trueline.prompts import Prompt, prompt_sets
    from trueline.session import check_parts
    from trueline.store import check_folder, examples_of_space

    check_folder(out)  # this and the next lines, before anything heavy is imported
    template = prompting["template"] or prompt_sets()[prompting["task"]].base.template
    chat = False if prompting["no_chat"] else None
    prompt = Prompt(template, system=prompting["system"], chat=chat)
    cluster = options.read_cluster(on, workers, weights["device"])
    given = {"model": model, **weights, "engine": None}  # the engine may be set for all
    unused = [name for name, value in given.items() if value not in (None, False, "auto")]
    if context is None and unused:
        flag = f"--{unused[0].replace('_', '-')}"
        raise SettingError(
            f"{flag} is for the model that makes RAD's entries, which needs --context: add "
            f"--context 8, or leave {flag} out, as the space works with any model"
        )
    check_parts((), model=model, embedder=embedder)
    source = examples_of_space(examples) or options.read_with(reading, examples)
    unit = "examples" if context is None else "entries"
    with screen.progress_bars(unit, f"opening {embedder}") as progress:
        from trueline.space import build as build_space

        space = build_space(
            None if context is None else load(model or DEFAULT_MODEL, **weights),
            source,
            context=context,
            prompt=prompt,
            embedder=embedder,
            out=out,
            overwrite=overwrite,
            on=cluster,
            progress=partial(progress, "building"),
            dtype=entries.pop("value_dtype"),
            **entries,
        )
    facts = space.info()
    details = f"{facts['bytes_per_example']:,} bytes an example in addition to its text"
    if context is not None:
        details = (
            f"{facts['values']} values, {facts['head']} head, {facts['bytes_per_entry']:,} "
            f"bytes an entry; logits would take {facts['logits_would_be']:,}"
        )
    screen.show_line(
        f"{out}: {screen.holdings(facts)}, {screen.size(facts['bytes'])} ({details})"
    )


@click.command()
@folder_argument
@click.argument("examples")
@click.option("--replace", is_flag=True, help="Replace the examples of known ids.")
@options.space_model_option
@options.embedder_option
@options.several(
    options.engine_option, options.device_option, options.trust_option, into="weights"
)
@options.example_options
def add(
    folder: Path,
    examples: str,
    replace: bool,
    model: str | None,
    embedder: str | None,
    weights: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Add EXAMPLES to the grounding space in FOLDER.

    EXAMPLES is what `trueline build` takes. Only the new examples cost time. An id that is
    in the space already is refused, or with --replace gets the new content.

    \b
    Example:
      trueline add facts.space more.jsonl
    """
    from trueline.session import check_parts

    check_parts((), space=folder, model=model, embedder=embedder)
    given = options.read_with(reading, examples)
    with screen.progress_bars("", f"opening {folder}") as progress:
        from trueline.space import read_space

        space = read_space(folder, embedder=embedder)
        known = [example for example in given if replace and example.id in space]
        new = [example for example in given if not (replace and example.id in space)]
        lm = None
        if space.entries is not None:  # they need their model, in their number type
            made = space.entries.settings
            lm = load(model or made.model, dtype=made.computed, **weights)
        bar = partial(progress, "adding")
        space = space.replace(known, lm, progress=bar) if known else space
        space = space.add(new, lm, progress=bar) if new else space
    _show_counts(folder, space)


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
    from trueline.space import read_space

    _show_counts(folder, read_space(folder).remove(ids))


def _show_counts(folder: Path, space: GroundingSpace) -> None:
    screen.show_line(f"{folder}: {screen.holdings(space.counts())}")


@click.command()
@click.argument("first", type=options.PATH)
@click.argument("second", type=options.PATH)
@click.option(
    "--out",
    type=options.PATH,
    required=True,
    help="The folder of the result, which may be one of the two.",
)
@options.overwrite_option
def merge(first: Path, second: Path, out: Path, overwrite: bool) -> None:
    """Merge the grounding spaces in FIRST and SECOND, which must have been made alike.

    An example that both hold is kept once; two different ones under one id are refused.

    \b
    Example:
      trueline merge facts.space more.space --out both.space
    """
    from trueline.space import merge as merge_spaces
    from trueline.space import read_space
    from trueline.store import check_folder

    check_folder(out)
    spaces = read_space(first), read_space(second)
    _show_counts(out, merge_spaces(*spaces, out=out, overwrite=overwrite))


@click.command()
@folder_argument
@options.json_option
def log(folder: Path, as_json: bool) -> None:
    """List the commits to the grounding space in FOLDER, the oldest first.

    \b
    Example:
      trueline log facts.space
    """
    from trueline.store import read_manifest

    lines = [msgspec.structs.asdict(commit) for commit in read_manifest(folder).history]
    if as_json:
        screen.print_json(lines)
    else:
        head = ["time", "what", "changed", "examples", "entries"]
        screen.print_table(head, [[str(line[name]) for name in head] for line in lines])


@click.command()
@folder_argument
@click.option("--examples", is_flag=True, help="List the examples, with their ids.")
@options.json_option
def info(folder: Path, examples: bool, as_json: bool) -> None:
    """Describe the grounding space in FOLDER, or list its examples.

    \b
    Examples:
      trueline info facts.space
      trueline info facts.space --examples
    """
    from trueline.examples import as_record
    from trueline.space import read_space

    space = read_space(folder)
    if examples and as_json:
        screen.print_json([as_record(example) for example in space.examples])
    elif examples:
        rows = [(fact.id, fact.question, fact.answers[0]) for fact in space.examples]
        screen.print_table(("id", "question", "answer"), rows)
    elif as_json:
        screen.print_json(space.info())
    else:  # facts about RAD's entries are None if there are no entries
        screen.print_facts(
            {name: fact for name, fact in space.info().items() if fact is not None}
        )


@click.command()
@folder_argument
@options.json_option
def verify(folder: Path, as_json: bool) -> None:
    """Check the grounding space in FOLDER; exit 1 if anything in it was changed or damaged.

    \b
    Example:
      trueline verify facts.space
    """
    from trueline.space import read_space

    checked = read_space(folder).verify()
    if as_json:
        screen.print_json(checked)
    else:
        files = counted(checked["files"], "file")
        screen.show_line(f"{folder} is sound: {files}, {screen.holdings(checked)}")


@click.command()
@folder_argument
@click.option(
    "--questions",
    type=options.PATH,
    help="JSONL or CSV with the columns question and id: the example that answers, or none.",
)
@click.option(
    "--false-scope",
    type=float,
    default=0.02,
    help="Share of questions for which a wrong example may be in scope.",
)
@options.embedder_option
@click.option("--undo", is_flag=True, help="Remove the tuned settings.")
@options.json_option
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
    from trueline.examples import read_labeled
    from trueline.session import check_parts

    if undo and questions is not None:
        raise SettingError("--undo takes no --questions: it only removes the tuned settings")
    rows = None if questions is None else read_labeled(questions)
    check_parts((), space=folder, embedder=embedder)
    from trueline.space import read_space  # imports torch

    space = read_space(folder, embedder=embedder)
    if undo:
        state = "as it was before it was tuned" if space.tuned else "was not tuned"
        space.tune({})
        facts, lines = dict[str, Any](tuned=None), [f"{folder}: {state}"]
    else:
        with screen.progress_bars("questions", f"opening {folder}") as progress:
            from trueline.corrective.tune import tune as fit

            bar = partial(progress, "tuning")
            fitted = fit(space, rows, false_scope=false_scope, progress=bar)
        space.tune(fitted.settings)
        facts = {**asdict(fitted), "tuned": fitted.settings}
        lines = _tuning_lines(folder, fitted)
    if as_json:
        screen.print_json(facts)
    else:
        for line in lines:
            screen.show_line(line)


def _tuning_lines(folder: Path, fitted: Tuning) -> list[str]:
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
            f"  still false  {row.probability:.2f}  {row.question}  answered by {row.example}"
            for row in fitted.worst
        ),
        f"`trueline tune {folder} --undo` removes it",
    ]


def _share(share: Share) -> str:
    interval = f"{share.low:.1%} to {share.high:.1%}"
    count = f"{round(share.mean * share.n):,} of {share.n:,}"
    return f"{count} ({share.mean:.1%}; 95 % interval {interval})"


COMMANDS = (build, add, remove, merge, log, info, verify, tune)
