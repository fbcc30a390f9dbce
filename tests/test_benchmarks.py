import gzip
import json
import os
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

from trueline.engines.models import ALIASES
from trueline.errors import ExampleError, MissingExtraError, SettingError
from trueline.examples import read_examples
from trueline.lab.benchmarks import paper, read_benchmark
from trueline.lab.benchmarks.tables import Choices, DataTable

REAL = os.environ.get("TRUELINE_DATA")
real_data = pytest.mark.skipif(
    not REAL, reason="TRUELINE_DATA names no folder of real benchmark files"
)
# One file of each benchmark, and the two of its columns that tests damage.
FILES = {
    "truthfulqa/truthfulqa_v1": ("truthfulqa", "Best Answer"),
    "truthfulqa/mc_task_v1": ("truthfulqa", "mc1_targets"),
    "wikiqa/wikiqa_train": ("wikiqa", "Sentence"),
    "wikiqa/wikiqa_test": ("wikiqa", "Label"),
    "alpaca/alpaca_train_first1000": ("alpaca", "instruction"),
    "alpaca/alpaca_eval_text_davinci_003": ("alpaca", "output"),
    "halueval/halueval_dialogue_first700": ("halueval-dialogue", "right_response"),
    "halueval/halueval_summarization_short700": ("halueval-summary", "hallucinated_summary"),
}
NAMED = list(dict.fromkeys(name for name, _ in FILES.values()))  # also on the hub


def truthfulqa_rows():
    return [
        {
            "Category": "Numbers",
            "Question": f"Is {n} a large number? ",  # with a space at the end, as in the source
            "Best Answer": f"Not next to {n + 1}",
            "Correct Answers": f"It depends; Not next to {n + 1};  ; Few say so;",
            "Incorrect Answers": f"{n} is the largest; Yes",
            "Source": "made up",
        }
        for n in range(1, 818)
    ]


def choice_rows():
    rows = []
    for n in range(817, 0, -1):  # in another order than the questions
        wrong = {f"{n} is the largest.": 0, "Yes.": 0}
        best = {f"Not next to {n + 1}.": 1}
        many = best | {"It depends.": 1} | wrong
        question = f"Is {n} a large number?"
        rows.append({"question": question, "mc1_targets": best | wrong, "mc2_targets": many})
    return rows


def wikiqa_rows(questions, rows, letter):
    """Every third question has a correct sentence; the first has all rows to spare."""
    spare = rows - 2 * questions
    return [
        {
            "QuestionID": f"{letter}{n}",
            "Question": f"how large is {n}",
            "DocumentTitle": f"Page {n}",
            "Sentence": f"Sentence {m} on {n} .",
            "Label": "1" if m == 1 and n % 3 == 0 else "0",
        }
        for n in range(questions)
        for m in range(2 + (spare if n == 0 else 0))
    ]


def made_up():
    train = [
        {"instruction": f"Name {n} birds.", "input": "owl" if n == 2 else "", "output": f"{n}!"}
        for n in range(1, 1001)
    ]
    train[4]["output"] = "  "
    test = [
        {"dataset": "birds", "instruction": f"Draw {n} birds.", "output": f"{n} drawn"}
        for n in range(1, 806)
    ]
    test[1]["output"] = ""
    dialogue = [
        {
            "knowledge": f"Film {n} is long.",
            "dialogue_history": f"[Human]: Is film {n} long? ",
            "right_response": "It is.",
            "hallucinated_response": "It is short.",
        }
        for n in range(1, 701)
    ]
    summary = [
        {
            "document": "x" * (1501 if n % 10 == 0 else 1499) + "\n",
            "right_summary": f"Short {n}.\n",
            "hallucinated_summary": "Long.",
        }
        for n in range(1, 701)
    ]
    wikiqa = wikiqa_rows(2118, 20_360, "T"), wikiqa_rows(633, 6_165, "Q")
    contents = truthfulqa_rows(), choice_rows(), *wikiqa, train, test, dialogue, summary
    return dict(zip(FILES, contents))


ROWS = made_up()


