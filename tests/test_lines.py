"""Lines of results: typed, written and read back the same."""

import json

from test_report import GREEDY, RAD, answers, cell, failed

from trueline.lab.plan import Control
from trueline.lab.results import (
    ChoiceLine,
    Leak,
    LeaksLine,
    encode_lines,
    gather_cells,
    read_results,
    read_written,
)

LEAKS = LeaksLine(
    benchmark="facts",
    data_hash="d",
    embedder=None,
    ground=3,
    counts={"samples": 4, "leaking": 1},
    nearest=(Leak("q1", "e1", "question", "equal", 1.0, ("A?", "a")),),
)


def test_every_kind_of_line_reads_back_as_it_was(tmp_path):
    scores = {"single": (-1.0,), "multiple": (), "mc1": 1.0, "mc2": None, "mc3": None}
    choice = ChoiceLine(cell="c", sample="q1", index=0, seconds=0.1, **scores)
    scored = [cell("c", task="choose"), choice]
    control = cell("w", "rad", control=Control.BOUNDARY)
    lines = [*GREEDY, *RAD, failed("g", "q9", 9), *scored, LEAKS, control]
    path = tmp_path / "results.jsonl"
    path.write_bytes(encode_lines(lines))
    assert read_written(path) == (lines, False)
    kinds = {json.loads(text)["kind"] for text in path.read_bytes().splitlines()}
    assert kinds == {"cell", "answer", "choice", "failed", "verdict", "done", "leaks"}
    assert read_results(tmp_path).cells[-1].title.endswith("control: no boundary steps")


def test_a_label_is_the_method_and_what_differs_from_its_defaults():
    given = {"alpha": 0.3, "tau": 0.7, "layers": (0, 1)}
    made = cell("r", "rad", settings=given, build={"window": "answer", "context": 4})
    assert made.label == "rad alpha=0.3 layers=0,1 window=answer"
    assert cell("g").label == "greedy"
    assert (made.context, cell("g").context) == (4, None)


def test_samples_keep_their_order_and_cells_the_order_they_were_begun_in():
    first, second = answers("g", rouge=[0.1, 0.9, 0.1, 0.9])[:2]
    one, two = gather_cells([cell("g"), cell("r", "rad"), second, first])
    assert (one.answers, two.head.method) == ((first, second), "rad")
