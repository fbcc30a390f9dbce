"""Corrective decoding on the command line: sources, coverage, marks, explanations, tuning."""

import json
import re
from pathlib import Path

import pytest
from conftest import EXAMPLES
from test_cli import QUESTION, home, no_model, run  # noqa: F401  # home is a fixture

import trueline as tl
from trueline.corrective.method import UNKNOWN

IN, OUT = ("--threshold", "0"), ("--threshold", "1")  # every near example speaks, or none
FACT = EXAMPLES[1]  # the one that asks the question
ONE = ("--space", "one.space", "--max-new-tokens", "12")
NOT_COVERED = "not covered by your examples"


@pytest.fixture(scope="module", autouse=True)
def one_space(home):  # noqa: F811
    """A space of one example: a random embedder cannot tell several apart."""
    from trueline.examples import to_lines

    Path("one.jsonl").write_text("".join(to_lines([FACT])), "utf-8")
    assert run("build", "one.jsonl", "--out", "one.space").code == 0


@pytest.fixture
def space(tmp_path):
    """A space that may be changed."""
    tl.open("answers.space").save(tmp_path / "own.space")
    return str(tmp_path / "own.space")


def test_ask_answers_with_a_verified_answer_and_names_its_source():
    ran = run("ask", "--space", "one.space", *IN, QUESTION)
    assert ran.out.strip() in FACT.answers
    share, quote = ran.err.strip().splitlines()[-2:]
    assert share == f"100% from {FACT.id}: {FACT.question}"
    assert quote == f'  "{ran.out.strip()}" [{FACT.source}]'


def test_ask_answers_as_the_model_does_where_nothing_covers_the_question():
    plain = run("ask", *ONE, "--method", "greedy", QUESTION)
    ran = run("ask", *ONE, *OUT, QUESTION)
    assert ran.out == plain.out
    assert ran.err.strip().endswith(NOT_COVERED)
    assert NOT_COVERED not in plain.err
    assert run("ask", *ONE, *OUT, "--json", QUESTION).json["is_covered"] is False
    silent = run("ask", *ONE, *IN, "--strength", "0", "--json", QUESTION).json
    assert (f"{silent['text']}\n", silent["is_covered"]) == (plain.out, True)


def test_ask_has_the_sources_as_json_and_the_trace_where_it_is_wanted():
    short = run("ask", *ONE, *IN, "--json", QUESTION).json
    long = run("ask", *ONE, *IN, "--json", "--trace", QUESTION).json
    wanted = """question text is_covered sources finish method prompt_tokens new_tokens
        seconds first_token_seconds"""
    assert [*short] == wanted.split()
    assert (short["is_covered"], short["sources"][0]["example"]) == (True, FACT.id)
    assert {*long} - {*short} == {"token_ids", "prompt_hashes", "trace", "scope"}
    assert long["new_tokens"] == len(long["token_ids"]) == len(long["trace"])
    assert long["scope"][0]["is_in_scope"] is True
    assert {name: long[name] for name in short if "seconds" not in name} == {
        name: short[name] for name in short if "seconds" not in name
    }
    ran = run("ask", *ONE, "--trace", QUESTION)
    assert (ran.code, ran.out) == (1, "")
    assert re.search("--trace needs --json.* trueline explain", ran.err)


def test_many_answers_in_a_pipe_say_each_which_is_covered(tmp_path):
    file = tmp_path / "questions.txt"
    file.write_text(f"{QUESTION}\n\nWho won?\n", "utf-8")
    table = tmp_path / "questions.csv"
    table.write_text(f"question\n{QUESTION}\nWho won?\n", "utf-8")
    rows = [
        [line.split("\t") for line in run("ask", *ONE, *options).out.splitlines()]
        for options in ((*IN, "--file", str(file)), (*OUT, "--file", str(table)))
    ]
    for found, covered, id in zip(rows, ("yes", "no"), (FACT.id, ""), strict=True):
        assert found[0] == ["question", "covered", "from", "answer"]
        assert [row[0] for row in found[1:]] == [QUESTION, "Who won?"]
        assert {(row[1], row[2]) for row in found[1:]} == {(covered, id)}
        assert all(row[3] for row in found[1:])
    ran = run("ask", *ONE, "--file", str(file), QUESTION)
    assert (ran.code, ran.out) == (1, "")
    assert "QUESTION or --file, not both" in ran.err


