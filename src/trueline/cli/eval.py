"""`trueline eval`: models, methods and benchmarks to results that can be resumed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import click

from trueline.cli.options import (
    PATH,
    FlagEnvvarOption,
    check_texts,
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


class PlanCommand(click.Command):
    """A command with a flag for every key of a plan; they are made when they are needed."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The flags, then what the command declares."""
        return [*plan_flags().values(), *super().get_params(ctx)]


@cache
def plan_flags() -> dict[str, click.Option]:
    """The flags that the types of a plan's keys make, by key."""
    from trueline.lab.plan import BUILD, KEYS, SAMPLING

    found = {}
    for key, hint in {
        **KEYS,
        "context": BUILD["context"],
        "embedder": BUILD["embedder"],
    }.items():
        help, extra = _help_of(hint)
        if not help and key not in SAMPLING:
            continue
        flag = f"--{extra.get('flag', key).replace('_', '-')}"
        kinds = _kinds_in(hint)
        kind = click.Option if "env" in extra else FlagEnvvarOption
        found[key] = kind(
            [f"{flag}/--no-{flag[2:]}" if bool in kinds else flag, key],
            default=None,
            envvar=extra.get("env"),
            metavar="NUMBER" if kinds and kinds <= {int, float} else None,
            multiple=tuple in kinds and "split" not in extra,
            help=help,
            callback=check_texts,
        )
    return found


def _help_of(hint: Any) -> tuple[str, Mapping[str, str]]:
    """The help of a key, and what else is said of its flag."""
    for each in (hint, *get_args(hint)):
        for mark in get_args(each)[1:] if get_origin(each) is Annotated else ():
            if help := getattr(mark, "description", None):
                return help, mark.extra or {}
    return "", {}


def _kinds_in(hint: Any) -> set[Any]:
    """The plain types that a type allows; of a tuple just that it is one."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kinds_in(inner[0])
    if origin is None or origin is tuple:
        return {origin or hint} - {type(None)}
    return set().union(*map(_kinds_in, inner)) if origin is not Literal else {str}


@click.command("eval", cls=PlanCommand)
@click.argument("plan", type=PATH, required=False)
@column_option
@click.option(
    "--set",
    "settings",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="METHOD.NAME=VALUE",
    help="A setting of a method, such as rad.alpha=0.3.",
)
@click.option(
    "--sweep",
    "sweep",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="METHOD.NAME=A,B",
    help="Several values of a setting, such as rad.alpha=0.1,0.5 or build.context=4,8.",
)
@cluster_options
@click.option("--minutes", type=float, help="Stop after so long; go on another time.")
@click.option("--max-samples", type=int, help="Stop after so many; go on another time.")
@json_option
def evaluate(
    plan: Path | None,
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
    table = with_flags(table, flags)
    if not table.get("out"):
        raise SettingError("say where the results go: --out FOLDER, or `out` in the plan")
    _check_early(table)
    device = table.get("device")  # not checked yet
    cluster = read_cluster(on, workers, device if isinstance(device, str) else None)
    models = " and ".join(_texts(table.get("models")) or [DEFAULT_MODEL])
    with progress_bars("samples", f"opening {models}") as progress, columns_as_flags():
        with _mistakes_as_flags(is_wanted=plan is None):
            checked = plan_from(table, "the command" if plan is None else str(plan))
        from trueline.lab.run import run_plan

        done = run_plan(
            checked,
            table["out"],
            on=cluster,
            progress=progress,
            minutes=minutes,
            max_samples=max_samples,
        )
    _show(done, as_json)


def _check_early(table: Mapping[str, Any]) -> None:
    """Refuse unknown names and files before anything heavy is imported.

    Values of another type are left to the check of the plan, which lists every mistake.
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
    items = value if isinstance(value, list | tuple) else ()
    return [item for item in items if isinstance(item, str)]


@contextmanager
def _mistakes_as_flags(*, is_wanted: bool) -> Iterator[None]:
    """Let an error about keys of a plan name their flags."""
    try:
        yield
    except SettingError as error:
        if not is_wanted:
            raise
        flags = {key: option.opts[0] for key, option in plan_flags().items()}
        flags |= {"settings": "--set", "sweep": "--sweep", "columns": "--column"}
        text = re.sub(r"(?m)^(  - )(\w+)", lambda m: m[1] + flags.get(m[2], m[2]), str(error))
        raise SettingError(text) from error


def with_flags(table: dict[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a plan, in which every given flag replaces the value of its key."""
    given = {key: _read(key, x) for key, x in flags.items() if x not in (None, ())}
    build = {name: given.pop(name) for name in ("context", "embedder") if name in given}
    merged: dict[str, Any] = _merged(table, {**given, **({"build": build} if build else {})})
    return merged


def _merged(old: Any, new: Any) -> Any:
    """The new value in the place of the old one, tables merged into tables.

    A value that is not the table it should be stays, for the check of the plan to name it.
    """
    if not isinstance(new, dict):
        return new
    if not isinstance(old, dict):
        return old
    return {**old, **{key: _merged(old.get(key, {}), new[key]) for key in new}}


def _read(key: str, given: Any) -> Any:
    """The value of a flag as a plan has it; what does not fit is left for its check."""
    import msgspec

    from trueline.lab.plan import BUILD, KEYS
    from trueline.methods import method_names

    if key == "settings":
        return _settings(given)
    if key == "sweep":
        pairs = (text.partition("=") for text in given)
        return {
            name.strip(): [read_settings([f"x={word}"])["x"] for word in _words(values)]
            for name, _, values in pairs
        }
    if key == "columns":
        return read_columns(given)
    if key == "methods" and given.strip() == "all":
        return method_names()
    hint = KEYS.get(key) or BUILD[key]
    if "split" in _help_of(hint)[1]:
        given = _words(given)
    try:
        return msgspec.convert(given, hint, strict=False)
    except msgspec.ValidationError:
        return given


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _settings(texts: Sequence[str]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for key, value in read_settings(texts).items():
        method, dot, setting = key.rpartition(".")
        if not dot:
            raise SettingError(
                f"--set takes METHOD.NAME=VALUE, such as {DEFAULT}.{key}={value}"
            )
        found.setdefault(method, {})[setting] = value
    return found


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
