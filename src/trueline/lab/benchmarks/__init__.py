"""A benchmark's name, or files of the user -> examples to ground and samples to test."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import partial
from os.path import isfile  # of an impossible path: False, where Path raises an error
from pathlib import Path
from typing import Any, Literal, TypeVar

from trueline.errors import ExampleError, SettingError
from trueline.examples import (
    ProbeQuestion,
    check_meant,
    holds_questions,
    read_examples,
    read_labeled,
    to_lines,
)
from trueline.lab.benchmarks import paper, regimes
from trueline.lab.benchmarks.tables import Benchmark, Pools, Sample, row_of
from trueline.lab.judges.questions import Task
from trueline.settings import check_value, whole_number
from trueline.text import shown
from trueline.types import Example

T = TypeVar("T")
Rule = Literal["answered", "all"]  # whether questions without a truthful answer are kept


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
        [row_of(example) for example in read_examples("facts:ground")],
        [row_of(example, row.source) for example, row in zip(test, rows, strict=True)],
    )


BENCHMARKS: dict[str, BenchmarkSource] = {
    "facts": BenchmarkSource(read_facts),
    **{
        name: BenchmarkSource(partial(regimes.read_covered, regime=regime))
        for name, regime in regimes.REGIMES.items()
    },
    "regimes": BenchmarkSource(regimes.read_regimes),
    "truthfulqa": BenchmarkSource(paper.read_truthfulqa),
    "wikiqa": BenchmarkSource(paper.read_wikiqa),
    "alpaca": BenchmarkSource(paper.read_alpaca, settings={"tau": 0.8}),
    "halueval-dialogue": BenchmarkSource(paper.read_dialogue, "dialogue"),
    "halueval-summary": BenchmarkSource(paper.read_summary, "summary"),
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
    files = BenchmarkSource(lambda data: _read_files(name, data, ground, seed, columns))
    source = BENCHMARKS.get(name, files)
    pools = source.read(None if data is None else Path(data))
    counts, kept = dict(pools.counts), []
    for side, rows in (("ground", pools.ground), ("test", pools.test)):
        # A question with a regime needs no truthful answer.
        kept.append([x for x in rows if rule == "all" or x.answers or x.probe])
        counts[f"{side} read"] = len(rows)
        counts[f"{side} without an answer"] = sum(not x.answers for x in rows)
        counts[f"{side} left out"] = len(rows) - len(kept[-1])
    drawn = draw(kept[0], ground, seed, "ground")
    # An example without a truthful answer has no entries, also if the rule keeps it.
    examples = tuple(
        Example(x.question, x.answers, x.wrong_answers, x.id, x.source)
        for x in drawn
        if x.answers
    )
    used = {example.id for example in examples}
    groups: dict[str, list[Sample]] = {}  # by regime
    for x in kept[1]:
        if x.probe is None or used.issuperset(x.probe.about):
            groups.setdefault(x.probe.regime if x.probe else "", []).append(x)
    if left_out := len(kept[1]) - sum(map(len, groups.values())):
        counts["test about other examples"] = left_out
    samples = tuple(x for group in groups.values() for x in draw(group, test, seed, "test"))
    counts["ground drawn without an answer"] = len(drawn) - len(examples)
    counts |= {"ground used": len(examples), "test used": len(samples)}
    if not examples or not samples:
        raise ExampleError(
            f"nothing is left to {'test' if examples else 'ground'} with: no row taken has a "
            f"truthful answer, rule={rule!r}; ask for more rows"
        )
    digest = data_hash(examples, samples)
    return Benchmark(name, source.task, examples, samples, digest, source.settings, counts)


def draw(rows: Sequence[T], number: int | None, seed: int | None, side: str) -> list[T]:
    """The first rows, or as many drawn with the seed, in their order; all if there are fewer.

    `side` is part of the seed: another number of ground rows does not change the test rows.
    """
    if number is None or number >= len(rows) or seed is None:
        return list(rows[:number])
    indices = random.Random(f"{seed} {side}").sample(range(len(rows)), number)
    return [rows[index] for index in sorted(indices)]


def data_hash(ground: Sequence[Example], test: Sequence[Sample]) -> str:
    """The SHA-256 of the examples and the samples, in their order."""
    lines = []
    for sample in test:
        row = asdict(sample)
        unused = {"source"} if sample.probe else {"source", "probe"}
        kept = {name: value for name, value in row.items() if name not in unused}
        lines.append(json.dumps(kept, ensure_ascii=False) + "\n")
    content = "".join([*to_lines(ground), "\n", *lines])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def check_benchmark_name(name: str, *, columns: Mapping[str, str] | None = None) -> None:
    """Refuse a name that is not a benchmark's, and a file whose rows cannot be used."""
    if name not in BENCHMARKS:
        if isfile(name):
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
    if isfile(name):
        examples = read_examples(name, columns=columns)
        if ground is None or ground >= len(examples):
            raise SettingError(
                f"{name} holds {len(examples)} examples and ground={ground} leaves none to "
                "test on; ask for fewer, or give two files as GROUND:TEST"
            )
        rows = [row_of(example) for example in examples]
        taken = draw(rows, ground, seed, "ground")
        ids = {row.id for row in taken}
        rest = [row for row in rows if row.id not in ids]
        return Pools(taken, rest, {"rows": len(examples)})
    first, second = _pair(name)
    if not holds_questions(second):
        sides = (read_examples(file, columns=columns) for file in (first, second))
        ground_rows, test_rows = (list(map(row_of, side)) for side in sides)
        return Pools(ground_rows, test_rows)
    examples, questions = read_examples(first), read_labeled(second)
    check_meant(questions, {example.id for example in examples}, str(second))
    probes = [
        ProbeQuestion(
            one.regime or ("paraphrase" if one.id else "near miss"),  # follows from the id
            one.question,
            (one.id, *one.also) if one.id else (),
        )
        for one in questions
    ]
    probes += regimes.read_unrelated(data)
    return regimes.probe_pools(examples, probes, counts={"questions": len(questions)})


def _pair(name: str) -> tuple[Path, Path]:
    """The two files of GROUND:TEST; a path may contain a colon too."""
    colons = [index for index, sign in enumerate(name) if sign == ":"]
    pairs = [(Path(name[:colon]), Path(name[colon + 1 :])) for colon in colons]
    for pair in pairs:
        if all(map(isfile, pair)):
            return pair
    missing = [shown(str(x)) for x in (pairs[0] if pairs else ()) if not isfile(x)]
    lacking = f" ({' and '.join(missing)} cannot be found)" if missing else ""
    near = get_close_matches(name, BENCHMARKS)
    meant = f"did you mean {near[0]}? " if near else ""
    raise SettingError(
        f"there is no benchmark and no file {shown(name)}{lacking}; {meant}the names are "
        f"{', '.join(BENCHMARKS)}; your own is FILE or GROUND:TEST"
    )