@pytest.mark.parametrize("command", ["ask", "compare"])
def test_a_file_without_questions_is_named(command, tmp_path, no_model):  # noqa: F811
    (tmp_path / "empty.txt").write_text("\n \n", "utf-8")
    ran = run(command, *ONE, "--file", str(tmp_path / "empty.txt"))
    assert (ran.code, ran.out) == (1, "")
    assert "empty.txt holds no questions; write one a line" in ran.err


def test_a_line_of_standard_input_that_is_no_text_is_named_by_its_number(no_model):  # noqa: F811
    ran = run("ask", *ONE, stdin=f"{QUESTION}\n\n\udcff\n")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("Error: line 3 of standard input is not valid Unicode")


def test_only_covered_says_that_it_does_not_know_and_cites_nobody():
    options = ["--space", "one.space", "--only-covered"]
    ran = run("ask", *options, *OUT, QUESTION)
    assert ran.out == UNKNOWN + "\n"
    assert ran.err.strip().endswith(NOT_COVERED)
    found = run("ask", *options, *OUT, "--json", QUESTION).json
    assert (found["is_covered"], found["sources"]) == (False, [])
    assert run("ask", *options, *IN, QUESTION).out.strip() in FACT.answers


def test_chat_names_its_sources_shortly_and_explains_the_scope():
    lines = [QUESTION, "/why", "/set threshold 1", QUESTION, "/plain"]
    talk = run("chat", "--space", "one.space", *IN, stdin="\n".join(lines) + "\n")
    assert talk.code == 0
    assert f"(100% from {FACT.id} [{FACT.source}])" in talk.err
    assert re.search(rf"{FACT.id}: .*\n    In scope: .* above 0\.00\.", talk.err)
    assert talk.err.count(f"  ({NOT_COVERED})") == 1  # /plain has no scope


def test_compare_shows_sources_and_coverage_under_the_answer_of_the_method():
    lines = run("compare", *ONE, *IN, "--flips", QUESTION).out.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("  corrective\t"))
    assert lines[place + 1].startswith(f"    100% from {FACT.id}: ")
    assert lines[place + 2].startswith('      "')
    assert f"    {NOT_COVERED}" in run("compare", *ONE, *OUT, QUESTION).out.splitlines()
    found = run("compare", *ONE, *IN, "--flips", "--json", QUESTION).json["corrective"]
    flipped = [step for step in found["answers"][0]["trace"] if step["flipped"]]
    notes = [line for line in lines if "moved by" in line]
    assert len(notes) == len(flipped) > 0
    assert re.search(r" probability 1\.00, [+-]\d+\.\d\d; \d votes?\)$", notes[0])


def test_compare_marks_answers_by_the_example_that_is_meant(tmp_path):
    file = tmp_path / "questions.csv"
    file.write_text(f"question,id\n{QUESTION},{FACT.id}\nWho?,none\n", "utf-8")
    options = ["--space", "one.space", *IN, "--file", str(file)]
    lines = run("compare", *options).out.splitlines()
    assert any(line.startswith("  corrective\tright\t") for line in lines)
    assert any(line.startswith("  greedy\twrong\t") for line in lines)
    assert lines[lines.index("Who?") + 1].startswith("  greedy\tnot judged\t")
    assert any(line.startswith("corrective\t1 of 1\t") for line in lines)
    found = run("compare", *options, "--json").json
    assert found["corrective"]["right"] == [True, None]
    assert found["greedy"]["right"] == [False, None]


