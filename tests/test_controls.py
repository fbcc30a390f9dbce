"""Controls: how they change examples, which variants have them, what they show of a gain."""

import gzip
import random
from pathlib import Path

import pytest
from test_report import JUDGE, cell, done

from trueline.lab.findings import NOT_AN_EFFECT, effect_notes, effect_of, judge_gain
from trueline.lab.measures import MEASURES, Column, average
from trueline.lab.plan import Control, controlled_examples, plan_from
from trueline.lab.report.pages import as_csv, as_markdown, report_of
from trueline.lab.report.tables import tables_of
from trueline.lab.results import VerdictLine, gather_cells, read_results
from trueline.lab.statistics import Difference
from trueline.types import Example

GROUND = [
    Example("Are bats blind?", "Bats see well.", "Bats are blind.", id="bats"),
    Example("Does gold rust?", "Gold does not rust.", "Gold rusts.", id="gold"),
    Example("Do fish sleep?", "Fish rest.", id="fish"),
    Example("Is air blue?", "Air scatters blue.", "Air is painted.", id="air"),
]
COMMITTED = Path(__file__).parent / "results" / "facts-controls.jsonl.gz"


def difference(mean, low, high):
    return Difference(mean, low, high, 0.5, 68)


def test_controls_change_the_answers_of_examples():
    shuffled = controlled_examples(GROUND, Control.SHUFFLED)
    assert [(one.id, one.answers[0]) for one in shuffled] == [
        ("bats", "Fish rest."),
        ("gold", "Air scatters blue."),
        ("fish", "Bats see well."),
        ("air", "Gold does not rust."),
    ]
    assert controlled_examples(GROUND[:1], Control.SHUFFLED) == ()
    wrong = controlled_examples(GROUND, Control.WRONG)
    assert [(one.answers, one.wrong_answers) for one in wrong] == [
        (("Bats are blind.",), ("Bats see well.",)),
        (("Gold rusts.",), ("Gold does not rust.",)),
        (("Air is painted.",), ("Air scatters blue.",)),
    ]
    unrelated = controlled_examples(75 * GROUND, Control.UNRELATED)
    assert len({one.question for one in unrelated}) == 300
    assert unrelated[1].answers == ("If you add 18 and 28, the sum that you get is 46.",)
    assert unrelated[1].wrong_answers == ("If you add 18 and 28, the sum that you get is 49.",)


def test_a_plan_runs_every_grounded_method_with_its_controls_by_default():
    table = {"benchmarks": ["facts"], "methods": ["greedy", "rad", "kate", "knn-lm"]}
    found = [(one.method, one.control) for one in plan_from(table).variants if one.control]
    every = [Control.SHUFFLED, Control.WRONG, Control.UNRELATED]
    assert found == [
        *(("rad", control) for control in (*every, Control.BOUNDARY)),
        *(("kate", control) for control in every),  # looks at no windows
        *(("knn-lm", control) for control in every),  # its windows always hold the prompt
    ]
    made = plan_from(table).variants
    baselines = [(one.method, dict(one.settings)) for one in made if one.is_instead]
    assert baselines == [("kate", {"k": 1}), ("kate", {"k": 3}), ("lookup", {})]
    assert len(plan_from({**table, "controls": False}).variants) == 4


def test_what_is_swept_has_no_controls_and_a_method_with_wrong_answers_has_all():
    table = {
        "benchmarks": ["facts"],
        "methods": ["rad"],
        "sweep": {"rad.tau": [0.6, 0.7]},
        "variants": [{"method": "rad", "beta": 0.5}],
    }
    found = [one for one in plan_from(table).variants if one.control]
    assert {one.settings.get("beta") for one in found} == {0.5}
    assert [one.control for one in found] == [*Control]
    assert found[-1].settings == {"beta": 0.5, "from_step": 8}
    without = plan_from({"benchmarks": ["facts"], "methods": ["greedy", "dola"]})
    assert [one.method for one in without.variants] == ["greedy", "dola"]


@pytest.mark.parametrize(
    ("change", "lead", "finding"),
    [
        ((0.13, 0.04, 0.24), (0.01, -0.08, 0.10), "shared"),  # the control gains 0.12
        ((0.13, 0.04, 0.24), (0.12, 0.03, 0.21), "effect"),
        ((0.13, 0.04, 0.24), (0.10, -0.01, 0.21), "unclear"),  # it gains 0.03, not beaten
        ((0.03, -0.05, 0.11), (0.01, -0.05, 0.07), "shared"),  # no certain gain, and shared
        ((0.03, -0.05, 0.11), (0.03, -0.05, 0.11), None),  # no certain gain, the control none
        ((-0.05, -0.10, 0.01), (0.0, -0.05, 0.05), None),  # no gain
    ],
)
def test_the_verdict_on_a_gain_follows_from_its_controls(change, lead, finding):
    found = judge_gain(difference(*change), {"wrong answers": difference(*lead)}, 1)
    assert (found and found.finding) == finding
    down = [(-mean, -high, -low) for mean, low, high in (change, lead)]  # as for HalluRate
    found = judge_gain(difference(*down[0]), {"wrong answers": difference(*down[1])}, -1)
    assert (found and found.finding) == finding


