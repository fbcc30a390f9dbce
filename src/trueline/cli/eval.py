"""`trueline eval`: models, methods and benchmarks to results that can be resumed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import (
    PATH,
    FlagEnvvarOption,
    cluster_options,
    column_option,
    columns_as_flags,
    json_option,
    read_cluster,
    read_columns,
)
from trueline.engines import DEFAULT_MODEL
from trueline.errors import SettingError
from trueline.methods import DEFAULT, PLAIN
from trueline.settings import read_settings
from trueline.text import counted

if TYPE_CHECKING:
    from trueline.lab.measures import Average, CellSummary, Column
    from trueline.lab.report.tables import MethodRow, Table
    from trueline.lab.run import RunOutcome


_DIGITS = 20  # of a number that is one; what is longer is refused as the text it is


@click.command("eval")
@click.argument("plan", type=PATH, required=False)
@click.option("--out", help="The folder of the results.")
@click.option("--model", "models", cls=FlagEnvvarOption, multiple=True, help="One or more.")
@click.option(
    "--benchmark",
    "benchmarks",
    cls=FlagEnvvarOption,
    multiple=True,
    help="facts, regimes, truthfulqa, wikiqa, alpaca, halueval-dialogue, halueval-summary, "
    "or a file.",
)
@column_option
@click.option("--methods", help="Separated by commas, or `all`.")
@click.option("--tasks", help="generate, choose or both, separated by a comma.  [generate]")
@click.option(
    "--judge", "judges", cls=FlagEnvvarOption, multiple=True, help="One or more; see docs."
)
@click.option(
    "--set",
    "sets",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="METHOD.NAME=VALUE",
    help="A setting of a method, such as rad.alpha=0.3.",
)
@click.option(
    "--sweep",
    "sweeps",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="METHOD.NAME=A,B",
    help="Several values of a setting, such as rad.alpha=0.1,0.5 or build.context=4,8.",
)
@click.option("--ground", help="How many examples to ground with, or `all`.  [100]")
@click.option("--ground-from", help="A benchmark to take them from, if not the tested one.")
@click.option("--test", help="How many samples (of each regime), or `all`.  [all]")
@click.option("--draw", type=int, help="Draw examples and samples with this seed.")
@click.option("--data", help="A folder of benchmark files; the hub if left out.")
@click.option("--rule", help="all: also ask questions without a truthful answer.  [answered]")
@click.option("--context", help="Tokens in a window of the space, or `full`.  [8]")
@click.option("--embedder", help="Alias, hub id or folder.")
@click.option("--max-new-tokens", type=int, help="Of each answer.  [64]")
@click.option("--stop", cls=FlagEnvvarOption, multiple=True, help="A text that ends an answer.")
@click.option("--batch-size", type=int, help="Samples in a chunk.  [16]")
@click.option("--temperature", type=float, help="Above 0 tokens are drawn.  [0]")
@click.option(
    "--seed", "seeds", cls=FlagEnvvarOption, type=int, multiple=True, help="One or more."
)
@click.option(
    "--engine", envvar="TRUELINE_ENGINE", help="transformers or llama.cpp.  [transformers]"
)
@click.option("--dtype", help="auto, float32, bfloat16, float16.  [auto]")
@click.option("--device", help="cpu, cuda, mps; the best there is if left out.")
@click.option("--threads", type=int, help="For torch.")
@click.option(
    "--trust-remote-code", is_flag=True, default=None, help="Run code that a model brings."
)
@click.option("--bertscore", help="The folder of an encoder: adds BERTScore.")
@click.option("--bertscore-layers", type=int, help="Which layer of it is compared.")
@click.option("--bertscore-baseline", help="The encoder by whose baseline it is rescaled.")
@click.option("--prompts", help="lines, or one-line.  [lines]")
@click.option("--confidence", help="geometric, arithmetic or arithmetic-raw.  [geometric]")
@click.option("--references", help="all, or first, for ROUGE-L and BERTScore.  [all]")
@click.option("--stemmer/--no-stemmer", default=None, help="ROUGE-L by stems.  [off]")
@click.option(
    "--question",
    "questions",
    cls=FlagEnvvarOption,
    multiple=True,
    help="Test on this question of the benchmarks; one or more.",
)
@click.option("--as", "as", help="paper: prompts, limits and measures of its authors.")
@click.option(
    "--controls/--no-controls",
    default=None,
    help="Also run methods with a space with their controls, and what needs no method.  [on]",
)
@cluster_options
@click.option("--minutes", type=float, help="Stop after so long; go on another time.")
@click.option("--max-samples", type=int, help="Stop after so many; go on another time.")
@json_option
def evaluate(
    plan: Path | None,
    out: str | None,
    minutes: float | None,
    max_samples: int | None,
    on: str | None,
    workers: int | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run methods on benchmarks as PLAN (a run.toml) says, or as flags say; flags win.

    Results are added to results.jsonl in the folder of --out. A run that was stopped or killed
    goes on when the same command is run again, and ends with the same lines.

    \b
    Examples:
      trueline eval run.toml
      trueline eval --benchmark facts --methods greedy,rad --test 20 --out results/first
    """
    from trueline.cli.screen import progress_bars
    from trueline.lab.plan import plan_from, read_plan_table

    trusts = bool(flags["trust_remote_code"])
    table = {} if plan is None else read_plan_table(plan, trust_remote_code=trusts)
    table = _with_flags(table, flags)
    folder = out or table.get("out")
    if not folder:
        raise SettingError("say where the results go: --out FOLDER, or `out` in the plan")
    _check_early(table)
    device = table.get("device")  # the check of the plan is yet to come
    cluster = read_cluster(on, workers, device if isinstance(device, str) else None)
    with progress_bars("samples", f"opening {_named(table)}") as progress, columns_as_flags():
        with _mistakes_as_flags(is_wanted=plan is None):
            checked = plan_from(table, "the command" if plan is None else str(plan))
        from trueline.lab.run import run_plan

        limits: dict[str, Any] = {"minutes": minutes, "max_samples": max_samples}
        done = run_plan(checked, folder, on=cluster, progress=progress, **limits)
    _show(done, as_json)