def test_explain_shows_what_was_in_scope_and_why(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")  # a narrower table leaves figures out
    options = ["explain", "--space", "one.space", "--max-new-tokens", "24"]
    text = run(*options, *IN, QUESTION).out
    assert f"100% from {FACT.id}: {FACT.question}" in text
    scope = rf"^  {FACT.id}: .*\n    {{}}: probability [01]\.\d\d, {{}}\.00\."
    assert re.search(scope.format("In scope", "above 0"), text, re.M)
    assert "both ask for a yes or no" in " ".join(text.split())
    assert re.search(r"\(probability [01]\.\d\d", " ".join(text.split()))
    out = run(*options, *OUT, QUESTION).out
    assert f"\n{NOT_COVERED}\n" in out
    assert re.search(scope.format("Out of scope", "not above 1"), out, re.M)
    assert max(len(line) for line in (text + out).splitlines()) <= 100
    file, figures = tmp_path / "why.txt", r"^      for .*  cosine with its"
    assert not re.search(figures, text, re.M)
    assert re.search(figures, run(*options, *IN, "--signals", QUESTION).out, re.M)
    assert run(*options, *IN, "--signals", "--out", str(file), QUESTION).code == 0
    assert re.search(figures, file.read_text("utf-8"), re.M)


def test_explain_writes_the_scope_as_json_and_a_page_that_is_not_covered(tmp_path):
    found = run("explain", *ONE, *IN, "--json", QUESTION).json
    assert found["is_covered"] is True
    first = found["scope"][0]
    assert (first["example"], first["threshold"], first["is_in_scope"]) == (FACT.id, 0, True)
    ran = run("explain", *ONE, *OUT, "--out", str(tmp_path / "why.html"), QUESTION)
    assert ran.out.endswith(f"; {NOT_COVERED}\n")
    assert run("explain", *ONE, "--method", "greedy", "--json", QUESTION).json["scope"] is None


def test_tune_without_questions_keeps_a_threshold_and_undo_forgets_it(space, no_model):  # noqa: F811
    ran = run("tune", space)
    assert ran.code == 0, ran.err
    assert f"{space}: threshold " in ran.out
    assert f"{len(EXAMPLES)} examples: each one's question" in ran.out
    assert "on the questions shipped with trueline" in ran.out
    assert "strength     not fitted" in ran.out
    tuned = tl.open(space).tuned
    assert (tuned["fitted_to"], tuned["questions"]) == ("examples", len(EXAMPLES))
    assert re.search(rf"^tuned +threshold {tuned['threshold']}", run("info", space).out, re.M)
    assert run("info", space, "--json").json["tuned"] == tuned
    assert [line["what"] for line in run("log", space, "--json").json] == ["build", "tune"]
    assert run("verify", space).code == 0
    assert run("tune", space, "--undo").out == f"{space}: as it was before it was tuned\n"
    assert tl.open(space).tuned == {}
    assert run("tune", space, "--undo").out == f"{space}: was not tuned\n"
    assert [commit.what for commit in tl.open(space).history()] == ["build", "tune", "tune"]


def test_tune_with_questions_measures_recall_and_false_scope(space, tmp_path, no_model):  # noqa: F811
    file = tmp_path / "questions.jsonl"
    rows = [{"question": one.question, "id": one.id} for one in EXAMPLES]
    rows += [{"question": "Who won the cup?", "id": ""}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found = run("tune", space, "--questions", str(file), "--json").json
    assert (found["fitted_to"], found["questions"], found["none"]) == ("questions", 5, 1)
    for share in (found["false_scope"], found["recall"]):
        assert 0 <= share["low"] <= share["mean"] <= share["high"] <= 1
    assert found["false_scope"]["mean"] <= 0.02
    assert tl.open(space).tuned == found["tuned"]
    text = run("tune", space, "--questions", str(file)).out
    assert "5 questions, 1 of which no example answers" in text
    assert "the right example comes first" in text


FILE = ["--questions", "a.jsonl"]
BAD = {
    "no table": (["--questions", "a.txt"], "q\n", "ends in .jsonl"),
    "no id": (FILE, '{"question": "q"}', "a.jsonl:1: id is missing"),
    "both": (["--undo", *FILE], "", "--undo takes no --questions"),
}


@pytest.mark.parametrize(("args", "text", "reason"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_tuned_by_is_one_error_and_changes_nothing(
    args, text, reason, space, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path(args[-1]).write_text(text, "utf-8")
    ran = run("tune", space, *args)
    assert (ran.code, ran.out) == (1, "")
    assert re.search(f"Error: .*{reason}", ran.err, re.S)
    assert len(tl.open(space).history()) == 1


def test_the_demo_asks_what_the_shipped_facts_know():
    from trueline.examples import check_meant, read_examples, read_labeled

    rows = read_labeled(Path(__file__).parent.parent / "examples" / "questions.jsonl")
    check_meant(rows, {example.id for example in read_examples("facts")}, "the demo")
    assert sum(bool(one.id) for one in rows) >= 5
    assert sum(not one.id for one in rows) >= 4
