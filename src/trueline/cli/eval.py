"""`trueline eval`: models, methods and benchmarks to results that can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin

import click

from trueline.cli.options import (
    PATH,
    FlagEnvvarOption,
    check_texts,
    cluster_options,
    column_option,
    columns_as_flags,
    dry_run_options,
    json_option,
    parts_of,
    read_cluster,
    read_columns,
    read_price,
)
from trueline.errors import SettingError
from trueline.methods import DEFAULT, PLAIN
from trueline.settings import read_settings
from trueline.text import counted

if TYPE_CHECKING:
    from trueline.lab.measures import Average, CellSummary, Column
    from trueline.lab.plan import Plan
    from trueline.lab.report.tables import Table
    from trueline.lab.run import RunOutcome

GridColumn = list[tuple[str, ...]]  # the title, then the lines of each cell


class PlanCommand(click.Command):
    """A command with a flag for every key of a plan; they are made when they are needed."""

    own: ClassVar[frozenset[str]] = frozenset()  # keys that the command sets itself
    shows_defaults = True

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        flags = [copy(flag) for key, flag in plan_flags().items() if key not in self.own]
        for flag in flags if not self.shows_defaults else ():
            flag.help = (flag.help or "").partition("  [")[0]
        return [*flags, *super().get_params(ctx)]


@cache
def plan_flags() -> dict[str, click.Option]:
    """A flag for every key of a plan that has a description, by key: made from its type."""
    from trueline.lab.plan import BUILD, KEYS

    types = {**KEYS, "context": BUILD["context"], "embedder": BUILD["embedder"]}
    flags = {key: _flag(key, parts_of(hint)) for key, hint in types.items()}
    return {key: flag for key, flag in flags.items() if flag is not None}


def _flag(key: str, parts: list[Any]) -> click.Option | None:
    """The flag of a key whose type has these parts; None without a description."""
    from trueline.lab.plan import DEFAULTS

    marks = [part for part in parts if getattr(part, "description", None) is not None]
    if not marks:
        return None
    help, extra = marks[0].description, marks[0].extra or {}
    for choices in (get_args(part) for part in parts if get_origin(part) is Literal):
        help = help if choices[-1] in help else f"{help} {', '.join(choices)}".strip()
    default = extra.get("unset", DEFAULTS.get(key))
    if isinstance(default, bool):
        default = "on" if default else "off"
    if "split" in extra:
        default = ",".join(DEFAULTS[key])
    is_number = {int, float} & {*parts} and not {str, tuple, Literal} & {*parts}
    flag = f"--{extra.get('flag', key).replace('_', '-')}"
    kind = click.Option if "env" in extra else FlagEnvvarOption
    return kind(
        [f"{flag}/--no-{flag[2:]}" if bool in parts else flag, key],
        default=None,
        envvar=extra.get("env"),
        metavar=extra.get("word", "NUMBER" if is_number else None),
        multiple=bool({tuple, dict} & {*parts}) and "split" not in extra,
        help=f"{help}  [{default}]" if default and isinstance(default, str | int) else help,
        callback=check_texts,
    )


@click.command("eval", cls=PlanCommand)
@click.argument("plan", type=PATH, required=False)
@column_option
@cluster_options
@dry_run_options
@click.option("--minutes", type=float, help="Stop after so long; go on another time.")
@click.option("--max-samples", type=int, help="Stop after so many; go on another time.")
@json_option
def evaluate(
    plan: Path | None, on: str | None, workers: int | None, as_json: bool, **flags: Any
) -> None:
    """Run methods on benchmarks, by PLAN (a run.toml) or by flags; flags win.

    Results are added to results.jsonl in the folder of --out. A run that was stopped or killed
    goes on when the same command is run again, and ends with the same lines.

    \b
    Examples:
      trueline eval run.toml
      trueline eval --benchmark facts --methods greedy,rad --test 20 --out results/first
    """
    from trueline.cli.screen import progress_bars
    from trueline.lab.plan import plan_from, read_plan_table

    limits = {name: flags.pop(name) for name in ("minutes", "max_samples")}
    is_dry, price = flags.pop("dry_run"), flags.pop("price")
    trusts = bool(flags["trust_remote_code"])
    table = {} if plan is None else read_plan_table(plan, trust_remote_code=trusts)
    table = with_flags(table, flags)
    _check_names(table)
    checked = plan_from(table, "the command" if plan is None else str(plan))
    if is_dry:
        show_costs([checked], price, as_json)
        return
    if checked.out is None:
        raise SettingError("name the folder of the results: --out FOLDER, or `out` in the plan")
    cluster = read_cluster(on, workers, checked.device)
    opening = f"opening {' and '.join(checked.models)}"
    with columns_as_flags(), progress_bars("samples", opening) as progress:
        from trueline.lab.run import run_plan

        done = run_plan(checked, checked.out, on=cluster, progress=progress, **limits)
    _show(done, as_json)


def show_costs(plans: Sequence[Plan], price: str | None, as_json: bool) -> None:
    """Print what plans would cost, a line for each model and benchmark."""
    from dataclasses import asdict

    from trueline.cli.screen import print_json, print_table, tell
    from trueline.lab.cost import costs_of, measured_rate

    costs = costs_of(plans, price=read_price(price), rate=measured_rate)
    if as_json:
        print_json([asdict(one) for one in costs])
        return
    head = "model,benchmark,answers,of controls,tokens,judge calls,dollars,hours here".split(
        ","
    )
    rows = [
        [
            one.model,
            one.benchmark,
            *(
                f"{x:,}"
                for x in (one.answers, one.control_answers, one.tokens, one.judge_calls)
            ),
            "not known" if one.dollars is None else f"{one.dollars:,.2f}",
            "not measured" if one.hours is None else f"{one.hours:,.1f}",
        ]
        for one in costs
    ]
    print_table(head, rows)
    tell(
        "Answers of controls are left out with --no-controls. Tokens and hours are at most so "
        "many, at the speed of plain decoding; a judge reads about 300 tokens a call, at list "
        "prices (--price READ,WRITTEN gives yours). Nothing was run, and nothing fetched."
    )


def _check_names(table: Mapping[str, Any]) -> None:
    """Refuse unknown names and files before a method is imported, and torch with it."""
    from trueline.lab.benchmarks import check_benchmark_name
    from trueline.session import check_parts

    def texts(key: str) -> list[str]:  # the check of the plan refuses other types
        value = table.get(key)
        return [x for x in value if type(x) is str] if isinstance(value, list | tuple) else []

    with columns_as_flags():
        for name in texts("benchmarks"):
            check_benchmark_name(name, columns=table.get("columns"))
    for name in texts("models"):
        check_parts((), model=name)
    check_parts(texts("methods"))


def with_flags(table: dict[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a plan, in which every given flag replaces the value of its key."""
    given = {key: _read(key, x) for key, x in flags.items() if x not in (None, ())}
    build = {name: given.pop(name) for name in ("context", "embedder") if name in given}
    merged: dict[str, Any] = _merged(table, given | ({"build": build} if build else {}))
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

    if key == "methods" and given.strip() == "all":
        return method_names()
    if key in ("methods", "tasks"):
        return words_of(given)
    readers = {"settings": _settings, "sweep": _sweep, "columns": read_columns}
    if key in readers:
        return readers[key](given)
    try:
        return msgspec.convert(given, KEYS.get(key) or BUILD[key], strict=False)
    except msgspec.ValidationError:
        return given


