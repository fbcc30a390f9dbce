"""Alpaca's instructions to ground with, AlpacaEval's (reference: text_davinci_003) to test."""

from __future__ import annotations

from pathlib import Path

from trueline.evaluation.benchmarks.data_files import DataTable, Hub, Line, read_table
from trueline.evaluation.benchmarks.pools import Item, Pools
from trueline.evaluation.samples import Sample

_LICENCE = "(CC BY-NC 4.0)"
_GROUND = DataTable(
    files=(("alpaca/alpaca_train", 52_002), ("alpaca/alpaca_train_first1000", 1_000)),
    hub=Hub("tatsu-lab/alpaca", "train", 52_002),
    columns={name: (name, name) for name in ("instruction", "input", "output")},
    home=f"https://github.com/tatsu-lab/stanford_alpaca {_LICENCE}",
)
_TEST = DataTable(
    files=(("alpaca/alpaca_eval_text_davinci_003", 805),),
    hub=Hub("tatsu-lab/alpaca_eval", "train", 805, file="alpaca_eval.json"),
    columns={name: (name, name) for name in ("instruction", "output", "dataset")},
    home=f"https://github.com/tatsu-lab/alpaca_eval {_LICENCE}",
)


def read_alpaca(data: Path | None) -> Pools:
    """Read the instructions; an output that is empty is no answer."""
    ground = [_ground(*row) for row in enumerate(read_table(_GROUND, data), start=1)]
    test = [_test(*row) for row in enumerate(read_table(_TEST, data), start=1)]
    return Pools(ground, test)


def _ground(number: int, line: Line) -> Item:
    # AlpacaEval joins an input to its instruction with an empty line, so both sides are alike.
    parts = (line.text("instruction"), line.text("input", blank=True))
    return Item(Sample(f"alpaca-{number}", "\n\n".join(filter(None, parts)), _answers(line)))


def _test(number: int, line: Line) -> Item:
    category = line.text("dataset", blank=True)
    return Item(
        Sample(
            f"alpaca-eval-{number}",
            line.text("instruction"),
            _answers(line),
            category=category,
        )
    )


def _answers(line: Line) -> tuple[str, ...]:
    output = line.text("output", blank=True)
    return (output,) if output else ()
