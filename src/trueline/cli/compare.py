"""`trueline compare`: methods side by side, and what moved each changed token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli import options
from trueline.cli.screen import print_answers, print_json, print_table, progress_bars, tell
from trueline.errors import SettingError
from trueline.methods import DEFAULT, PLAIN, built_in_names, method_names
from trueline.text import repeats_itself

if TYPE_CHECKING:
    from trueline.decode.generate import Compared
    from trueline.examples import UserQuestion
    from trueline.types import Answer, Example

_RULE = (
    "right: by ROUGE-L at 0.5 or above to a verified answer of the example with that id, and "
    "nearer to it than to any wrong one; wrong: all else, also a true answer in other words"
)
_FIGURES = "seconds tokens_per_second changed diverges did_nothing".split()  # as JSON
_MARKS = {True: "right", False: "wrong", None: "not judged"}
Verdicts = Mapping[str, list[bool | None]]  # by method; None: not judged


@click.command()
@click.argument("questions", nargs=-1)
@click.option(
    "--file",
    type=options.PATH,
    help="Questions, one a line; or JSONL or CSV with the columns question and id, the example "
    "that answers it: then answers are marked right or wrong.",
)
@click.option(
    "--methods",
    default=f"{PLAIN},{DEFAULT}",
    help=f"Separated by commas, or `all`: {', '.join(built_in_names())}.",
)
@options.answer_options
@click.option("--flips", is_flag=True, help="Show which example moved which token.")
@options.json_option
def compare(
    questions: tuple[str, ...],
    file: Path | None,
    methods: str,
    flips: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Answer QUESTIONS with several methods, side by side, with the sources of each answer.

    Speed is measured without traces; with --flips the methods that use a space answer once
    more. If --file has the id of the example that answers a question, an answer is marked
    right if by ROUGE-L it is at 0.5 or above to one of its verified answers, and nearer to it
    than to any wrong one; all else is marked wrong, also a true answer in other words.

    \b
    Examples:
      trueline compare --space facts.space --flips "What happens if you swallow gum?"
      trueline compare --methods all --set kate.k=4 "What happens if you swallow gum?"
    """
    from trueline.examples import UserQuestion, read_questions

    setup = options.AnswerOptions(given)
    rows = [UserQuestion(text.strip()) for text in questions]
    rows += [] if file is None else read_questions(file, needs_ids=True)
    if not rows:
        raise SettingError("there is no question; give some as arguments or with --file")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    names = method_names() if names == ["all"] else list(dict.fromkeys(names))
    meant = _meant(rows, setup.space)
    session = setup.open(names)
    from trueline.decode.generate import compare as run  # torch is imported by now
    from trueline.decode.generate import generate
    from trueline.lab.metrics import is_right

    texts = [row.question for row in rows]
    with progress_bars("answers") as progress:
        runs = run(session.lm, session.methods, texts, progress=progress, **setup.sampling)
    traced: dict[str, list[Answer]] = {
        name: generate(session.lm, method, texts, trace=True, **setup.sampling)
        for name, method in session.methods.items()
        if flips and method.needs.space
    }
    verdicts = {
        name: [
            None if fact is None else is_right(answer.text, fact.answers, fact.wrong_answers)
            for answer, fact in zip(run.answers, meant, strict=True)
        ]
        for name, run in runs.items()
    }
    if not as_json:
        _show(texts, runs, traced, verdicts)
        return
    print_json(
        {
            name: {
                "answers": [asdict(answer) for answer in traced.get(name, run.answers)],
                "right": verdicts[name],
                **{figure: getattr(run, figure) for figure in _FIGURES},
            }
            for name, run in runs.items()
        }
    )


def _meant(rows: Sequence[UserQuestion], space: Path | None) -> list[Example | None]:
    """The example that answers each question; an id that no example has is refused."""
    if not any(row.id for row in rows):
        return [None] * len(rows)
    from trueline.examples import check_meant, read_examples
    from trueline.lab.metrics import rouge_l

    rouge_l("a", ["a"])  # a missing package shows before a model is opened
    from trueline.space import read_space

    examples = read_examples("facts") if space is None else read_space(space).examples
    known = {example.id: example for example in examples}
    check_meant(rows, known, "--file")
    return [known.get(row.id) for row in rows]


def _show(
    questions: Sequence[str],
    runs: Mapping[str, Compared],
    traced: Mapping[str, list[Answer]],
    verdicts: Verdicts,
) -> None:
    """One block a question: its answers, whether right, and their sources; then the sums."""
    from trueline.explain.text import REPEATS, moves, source_lines

    is_judged = any(verdict is not None for found in verdicts.values() for verdict in found)
    for index, question in enumerate(questions):
        shown = []
        for name, run in runs.items():
            answer = run.answers[index]
            notes = source_lines(answer)
            notes += [REPEATS] if repeats_itself(answer.text) else []
            notes += moves(traced[name][index].trace) if name in traced else []
            mark = _MARKS[verdicts[name][index]] if is_judged else ""
            shown.append((name, mark, answer.text, notes))
        print_answers(question, shown)
    rows = []
    for name, run in runs.items():
        known = [verdict for verdict in verdicts[name] if verdict is not None]
        changes = [str(token + 1) for token in run.diverges if token is not None]
        is_idle = run.did_nothing and name != PLAIN
        right = {"right": f"{sum(known)} of {len(known)}"} if is_judged else {}
        row = {
            "method": name,
            **right,
            "tokens": str(sum(len(answer.token_ids) for answer in run.answers)),
            "tokens/s": f"{run.tokens_per_second:.1f}",
            "changed": "" if run.changed is None else f"{run.changed:.0%}",
            "first change at token": ", ".join(changes),
            "": "did nothing: equals the plain model everywhere" if is_idle else "",
        }
        rows.append(row)
    print_table([*rows[0]], [[*row.values()] for row in rows])
    if is_judged:
        tell(_RULE)