def runs(labels, *, control=None, id="r", method="rad"):
    """The cell of a method whose answers were judged so, one label a sample."""
    names = [f"s{number}" for number in range(len(labels))]
    counts = {"samples": len(labels), "test": len(labels)}
    seen = [
        VerdictLine(cell=id, sample=name, judge=JUDGE, about="truth", label=label)
        for name, label in zip(names, labels)
    ]
    (found,) = gather_cells([cell(id, method, control=control, **counts), *seen, done(id)])
    return found


def simulated(rng, *, samples, base, method, control):
    """One run: whether the gain over greedy passes for an effect of the examples.

    `base` is the share of right answers of the plain model; `method` and `control` are the
    probabilities with which a verified answer is printed in the place of the model's own.
    """
    plain = [rng.random() < base for _ in range(samples)]

    def printed(share):
        return [own or rng.random() < share for own in plain]

    found = effect_of(
        [runs(printed(method))],
        [runs(plain, id="g", method="greedy")],
        {c: [runs(printed(control), control=c, id=c)] for c in Control},
        Column(MEASURES["truth"], JUDGE),
    )
    return found is not None and found.finding == "effect"


@pytest.mark.parametrize(
    ("method", "control", "least", "most"),
    [
        (0.2, 0.0, 0.90, 1.00),  # planted: the verified answer is printed for 20 %
        (0.2, 0.2, 0.00, 0.05),  # a gain that the controls have as well
        (0.0, 0.0, 0.00, 0.05),  # nothing at all
    ],
    ids=["effect", "shared", "nothing"],
)
def test_a_planted_effect_is_found_and_a_planted_non_effect_is_not(
    method, control, least, most
):
    rng = random.Random(13)
    options = {"samples": 68, "base": 0.4, "method": method, "control": control}
    found = sum(simulated(rng, **options) for _ in range(200))
    assert least <= found / 200 <= most


OLD, TODAY = "nearest-reference:all-minilm-l6-v2", "offline:all-minilm-l6-v2"


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """RAD on the 68 test facts with its controls, with the settings of version 0.1.0.

    By docs/results/plans/controls.toml, judged by today's judge and by that of version 0.1.0
    (benchmarks/old_judge.py).
    """
    folder = tmp_path_factory.mktemp("committed")
    (folder / "results.jsonl").write_bytes(gzip.decompress(COMMITTED.read_bytes()))
    return read_results(folder)


def values_of(table, judge):
    """T*I by a judge: of RAD, and of its controls by name."""
    (rad,) = [row for row in table.rows if row.method == "rad"]
    (column,) = [
        one for one in table.columns if (one.measure.key, one.judge) == ("truth_info", judge)
    ]
    controls = {row.control: row.values[column.id] for row in table.controls_of(rad)}
    return rad.values[column.id], controls


def test_the_controls_catch_the_gain_that_version_0_1_0_reported_of_rad(committed):
    (table,) = tables_of(committed)
    value, controls = values_of(table, OLD)
    # The gain is there, to the digit of the old page, and beyond chance.
    found = value.difference
    assert [round(100 * x, 1) for x in (value.mean, found.mean, found.low, found.high)] == [
        *(54.2, 13.5, 3.9, 24.2),
    ]
    # Examples with wrong answers, shuffled ones and sums of numbers gain as much.
    gains = {control: round(100 * one.difference.mean, 1) for control, one in controls.items()}
    assert gains == {
        Control.SHUFFLED: 12.0,
        Control.WRONG: 13.5,
        Control.UNRELATED: 13.6,
        Control.BOUNDARY: 0.0,
    }
    assert round(100 * values_of(table, TODAY)[0].difference.mean, 1) == -6.6
    message = "answers shuffled +12.0, wrong answers +13.5, unrelated examples +13.6"
    assert value.effect == f"{NOT_AN_EFFECT}: {message}"
    notes = effect_notes(committed.cells)
    assert [n for n in notes if f"truth_info@{OLD}" in n and NOT_AN_EFFECT in n]


def test_a_report_shows_controls_below_their_method_and_marks_the_gain(committed):
    tables = tables_of(committed)
    text = as_markdown(report_of(committed, tables))
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    at = rows.index("| rad")
    assert rows[at + 1 : at + 5] == [f"| rad, control: {control}" for control in Control]
    assert NOT_AN_EFFECT in text
    assert "no controls were run" not in text
    lines = as_csv(tables).splitlines()
    assert "control" in lines[0].split(",")
    assert any(",wrong answers," in line for line in lines)


def test_a_gain_that_stays_without_the_boundary_steps_is_not_taken_back():
    plain, rad = runs([True, False], id="g", method="greedy"), runs([True, True])
    boundary, wrong = ([runs([True, last], id=str(last))] for last in (True, False))
    column = Column(MEASURES["truth"], JUDGE)
    assert effect_of([rad], [plain], {Control.BOUNDARY: boundary}, column) is None
    found = effect_of([rad], [plain], {Control.WRONG: boundary}, column)
    assert found.finding == "shared"
    found = effect_of(
        [rad], [plain], {Control.BOUNDARY: boundary, Control.WRONG: wrong}, column
    )
    assert found is None or Control.BOUNDARY not in found.controls


def test_a_gain_that_a_control_shares_is_no_effect():
    plain, rad = runs([True, False], id="g", method="greedy"), runs([True, True])
    shuffled = runs([True, True], control=Control.SHUFFLED, id="s")
    (note,) = effect_notes([plain, rad, shuffled])
    assert note.endswith(
        "than the plain model, not an effect of the examples: answers shuffled +50.0"
    )
    assert average([rad], Column(MEASURES["truth"], JUDGE)).mean == 1.0
