"""What a person at a terminal sees: whole words, colour, waits, tables."""

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from conftest import Terminal
from test_cli import ANSWERS, QUESTION, home, run  # noqa: F401  # default names mean tiny parts

from trueline.cli.eval import show_tables
from trueline.cli.screen import AnswerWriter, progress_bars, tell
from trueline.engines.models import ALIASES
from trueline.lab.results import read_results

COLOUR = re.compile("\x1b\\[[0-9]*m")


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Terminals of 30 columns, with colours."""
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def written(pieces, kind=Terminal):
    with redirect_stdout(kind()) as screen:
        writer = AnswerWriter()
        for piece in pieces:
            writer.write(piece)
        writer.end()
    return screen.getvalue()


TEXT = "Bicycles go into the free shed behind the north gate, not along the fence.\n\nThanks."


@pytest.mark.parametrize("length", [1, 3, 200])
def test_an_answer_breaks_between_words_however_it_comes(length):
    pieces = [TEXT[at : at + length] for at in range(0, len(TEXT), length)]
    assert written(pieces).split("\n") == [
        "Bicycles go into the free shed",
        "behind the north gate, not",
        "along the fence.",
        "",
        "Thanks.",
        "",
    ]
    assert written(pieces, io.StringIO) == f"{TEXT}\n"  # a pipe gets it as it is


def test_long_words_stay_whole_and_wide_characters_take_two_columns():
    assert written(["A ", "x" * 40, " b"]) == "A\n" + "x" * 40 + "\nb\n"
    assert max(map(len, written(["蝙蝠 " * 8]).split("\n"))) <= 18


def test_notes_are_wrapped_and_coloured_where_a_terminal_has_colours(monkeypatch):
    with redirect_stdout(Terminal()) as screen:
        tell("100% from 7c2b18f23be2: When does the pool open?", "dim")
        monkeypatch.setenv("NO_COLOR", "1")
        tell("plain", "dim")
    first, second, last = screen.getvalue().splitlines()
    assert (first, second) == (
        "\x1b[2m100% from 7c2b18f23be2: When\x1b[0m",
        "\x1b[2mdoes the pool open?\x1b[0m",
    )
    assert last == "plain"


def test_a_wait_is_shown_at_once_and_ends_where_the_first_bar_begins(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with redirect_stderr(Terminal()) as errors, progress_bars("", "opening a model"):
        pass
    assert "opening a model" in errors.getvalue()
    assert errors.getvalue().endswith("\x1b[2K")  # the line is cleared
    with redirect_stderr(Terminal()) as errors:
        with progress_bars("samples", "opening a model") as progress:
            progress("label", 1, 2)
    assert "opening" not in errors.getvalue().partition("label")[2]


def test_a_script_sees_no_wait_and_the_time_left():
    with redirect_stderr(io.StringIO()) as errors:
        with progress_bars("entries", "opening a model") as progress:
            progress("label", 0, 4)
            progress("label", 4, 4)
    assert errors.getvalue() == "label: 0 of 4 entries\nlabel: 4 of 4 entries\n"


def test_a_note_names_the_facts_that_answer_without_a_space():
    ran = run("ask", "--max-new-tokens", "2", QUESTION)
    assert "no --space is given; the 100 facts that come with trueline are used\n" in ran.err
    ran = run("ask", "--method", "greedy", "--max-new-tokens", "2", QUESTION)
    assert ran.err == "no --space is given; none is used\n"
    assert "no --space" not in run("ask", *ANSWERS, QUESTION).err


def test_questions_come_from_standard_input_one_a_line():
    one, two = (run("ask", *ANSWERS, text).out for text in (QUESTION, "Do bats sleep?"))
    piped = f"{QUESTION}\n\n  Do bats sleep?\n"
    ran = run("ask", *ANSWERS, stdin=piped)
    rows = [line.split("\t") for line in ran.out.splitlines()[1:]]
    assert [row[0] for row in rows] == [QUESTION, "Do bats sleep?"]
    assert [row[3] for row in rows] == [" ".join(text.split()) for text in (one, two)]
    assert run("ask", *ANSWERS, "-", stdin=piped).out == ran.out
    found = run("ask", *ANSWERS, "--json", stdin=piped).json
    assert [answer["question"] for answer in found] == [QUESTION, "Do bats sleep?"]
    ran = run("ask", *ANSWERS, stdin="\n")
    assert (ran.code, ran.out) == (1, "")
    assert "there is no question; write one" in ran.err


def test_why_explains_the_answer_that_was_given_without_another_pass(monkeypatch):
    def generate(*args, **options):
        pytest.fail("the answer was written again")

    monkeypatch.setattr("trueline.decode.generate.generate", generate)
    monkeypatch.setenv("COLUMNS", "100")
    ran = run("chat", *ANSWERS, stdin=f"{QUESTION}\n/why\n/new\n/why\n/quit\n")
    answer = ran.out.splitlines()[0]
    assert f"corrective  {answer[:20]}" in ran.err
    assert "which of your examples are near, and why they are in scope or not" in ran.err
    assert ran.err.rstrip().endswith(
        "a new conversation\nthere is no answer yet; write a question first"
    )


def test_the_prompt_of_a_chat_shows_method_and_space(monkeypatch):
    prompts = []

    def read_line(prompt):
        prompts.append(prompt)
        return {1: "/method greedy", 2: "/quit"}[len(prompts)]

    monkeypatch.setattr(sys.modules["trueline.cli.chat"], "read_line", read_line)
    assert run("chat", *ANSWERS).code == 0
    assert prompts == ["corrective, answers.space> ", "greedy, answers.space> "]


def test_an_explanation_is_as_wide_as_the_terminal(monkeypatch):
    for columns in ("60", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = run("explain", *ANSWERS, QUESTION).out.splitlines()
        assert 50 < max(map(len, lines)) <= int(columns)


def test_a_model_is_pulled_and_removed_by_name(home, monkeypatch, tmp_path):  # noqa: F811
    ran = run("models", "pull", "smollm2-135m")
    assert ran.out.startswith(f"smollm2-135m is here: {ALIASES['smollm2-135m'].folder}, ")
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path))
    folder = ALIASES["wordllama-256"].folder
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 2_000)
    assert run("models", "rm", "wordllama-256").out == "wordllama-256 is gone: 2.0 kB freed\n"
    assert not folder.exists()
    assert run("models", "rm", "wordllama-256").out == "wordllama-256 was not here\n"
    ran = run("models", "rm", "wordlama")
    assert (ran.code, ran.out) == (1, "")
    assert "no model is called 'wordlama'; take wordllama-256 or" in ran.err


@pytest.fixture(scope="module")
def evaluated(home, tmp_path_factory):  # noqa: F811
    """The folder of a small evaluation, and a function for the lines it prints."""
    folder = tmp_path_factory.mktemp("results")
    given = ["--benchmark", "facts.jsonl", "--ground", "2", "--methods", "greedy,corrective"]
    ran = run("eval", *given, "--max-new-tokens", "3", "--out", str(folder))
    assert ran.code == 0, ran.err
    cells = [cell.head.cell for cell in read_results(folder).cells]

    def lines():
        with redirect_stdout(Terminal()) as out:
            show_tables(folder, cells)
        return [COLOUR.sub("", line).rstrip() for line in out.getvalue().splitlines()]

    return folder, lines


def test_an_evaluation_is_a_table_at_a_terminal(monkeypatch, evaluated):
    folder, shown = evaluated
    monkeypatch.setenv("COLUMNS", "100")
    lines = shown()
    assert lines[0] == "facts.jsonl, smollm2-135m: 2 samples"
    assert lines[1].split("  ")[0] == "method"
    assert "ROUGE-L" in lines[1]
    assert lines[2].startswith("greedy ")
    assert lines[3].startswith("corrective ")
    assert re.fullmatch(r"( +[+\u2212]\d+\.\d)+", lines[4])
    assert re.fullmatch(r"( +[+\u2212]\d+\.\d to [+\u2212]\d+\.\d)+", lines[5])
    assert lines[-2] == "Below a mean: the difference from greedy, and its 95 % interval."
    assert lines[-1] == f"More, with the answers: trueline report {folder}"
    assert max(map(len, lines[:-1])) <= 100


def test_a_table_too_wide_for_the_terminal_goes_on_below(monkeypatch, evaluated):
    monkeypatch.setenv("COLUMNS", "40")
    lines = evaluated[1]()
    assert len([line for line in lines if line.startswith("method")]) > 1
    assert max(map(len, lines[:-2])) <= 40
