"""`trueline compare`: methods side by side, and what moved each changed token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import PATH, Asking, asking_options, check_questions, json_option
from trueline.errors import SettingError
from trueline.methods import DEFAULT, PLAIN, built_in_names, method_names

if TYPE_CHECKING:
    from trueline.decode.generate import Compared
    from trueline.examples import AskedQuestion
    from trueline.types import Answer, Example


_RULE = (
    "right: by ROUGE-L at 0.5 or above to a verified answer of the example that is meant, and "
    "nearer to it than to any wrong one; wrong: all else, also a true answer in other words"
)


@click.command()
@click.argument("questions", nargs=-1, callback=check_questions)
@click.option(
    "--file",
    type=PATH,
    help="Questions, one a line; or JSONL or CSV with the columns question and id, the example "
    "that answers it: then answers are marked right or wrong.",
)
@click.option(
    "--methods",
    default=f"{PLAIN},{DEFAULT}",
    show_default=True,
    help=f"Separated by commas, or `all`: {', '.join(built_in_names())}.",
)
@asking_options
@click.option("--flips", is_flag=True, help="Show which example moved which token.")
@json_option
def compare(
    questions: tuple[str, ...],
    file: Path | None,
    methods: str,
    asking: Asking,
    flips: bool,
    as_json: bool,
) -> None:
    """Answer QUESTIONS with several methods, side by side, with the sources of each answer.

    Speed is measured without traces; with --flips the methods that use a space answer once
    more. Where --file says which example is meant, an answer is marked right if by ROUGE-L it
    is at 0.5 or above to one of its verified answers, and nearer to it than to any wrong one;
    all else is marked wrong, also a true answer in other words.

    \b
    Examples:
      trueline compare --space facts.space --flips "What happens if you swallow gum?"
      trueline compare --methods all --set kate.k=4 "What happens if you swallow gum?"
    """
    from trueline.cli.screen import print_json, progress_bars
    from trueline.session import check_parts

    given = _asked(questions, file)
    asked = [one.question for one in given]
    names = [name.strip() for name in methods.split(",") if name.strip()]
    names = method_names() if names == ["all"] else names
    check_parts(names, space=asking.space)
    meant = _meant(given, asking.space)
    session = asking.open(names)
    from trueline.decode.generate import compare as run  # torch is open by now
    from trueline.decode.generate import generate

    lm, decoders = session.lm, session.methods
    length = asking.max_new_tokens
    with progress_bars("answers") as progress:
        found = run(lm, decoders, asked, max_new_tokens=length, progress=progress)
    traced: dict[str, list[Answer]] = {
        name: generate(lm, decoder, asked, max_new_tokens=length, trace=True)
        for name, decoder in decoders.items()
        if flips and decoder.needs.space
    }
    right = {name: _judged(run.answers, meant) for name, run in found.items()}
    if as_json:
        print_json(_as_json(found, traced, right))
    else:
        _show(asked, found, traced, right)


def _asked(given: tuple[str, ...], file: Path | None) -> list[AskedQuestion]:
    from trueline.examples import AskedQuestion, read_questions

    asked = [AskedQuestion(text.strip()) for text in given]
    asked += [] if file is None else read_questions(file, needs_ids=True)
    if not asked:
        raise SettingError("there is no question; give some as arguments or with --file")
    return asked


def _meant(asked: Sequence[AskedQuestion], space: Path | None) -> list[Example | None]:
    """The example that answers each question; an id that none has is refused."""
    from trueline.examples import check_meant, read_examples

    if not any(one.id for one in asked):
        return [None] * len(asked)
    from trueline.lab.metrics import check_rouge

    check_rouge()
    from trueline.space import read_space

    examples = read_examples("facts") if space is None else read_space(space).examples
    known = {example.id: example for example in examples}
    check_meant(asked, known, "--file")
    return [known[one.id] if one.id else None for one in asked]


def _judged(answers: Sequence[Answer], meant: Sequence[Example | None]) -> list[bool | None]:
    """Whether each answer is right; None where no example says what is."""
    from trueline.lab.metrics import is_right

    return [
        None if one is None else is_right(answer.text, one.answers, one.wrong_answers)
        for answer, one in zip(answers, meant, strict=True)
    ]


def _as_json(
    found: Mapping[str, Compared],
    traced: Mapping[str, list[Answer]],
    right: Mapping[str, list[bool | None]],
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        name: {
            "answers": [asdict(answer) for answer in traced.get(name, run.answers)],
            "right": right[name],
            "seconds": round(run.seconds, 3),
            "tokens_per_second": round(run.tokens_per_second, 2),
            "changed": run.changed,
            "diverges": run.diverges,
            "did_nothing": run.did_nothing,
        }
        for name, run in found.items()
    }


def _show(
    asked: Sequence[str],
    found: Mapping[str, Compared],
    traced: Mapping[str, list[Answer]],
    right: Mapping[str, list[bool | None]],
) -> None:
    """One block a question: its answers, whether right, and their sources; then the sums."""
    from trueline.cli.screen import ShownAnswer, print_answers, print_table, tell
    from trueline.explain.text import moves, source_lines

    is_judged = any(verdict is not None for verdict in next(iter(right.values())))
    for place, question in enumerate(asked):
        shown = []
        for name, run in found.items():
            answer = run.answers[place]
            changed = moves(traced[name][place].trace) if name in traced else []
            mark = _mark(right[name][place]) if is_judged else ""
            shown.append(ShownAnswer(name, mark, answer.text, source_lines(answer) + changed))
        print_answers(question, shown)
    head = ["method", "tokens", "tokens/s", "changed", "first change at token", ""]
    rows = [_row(name, run) for name, run in found.items()]
    if is_judged:
        head.insert(1, "right")
        for row in rows:
            row.insert(1, _count(right[row[0]]))
    print_table(head, rows)
    if is_judged:
        tell(_RULE)


def _mark(verdict: bool | None) -> str:
    if verdict is None:
        return "not judged"
    return "right" if verdict else "wrong"


def _count(verdicts: Sequence[bool | None]) -> str:
    judged = [verdict for verdict in verdicts if verdict is not None]
    return f"{sum(judged)} of {len(judged)}"


def _row(name: str, run: Compared) -> list[str]:
    places = [place + 1 for place in run.diverges if place is not None]
    count = sum(len(answer.token_ids) for answer in run.answers)
    changed = "" if run.changed is None else f"{run.changed:.0%}"
    note = (
        "did nothing: equals the plain model everywhere"
        if run.did_nothing and name != PLAIN
        else ""
    )
    first = ", ".join(map(str, places))
    return [name, str(count), f"{run.tokens_per_second:.1f}", changed, first, note]
