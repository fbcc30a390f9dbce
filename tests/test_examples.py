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

from trueline import examples as rows
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


SKY_ID = named_by_content(SKY["question"], SKY["answers"], SKY["wrong_answers"])
ROWS = [GUM | {"id": "gum"}, SKY]
EXAMPLES = [
    Example(GUM["question"], GUM["answers"], id="gum"),
    Example(SKY["question"], SKY["answers"], SKY["wrong_answers"], id=SKY_ID),
]
TEXTS = {
    ".jsonl": "\n".join(json.dumps(row) for row in ROWS),
    ".ndjson": "\n".join(json.dumps(row) for row in ROWS) + "\n",
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


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "bom"])
@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("extension", TEXTS)
def test_every_text_form_gives_the_same_examples(extension, packed, mark):
    assert (
        read_examples(write(f"facts{extension}{packed}", mark + TEXTS[extension])) == EXAMPLES
    )


def test_parquet_gives_the_same_examples():
    rows = [{"id": None, "wrong_answers": None} | row for row in ROWS]
    assert read_examples(write_parquet("facts.parquet", rows)) == EXAMPLES


def test_numpy_and_arrow_lists_are_lists():
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    answers = arrow.array([["a", "b"]], arrow.large_list(arrow.large_string()))
    question = arrow.array(["Q?"]).dictionary_encode()
    number = arrow.array([7], arrow.int8())
    names = ["question", "answers", "id"]
    parquet.write_table(arrow.table([question, answers, number], names), "facts.parquet")
    (read,) = read_examples("facts.parquet")
    (given,) = read_examples([Example("Q?", np.array(["a", "b"]), id="7")])
    assert read == given == Example("Q?", ["a", "b"], id="7")
    assert list(to_lines([given])) == list(to_lines([read]))


def test_a_path_object_and_an_extension_in_capitals_are_read(folder):
    write("FACTS.JSONL", TEXTS[".jsonl"])
    assert read_examples(folder / "FACTS.JSONL") == EXAMPLES


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_the_line_ends_of_other_systems_are_read(end):
    text = TEXTS[".jsonl"].replace("\n", end) + end
    assert read_examples(write("facts.jsonl", text)) == EXAMPLES


@pytest.mark.parametrize("answers", ["answers", "answer"])
@pytest.mark.parametrize("wrong", ["wrong_answers", "wrong", "incorrect_answers"])
def test_the_usual_column_names_need_no_mapping(answers, wrong):
    write_rows("facts.jsonl", [{"question": "Q?", answers: "Yes.", wrong: "No.", "extra": 1}])
    assert read_examples("facts.jsonl") == [
        Example("Q?", "Yes.", "No.", id=named_by_content("Q?", ["Yes."], ["No."]))
    ]


def test_a_blank_first_choice_gives_way_to_the_second():
    write("facts.csv", "question,answers,answer\nQ?,,Yes.\n")
    assert read_examples("facts.csv")[0].answers == ("Yes.",)


def test_id_and_source_are_kept():
    write_rows("facts.jsonl", [GUM | {"id": 7, "source": "https://example.org"}])
    (read,) = read_examples("facts.jsonl")
    assert (read.id, read.source) == ("7", "https://example.org")


def test_benchmark_rows_are_read_through_columns_and_separator():
    row = {
        "Type": "Adversarial",
        "Question": "Do camels keep water in their humps?",
        "Best Answer": "No, fat",
        "Correct Answers": "No, fat; They keep fat ;  ; No;",
        "Incorrect Answers": "Yes, water; Yes",
        "Source": "https://example.org/camel",
    }
    columns = {"question": "Question", "answers": "Correct Answers", "source": "Source"}
    columns["wrong_answers"] = "Incorrect Answers"
    write_rows("camels.jsonl", [row])
    (read,) = read_examples("camels.jsonl", columns=columns, separator="; ")
    assert read.question == row["Question"]
    assert read.answers == ("No, fat", "They keep fat", "No")
    assert read.wrong_answers == ("Yes, water", "Yes")
    assert read.source == row["Source"]
    columns["answers"] = "Best Answer"
    assert read_examples("camels.jsonl", columns=columns)[0].answers == ("No, fat",)


