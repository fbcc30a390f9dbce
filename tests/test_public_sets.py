"""benchmarks/public_sets.py: every row of a public set is read, counted, and used by eval."""

import json
import os
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from trueline.lab.benchmarks import read_benchmark

REAL = os.environ.get("TRUELINE_DATA")
real_data = pytest.mark.skipif(
    not REAL, reason="TRUELINE_DATA names no folder of real benchmark files"
)
SCRIPT = Path(__file__).parent.parent / "benchmarks" / "public_sets.py"
_spec = spec_from_file_location("public_sets", SCRIPT)
public_sets = module_from_spec(_spec)
_spec.loader.exec_module(public_sets)


def rows_of_zsre():
    rows = [
        {
            "subject": f"S{n}",
            "prompt": f"Which family is S{n} of?",
            "target_new": f"New{n}",
            "ground_truth": [f"Old{n}"],
            "rephrase_prompt": f"What family are S{n}?",
            "locality": {"Relation_Specificity": [{"prompt": f"The rank of S{n} is"}]},
        }
        for n in range(1, 1_069)
    ]
    rows[1]["ground_truth"] = ["new2"]  # nothing is edited
    rows[2]["locality"] = {}
    return rows


def rows_of_counterfact(numbers):
    born = "Where was {} born?"
    rows = [
        {
            "id": n,  # the second wording is the first once more
            "edit_scope": [
                [x, "Oslo"] for x in [born.format(f"P{n}")] * 2 + [f"Home of P{n}?"]
            ],
            "edit_scope_true_ans": ["Rome"],
            "unrelated": {  # one of the neighbors is edited itself: no near miss
                "neighbor_subj": [born.format(f"N{n}"), born.format("P0")],
                "same_subj": [f"Who represents P{n}?"],
            },
        }
        for n in numbers
    ]
    if 3 in numbers:
        rows[3]["edit_scope"] = []
    return rows


def rows_of_situatedqa(name):
    rows = []
    for n in range(1_398 if name == "geo" else 856):
        place = ("Ohio", "Texas", "Maine")[n % 3]
        rows.append(
            {
                "id": f"{name}{n // 3}",
                "edited_question": f"how tall is {name} {n // 3} in {place}",
                "answer": ["10"] if place != "Texas" else ["12", "twelve"],
            }
        )
    return rows


def rows_of_pairs():
    return [
        {
            "dr_id": 1,
            "question_1": f"May I take drug {n // 2}?",
            "question_2": f"Is drug {n // 2} {'fine' if n % 2 else 'sold by the box'}?",
            "label": n % 2,
        }
        for n in range(1_524)
    ]


def rows_of_clinc():
    queries = [
        {"split": "test", "text": f"do {n} for {n % 150}", "intent": f"intent_{n % 150}"}
        for n in range(1_500)
    ]
    strange = [{"split": "oos_test", "text": f"odd {n}", "intent": "oos"} for n in range(1_200)]
    return strange + queries


def rows_of_faq(count, column, wrap):
    return [
        {
            "faq_question": f"What is rule {n}? ",
            "answer": f"Rule {n} says that {n} masks are worn in every shop of the town.",
            column: [wrap(f"what is rule {n}"), wrap(f"tell me of {n}"), wrap("?")],
        }
        for n in range(count)
    ]


FILES = {
    "knowedit_zsre/zsre_test_all": rows_of_zsre(),
    "counterfact_hard/cfh.part1": rows_of_counterfact(range(675)),
    "counterfact_hard/cfh.part2": rows_of_counterfact(range(675, 1_024)),
    "situatedqa/geo_dev": rows_of_situatedqa("geo"),
    "situatedqa/temp_dev": rows_of_situatedqa("temp"),
    "mqp/mqp_first_half": rows_of_pairs(),
    "clinc150/clinc150_oos_and_test": rows_of_clinc(),
    "covid_faq_chatbot/covid_faq": rows_of_faq(67, "user_queries", str),
    "quebec_covid_faq/quebec_covid_faq": rows_of_faq(
        313, "crowd_questions", lambda text: {"text": text, "collection": 2}
    ),
}


def read_set(name, data, out):
    """A set as eval reads what the script wrote, and all that was counted."""
    counts = public_sets.write_set(name, data, out)
    files = f"{out}/{name}.jsonl:{out}/{name}-questions.jsonl"
    read = read_benchmark(files, ground=None)
    return read, {**counts, **read.counts}


def regimes_of(read):
    return dict(Counter(sample.probe.regime for sample in read.test))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for stem, rows in FILES.items():
        path = folder / f"{stem}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("name", "regimes", "counts"),  # of exact, paraphrase, near miss, unrelated
    [
        ("zsre", (1_067, 1_067, 1_066, 0), {"rows": 1_068, "new answer is the old one": 1}),
        # Every row asks whether P0 is a near miss; row 0 is, the 1,022 others ask again.
        ("counterfact", (1_023, 1_023, 2_046, 0), {"in the words of an example": 1_023}),
        # The third of each three has the answer of the first.
        ("situatedqa", (752, 0, 751, 0), {"another place or date, same answer": 751}),
        ("medical-pairs", (762, 762, 762, 0), {"rows": 1_524}),
        ("clinc150", (150, 1_350, 0, 1_200), {"rows": 2_700}),
        ("covid-faq", (67, 67, 0, 0), {"rows": 67, "in the words of an example": 67}),
        ("quebec-faq", (313, 313, 0, 0), {"rows": 313, "in the words of an example": 313}),
    ],
)
def test_a_public_set_is_read_with_every_row_counted(data, tmp_path, name, regimes, counts):
    read, found = read_set(name, data, tmp_path)
    assert len(read.ground) == regimes[0]
    names = ("exact", "paraphrase", "near miss", "unrelated")
    assert tuple(regimes_of(read).get(name, 0) for name in names) == regimes
    assert {key: found[key] for key in counts} == counts
    if name == "zsre":
        example = read.ground[0]
        assert (example.answers, example.wrong_answers) == (("New1",), ("Old1",))
        assert {sample.probe.match for sample in read.test if sample.answers} == {"target"}


@real_data
@pytest.mark.parametrize(
    ("name", "ground", "regimes"),
    [
        ("zsre", 1_033, {"exact": 1_033, "paraphrase": 1_033, "near miss": 2_066}),
        ("counterfact", 1_016, {"exact": 1_016, "paraphrase": 1_208, "near miss": 12_775}),
        ("situatedqa", 932, {"exact": 932, "near miss": 1_154}),
        ("medical-pairs", 762, {"exact": 762, "paraphrase": 762, "near miss": 757}),
        ("covid-faq", 67, {"exact": 67, "paraphrase": 1_248}),
        ("quebec-faq", 313, {"exact": 313, "paraphrase": 3_065}),
        ("clinc150", 150, {"exact": 150, "paraphrase": 1_350, "unrelated": 1_200}),
    ],
)
def test_the_real_sets_hold_what_the_page_says(name, ground, regimes, tmp_path):
    read, _ = read_set(name, Path(REAL), tmp_path)
    assert (len(read.ground), regimes_of(read)) == (ground, regimes)
