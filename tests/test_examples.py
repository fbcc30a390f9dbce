"""Files, lists and datasets of examples: what is read, and how each problem is named."""

import gzip
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trueline.errors import ExampleError, MissingExtraError, SettingError
from trueline.examples import content_hash, digest, read_examples, to_lines
from trueline.types import Example

GUM = {"question": "What happens to swallowed gum?", "answers": ["It passes.", "Nothing."]}
SKY = {
    "question": "Why is the sky blue?",
    "answers": ["Scattering."],
    "wrong_answers": ["Sea."],
}


def named_by_content(question, answers, wrong=(), source=""):
    """The id of an example that has none: the first digits of a hash of all the rest."""
    content = {"question": question, "answers": answers, "wrong_answers": wrong}
    text = json.dumps(content | {"source": source}, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


GUM_ID = named_by_content(GUM["question"], GUM["answers"])
SKY_ID = named_by_content(SKY["question"], SKY["answers"], SKY["wrong_answers"])
ROWS = [GUM | {"id": "gum"}, SKY]
EXAMPLES = [
    Example(GUM["question"], GUM["answers"], id="gum"),
    Example(SKY["question"], SKY["answers"], SKY["wrong_answers"], id=SKY_ID),
]
TEXTS = {
    ".jsonl": "\n".join(json.dumps(row) for row in ROWS),
    ".ndjson": "\n\n".join(json.dumps(row) for row in ROWS) + "\n",
    ".json": json.dumps(ROWS, indent=2),
    ".csv": "id,question,answers,wrong_answers\n"
    'gum,What happens to swallowed gum?,"[""It passes."", ""Nothing.""]",\n'
    ",Why is the sky blue?,Scattering.,Sea.\n",
    ".tsv": "id\tquestion\tanswers\twrong_answers\n"
    'gum\tWhat happens to swallowed gum?\t"[""It passes."", ""Nothing.""]"\t[]\n'
    "\tWhy is the sky blue?\tScattering.\tSea.\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, content):
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return name


def write_rows(name, rows):
    return write(name, "".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(name, rows):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), name, row_group_size=1)
    return name


def refusal(source, error=ExampleError, **options):
    with pytest.raises(error) as caught:
        read_examples(source, **options)
    return str(caught.value)


def problems(source, **options):
    """The lines of the refusal between its head and its advice, without their indent."""
    _, *lines, _ = refusal(source, **options).split("\n")
    return [line.removeprefix("  ") for line in lines]


# Forms


@pytest.mark.parametrize(
    ("mark", "end", "packed"), [("", "\n", ""), ("\ufeff", "\r\n", ".gz"), ("", "\r", "")]
)
@pytest.mark.parametrize("extension", TEXTS)
def test_every_text_form_gives_the_same_examples(extension, end, packed, mark):
    text = (mark + TEXTS[extension]).replace("\n", end)
    assert read_examples(write(f"facts{extension}{packed}", text)) == EXAMPLES


def test_parquet_gives_the_same_examples_and_names_rows_by_number():
    rows = [{"id": None, "wrong_answers": None} | row for row in ROWS]
    assert read_examples(write_parquet("facts.parquet", rows)) == EXAMPLES
    write_parquet("facts.parquet", [GUM, {"question": "", "answers": ["a"]}])
    assert problems("facts.parquet") == ["facts.parquet:2: the question is empty"]


def test_an_array_of_numpy_is_a_list_of_answers():
    given, wanted = (Example("Q?", make(["a", "b"]), id="7") for make in (np.array, list))
    assert read_examples([given]) == [wanted]
    assert list(to_lines([given])) == list(to_lines([wanted]))


def test_a_csv_of_semicolons_is_read_as_one_of_commas():
    rows = "question;answer\nAre bats blind?;No, they see well.\n"
    [read] = read_examples(write("facts.csv", rows))
    assert (read.question, read.answers) == ("Are bats blind?", ("No, they see well.",))
    quoted = 'question,answer\n"Is gum; sticky?",Yes\n'
    [read] = read_examples(write("facts.csv", quoted))
    assert read.question == "Is gum; sticky?"


# Columns and cells


def test_the_usual_column_names_need_no_mapping():
    names = ("wrong_answers", "wrong", "incorrect_answers")
    rows = [{"question": "Q?", "answer": x, x: "No.", "extra": 1} for x in names]
    for read, name in zip(read_examples(write_rows("facts.jsonl", rows)), names):
        id = named_by_content("Q?", [name], ["No."])
        assert read == Example("Q?", name, "No.", id=id)


ANSWERS = {  # a row, the options, and its answers
    "an empty first choice": ({"answers": "", "answer": "Yes."}, {}, ("Yes.",)),
    "nothing is split or stripped": ({"answers": " a; b, c\nd "}, {}, (" a; b, c\nd ",)),
    "a list in a cell": ({"answers": '["a", "b"]'}, {}, ("a", "b")),
    "separator": ({"answers": "a; b ;  ; c;"}, {"separator": "; "}, ("a", "b", "c")),
    "a list": ({"answers": ["a; b", "c"]}, {"separator": "; "}, ("a; b", "c")),
    "numbers in brackets": ({"answers": "[0, 1]"}, {}, ("[0, 1]",)),
    "a part": ({"a": {"text": ["a", "b"]}}, {"columns": {"answers": "a.text"}}, ("a", "b")),
    "a name with a dot": (
        {"a.b": "this", "a": {"b": "that"}},
        {"columns": {"answers": "a.b"}},
        ("this",),
    ),
    "an empty column": ({"answers": "a", "x": None}, {"columns": {"source": "x"}}, ("a",)),
}


@pytest.mark.parametrize(("row", "options", "wanted"), ANSWERS.values(), ids=ANSWERS)
def test_the_answers_of_a_row(row, options, wanted):
    write_rows("facts.jsonl", [{"question": " Q? ", **row}])
    (read,) = read_examples("facts.jsonl", **options)
    assert (read.question, read.answers) == (" Q? ", wanted)


def test_a_field_mapped_to_none_is_not_read():
    write_rows("facts.jsonl", [GUM | {"id": "same", "source": 1}, SKY | {"id": "same"}])
    read = read_examples("facts.jsonl", columns={"id": None, "source": None})
    assert [(each.id, each.source) for each in read] == [(GUM_ID, ""), (SKY_ID, "")]


COLUMNS = {  # the text of a .csv, or rows; the columns given; the end of the message
    "singular": (
        ROWS,
        {"answer": "answers"},
        "no field 'answer'; an example has id, question, answers, wrong_answers, source",
    ),
    "no such column": (
        [GUM],
        {"question": "Titel"},
        "has no column 'Titel' for question; its columns are 'question', 'answers'; name "
        "the right ones: columns={'question': 'question'}",
    ),
    "other names": (
        "Question,Reply\na,b\n",
        None,
        "has no column 'question' and no column 'answers' or 'answer'; its columns are "
        "'Question', 'Reply'; name the right ones: "
        "columns={'question': 'Question', 'answers': 'Reply'}",
    ),
    "none is left": (
        "Asked,Wrong answer,Says\na,b,c\n",
        {"answers": "Asked"},
        "{'question': '...'}",
    ),
}


@pytest.mark.parametrize(("rows", "columns", "message"), COLUMNS.values(), ids=COLUMNS)
def test_columns_that_do_not_fit_are_refused_with_those_that_may(rows, columns, message):
    is_text = isinstance(rows, str)
    name = write("facts.csv", rows) if is_text else write_rows("facts.jsonl", rows)
    refused = refusal(name, (ExampleError, SettingError), columns=columns)
    assert refused.startswith(name)
    assert refused.endswith(message)


# Problems


def test_every_bad_row_is_reported_at_once():
    good = json.dumps(GUM)
    lines = [good, "", '{"question": "", "answers": ["a"]}', good, "{oops}", '["a"]']
    assert refusal(write("facts.jsonl", "\n".join(lines))) == (
        "facts.jsonl: 3 of 5 rows cannot be used:\n"
        "  facts.jsonl:3: the question is empty\n"
        "  facts.jsonl:5: this is not JSON: Expecting property name enclosed in double quotes: "
        "column 2 (char 1)\n"
        "  facts.jsonl:6: expected an object {...}, got ['a']\n"
        "  Mend or remove these rows; docs/examples.md shows how a row is written."
    )


NO_ANSWER = "there is no truthful answer; give one or more"
LISTS = "must be a text or a list of texts, got"
BAD_ROWS = [
    ({"answers": ["a"]}, "question is missing"),
    ({"question": " \n", "answers": ["a"]}, "the question is empty"),
    ({"question": 5, "answers": ["a"]}, "question must be text, got 5"),
    ({"question": "Q?", "answers": None}, "answers or answer is missing"),
    ({"question": "Q?", "answers": " "}, NO_ANSWER),
    ({"question": "Q?", "answers": ["a", " "]}, "one of answers is empty"),
    ({"question": "Q?", "answers": 42}, f"answers {LISTS} 42"),
    ({"question": "Q?", "answer": "a", "wrong": {"b": 1}}, f"wrong_answers {LISTS} {{'b': 1}}"),
    (
        {"question": "Q?", "answers": "['a', 'b']"},
        'answers is no JSON list ["a", "b"]: "[\'a\', \'b\']"',
    ),
    ({"question": "Q?", "answers": ["a"], "id": True}, "id must be text, got True"),
    ({"question": "Q?", "answers": ["a"], "source": ["x"]}, "source must be text, got ['x']"),
    (
        {"question": "Q?", "answers": ["\ud83d"]},
        "the text holds '\\ud83d', half of a character, which UTF-8 cannot keep",
    ),
    (GUM | {"id": 7}, "the id '7' is also that of facts.jsonl:1"),
]


@pytest.mark.parametrize(("row", "problem"), BAD_ROWS)
def test_a_row_that_is_no_example_is_named_with_its_reason(row, problem):
    write_rows("facts.jsonl", [GUM | {"id": "7"}, row])
    assert problems("facts.jsonl") == [f"facts.jsonl:2: {problem}"]


BYTE = "the byte 0xe9 is not UTF-8; save the file as UTF-8"
ROW = json.dumps(GUM).encode()
PLACES = {  # the name and the bytes of a file, and its problems
    "bytes in a line": (
        "facts.jsonl",
        ROW + b'\n\n{"question": "Caf\xe9?", "answers": ["a"]}',
        [f"3: {BYTE}"],
    ),
    "bytes in a cell": (
        "facts.csv",
        b'question,answers\n"one\ntwo\nthr\xe9e",a\nQ?,b\n',
        [f"2: {BYTE}"],
    ),
    "cells with newlines": (
        "facts.csv",
        b'question,answers\n"a\nb","c\n\nd"\n\n,e\nf,g,h\ni\n',
        [
            "7: the question is empty",
            "8: it has 3 cells, the header 2; check the quotes",
            "9: it has 1 cells, the header 2; check the quotes",
        ],
    ),
    "items of a list": (
        "facts.json",
        b'[{"question": "Q?", "answers": "a"}, {"question": ""},\n5]\n',
        ["2: answers or answer is missing", "3: expected an object {...}, got 5"],
    ),
}


@pytest.mark.parametrize(("name", "data", "wanted"), PLACES.values(), ids=PLACES)
def test_problems_are_named_by_line(name, data, wanted):
    assert problems(write(name, data)) == [f"{name}:{problem}" for problem in wanted]


PACKED = gzip.compress(TEXTS[".jsonl"].encode())
EMPTY = "holds no examples; see docs/examples.md for its form"
REFUSED = {  # the name of a file, its content, and what its refusal contains
    "header twice": (
        "f.csv",
        b"\nquestion,answers,answers\na,b,c\n",
        "f.csv cannot be read: in its header the column 'answers' occurs twice",
    ),
    "an open quote": ("f.csv", 'question,answers\na,b\nc,"d\n', "from line 3 on the cells"),
    "a broken list": ("f.json", '[\n{"question": "Q?" "answers": 1}\n]', "not JSON: .* line 2"),
    "a deep list": ("f.json", "[" * 200_000, "this is not JSON"),
    "lines as a list": ("f.json", TEXTS[".jsonl"], "not JSON.*one object a line"),
    "blank": ("f.csv", " \n\n", EMPTY),
    "text": (
        "f.txt",
        "a",
        r"its name must end in one of \['.jsonl', '.ndjson', '.json', '.csv'",
    ),
    "short": ("f.jsonl.gz", PACKED[:40], "f.jsonl.gz cannot be read: "),
    "parquet": ("f.parquet", "PAR1", "f.parquet cannot be read: "),
}


@pytest.mark.parametrize(("name", "content", "message"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(name, content, message, folder):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if isinstance(content, bytes):
        Path(name).write_bytes(content)  # packed already, if at all
    else:
        write(name, content)
    with pytest.raises(ExampleError, match=message):
        read_examples(Path(name))


def test_a_missing_file_is_refused_with_close_names():
    write("facts.jsonl", "")
    write("notes.txt", "")
    assert refusal("facst.jsonl") == (
        "facst.jsonl cannot be read: there is no such file; did you mean facts.jsonl?"
    )
    Path("here").mkdir()
    for name in ("nowhere/a.csv", Path("owner/name"), "here/facts.txt", "here/facts"):
        assert refusal(name).endswith("there is no such file")  # and no name on the hub
    assert "did you mean facts:test or facts" in refusal("facts:tset")
    assert "is empty; give a file" in refusal("")


# Ids and limits


def test_missing_ids_are_hashes_of_the_content_that_avoid_the_given_ones():
    ids = [3, "", None, f"{GUM_ID}-2", "x"]
    write_rows("facts.jsonl", [*(GUM | {"id": each} for each in ids), SKY])
    read = read_examples("facts.jsonl")
    wanted = ["3", GUM_ID, f"{GUM_ID}-3", f"{GUM_ID}-2", "x", SKY_ID]
    assert [each.id for each in read] == wanted


def test_the_content_hash_changes_with_everything_but_the_id():
    first = Example("Q?", "a", ["b"], id="one", source="s")
    assert content_hash(first) == content_hash(replace(first, id="two"))
    others = [{"question": "R?"}, {"answers": ["c"]}, {"wrong_answers": []}, {"source": ""}]
    assert len({content_hash(replace(first, **other)) for other in [{}, *others]}) == 5


def test_limit_takes_the_first_rows_and_leaves_the_rest_unread():
    write("facts.jsonl", TEXTS[".jsonl"] + "\n{oops\n")
    assert read_examples("facts.jsonl", limit=2) == EXAMPLES
    assert "1 of 3 rows" in refusal("facts.jsonl", limit=3)
    assert read_examples(EXAMPLES, limit=1) == EXAMPLES[:1]


def test_records_are_checked_by_place():
    same = Example("a?", "b", id="x")
    assert problems([same, "a?", Example("c?", "d"), same]) == [
        "examples:2: not an Example: 'a?'",
        "examples:4: the id 'x' is also that of examples:1",
    ]


# Datasets


def test_the_shipped_facts_have_names():
    assert len(read_examples("facts")) == 100
    assert read_examples("facts") == read_examples("facts:ground")
    assert read_examples("facts:test") != read_examples("facts:ground")


def test_a_hub_name_goes_to_datasets_with_its_split_and_config(monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    calls = []

    def load_dataset(*names, split):
        calls.append((*names, split))
        tables = SimpleNamespace(iter=lambda size: [arrow.Table.from_pylist([GUM])])
        return SimpleNamespace(with_format=lambda form: tables)

    errors = SimpleNamespace(DatasetsError=ValueError)
    fake = SimpleNamespace(
        load_dataset=load_dataset, exceptions=errors, are_progress_bars_disabled=lambda: True
    )
    monkeypatch.setitem(sys.modules, "datasets", fake)
    (read,) = read_examples("owner/Name-2.5", split="test", config="small")
    assert calls == [("owner/Name-2.5", "small", "test")]
    assert read.question == GUM["question"]


def test_a_dataset_folder_is_read_by_datasets(folder, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    (folder / "empty").mkdir()
    assert refusal("empty").startswith("empty cannot be read: ")
    (folder / "data").mkdir()
    write_rows("data/train.jsonl", [GUM, {"question": "", "answers": ["a"]}])
    write_rows("data/test.jsonl", [{key: SKY[key] for key in GUM}])
    assert [each.id for each in read_examples("data", limit=1)] == [GUM_ID]
    assert [each.question for each in read_examples("data", split="test")] == [SKY["question"]]
    assert problems(Path("data")) == ["data:2: the question is empty"]
    assert "check name, split and config, or give a file" in refusal("data", split="validation")


@pytest.mark.parametrize(
    ("source", "package"),
    [("owner/name", "datasets"), (".", "datasets"), ("facts.parquet", "pyarrow.parquet")],
)
def test_a_missing_package_names_the_extra(source, package, monkeypatch):
    write("facts.parquet", "PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    message = refusal(source, MissingExtraError)
    assert message.endswith(f"needs {package}: pip install 'trueline[data]'")


# Lines


TWO_LINES = (
    '{"id": "gum", "question": "What happens to swallowed gum?", '
    '"answers": ["It passes.", "Nothing."], "wrong_answers": [], "source": ""}\n'
    f'{{"id": "{SKY_ID}", "question": "Why is the sky blue?", '
    '"answers": ["Scattering."], "wrong_answers": ["Sea."], "source": ""}\n'
)


def test_lines_have_one_form():
    assert "".join(to_lines(EXAMPLES)) == TWO_LINES
    assert "".join(to_lines([Example("Où ?", "Ici\u2028là\n", id="x")])) == (
        '{"id": "x", "question": "Où ?", "answers": ["Ici\u2028là\\n"], '
        '"wrong_answers": [], "source": ""}\n'
    )
    assert digest(EXAMPLES) == hashlib.sha256(TWO_LINES.encode()).hexdigest()
    assert digest(EXAMPLES[::-1]) != digest(EXAMPLES)


@pytest.mark.parametrize("field", ["question", "answers", "wrong_answers", "id", "source"])
def test_a_lone_surrogate_is_refused_before_it_is_written(field):
    fields = {"question": "Q?", "answers": "a"} | {field: "x\ud800"}
    with pytest.raises(ExampleError, match=r"examples:1: the text holds '\\ud800', half of a"):
        list(to_lines([Example(**fields)]))


texts = st.text(min_size=1).filter(str.strip)  # hypothesis draws no surrogates here
records = st.builds(
    Example,
    question=texts,
    answers=st.lists(texts, min_size=1, max_size=3),
    wrong_answers=st.lists(texts, max_size=2),
    id=st.text(min_size=1, max_size=4),
    source=st.text(max_size=4),
)


@pytest.fixture(scope="module")
def lines_file(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "facts.jsonl"


@settings(max_examples=50)
@given(st.lists(records, min_size=1, max_size=4, unique_by=lambda record: record.id))
@example([Example("\u2028Q\u2029\x85?", ['["a", "b"]', "['a']", "x\r\ny; z"], id=" ")])
@example([Example("\ufeffQ?", ["\x00", "a\x1cb"], ["😀"], id="1.0", source="\n")])
def test_lines_are_read_back_as_equal_records(lines_file, written):
    lines_file.write_bytes("".join(to_lines(written)).encode("utf-8"))
    assert read_examples(lines_file) == written