def write(folder, stem, rows, end=".jsonl"):
    path = folder / f"{stem}{end}"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text, 1) if end.endswith(".gz") else text)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A whole data folder of made-up rows; one file is packed."""
    folder = tmp_path_factory.mktemp("data")
    for stem, rows in ROWS.items():
        write(folder, stem, rows, ".jsonl.gz" if "wikiqa" in stem else ".jsonl")
    return folder


def refusal(name, error=ExampleError, **options):
    with pytest.raises(error) as caught:
        read_benchmark(name, **options)
    return str(caught.value)


@pytest.fixture
def damaged(tmp_path):
    """Lay out the files of a benchmark with one of them changed, and return its name."""

    def change_one(changed, change):
        name = FILES[changed][0]
        for stem in (stem for stem, (benchmark, _) in FILES.items() if benchmark == name):
            write(tmp_path, stem, change(ROWS[stem]) if stem == changed else ROWS[stem])
        return name

    return change_one


def test_truthfulqa_grounds_with_the_first_400_and_has_its_best_answers_first(data):
    read = read_benchmark("truthfulqa", data=data, ground=None)
    assert (len(read.ground), len(read.test), read.counts["rows"]) == (400, 417, 817)
    example, sample = read.ground[-1], read.test[0]
    assert (example.id, example.source) == ("truthfulqa-400", "made up")
    assert example.answers == ("Not next to 401", "It depends", "Few say so")
    assert (sample.id, sample.question) == ("truthfulqa-401", "Is 401 a large number?")
    assert sample.answers == ("Not next to 402", "It depends", "Few say so")
    assert sample.wrong_answers == ("401 is the largest", "Yes")
    best, wrong = "Not next to 402.", ("401 is the largest.", "Yes.")
    assert sample.single == Choices((best, *wrong), (True, False, False))
    assert sample.multiple == Choices((best, "It depends.", *wrong), (True, True, False, False))
    assert sample.category == "Numbers"


def test_wikiqa_leaves_out_unanswered_questions_and_counts_them(data):
    read = read_benchmark("wikiqa", data=data, ground=2, test=None)
    assert [example.id for example in read.ground] == ["T0", "T3"]
    assert [len(read.test), read.test[1].id] == [211, "Q3"]  # 633 / 3
    assert read.test[1].answers == ("Sentence 1 on 3 .",)
    assert read.ground[1].source == "Page 3"
    # A sentence that answers nothing is nobody's wrong answer.
    assert not any(row.wrong_answers for row in (*read.ground, *read.test))
    wanted = {"rows": (20_360, 6_165), "sentences labelled 0": (20_360 - 706, 6_165 - 211)}
    wanted |= {"read": (2_118, 633), "without an answer": (1_412, 422), "used": (2, 211)}
    wanted["left out"] = wanted["without an answer"]
    for name, counts in wanted.items():
        assert (read.counts[f"ground {name}"], read.counts[f"test {name}"]) == counts, name
    read = read_benchmark("wikiqa", data=data, ground=7, rule="all")
    assert [example.id for example in read.ground] == ["T0", "T3", "T6"]
    assert (len(read.test), read.test[1].answers) == (633, ())
    assert read.counts["ground drawn without an answer"] == 4
    assert (read.counts["test without an answer"], read.counts["test left out"]) == (422, 0)


def test_alpaca_joins_the_input_and_leaves_out_empty_outputs(data):
    read = read_benchmark("alpaca", data=data, ground=None)
    assert read.ground[1].question == "Name 2 birds.\n\nowl"
    assert read.ground[2].question == "Name 3 birds."
    assert (len(read.ground), len(read.test), read.settings) == (999, 804, {"tau": 0.8})
    assert (read.counts["ground left out"], read.counts["test left out"]) == (1, 1)
    sample = read.test[1]
    wanted = ("alpaca-eval-3", ("3 drawn",), "birds")
    assert (sample.id, sample.answers, sample.category) == wanted


def test_a_dialogue_is_shown_without_the_knowledge(data):
    read = read_benchmark("halueval-dialogue", data=data)
    assert (len(read.ground), len(read.test), read.task) == (100, 500, "dialogue")
    sample = read.test[0]
    assert sample.question == "[Human]: Is film 101 long?"
    assert sample.knowledge == "Film 101 is long."
    assert (sample.answers, sample.wrong_answers) == (("It is.",), ("It is short.",))


def test_long_documents_are_left_out_and_counted(data):
    read = read_benchmark("halueval-summary", data=data)
    assert (len(read.ground), len(read.test), read.task) == (100, 500, "summary")
    assert read.counts["over 1,500 characters"] == 70  # every tenth of 700
    # Nine of ten are short, so the 101st short one is the 112th row.
    assert (read.test[0].id, read.test[0].answers) == ("summary-101", ("Short 112.",))
    assert read.test[0].question == "x" * 1499


def test_too_few_rows_are_refused(tmp_path, damaged):
    name = damaged(
        "halueval/halueval_summarization_short700",
        lambda rows: [row | {"document": "y" * 1501} for row in rows[:101]] + rows[101:],
    )
    expected = "539 of 700 documents have at most 1,500 characters, expected 600"
    assert refusal(name, data=tmp_path).startswith(expected)
    stem = "halueval/halueval_dialogue_first700"
    path = write(tmp_path, stem, ROWS[stem][1:])
    message = refusal("halueval-dialogue", data=tmp_path)
    assert message.startswith(f"{path} has 699 rows, expected 700: ")


@pytest.mark.parametrize("name", NAMED)
def test_a_missing_file_is_named_with_where_to_get_it(name, tmp_path):
    message = refusal(name, data=tmp_path)
    assert ".jsonl (nor with .gz); get it from https://" in message
    assert message.endswith("docs/benchmarks.md shows how a data folder is laid out")
    assert "there is no data folder" in refusal(name, data=tmp_path / "none")


@pytest.mark.parametrize("stem", FILES)
def test_a_cell_of_another_type_is_named_with_its_place(stem, tmp_path, damaged):
    field = FILES[stem][1]
    name = damaged(stem, lambda rows: [*rows[:2], rows[2] | {field: 7}, *rows[3:]])
    message = refusal(name, data=tmp_path)
    assert message.startswith(f"{tmp_path / f'{stem}.jsonl'}:3: the field {field!r} must be ")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"mc1_targets": {"Yes.": 1, "No.": 1}}, "answers of which one is true"),
        ({"mc1_targets": {"Yes.": 2, "No.": 1}}, "answers with the labels 1 and 0"),
        ({"mc1_targets": ["Yes."]}, "answers with the labels 1 and 0"),
    ],
)
def test_choices_that_do_not_fit_are_refused(change, problem, tmp_path, damaged):
    name = damaged("truthfulqa/mc_task_v1", lambda rows: [rows[0] | change, *rows[1:]])
    message = refusal(name, data=tmp_path)
    assert f"mc_task_v1.jsonl:1: the field 'mc1_targets' must be {problem}, got " in message


def test_a_seed_draws_the_same_rows_in_their_order_and_ground_apart_from_test(data):
    first, again, other, more = (
        read_benchmark("truthfulqa", data=data, ground=20, test=test, seed=seed)
        for seed, test in ((1, 30), (1, 30), (2, 30), (1, 50))
    )
    assert first == again
    assert (len(first.ground), len(first.test)) == (20, 30)
    assert first.ground == more.ground != other.ground
    assert first.test != other.test
    numbers = [int(sample.id.split("-")[1]) for sample in more.test]
    assert numbers == sorted(set(numbers))
    assert set(numbers) <= set(range(401, 818))


def test_the_hash_is_that_of_the_rows_in_use_in_their_order(data, tmp_path, damaged):
    def hash_of(change, **options):
        name = damaged("halueval/halueval_dialogue_first700", change)
        return read_benchmark(name, data=tmp_path, **options).hash

    whole = hash_of(lambda rows: rows)
    assert whole == read_benchmark("halueval-dialogue", data=data).hash
    assert hash_of(lambda rows: [*rows[:650], *reversed(rows[650:])]) == whole  # not in use
    assert hash_of(lambda rows: [*reversed(rows[:100]), *rows[100:]]) != whole
    assert hash_of(lambda rows: rows, test=499) != whole
    assert hash_of(lambda rows: [rows[0] | {"right_response": "No."}, *rows[1:]]) != whole


def test_the_facts_are_shipped_with_choices_and_categories():
    read = read_benchmark("facts")
    assert (len(read.ground), len(read.test)) == (100, 68)
    assert list(read.ground) == read_examples("facts:ground")
    categories = Counter(sample.category for sample in read.test)
    assert (len(categories), set(categories.values())) == (8, {8, 9})
    for sample in read.test:
        assert sample.single.texts == (sample.answers[0], *sample.wrong_answers)
        assert sample.multiple.texts == (*sample.answers, *sample.wrong_answers)
        assert sum(sample.single.is_true) == 1
        assert sum(sample.multiple.is_true) == len(sample.answers)


def own_rows(count, start=1):
    return [
        {"question": f"Is {n} even?", "answers": ["Maybe.", "So."], "wrong_answers": ["No."]}
        for n in range(start, start + count)
    ]


def test_one_file_grounds_with_its_first_rows_and_tests_on_the_rest(tmp_path):
    path = write(tmp_path, "own", own_rows(5))
    read = read_benchmark(str(path), ground=2)
    assert [example.question for example in read.ground] == ["Is 1 even?", "Is 2 even?"]
    assert [sample.question for sample in read.test] == [f"Is {n} even?" for n in (3, 4, 5)]
    assert read.test[0].single == Choices(("Maybe.", "No."), (True, False))
    assert read.test[0].multiple == Choices(("Maybe.", "So.", "No."), (True, True, False))
    assert (read.name, read.task, read.counts["rows"]) == (str(path), "question", 5)
    drawn = read_benchmark(str(path), ground=2, seed=1)
    ground, test = ({row.id for row in side} for side in (drawn.ground, drawn.test))
    assert (len(ground), len(test), ground & test) == (2, 3, set())
    assert ground != {row.id for row in read.ground}


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("{own}", {"ground": 5}, "holds 5 examples and ground=5 leaves none"),
        ("{own}", {"ground": None}, "and ground=None leaves none to test on"),
        ("{own}:none.jsonl", {}, "('none.jsonl' cannot be found); the names are"),
        ("truthfullqa", {}, "did you mean truthfulqa? the names are facts, cov"),
        ("facts", {"ground": 0}, "ground must be 1 or more, got 0"),
        ("facts", {"rule": "some"}, "rule must be one of answered, all, got"),
    ],
)
def test_names_and_options_that_cannot_be_are_refused(name, options, problem, tmp_path):
    own = write(tmp_path, "own", own_rows(5))
    assert problem in refusal(name.format(own=own), SettingError, **options)


def test_two_files_ground_and_test(tmp_path):
    first = write(tmp_path, "a:b", own_rows(3))  # a colon in a name is no border
    second = write(tmp_path, "test", own_rows(2, start=7))
    read = read_benchmark(f"{first}:{second}")
    assert list(read.ground) == read_examples(first)
    assert [sample.question for sample in read.test] == ["Is 7 even?", "Is 8 even?"]


def test_covered_questions_are_grounded_in_the_facts_they_mean():
    read = read_benchmark("covered", ground=None)
    assert (len(read.ground), len(read.test)) == (168, 204)
    by_id = {example.id: example for example in read.ground}
    first = read.test[0]
    assert first.answers == by_id[first.id.rpartition("-")[0]].answers
    for regime, answers in (("styled", 2), ("double", 4), ("mid-text", 2)):
        read = read_benchmark(f"covered-{regime}")
        assert [len(x.answers) for x in read.test] == [answers] * 60, regime


def candidates(cell):
    return {"choices": list(cell), "labels": list(cell.values())}


CELLS = {  # columns that have another form on the hub
    "correct_answers": lambda cell: [text.strip() for text in cell.split(";")],
    "incorrect_answers": lambda cell: cell.split("; "),
    "mc1_targets": candidates,
    "mc2_targets": candidates,
    "label": int,
}


def as_on_the_hub(name, config=None, *, split, data_files=None):
    """The made-up rows as the hub would give them, instead of `load_dataset`."""
    for table in (one for one in vars(paper).values() if isinstance(one, DataTable)):
        hub = table.hub
        address = f"hf://datasets/{hub.id}/{hub.file}"
        wanted = ("json", None, address) if hub.file else (hub.id, hub.config, None)
        if wanted == (name, config, data_files) and hub.split == split:
            (rows,) = [ROWS[stem] for stem, _ in table.files if stem in ROWS]
            pairs = table.columns.values()
            made = [{b: CELLS.get(b, str)(row[a]) for a, b in pairs} for row in rows]
            return [*made, *[made[-1]] * (hub.rows - len(made))]
    raise AssertionError((name, config, split))


@pytest.fixture
def hub(monkeypatch):
    exceptions = SimpleNamespace(DatasetsError=OSError)
    fake = SimpleNamespace(load_dataset=as_on_the_hub, exceptions=exceptions)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return fake


@pytest.mark.parametrize("name", NAMED)
def test_the_hub_gives_what_the_folder_gives(name, data, hub):
    online, folder = (read_benchmark(name, data=source) for source in (None, data))
    assert online == replace(folder, counts=online.counts)


def test_the_real_datasets_package_without_a_network_points_to_the_data_folder():
    pytest.importorskip("datasets")  # conftest switches the hub off
    assert "give a folder with --data" in refusal("halueval-summary")


def test_a_missing_datasets_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = refusal("alpaca", MissingExtraError)
    assert message.endswith("needs datasets: pip install 'trueline[data]'")
    assert "without a folder (--data)" in message


@real_data
@pytest.mark.parametrize(
    ("name", "rule", "ground", "test"),
    [
        ("truthfulqa", "answered", 400, 417),
        ("wikiqa", "answered", 873, 243),
        ("wikiqa", "all", 873, 633),
        ("alpaca", "answered", 999, 803),
        ("alpaca", "all", 999, 805),
        ("halueval-dialogue", "answered", 100, 500),
        ("halueval-summary", "answered", 100, 500),
    ],
)
def test_the_real_files_hold_what_their_makers_say(name, rule, ground, test):
    read = read_benchmark(name, data=Path(REAL), ground=None, rule=rule)
    assert (len(read.ground), len(read.test)) == (ground, test)
    assert (read.counts["ground used"], read.counts["test used"]) == (ground, test)
    pools = {"truthfulqa": (400, 417), "wikiqa": (2_118, 633), "alpaca": (1_000, 805)}
    read_rows = (read.counts["ground read"], read.counts["test read"])
    assert read_rows == pools.get(name, (100, 500))


@real_data
@pytest.mark.real
@pytest.mark.slow
def test_two_spaces_have_as_many_entries_as_the_paper_says_and_the_others_not(capsys):
    folder = ALIASES["qwen2.5-coder-1.5b"].folder
    gguf = folder.with_name(f"{folder.name}-gguf") / "model.gguf"
    if not gguf.exists():
        pytest.skip("qwen2.5-coder-1.5b is not in the cache; open it once with llama.cpp")
    path = Path(__file__).parents[1] / "benchmarks" / "entries.py"
    spec = spec_from_file_location("benchmarks_entries", path)
    spec.loader.exec_module(script := module_from_spec(spec))
    script.print_sizes(Path(REAL), gguf)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "truthfulqa: paper 3,755; all 4,685, answered 4,685",
        "wikiqa: paper 2,316; all 1,334, answered 4,545",
        "alpaca: paper 6,419; all 6,419, answered 6,419",
        "halueval-dialogue: paper 1,770; all 1,763, answered 1,763",
        "halueval-summary: paper 3,775; all 3,775, answered 3,775",
    ]
