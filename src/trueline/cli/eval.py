"""`trueline eval`: models, methods and benchmarks to results that can be resumed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

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
        return [*plan_flags().values(), *super().get_params(ctx)]


@cache
def plan_flags() -> dict[str, click.Option]:
    """A flag for every key of a plan that is no table, by key: made from its type."""
    from msgspec.structs import fields

    from trueline.lab.plan import BUILD, KEYS, Plan

    defaults = {key.encode_name: key.default for key in fields(Plan)}
    types = {**KEYS, "context": BUILD["context"], "embedder": BUILD["embedder"]}
    found = {}
    for key, hint in types.items():
        parts, help, extra = _flag_facts(hint)
        if dict in parts:
            continue
        flag = f"--{extra.get('flag', key).replace('_', '-')}"
        default = extra.get("unset", defaults.get(key))
        if "split" in extra and isinstance(default, tuple):
            default = ",".join(default)
        elif isinstance(default, bool):
            default = "on" if default else "off"
        is_number = {int, float} & {*parts} and not {str, tuple, Literal} & {*parts}
        kind = click.Option if "env" in extra else FlagEnvvarOption
        found[key] = kind(
            [f"{flag}/--no-{flag[2:]}" if bool in parts else flag, key],
            default=None,
            envvar=extra.get("env"),
            metavar="NUMBER" if is_number else None,
            multiple=tuple in parts and "split" not in extra,
            help=f"{help}  [{default}]" if default and isinstance(default, str | int) else help,
            callback=check_texts,
        )
    return found


def _flag_facts(hint: Any) -> tuple[list[Any], str, Mapping[str, str]]:
    """The types and constants that a type consists of, its help, and the rest of its flag."""
    parts = _parts(hint)
    marks = [part for part in parts if getattr(part, "description", None) is not None]
    texts = [mark.description for mark in marks[:1]]
    for choices in (get_args(part) for part in parts if get_origin(part) is Literal):
        texts += [", ".join(choices)] if choices[-1] not in texts[0] else []
    return parts, " ".join(filter(None, texts)), (marks[0].extra or {}) if marks else {}


def _parts(hint: Any) -> list[Any]:
    return [hint, get_origin(hint), *(part for one in get_args(hint) for part in _parts(one))]


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
    _check_names(table)
    with _mistakes_as_flags(is_wanted=plan is None):
        checked = plan_from(table, "the command" if plan is None else str(plan))
    if checked.out is None:
        raise SettingError("name the folder of the results: --out FOLDER, or `out` in the plan")
    cluster = read_cluster(on, workers, checked.device)
    opening = f"opening {' and '.join(checked.models)}"
    with columns_as_flags(), progress_bars("samples", opening) as progress:
        from trueline.lab.run import run_plan

        done = run_plan(
            checked,
            checked.out,
            minutes=minutes,
            max_samples=max_samples,
            on=cluster,
            progress=progress,
        )
    _show(done, as_json)


def _check_names(table: Mapping[str, Any]) -> None:
    """Refuse unknown names and files before a method is imported, and torch with it."""
    from trueline.lab.benchmarks import check_benchmark_name
    from trueline.session import check_parts

    def texts(key: str) -> list[str]:  # the plan's own check refuses other types
        value = table.get(key)
        return (
            [x for x in value if isinstance(x, str)] if isinstance(value, list | tuple) else []
        )

    with columns_as_flags():
        for name in texts("benchmarks"):
            check_benchmark_name(name, columns=table.get("columns"))
    for name in texts("models"):
        check_parts((), model=name)
    check_parts(texts("methods"))


@contextmanager
def _mistakes_as_flags(*, is_wanted: bool) -> Iterator[None]:
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
    """The value of a flag as a plan has it; the check of the plan refuses wrong ones."""
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
    if key in ("methods", "tasks"):
        return _words(given)
    try:
        return msgspec.convert(given, KEYS.get(key) or BUILD[key], strict=False)
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


Stack = list[tuple[str, ...]]  # the cells of a column, its title first; the lines of each


def _show_eval_table(table: Table, width: int) -> None:
    """One table, in as many pieces as its measures need at this width."""
    from trueline.cli.screen import print_stacked, show_line

    columns = [one for one in table.columns if one.measure.group != "Behaviour"]
    judges = list(dict.fromkeys(column.judge for column in columns if column.judge))
    judged = f", judged by {', '.join(judges)}" if judges else ""
    samples = counted(max(row.first.head.samples for row in table.rows), "sample")
    show_line(f"{table.title}: {samples}{judged}")
    names: Stack = [("method",), *((_name(row),) for row in table.rows)]
    grid: list[Stack] = []
    for column in columns:
        judge = f" by {column.judge}" if column.judge and len(judges) > 1 else ""
        values = [_lines(row.values.get(column.id), column) for row in table.rows]
        grid.append([(column.measure.title + judge,), *values])
    while grid:
        piece = [names, grid.pop(0)]
        room = width - sum(map(_width, piece))
        while grid and room >= _width(grid[0]):
            room -= _width(grid[0])
            piece.append(grid.pop(0))
        rows = list(zip(*piece, strict=True))
        print_stacked([title for title, *_ in rows[0]], rows[1:])
        show_line("")


def _width(column: Stack) -> int:
    """How wide a column is, with the gap after it."""
    return 2 + max(len(line) for cell in column for line in cell)


def _name(row: MethodRow) -> str:
    counts = [x for x in row.counts.values() if x.answered != x.wanted]
    missing = ", ".join(f"{x.answered} of {x.wanted}" for x in counts)
    return f"{row.label} ({missing})" if missing else row.label


def _lines(value: Average | None, column: Column) -> tuple[str, ...]:
    """A mean, and below it the difference from the plain model with its interval."""
    from trueline.lab.report.tables import number

    if value is None:
        return ("\N{EN DASH}",)
    if (change := value.difference) is None:
        return (number(value.mean, column),)
    mean, low, high = (
        number(x, column, sign=True) for x in (change.mean, change.low, change.high)
    )
    return (number(value.mean, column), mean, f"{low} to {high}")