def words_of(text: str) -> list[str]:
    """The words between the commas of a text."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _sweep(texts: Sequence[str]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        found[name.strip()] = [read_settings([f"x={x}"])["x"] for x in words_of(values)]
    return found


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
    counts = {"failed": cell.failed, "cut off": cell.cut_off}
    counts["unscored"] = sum(cell.unscored.values())
    state += [f"{count} {what}" for what, count in counts.items() if count]
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
    kept = tuple(cell for cell in results.cells if cell.id in cells)
    tables = tables_of(replace(results, cells=kept))
    for table in tables:
        _show_table(table, terminal_width())
    if any(value.difference for t in tables for row in t.rows for value in row.values.values()):
        show_line(f"Below a mean: the difference from {PLAIN}, and its 95 % interval.")
    show_line(f"More, with the answers: trueline report {folder}")


def _show_table(table: Table, width: int) -> None:
    """One table, in as many pieces as its measures need at this width."""
    from trueline.cli.screen import print_stacked, show_line

    columns = [one for one in table.columns if one.measure.group != "Behaviour"]
    judges = list(dict.fromkeys(column.judge for column in columns if column.judge))
    judged = f", judged by {', '.join(judges)}" if judges else ""
    samples = counted(max(row.first.head.samples for row in table.rows), "sample")
    show_line(f"{table.title}: {samples}{judged}")
    names: GridColumn = [("method",)]
    for row in table.rows:
        counts = [x for x in row.counts.values() if x.answered != x.wanted]
        missing = ", ".join(f"{x.answered} of {x.wanted}" for x in counts)
        names.append((f"{row.label} ({missing})" if missing else row.label,))
    grid: list[GridColumn] = []
    for column in columns:
        judge = f" by {column.judge}" if column.judge and len(judges) > 1 else ""
        values = [_lines(row.values.get(column.id), column) for row in table.rows]
        grid.append([(column.measure.title + judge,), *values])
    while grid:
        piece, room = [names], width - _width(names)
        while grid and (len(piece) == 1 or room >= _width(grid[0])):
            room -= _width(grid[0])
            piece.append(grid.pop(0))
        head, *rows = zip(*piece, strict=True)
        print_stacked([title for (title,) in head], rows)
        show_line("")


def _width(column: GridColumn) -> int:
    """How wide a column is, with the gap after it."""
    return 2 + max(len(line) for cell in column for line in cell)


def _lines(value: Average | None, column: Column) -> tuple[str, ...]:
    """A mean, and below it the difference from the plain model with its interval."""
    from trueline.lab.report.tables import number

    if value is None:
        return ("\N{EN DASH}",)
    if (change := value.difference) is None:
        return (number(value.mean, column),)
    numbers = (change.mean, change.low, change.high)
    mean, low, high = (number(x, column, sign=True) for x in numbers)
    return (number(value.mean, column), mean, f"{low} to {high}")