def test_nothing_is_split_or_stripped_unasked():
    write_rows("facts.jsonl", [{"question": " Q? ", "answers": " a; b, c\nd "}])
    (read,) = read_examples("facts.jsonl")
    assert (read.question, read.answers) == (" Q? ", (" a; b, c\nd ",))


def test_a_separator_leaves_lists_alone():
    write_rows("facts.jsonl", [{"question": "Q?", "answers": ["a; b", "c"]}])
    assert read_examples("facts.jsonl", separator="; ")[0].answers == ("a; b", "c")


@pytest.mark.parametrize("text", ["[0, 1]", "[citation needed]", "[x] is done", "[]+[] is ''"])
def test_a_bracket_alone_does_not_make_a_list(text):
    write_rows("facts.jsonl", [{"question": "Q?", "answers": text}])
    assert read_examples("facts.jsonl")[0].answers == (text,)


def test_a_python_list_in_a_cell_is_refused_and_not_taken_for_one_answer():
    write("facts.csv", "question,answers\nQ?,\"['a', 'b']\"\n")
    assert problems("facts.csv") == [
        'facts.csv:2: answers is no JSON list ["a", "b"]: "[\'a\', \'b\']"'
    ]


def test_a_dotted_column_reads_a_part():
    write_parquet(
        "squad.parquet", [{"question": "Q?", "answers": {"text": ["a", "b"], "start": 3}}]
    )
    assert "answers must be a text or a list of texts, got {" in refusal("squad.parquet")
    (read,) = read_examples("squad.parquet", columns={"answers": "answers.text"})
    assert read.answers == ("a", "b")


def test_a_column_whose_name_has_a_dot_is_itself():
    write_rows("facts.jsonl", [{"question": "Q?", "a.b": "this", "a": {"b": "that"}}])
    assert read_examples("facts.jsonl", columns={"answers": "a.b"})[0].answers == ("this",)


def test_a_field_mapped_to_none_is_not_read():
    write_rows("facts.jsonl", [GUM | {"id": "same", "source": 1}, SKY | {"id": "same"}])
    read = read_examples("facts.jsonl", columns={"id": None, "source": None})
    gum = named_by_content(GUM["question"], GUM["answers"])
    assert [(each.id, each.source) for each in read] == [(gum, ""), (SKY_ID, "")]


def test_an_unknown_field_is_refused_with_fields_and_columns():
    message = refusal(
        write_rows("facts.jsonl", ROWS), SettingError, columns={"reply": "answers"}
    )
    assert message == (
        "facts.jsonl: there is no field 'reply'; an example has id, question, answers, "
        "wrong_answers, source; its columns are 'question', 'answers', 'id', 'wrong_answers'"
    )


def test_a_field_in_the_singular_is_answered_with_its_name():
    message = refusal(
        write_rows("facts.jsonl", ROWS), SettingError, columns={"answer": "answers"}
    )
    assert "there is no field 'answer' (did you mean answers?)" in message


def test_a_csv_of_semicolons_is_read_as_one_of_commas():
    rows = "question;answer\nAre bats blind?;No, they see well.\n"
    [read] = read_examples(write("facts.csv", rows))
    assert (read.question, read.answers) == ("Are bats blind?", ("No, they see well.",))
    quoted = 'question,answer\n"Is gum; sticky?",Yes\n'
    [read] = read_examples(write("facts.csv", quoted))
    assert read.question == "Is gum; sticky?"


@pytest.mark.parametrize("field", ["question", "source"])
def test_a_column_that_no_row_has_is_refused_with_the_columns_there_are(field):
    message = refusal(write_rows("facts.jsonl", [GUM]), columns={field: "Titel"})
    meant = {"question": "question", "source": "..."}[field]
    assert message == (
        f"facts.jsonl has no column 'Titel' for {field}; its columns are 'question', "
        f"'answers'; say which hold them: columns={{'{field}': '{meant}'}}"
    )


def test_a_column_that_is_there_but_empty_is_a_column():
    write_rows("facts.jsonl", [GUM | {"from": None}])
    assert read_examples("facts.jsonl", columns={"source": "from"})[0].source == ""


