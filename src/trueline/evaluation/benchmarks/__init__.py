"""A benchmark's name, or files of the user -> examples to ground with, samples to test on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, get_args

from trueline.errors import SettingError
from trueline.evaluation.benchmarks.alpaca import read_alpaca
from trueline.evaluation.benchmarks.covered import REGIMES, read_covered, read_regimes
from trueline.evaluation.benchmarks.halueval import read_dialogue, read_summary
from trueline.evaluation.benchmarks.pools import Pools, Rule, choose
from trueline.evaluation.benchmarks.truthfulqa import read_truthfulqa
from trueline.evaluation.benchmarks.user_files import is_file, read_facts, read_user_files
from trueline.evaluation.benchmarks.wikiqa import read_wikiqa
from trueline.evaluation.samples import Benchmark, Task
from trueline.examples import read_examples
from trueline.visible import shown

__all__ = ["BENCHMARKS", "BenchmarkSource", "Rule", "check_benchmark_name", "read_benchmark"]


@dataclass(frozen=True, slots=True)
class BenchmarkSource:
    """How one benchmark is read, and settings that suit it."""

    read: Callable[[Path | None], Pools]  # from a data folder, or None: the hub
    task: Task = "question"
    settings: Mapping[str, Any] = field(default_factory=dict)  # for methods that have them


BENCHMARKS: dict[str, BenchmarkSource] = {
    "facts": BenchmarkSource(read_facts),
    **{
        name: BenchmarkSource(partial(read_covered, regime=regime))
        for name, regime in REGIMES.items()
    },
    "regimes": BenchmarkSource(read_regimes),
    "truthfulqa": BenchmarkSource(read_truthfulqa),
    "wikiqa": BenchmarkSource(read_wikiqa),
    "alpaca": BenchmarkSource(read_alpaca, settings={"tau": 0.8}),
    "halueval-dialogue": BenchmarkSource(read_dialogue, "dialogue"),
    "halueval-summary": BenchmarkSource(read_summary, "summary"),
}


def read_benchmark(
    name: str,
    *,
    data: Path | None = None,  # a folder of benchmark files; None: the hub
    ground: int | None = 100,  # at most so many examples; None: all there are
    test: int | None = None,  # of each regime, where there are regimes
    seed: int | None = None,  # None: the first rows; else as many are drawn with it
    rule: Rule = "answered",
    columns: Mapping[str, str] | None = None,  # of files: our field -> their column
) -> Benchmark:
    """Read a benchmark by name, or from FILE or GROUND:TEST, and check every row it uses.

    A question without a truthful answer is left out by the rule `answered`; the rule `all`
    keeps it among the samples. It cannot ground either way. `counts` says how many there are.
    """
    for option, number in (("ground", ground), ("test", test)):
        if number is not None and number < 1:
            raise SettingError(f"{option} must be 1 or more, got {number}; None means all")
    if rule not in get_args(Rule):
        raise SettingError(f"rule must be one of {[*get_args(Rule)]}, got {rule!r}")
    source = BENCHMARKS.get(name) or _user_files(name, ground, seed, columns)
    pools = source.read(Path(data) if data is not None else None)
    chosen = choose(pools, ground=ground, test=test, seed=seed, rule=rule)
    return Benchmark(
        name,
        source.task,
        chosen.ground,
        chosen.test,
        chosen.hash,
        source.settings,
        chosen.counts,
    )


def check_benchmark_name(name: str, *, columns: Mapping[str, str] | None = None) -> None:
    """Refuse what is no benchmark, and a file whose rows cannot be used."""
    if name not in BENCHMARKS:
        _check_name(name)
        if is_file(name):
            read_examples(name, columns=columns)


def _user_files(
    name: str, ground: int | None, seed: int | None, columns: Mapping[str, str] | None
) -> BenchmarkSource:
    """Files of the user, as a source."""
    _check_name(name)
    return BenchmarkSource(
        lambda data: read_user_files(name, data=data, ground=ground, seed=seed, columns=columns)
    )


def _check_name(name: str) -> None:
    """Refuse a name that is neither a benchmark's nor a file's, with the names there are."""
    if not is_file(name) and ":" not in name:
        near = get_close_matches(name, BENCHMARKS)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SettingError(
            f"there is no benchmark and no file {shown(name)}; {meant}the names are "
            f"{', '.join(BENCHMARKS)}; your own is FILE or GROUND:TEST"
        )
