"""`trueline tune`: the threshold of a space, fitted to questions or to its examples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trueline.cli.options import PATH, json_option
from trueline.errors import SettingError

if TYPE_CHECKING:
    from trueline.evaluation.statistics import Interval
    from trueline.tuning import Tuning


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
    from trueline.cli.progress import progress_bar
    from trueline.cli.screen import print_json, show_line
    from trueline.examples.asked import check_meant, read_asked
    from trueline.preflight import check_parts

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
        from trueline.tuning import tune as find

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


def _share(share: Interval) -> str:
    interval = f"{share.low:.1%} to {share.high:.1%}"
    found = f"{round(share.mean * share.n):,} of {share.n:,}"
    return f"{found} ({share.mean:.1%}; 95 % interval {interval})"