def test_rows_under_other_names_are_refused_with_the_columns_there_are():
    message = refusal(write("facts.csv", "Question,Reply\na,b\n"))
    assert message == (
        "facts.csv has no column 'question' and no column 'answers' or 'answer'; its columns "
        "are 'Question', 'Reply'; say which hold them: "
        "columns={'question': 'Question', 'answers': 'Reply'}"
    )


def test_a_column_that_is_taken_is_not_guessed_for_another_field():
    write("faq.csv", "Asked,Wrong answer,Says\na,b,c\n")
    message = refusal("faq.csv", columns={"question": "Asked"})
    assert message.endswith("columns={'answers': 'Says'}")
    assert refusal("faq.csv", columns={"answers": "Asked"}).endswith("{'question': '...'}")


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


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"answers": ["a"]}, "question is missing"),
        ({"question": None, "answers": ["a"]}, "question is missing"),
        ({"question": " \n", "answers": ["a"]}, "the question is empty"),
        ({"question": 5, "answers": ["a"]}, "question must be text, got 5"),
        ({"question": "Q?"}, "answers or answer is missing"),
        ({"question": "Q?", "answers": None}, "answers or answer is missing"),
        ({"question": "Q?", "answers": []}, "there is no truthful answer; give one or more"),
        ({"question": "Q?", "answers": " "}, "there is no truthful answer; give one or more"),
        ({"question": "Q?", "answers": ["a", " "]}, "one of answers is empty"),
        (
            {"question": "Q?", "answers": 42},
            "answers must be a text or a list of texts, got 42",
        ),
        (
            {"question": "Q?", "answers": [["a"]]},
            "answers must be a text or a list of texts, got [['a']]",
        ),
        (
            {"question": "Q?", "answer": "a", "wrong": {"b": 1}},
            "wrong_answers must be a text or a list of texts, got {'b': 1}",
        ),
        ({"question": "Q?", "answers": ["a"], "id": True}, "id must be text, got True"),
        ({"question": "Q?", "answers": ["a"], "id": 1.5}, "id must be text, got 1.5"),
        (
            {"question": "Q?", "answers": ["a"], "source": ["x"]},
            "source must be text, got ['x']",
        ),
        (
            {"question": "Q?", "answers": ["\ud83d"]},
            "the text holds '\\ud83d', half of a character, which UTF-8 cannot keep",
        ),
    ],
)
def test_a_row_that_is_no_example_is_named_with_its_reason(row, problem):
    write_rows("facts.jsonl", [GUM, row])
    assert problems("facts.jsonl") == [f"facts.jsonl:2: {problem}"]


def test_json_that_breaks_the_parser_is_a_bad_row_too():
    write("facts.jsonl", "\n".join([json.dumps(GUM), "[" * 200_000, "1" * 5_000]))
    first, second = problems("facts.jsonl")
    assert first.startswith("facts.jsonl:2: this is not JSON: ")
    assert second.startswith("facts.jsonl:3: this is not JSON: ")


def test_a_duplicate_id_names_both_lines():
    write_rows("facts.jsonl", [GUM | {"id": "7"}, SKY, SKY | {"id": 7}])
    assert problems("facts.jsonl") == [
        "facts.jsonl:3: the id '7' is also that of facts.jsonl:1"
    ]


def test_bytes_that_are_not_utf8_are_named_by_line():
    bad = '{"question": "Caf\xe9?", "answers": ["a"]}'.encode("latin-1")
    write("facts.jsonl", json.dumps(GUM).encode() + b"\n\n" + bad)
    assert problems("facts.jsonl") == [
        "facts.jsonl:3: the byte 0xe9 is not UTF-8; save the file as UTF-8"
    ]


def test_bytes_that_are_not_utf8_are_named_by_line_inside_a_csv_cell():
    write("facts.csv", b'question,answers\n"one\ntwo\nthr\xe9e",a\nQ?,b\n')
    assert problems("facts.csv") == [
        "facts.csv:4: the byte 0xe9 is not UTF-8; save the file as UTF-8"
    ]


def test_bytes_that_are_not_utf8_are_named_by_line_inside_a_json_item():
    write("facts.json", b'[\n{"question": "Q?",\n"answers": ["\xff"]}\n]')
    assert problems("facts.json") == [
        "facts.json:3: the byte 0xff is not UTF-8; save the file as UTF-8"
    ]


