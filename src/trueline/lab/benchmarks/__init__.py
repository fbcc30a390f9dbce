"""A benchmark's name, or files of the user -> examples to ground and samples to test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from trueline.errors import ExampleError, SettingError
from trueline.examples import check_meant, holds_questions, read_asked, read_examples
from trueline.files import reason
from trueline.lab.benchmarks.paper import (
    read_alpaca,
    read_dialogue,
    read_summary,
    read_truthfulqa,
    read_wikiqa,
)
from trueline.lab.benchmarks.regimes import (
    REGIMES,
    ProbeQuestion,
    probe_pools,
    read_covered,
    read_regimes,
    read_unrelated,
)
from trueline.lab.benchmarks.tables import Item, Pools, Rule, choices, choose, data_hash, draw
from trueline.lab.samples import Benchmark, Sample, Task
from trueline.settings import check_value, whole_number
from trueline.text import shown
from trueline.types import Example


@dataclass(frozen=True, slots=True)
class BenchmarkSource:
    """How one benchmark is read, and settings that suit it."""

    read: Callable[[Path | None], Pools]  # from a data folder, or None: the hub
    task: Task = "question"
    settings: Mapping[str, Any] = field(default_factory=dict)  # for methods that have them


def read_facts(_: Path | None) -> Pools:
    """Read the shipped facts; no data folder is needed."""
    test = read_examples("facts:test")
    # An Example has no field for a category, so it is read once more as the source.
    rows = read_examples("facts:test", columns={"source": "category"})
    return Pools(
        _items(read_examples("facts:ground")),
        [_item(example, row.source) for example, row in zip(test, rows, strict=True)],
    )


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
    ground: int | None = 100,  # the most examples; None: all
    test: int | None = None,  # the most samples, of each regime if there are regimes
    seed: int | None = None,  # None: the first rows; else as many are drawn with it
    rule: Rule = "answered",
    columns: Mapping[str, str] | None = None,  # of files: our field -> their column
) -> Benchmark:
    """Read a benchmark by name, or from FILE or GROUND:TEST, and check every row it uses.

    The rule `answered` leaves out questions without a truthful answer; the rule `all` keeps
    them among the samples. They never ground. `counts` has the number of each.
    """
    for option, number in (("ground", ground), ("test", test)):
        if number is not None:
            whole_number(number, option)
    check_value("rule", rule, Rule)
    own = BenchmarkSource(lambda data: _read_files(name, data, ground, seed, columns))
    source = BENCHMARKS.get(name, own)
    pools = source.read(Path(data) if data is not None else None)
    examples, samples, counts = choose(pools, ground=ground, test=test, seed=seed, rule=rule)
    digest = data_hash(examples, samples)
    return Benchmark(name, source.task, examples, samples, digest, source.settings, counts)


def check_benchmark_name(name: str, *, columns: Mapping[str, str] | None = None) -> None:
    """Refuse a name that is not a benchmark's, and a file whose rows cannot be used."""
    if name not in BENCHMARKS:
        if is_file(name):
            read_examples(name, columns=columns)
        else:
            _pair(name)


def _read_files(
    name: str,
    data: Path | None,
    ground: int | None,
    seed: int | None,
    columns: Mapping[str, str] | None,
) -> Pools:
    """Read GROUND:TEST, or one file whose first rows ground (or some drawn).

    TEST may hold questions, each with the id of the example that answers it or an empty one.
    """
    if not is_file(name):
        first, second = _pair(name)
        if holds_questions(second):
            return _probes(first, second, data)
        read = [read_examples(file, columns=columns) for file in (first, second)]
        return Pools(_items(read[0]), _items(read[1]))
    examples = read_examples(name, columns=columns)
    if ground is None or ground >= len(examples):
        raise SettingError(
            f"{name} holds {len(examples)} examples and ground={ground} leaves none to test "
            "on; ask for fewer, or give two files as GROUND:TEST"
        )
    taken = draw(examples, ground, seed, "ground")
    ids = {example.id for example in taken}
    rest = [example for example in examples if example.id not in ids]
    return Pools(_items(taken), _items(rest), {"rows": len(examples)})


def _probes(first: Path, second: Path, data: Path | None) -> Pools:
    """Examples and questions of the user; without a regime, it follows from the id."""
    examples, questions = read_examples(first), read_asked(second)
    check_meant(questions, {example.id for example in examples}, str(second))
    probes = [
        ProbeQuestion(
            one.regime or ("paraphrase" if one.id else "near miss"),
            one.question,
            (one.id, *one.also) if one.id else (),
        )
        for one in questions
    ]
    counts = {"questions": len(questions)}
    return probe_pools(examples, [*probes, *read_unrelated(data)], counts=counts)


def is_file(name: str | Path) -> bool:
    """Whether a name is that of a file; an unreadable place is an error."""
    try:
        return Path(name).is_file()
    except OSError as error:
        raise ExampleError(f"{shown(str(name))} cannot be read ({reason(error)})") from error


def _pair(name: str) -> tuple[Path, Path]:
    """The two files of GROUND:TEST; a path may contain a colon too."""
    colons = [index for index, sign in enumerate(name) if sign == ":"]
    pairs = [(Path(name[:colon]), Path(name[colon + 1 :])) for colon in colons]
    for first, second in pairs:
        if is_file(first) and is_file(second):
            return first, second
    missing = [shown(str(path)) for path in (pairs[0] if pairs else ()) if not is_file(path)]
    lacking = f" ({' and '.join(missing)} cannot be found)" if missing else ""
    near = get_close_matches(name, BENCHMARKS)
    meant = f"did you mean {near[0]}? " if near else ""
    raise SettingError(
        f"there is no benchmark and no file {shown(name)}{lacking}; {meant}the names are "
        f"{', '.join(BENCHMARKS)}; your own is FILE or GROUND:TEST"
    )


def _items(examples: Sequence[Example]) -> list[Item]:
    return [_item(example) for example in examples]


def _item(example: Example, category: str = "") -> Item:
    """A row whose choices are its own answers: the best one, or all, against the wrong ones."""
    answers, wrong = tuple(example.answers), tuple(example.wrong_answers)
    single, multiple = choices(answers[:1], wrong), choices(answers, wrong)
    sample = Sample(
        example.id, example.question, answers, wrong, single, multiple, category=category
    )
    return Item(sample, example.source)
