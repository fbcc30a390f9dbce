"""The shipped facts, or files of the user -> rows to ground with and rows to test on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trueline.errors import ExampleError, SettingError
from trueline.evaluation.benchmarks.pools import Item, Pools, choices, draw
from trueline.evaluation.benchmarks.probes import ProbeQuestion, probe_pools, read_unrelated
from trueline.evaluation.samples import Sample
from trueline.examples import read_examples
from trueline.examples.asked import check_meant, holds_questions, read_asked
from trueline.files import reason
from trueline.records import Example
from trueline.visible import shown


def read_facts(_: Path | None) -> Pools:
    """Read the shipped facts; no data folder is needed."""
    test = read_examples("facts:test")
    # The same rows once more: an Example has no place for a category but its source.
    rows = read_examples("facts:test", columns={"source": "category"})
    categories = {row.id: row.source for row in rows}
    return Pools(
        [_item(example) for example in read_examples("facts:ground")],
        [_item(example, categories[example.id]) for example in test],
    )


def read_user_files(
    name: str,
    *,
    data: Path | None,
    ground: int | None,
    seed: int | None,
    columns: Mapping[str, str] | None = None,
) -> Pools:
    """Read GROUND:TEST, or one file of which the first rows ground (or some drawn).

    A TEST of questions, each with the id of the example that answers it or none, probes.
    """
    if not is_file(name):
        first, second = _pair(name)
        if holds_questions(second):
            return _asked(first, second, data)
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


def _asked(first: Path, second: Path, data: Path | None) -> Pools:
    """Examples and questions of the user; where no regime is said, the id tells it."""
    examples, asked = read_examples(first), read_asked(second)
    check_meant(asked, {example.id for example in examples}, str(second))
    questions = [
        ProbeQuestion(
            one.regime or ("paraphrase" if one.id else "near miss"),
            one.question,
            (one.id, *one.also) if one.id else (),
        )
        for one in asked
    ]
    counts = {"questions": len(asked)}
    return probe_pools(examples, [*questions, *read_unrelated(data)], counts=counts)


def is_file(name: str | Path) -> bool:
    """Whether a name is that of a file; one that cannot be looked at is an error."""
    try:
        return Path(name).is_file()
    except OSError as error:
        raise ExampleError(f"{shown(str(name))} cannot be read ({reason(error)})") from error


def _pair(name: str) -> tuple[Path, Path]:
    """The two files of GROUND:TEST; a colon may also stand inside a path."""
    cuts = [index for index, sign in enumerate(name) if sign == ":"]
    pairs = [(Path(name[:cut]), Path(name[cut + 1 :])) for cut in cuts]
    for first, second in pairs:
        if is_file(first) and is_file(second):
            return first, second
    missing = [str(path) for path in pairs[0] if not is_file(path)] if pairs else [name]
    raise ExampleError(
        f"{name} is no benchmark and no file: {', '.join(missing)} cannot be found; give a "
        "name, a file of examples, or two as GROUND:TEST"
    )


def _items(examples: Sequence[Example]) -> list[Item]:
    return [_item(example) for example in examples]


def _item(example: Example, category: str = "") -> Item:
    """A row whose choices are its own answers: the best one, or all, against the wrong."""
    answers, wrong = tuple(example.answers), tuple(example.wrong_answers)
    sample = Sample(
        example.id,
        example.question,
        answers,
        wrong,
        choices(answers[:1], wrong),
        choices(answers, wrong),
        category=category,
    )
    return Item(sample, example.source)