def _check_early(table: Mapping[str, Any]) -> None:
    """Refuse names and files that are none before anything heavy is imported.

    What is of another form is left to the check of the plan, which names every mistake.
    """
    from trueline.lab.benchmarks import check_benchmark_name
    from trueline.session import check_parts

    with columns_as_flags():
        for name in _texts(table.get("benchmarks")):
            check_benchmark_name(name, columns=table.get("columns"))
    for name in _texts(table.get("models")):
        check_parts((), model=name)
    check_parts(_texts(table.get("methods")))


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _named(table: Mapping[str, Any]) -> str:
    """The models that a plan names, for whoever waits."""
    return " and ".join(_texts(table.get("models")) or [DEFAULT_MODEL])


@contextmanager
def _mistakes_as_flags(*, is_wanted: bool) -> Iterator[None]:
    """Let an error about keys of a plan name the flags that stand for them."""
    try:
        yield
    except SettingError as error:
        if not is_wanted:
            raise
        keys = "|".join(sorted(_FLAGS, key=len, reverse=True))
        told = re.sub(
            rf"(?m)^(  - )({keys})\b", lambda found: found[1] + _FLAGS[found[2]], str(error)
        )
        raise SettingError(told) from error


def _with_flags(table: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The table of a plan, with every flag that was given in the place of its key."""
    given = {
        name: _READ[name](value) if name in _READ else value
        for name, value in flags.items()
        if value not in (None, ())
    }
    built = {name: given.pop(name) for name in ("context", "embedder") if name in given}
    settings: dict[str, dict[str, object]] = {}
    for key, value in given.pop("sets", {}).items():
        method, _, setting = key.rpartition(".")
        settings.setdefault(method, {})[setting] = value
    parts = {"build": built, "settings": settings, "sweep": given.pop("sweeps", {})}
    given |= {name: part for name, part in parts.items() if part}
    found: dict[str, Any] = _merged(table, given)
    return found


def _merged(old: Any, new: Any) -> Any:
    """The new in the place of the old, tables into tables.

    What should be a table and is none stays as it is, for the check of the plan to name it.
    """
    if not isinstance(new, dict):
        return new
    if not isinstance(old, dict):
        return old
    return {**old, **{key: _merged(old.get(key, {}), new[key]) for key in new}}


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _methods(text: str) -> list[str]:
    from trueline.methods import method_names

    return method_names() if text.strip() == "all" else _words(text)


def _number(text: str) -> int | str:
    return int(text) if text.strip().isdecimal() and len(text) < _DIGITS else text


def _settings(texts: tuple[str, ...]) -> dict[str, object]:
    found = read_settings(texts)
    for key, value in found.items():
        if "." not in key:
            raise SettingError(
                f"--set takes METHOD.NAME=VALUE, such as {DEFAULT}.{key}={value}"
            )
    return found


def _sweeps(texts: tuple[str, ...]) -> dict[str, list[object]]:
    found = {}
    for text in texts:
        key, _, values = text.partition("=")
        found[key.strip()] = [read_settings([f"x={word}"])["x"] for word in _words(values)]
    return found


_READ: dict[str, Callable[[Any], Any]] = {  # how a flag becomes the value of its key
    "methods": _methods,
    "tasks": _words,
    **dict.fromkeys(("models", "benchmarks", "judges", "seeds", "stop", "questions"), list),
    **dict.fromkeys(("ground", "test", "context"), _number),
    "sets": _settings,
    "sweeps": _sweeps,
    "columns": read_columns,
}
_FLAGS = {  # the flag of each key that is spelled otherwise
    "models": "--model",
    "benchmarks": "--benchmark",
    "judges": "--judge",
    "seeds": "--seed",
    "settings": "--set",
    "columns": "--column",
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            "methods tasks ground ground_from test draw data rule max_new_tokens batch_size "
            "temperature stop dtype device threads bertscore bertscore_layers sweep"
        ).split()
    },
}


def _show(done: RunOutcome, as_json: bool) -> None:
    """A table for people or a line a cell, then what to beware of, then how to go on."""
    from dataclasses import asdict

    from trueline.cli.screen import is_terminal, note, print_json, print_table

    if as_json:
        print_json({**asdict(done), "folder": str(done.folder)})
    elif is_terminal():
        show_tables(done.folder, [cell.cell for cell in done.cells])
    else:
        head = ["model", "benchmark", "method", "task", "seed", "n", "state", "means"]
        print_table(head, [_row(cell) for cell in done.cells])
    for warning in done.warnings:
        note(f"note: {warning}")
    if done.stopped:
        note(f"stopped: {done.stopped}; run the same command again to go on")


def _row(cell: CellSummary) -> list[str]:
    state = ["done" if cell.is_done else f"{cell.done + cell.failed} of {cell.samples}"]
    if cell.failed:
        state.append(f"{cell.failed} failed")
    if cell.cut_off:
        state.append(f"{cell.cut_off} cut off")
    if unread := sum(cell.unscored.values()):
        state.append(f"{unread} unscored")
    means = " ".join(
        f"{name}={cell.means[name]:.3f} ({low:.3f} to {high:.3f})"
        f"{' indicative' if name in cell.indicative else ''}"
        for name, (low, high) in cell.intervals.items()
    )
    seed = "" if cell.seed is None else str(cell.seed)
    names = [cell.model, cell.benchmark, cell.label, cell.task, seed]
    return [*names, str(cell.done), ", ".join(state), means]


def show_tables(folder: Path, cells: Sequence[str]) -> None:
    """Print a table for each model and benchmark of these cells, and how to read on."""
    from dataclasses import replace

    from trueline.cli.screen import show_line, terminal_width
    from trueline.lab.report.tables import tables_of
    from trueline.lab.results import read_results

    results = read_results(folder)
    kept = [cell for cell in results.cells if cell.head.cell in cells]
    tables = tables_of(replace(results, cells=tuple(kept)))
    for table in tables:
        _show_eval_table(table, terminal_width())
    if any(value.difference for t in tables for row in t.rows for value in row.values.values()):
        show_line(f"Below a mean: the difference from {PLAIN}, and its 95 % interval.")
    show_line(f"More, with the answers: trueline report {folder}")


def _show_eval_table(table: Table, width: int) -> None:
    """One table, in as many pieces as its measures need at this width."""
    from trueline.cli.screen import print_stacked, show_line

    columns = [one for one in table.columns if one.measure.group != "Behaviour"]
    judges = list(dict.fromkeys(column.judge for column in columns if column.judge))
    judged = f", judged by {', '.join(judges)}" if judges else ""
    samples = counted(max(row.first.head.samples for row in table.rows), "sample")
    show_line(f"{table.title}: {samples}{judged}")
    names = [_name(row) for row in table.rows]
    left = max(map(len, ["method", *names])) + 2
    while columns:
        piece: list[Column] = []
        room = width - left
        while columns and (not piece or room >= _width(table, columns[0], judges)):
            room -= _width(table, columns[0], judges)
            piece.append(columns.pop(0))
        head = ["method", *(_title(column, judges) for column in piece)]
        rows = [
            [(name,), *(_lines(row.values.get(column.id), column) for column in piece)]
            for name, row in zip(names, table.rows, strict=True)
        ]
        print_stacked(head, rows)
        show_line("")


def _name(row: MethodRow) -> str:
    """The method, and how many samples it rests on where some are missing."""
    told = [
        f"{counts.answered} of {counts.wanted}"
        for counts in row.counts.values()
        if counts.answered != counts.wanted
    ]
    return f"{row.label} ({', '.join(told)})" if told else row.label


def _title(column: Column, judges: Sequence[str]) -> str:
    judge = f" by {column.judge}" if column.judge and len(judges) > 1 else ""
    return f"{column.measure.title}{judge}"


def _width(table: Table, column: Column, judges: Sequence[str]) -> int:
    """How wide a column is, with the gap before it."""
    texts = [_title(column, judges)]
    for row in table.rows:
        texts += _lines(row.values.get(column.id), column)
    return 2 + max(map(len, texts))


def _lines(value: Average | None, column: Column) -> tuple[str, ...]:
    """A mean, and below it the difference from the plain model with its interval."""
    from trueline.lab.report.tables import number

    if value is None:
        return ("\N{EN DASH}",)
    if value.difference is None:
        return (number(value.mean, column),)
    change = value.difference
    low, high = (number(x, column, sign=True) for x in (change.low, change.high))
    mean = number(change.mean, column, sign=True)
    return (number(value.mean, column), mean, f"{low} to {high}")