def test_lines_are_counted_through_csv_cells_with_newlines():
    write("facts.csv", 'question,answers\n"a\nb","c\n\nd"\n\n,e\nf,g,h\ni\n')
    assert problems("facts.csv") == [
        "facts.csv:7: the question is empty",
        "facts.csv:8: it has 3 cells, the header 2; check the quotes",
        "facts.csv:9: it has 1 cells, the header 2; check the quotes",
    ]
    (read,) = read_examples("facts.csv", limit=1)
    assert (read.question, read.answers) == ("a\nb", ("c\n\nd",))


def test_a_quote_that_is_never_closed_is_named_where_it_opens():
    write("facts.csv", 'question,answers\na,b\nc,"d\ne,f\n')
    assert problems("facts.csv") == [
        "facts.csv:3: the cells cannot be told apart (unexpected end of data); check the quotes"
    ]


def test_a_stray_quote_spoils_its_own_row_only():
    write("facts.tsv", 'question\tanswers\n"a" b\tc\nd\te\n\tf\n')
    first, second = problems("facts.tsv")
    assert first.startswith("facts.tsv:2: the cells cannot be told apart")
    assert second == "facts.tsv:4: the question is empty"


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"question,answers,answers", "'answers' is there twice"),
        (b"qu\xe9stion,answers", "the byte 0xe9 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_a_bad_header_is_refused(header, problem):
    message = refusal(write("facts.csv", b"\n" + header + b"\na,b,c\n"))
    assert message == f"facts.csv cannot be read: in the header, line 2, {problem}"


def test_columns_without_a_name_are_ignored():
    write("facts.csv", ",question, answers,,\n0,Q?,Yes.,,\n")
    assert read_examples("facts.csv") == [
        Example("Q?", "Yes.", id=named_by_content("Q?", ["Yes."]))
    ]


def test_items_of_a_json_list_are_named_by_line_and_when_they_share_it_by_number():
    empty = '{"question": ""}'
    write("facts.json", f'[{{"question": "Q?", "answers": "a"}}, {empty},\n\n{empty}, 5]\n')
    assert problems("facts.json") == [
        "facts.json:1 (item 2): answers or answer is missing",
        "facts.json:3: answers or answer is missing",
        "facts.json:3 (item 4): expected an object {...}, got 5",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[\n{"question": "Q?" "answers": 1}\n]', 2),
        ('[\n{"question": "Q?", "answers": "a"},\n]', 3),
        ('[\n{"question": "Q?", "answers": "a"}\n{"question": "Q?", "answers": "a"}]', 3),
        ('[{"question": "Q?", "answers": "a"}\n', 2),
        ('[{"question": "Q?", "answers": "a"}]\n\n]', 3),
    ],
    ids=["item", "comma", "no-comma", "end", "rest"],
)
def test_a_broken_json_list_is_named_where_it_breaks(text, line):
    (problem,) = problems(write("facts.json", text))
    assert problem.startswith(f"facts.json:{line}: this is not JSON: ")


def test_json_lines_under_the_name_of_a_list_are_told_their_name():
    message = refusal(write("facts.json", TEXTS[".jsonl"]))
    assert message.startswith("facts.json cannot be read: expected a list, got ")
    assert message.endswith("one object a line is .jsonl")


@pytest.mark.parametrize("content", ["", " \n\n"], ids=["nothing", "blanks"])
@pytest.mark.parametrize("extension", [*TEXTS, ".jsonl.gz"])
def test_an_empty_file_is_refused(extension, content):
    message = refusal(write(f"facts{extension}", content))
    assert message.startswith(f"facts{extension} ")
    assert "no examples" in message or "expected a list" in message


@pytest.mark.parametrize(
    ("name", "text"), [("facts.csv", "question,answers\n"), ("f.json", "[]")]
)
def test_a_file_without_rows_is_refused(name, text):
    message = refusal(write(name, text))
    assert message == f"{name} holds no examples; see docs/examples.md for its form"


def test_a_missing_file_is_refused_with_close_names():
    write("facts.jsonl", "")
    write("notes.txt", "")
    assert refusal("facst.jsonl") == (
        "facst.jsonl cannot be read: there is no such file; did you mean facts.jsonl?"
    )
    assert refusal("nowhere/a.csv").endswith("there is no such file")
    assert "there is no such file" in refusal(Path("owner/name"))
    assert "is empty; give a file" in refusal("")


