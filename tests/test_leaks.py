import numpy as np
import pytest
import torch

from trueline.errors import SettingError
from trueline.lab.benchmarks import read_benchmark
from trueline.lab.benchmarks.tables import Benchmark, Sample
from trueline.lab.leaks import leak_line, leak_note, leak_report
from trueline.types import Example

COUNT = "one two three four five six seven eight nine ten eleven twelve thirteen"


def benchmark(ground, test):
    """Rows are a question, or a question and its answers."""
    rows = [
        [(row, ("x",)) if isinstance(row, str) else (row[0], row[1:]) for row in side]
        for side in (ground, test)
    ]
    examples = (Example(q, a, id=f"e{n}") for n, (q, a) in enumerate(rows[0]))
    samples = (Sample(f"s{n}", q, a) for n, (q, a) in enumerate(rows[1]))
    return Benchmark("made up", "question", tuple(examples), tuple(samples), hash="")


def near(ground, test, embedder=None, **options):
    """Sample, example, kind and score of every leak."""
    found = leak_report(benchmark(ground, test), embedder, **options)
    return [(leak.sample, leak.example, leak.kind, round(leak.score, 3)) for leak in found]


LONG = f"{COUNT} and much else that only this text has in it at its end"
SHORT = ("a1", "No", "I have no comment", "It is red all over.")


class Angles:
    """Embeds a text as the unit vector at the angle, in degrees, that the text names."""

    id = "angles"

    def embed(self, texts):
        angles = np.radians([float(text.split()[-1].strip("?")) for text in texts])
        return torch.tensor(np.stack([np.cos(angles), np.sin(angles)], 1))


ANGLES = Angles()
FOUR, FIVE = "red green blue grey", "red green blue grey white"


@pytest.mark.parametrize(
    ("ground", "test", "options", "found"),
    [
        ("Do cats FLY?", "  do   cats, fly", {}, ("question equal", 1)),
        ("does a dog chase a cat", "does a cat chase a dog", {}, ("question overlap", 1)),
        (FOUR, FIVE, {}, ("question overlap", 0.8)),  # 4 of 5
        (FOUR, FIVE, {"overlap": 0.81}, None),
        # 13 of 13 + 13 + 1 words are shared
        (LONG, f"so {COUNT}", {}, ("question 13 words", 0.481)),
        (LONG, f"so {COUNT.removeprefix('one ')}", {}, None),
        # 13 in a row, and 13 of 15 shared: the surest kind is listed
        (f"{COUNT} fourteen", f"{COUNT} fifteen", {}, ("question 13 words", 0.867)),
        (
            SHORT,
            ("b1", "no", "I have no comment", "it is red all over"),
            {},
            ("answer equal", 1),
        ),
        ("at 0", "here 20", {"embedder": ANGLES}, ("question cosine", 0.94)),  # cos 20°
        ("at 0", "here 20", {"embedder": ANGLES, "cosine": 0.95}, None),
    ],
)
def test_texts_are_near_by_the_surest_kind_that_holds(ground, test, options, found):
    assert near([ground], [test], **options) == ([("s0", "e0", *found)] if found else [])


@pytest.mark.parametrize("options", [{"cosine": 0.0}, {"overlap": 1.1}])
def test_bounds_that_mean_nothing_are_refused(options):
    with pytest.raises(SettingError, match=rf"{next(iter(options))} must lie in \(0, 1\]"):
        leak_report(benchmark(["a"], ["b"]), **options)


def test_a_line_of_results_counts_samples_and_holds_the_nearest():
    made = benchmark(["do cats fly", "Do cats fly?"], ["Do cats fly!", "is it red", "x " * 120])
    assert len(leak_report(made)) == 2
    line = leak_line(made, None)
    assert line.counts == {"samples": 3, "leaking": 1, "question equal": 1}
    assert line.nearest[0].texts == ("Do cats fly!", "do cats fly")
    assert leak_note(line) == (
        "made up: 1 of 3 samples are near one of the 2 grounding examples, by text alone "
        "(question equal 1); the nearest: s0 and e0 (question equal, 1.00); "
        "s0 and e1 (question equal, 1.00)"
    )
    long = f"do cats {'fly ' * 40}"
    line = leak_line(benchmark([long], [long] * 12), None)
    assert (line.counts["leaking"], len(line.nearest)) == (12, 10)
    assert {len(text) for one in line.nearest for text in one.texts} == {100}
    clean = benchmark(["at 0"], ["here 90"])
    assert leak_note(leak_line(clean, Angles())) == (
        "made up: 0 of 1 samples are near one of the 1 grounding examples, "
        "by text and by angles"
    )


def test_the_shipped_facts_do_not_leak_by_text_and_a_planted_one_is_found():
    facts = read_benchmark("facts")
    assert leak_report(facts) == []
    (sample,) = facts.test[:1]
    stolen = Example(sample.question, sample.answers, id="stolen")
    made = Benchmark("facts", "question", (*facts.ground, stolen), facts.test, hash="")
    found = {(leak.sample, leak.example, leak.kind) for leak in leak_report(made)}
    assert found == {
        (sample.id, "stolen", "question equal"),
        (sample.id, "stolen", "answer equal"),
    }