@pytest.mark.parametrize("name", ["facts.txt", "facts", "facts.xlsx.gz", ".csv"])
def test_an_unknown_extension_is_refused_with_the_known_ones(folder, name):
    write(name, "question,answers\na,b\n")
    message = refusal(folder / name)
    assert "its name must end in one of ['.jsonl', '.ndjson', '.json', '.csv'" in message


PACKED = gzip.compress(TEXTS[".jsonl"].encode())


@pytest.mark.parametrize(
    "damaged",
    [PACKED[:40], PACKED[2:], PACKED[:10] + b"\xff" * 40],
    ids=["short", "headless", "scrambled"],
)
def test_a_damaged_gzip_file_is_refused(damaged):
    Path("facts.jsonl.gz").write_bytes(damaged)
    assert refusal("facts.jsonl.gz").startswith("facts.jsonl.gz cannot be read: ")


def test_a_damaged_parquet_file_is_refused():
    pytest.importorskip("pyarrow")
    assert refusal(write("facts.parquet", "PAR1")).startswith("facts.parquet cannot be read: ")


def test_rows_of_a_parquet_file_are_named_by_number():
    write_parquet("facts.parquet", [GUM, {"question": "", "answers": ["a"]}])
    assert problems("facts.parquet") == ["facts.parquet:2: the question is empty"]


def test_missing_ids_are_hashes_of_the_content_that_avoid_the_given_ones():
    gum = named_by_content(GUM["question"], GUM["answers"])
    ids = [3, "", None, f"{gum}-2", "x"]
    write_rows("facts.jsonl", [*(GUM | {"id": each} for each in ids), SKY])
    read = read_examples("facts.jsonl")
    assert [each.id for each in read] == ["3", gum, f"{gum}-3", f"{gum}-2", "x", SKY_ID]


def test_the_content_hash_changes_with_everything_but_the_id():
    first = Example("Q?", "a", ["b"], id="one", source="s")
    assert content_hash(first) == content_hash(replace(first, id="two"))
    others = [{"question": "R?"}, {"answers": ["c"]}, {"wrong_answers": []}, {"source": ""}]
    assert len({content_hash(replace(first, **other)) for other in [{}, *others]}) == 5


def test_limit_takes_the_first_rows_and_leaves_the_rest_unread():
    write("facts.jsonl", TEXTS[".jsonl"] + "\n{oops\n")
    assert read_examples("facts.jsonl", limit=2) == EXAMPLES
    assert "1 of 3 rows" in refusal("facts.jsonl", limit=3)
    write("facts.json", f"[{json.dumps(GUM)}, oops")
    assert len(read_examples("facts.json", limit=1)) == 1
    assert read_examples(EXAMPLES, limit=1) == EXAMPLES[:1]


def test_a_limit_below_one_is_refused():
    assert "limit must be 1 or more, got 0" in refusal(EXAMPLES, SettingError, limit=0)


def test_records_get_ids_and_stay_as_they_are_otherwise():
    given = [Example("a?", "b", id="2"), Example("c?", ["d"], ["e"], source="s")]
    read = read_examples(iter(given))
    assert read == [
        given[0],
        Example("c?", ["d"], ["e"], id=named_by_content("c?", ["d"], ["e"], "s"), source="s"),
    ]
    assert read_examples(read) == read


def test_records_are_checked_by_place():
    same = Example("a?", "b", id="x")
    assert problems([same, "a?", Example("c?", "d"), same]) == [
        "examples:2: not an Example: 'a?'",
        "examples:4: the id 'x' is also that of examples:1",
    ]
    assert refusal([]) == "examples holds no examples; see docs/examples.md for its form"


@pytest.fixture
def shipped(folder, monkeypatch):
    (folder / "facts").mkdir()
    write_rows("facts/ground.jsonl", [GUM | {"category": "health", "topic": "food"}])
    write_rows("facts/test.jsonl", [SKY])
    monkeypatch.setattr(rows.resources, "files", lambda package: folder)


@pytest.mark.parametrize(
    ("source", "row"), [("facts", GUM), ("facts:ground", GUM), ("facts:test", SKY)]
)
@pytest.mark.usefixtures("shipped")
def test_the_shipped_facts_have_names(source, row):
    (read,) = read_examples(source)
    assert read.question == row["question"]


@pytest.mark.usefixtures("shipped")
def test_other_facts_are_refused_with_the_shipped_ones():
    assert "did you mean facts:test or facts" in refusal("facts:tset")


def test_a_hub_name_goes_to_datasets_with_its_split_and_config(monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    asked = []

    def load_dataset(*names, split):
        asked.append((*names, split))
        tables = SimpleNamespace(iter=lambda size: [arrow.Table.from_pylist([GUM])])
        return SimpleNamespace(with_format=lambda form: tables)

    fake = SimpleNamespace(
        load_dataset=load_dataset,
        are_progress_bars_disabled=lambda: True,
        exceptions=SimpleNamespace(),
    )
    monkeypatch.setitem(sys.modules, "datasets", fake)
    (read,) = read_examples("owner/Name-2.5", split="test", config="small")
    assert asked == [("owner/Name-2.5", "small", "test")]
    assert read.question == GUM["question"]


@pytest.mark.parametrize("name", ["data/facts.jsonl", "here/facts.txt", "here/facts"])
def test_the_path_of_a_missing_file_is_not_taken_for_a_hub_name(name, monkeypatch):
    Path("here").mkdir()
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "there is no such file" in refusal(name)


def test_a_dataset_folder_is_read_by_datasets(folder, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    (folder / "data").mkdir()
    write_rows("data/train.jsonl", [GUM, {"question": "", "answers": ["a"]}])
    write_rows("data/test.jsonl", [{key: SKY[key] for key in GUM}])
    gum = named_by_content(GUM["question"], GUM["answers"])
    assert read_examples("data", limit=1) == [Example(GUM["question"], GUM["answers"], id=gum)]
    assert [each.question for each in read_examples("data", split="test")] == [SKY["question"]]
    assert problems(Path("data")) == ["data:2: the question is empty"]
    assert "check name, split and config, or give a file" in refusal("data", split="validation")


def test_a_folder_whose_splits_disagree_is_refused_with_the_reason(folder, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    (folder / "json").mkdir()  # also the name of a reader inside datasets
    write_rows("json/train.jsonl", [GUM])
    write_rows("json/test.jsonl", [{"title": "x"}])
    assert "title" in refusal("json")


def test_a_folder_that_is_no_dataset_is_refused(folder, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    (folder / "data").mkdir()
    message = refusal("data")
    assert message.startswith("data cannot be read: ")
    assert message.endswith("or give a file")


@pytest.mark.parametrize(
    ("source", "package"),
    [("owner/name", "datasets"), (".", "datasets"), ("facts.parquet", "pyarrow.parquet")],
)
def test_a_missing_package_names_the_extra(source, package, monkeypatch):
    write("facts.parquet", "PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    message = refusal(source, MissingExtraError)
    assert message.endswith(f"needs {package}: pip install 'trueline[data]'")


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


def test_the_digest_is_that_of_the_lines():
    assert digest(EXAMPLES) == hashlib.sha256(TWO_LINES.encode()).hexdigest()


def test_the_digest_changes_with_the_content_and_the_order_only():
    write("facts.csv", TEXTS[".csv"])
    assert digest(read_examples("facts.csv")) == digest(EXAMPLES)
    without_id = [EXAMPLES[0], Example(SKY["question"], SKY["answers"], SKY["wrong_answers"])]
    assert digest(without_id) == digest(EXAMPLES)
    assert digest(EXAMPLES[::-1]) != digest(EXAMPLES)
    assert digest([EXAMPLES[0], Example(SKY["question"], SKY["answers"])]) != digest(EXAMPLES)


@pytest.mark.parametrize("field", ["question", "answers", "wrong_answers", "id", "source"])
def test_a_lone_surrogate_is_refused_before_it_is_written(field):
    fields = {"question": "Q?", "answers": "a"} | {field: "x\udc80"}
    with pytest.raises(ExampleError, match=r"examples:1: the text holds '\\udc80', half of a"):
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
