"""The commands: what they print, as text and as JSON, and how they fail."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
import tiny
from conftest import EXAMPLES
from conftest import run_command as run

import trueline as tl
from trueline.cli import cli, main
from trueline.engines.transformers.open import quiet
from trueline.examples import read_examples, to_lines
from trueline.methods import method_names
from trueline.prompts import chat_turn
from trueline.text import repeats_itself
from trueline.types import Candidate, Neighbor, TraceStep

QUESTION = "Are bats blind?"
SPACE = ("--space", "facts.space", "--max-new-tokens", "5")  # with entries
ANSWERS = ("--space", "answers.space", "--max-new-tokens", "12")  # without


PLAN = """
out = "results"
benchmarks = ["facts"]
methods = ["greedy", "rad"]
ground = 4
test = 2
max_new_tokens = 4
"""


@pytest.fixture(scope="module", autouse=True)
def home(tiny_home, tmp_path_factory):
    """A folder with examples, where the default names stand for tiny parts."""
    here = tmp_path_factory.mktemp("here")
    (here / "facts.jsonl").write_text("".join(to_lines(EXAMPLES)), "utf-8")
    with (here / "faq.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["Q", "A"])
        rows.writerows((example.question, example.answers[0]) for example in EXAMPLES)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TRUELINE_")]:
            if name != "TRUELINE_HOME":
                patch.delenv(name)
        patch.chdir(here)
        for options in (["facts.space", "--context", "8"], ["answers.space"]):
            built = run("build", "facts.jsonl", "--out", *options)
            assert built.code == 0, built.err
        more = [tl.Example("Do bats sleep?", "Bats sleep by day.", id="sleep")]
        (here / "more.jsonl").write_text("".join(to_lines(more)), "utf-8")
        (here / "run.toml").write_text(PLAN, "utf-8")
        (here / "questions.txt").write_text(f"{QUESTION}\nDo bats sleep?\n", "utf-8")
        ran = run("eval", "run.toml")
        assert ran.code == 0, ran.err
        yield tiny_home


@pytest.fixture
def no_model(monkeypatch):
    """Fail the test where a language model would be opened."""

    def load(*args, **options):
        pytest.fail("a model was opened", pytrace=False)

    monkeypatch.setattr("trueline.engines.transformers.model.load", load)


def names(record) -> list[str]:
    return [field.name for field in fields(record)]


def test_models_lists_the_names_and_which_are_here():
    rows = [line.split("\t") for line in run("models").out.splitlines()]
    assert rows[0] == ["name", "kind", "to fetch", "licence", "here", "what it is"]
    here = {row[0] for row in rows if row[4] == "yes"}
    assert here == {"smollm2-135m", "all-minilm-l6-v2"}
    listed = run("models", "--json").json
    assert [row["name"] for row in listed] == [row[0] for row in rows[1:]]
    assert {*listed[0]} == {"name", "kind", "size", "licence", "cached", "description"}


def test_build_prints_one_line_and_its_progress_elsewhere(tmp_path):
    out = str(tmp_path / "new.space")
    built = run("build", "facts.jsonl", "--out", out, "--limit", "2", "--context", "full")
    space = tl.open(out)
    assert (len(space.examples), space.info()["context"]) == (2, "full")
    assert built.out.startswith(f"{out}: 2 examples, {len(space.entries)} entries, ")
    assert len(built.out.splitlines()) == 1
    assert f"{len(space.entries)} of {len(space.entries)} entries" in built.err
    again = run("build", "facts.jsonl", "--out", out, "--limit", "2", "--context", "full")
    assert (again.code, again.out, again.err) == (0, built.out, "")


def test_build_passes_its_options_on(tmp_path):
    out = str(tmp_path / "new.space")
    options = ["--window", "answer", "--end", "--values", "logits", "--value-dtype", "float16"]
    options += ["--context", "4", "--model", "smollm2-135m", "--dtype", "float32"]
    options += ["--template", "{question} Say:", "--system", "Be brief.", "--limit", "1"]
    assert run("build", "facts.jsonl", "--out", out, *options).code == 0
    space = tl.open(out)
    made = space.entries.settings
    assert (made.window, made.end, made.values) == ("answer", True, "logits")
    assert (made.dtype, made.context) == ("float16", 4)
    assert space.prompt == tl.Prompt("{question} Say:", system="Be brief.")


def test_info_and_verify_print_what_the_library_returns():
    listed = run("info", "facts.space", "--examples").out.splitlines()
    assert listed[0] == "id\tquestion\tanswer"
    assert [line.partition("\t")[0] for line in listed[1:]] == [x.id for x in EXAMPLES]
    listed = run("info", "facts.space", "--examples", "--json").json
    assert [one["id"] for one in listed] == [example.id for example in EXAMPLES]
    space = tl.open("facts.space")
    entries = len(space.entries)
    assert run("info", "facts.space", "--json").json == space.info()
    lines = run("info", "facts.space").out.splitlines()
    assert len(lines) == sum(fact is not None for fact in space.info().values())
    assert any(re.fullmatch(rf"entries +{entries}", line) for line in lines)
    assert run("verify", "facts.space", "--json").json == space.verify()
    assert run("verify", "facts.space").out == (
        f"facts.space is sound: 3 files, {len(EXAMPLES)} examples, {entries} entries\n"
    )


@pytest.fixture
def edited(monkeypatch, tmp_path):
    """A folder whose space may be changed."""
    monkeypatch.chdir(shutil.copytree(Path.cwd(), tmp_path / "here"))


def test_add_and_remove_change_the_space_and_the_log_lists_it(edited):
    added = run("add", "facts.space", "more.jsonl")
    space = tl.open("facts.space")
    counted = f"{len(space)} examples, {len(space.entries)} entries"
    assert (added.code, added.out) == (0, f"facts.space: {counted}\n")
    assert [example.id for example in space.examples][-1] == "sleep"
    again = run("add", "facts.space", "more.jsonl")
    assert (again.code, again.out) == (1, "")
    assert "already holds 'sleep' (1 of these 1 with this very content)" in again.err
    assert run("add", "facts.space", "more.jsonl", "--replace").code == 0
    assert run("remove", "facts.space", "fact-2", "fact-3").code == 0
    assert "near names: 'fact-4', 'fact-1'" in run("remove", "facts.space", "fact-2").err
    left = tl.open("facts.space")
    assert [example.id for example in left.examples] == ["fact-1", "fact-4", "sleep"]
    lines = run("log", "facts.space", "--json").json
    assert [line["what"] for line in lines] == ["build", "add", "remove"]
    rows = [line.split("\t") for line in run("log", "facts.space").out.splitlines()]
    assert [row[1] for row in rows] == ["what", *(line["what"] for line in lines)]


def test_a_space_needs_no_model(edited, no_model):
    assert run("build", "facts.jsonl", "--out", "plain.space").code == 0
    assert run("add", "plain.space", "more.jsonl").code == 0
    assert run("info", "plain.space", "--json").json["model"] is None


@pytest.mark.parametrize("method", ["rad", "greedy"])
def test_ask_prints_the_answer_the_library_gives(method):
    lm, space = tl.load("smollm2-135m"), tl.open("facts.space")
    decoder = tl.RAD(space, alpha=0.9, tau=0.8) if method == "rad" else tl.Greedy(space.prompt)
    wanted = tl.generate(lm, decoder, QUESTION, max_new_tokens=5, trace=True)
    settings = ["--method", method]
    if method == "rad":
        settings += ["--set", "alpha=0.9", "--set", "tau=0.8"]
    assert run("ask", *SPACE, *settings, QUESTION).out == f"{wanted.text}\n"
    found = run("ask", *SPACE, *settings, "--json", "--trace", QUESTION).json
    assert {*found} == {*names(tl.Answer), "new_tokens"}
    assert (found["text"], found["token_ids"]) == (wanted.text, [*wanted.token_ids])
    step = found["trace"][0]
    assert [*step] == names(TraceStep)
    assert [*step["base"][0]] == names(Candidate)
    assert len(step["neighbors"]) == min(5, step["hits"])
    assert all([*neighbor] == names(Neighbor) for neighbor in step["neighbors"])
    assert bool(step["hits"]) == (method == "rad")


def test_ask_draws_the_same_twice_from_a_seed_and_ends_before_a_stop_text():
    draw = ["--temperature", "2", "--top-k", "50", "--top-p", "0.95", QUESTION]
    first, again, other = (run("ask", *SPACE, "--seed", seed, *draw).out for seed in "112")
    assert first == again != other
    whole = run("ask", *SPACE, "--method", "greedy", QUESTION).out.strip()
    cut = run("ask", *SPACE, "--method", "greedy", "--stop", whole[-1], QUESTION).out
    assert cut == whole[: whole.index(whole[-1])] + "\n"


def test_compare_shows_every_method_and_the_json_holds_every_answer(tmp_path):
    file = tmp_path / "questions.txt"
    file.write_text("Do fish sleep?\n\n  Does gold rust?\n", "utf-8")
    questions = [QUESTION, "Do fish sleep?", "Does gold rust?"]
    methods = ["--methods", "greedy,rad"]
    shown = run("compare", *SPACE, *methods, "--file", str(file), QUESTION)
    lines = shown.out.splitlines()
    assert [line for line in lines if line in questions] == questions
    for method in ("greedy", "rad"):
        assert sum(line.startswith(f"  {method}\t") for line in lines) == len(questions)
        assert sum(line.startswith(f"{method}\t15\t") for line in lines) == 1  # 3 x 5 tokens
    found = run("compare", *SPACE, *methods, "--file", str(file), "--json", QUESTION).json
    assert [*found] == ["greedy", "rad"]
    for method, of in found.items():
        assert [answer["question"] for answer in of["answers"]] == questions
        assert all([*answer] == names(tl.Answer) for answer in of["answers"])
        assert {answer["method"] for answer in of["answers"]} == {method}
        assert of["tokens_per_second"] > 0
        assert len(of["diverges"]) == len(questions)
    assert (found["greedy"]["changed"], found["greedy"]["did_nothing"]) == (0.0, True)


def test_compare_runs_the_methods_that_are_named_in_their_order():
    settings = ["--methods", "all", "--set", "kate.k=1", "--set", "k=3", "--json"]
    assert [*run("compare", *SPACE, *settings, QUESTION).json] == method_names()
    both = run(
        "compare", *SPACE, "--methods", "rad, greedy", "--set", "tau=1", "--json", QUESTION
    )
    assert [*both.json] == ["rad", "greedy"]
    assert both.json["rad"]["did_nothing"]


def test_chat_answers_line_by_line_and_survives_mistakes():
    lines = [QUESTION, "/new", "/method greedy", QUESTION]
    lines += ["/method none", "/none", "/quit", "x"]
    talk = run("chat", *SPACE, "--method", "rad", stdin="\n".join(lines) + "\n")
    answers = [run("ask", *SPACE, "--method", name, QUESTION).out for name in ("rad", "greedy")]
    assert (talk.code, talk.out) == (0, "".join(answers))
    assert "Error: there is no method 'none'" in talk.err
    assert "there is no /none" in talk.err


def test_chat_answers_from_the_newest_state_of_its_space(edited, monkeypatch):
    states = iter([("/new", 0.0), (QUESTION, 0.0), (QUESTION, 1.0), ("/quit", 1.0)])

    def read_line(prompt):
        line, threshold = next(states)
        tl.open("answers.space").tune({"threshold": threshold})
        return line

    monkeypatch.setattr(sys.modules["trueline.cli.chat"], "read_line", read_line)
    talk = run("chat", *ANSWERS)
    assert (talk.code, talk.err.count("not covered")) == (0, 1)


def test_chat_gives_the_model_the_turns_before_in_the_prompt_of_the_space():
    talk = run("chat", *SPACE, "--method", "greedy", stdin=f"{QUESTION}\nDo fish sleep?\n")
    lm = tiny.language_model("llama", chat=True)
    first = tl.generate(lm, tl.Greedy(), QUESTION, max_new_tokens=5)
    given = chat_turn(tl.Prompt(), "Do fish sleep?", [(QUESTION, first.text)])
    assert [role for role, _ in given.messages] == ["user", "assistant", "user"]
    second = tl.generate(lm, tl.Greedy(), given, max_new_tokens=5)
    assert talk.out == f"{first.text}\n{second.text}\n"
    assert second.text != tl.generate(lm, tl.Greedy(), "Do fish sleep?", max_new_tokens=5).text


@pytest.fixture
def few_facts(monkeypatch):
    """The shipped facts, but a handful of them."""

    def read(source, **options):
        few = {"limit": 4} if source == "facts" else {}
        return read_examples(source, **{**options, **few})

    for module in list(sys.modules.values()):
        is_other = module.__name__ != __name__
        if is_other and getattr(module, "read_examples", None) is read_examples:
            monkeypatch.setattr(module, "read_examples", read)


def shown_commands(name: str) -> list[str]:
    """The command lines in the help of a command, or of all of trueline."""
    text = cli.commands[name].help if name else cli.help
    return re.findall(r"^ *(trueline .*)$", text or "", re.M)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", *cli.commands])
def test_the_examples_of_the_help_run(name, few_facts, monkeypatch, tmp_path):
    copied = shutil.copytree(Path.cwd(), tmp_path / "here")  # some of them change a space
    monkeypatch.chdir(copied)
    if name == "remove":
        run("build", "facts", "--out", "facts.space", "--overwrite")
    if name in ("", "build"):
        shutil.rmtree("facts.space")
    if name == "build":  # tests/test_space.py takes the examples of a real 0.2.0 space
        run("build", "facts", "--out", "OLD.space")
    if name == "merge":
        run("build", "more.jsonl", "--out", "more.space", "--context", "8")
    for one in cli.commands:  # a few tokens show as much as many
        monkeypatch.setenv(f"TRUELINE_{one.upper()}_MAX_NEW_TOKENS", "4")
    assert shown_commands(name)
    for command in shown_commands(name):
        if " pull " in command or " rm " in command:
            continue  # fetches, or wants what was fetched
        if name == "serve" and "--new-key" not in command:
            continue  # does not end by itself; tests/test_serving.py runs it
        ran = run(*shlex.split(command)[1:])
        assert ran.code == 0, f"{command}\n{ran.err}"
        assert ran.out or ran.err


def test_every_option_is_also_an_environment_variable(monkeypatch):
    settings = {**cli.context_settings, "resilient_parsing": True}
    options = [
        (command, option)
        for command in cli.commands.values()
        for option in command.params
        if isinstance(option, click.Option)
    ]
    for command, option in options:
        variable = f"TRUELINE_{command.name}_{option.opts[0][2:]}".replace("-", "_").upper()
        value = "1" if option.is_flag or option.type in (click.INT, click.FLOAT) else "word"
        is_choice = isinstance(option.type, click.Choice)
        monkeypatch.setenv(variable, str(option.type.choices[-1]) if is_choice else value)
        with cli.make_context("trueline", [command.name], **settings) as parent:
            context = command.make_context(command.name, [], parent, resilient_parsing=True)
        source = context.get_parameter_source(option.name)
        assert source is click.core.ParameterSource.ENVIRONMENT, variable


@pytest.mark.parametrize(("typed", "meant"), [("buidl", "build"), ("ask --spcae", "--space")])
def test_a_mistyped_name_gets_the_one_that_is_likely_meant(typed, meant):
    ran = run(*typed.split(), QUESTION)
    assert (ran.code, ran.out) == (1, "")
    assert re.search(f"Did you mean .*{meant!r}", ran.err.splitlines()[0])


def test_a_damaged_space_is_one_line_that_names_the_file(edited, no_model):
    file = next(Path("facts.space").glob("g-*/vectors*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for args in (["verify", "facts.space"], ["ask", *SPACE, QUESTION]):
        ran = run(*args)
        assert (ran.code, ran.out) == (1, "")
        assert re.fullmatch(r"Error: .*vectors\.safetensors was changed.*\n", ran.err)


RAD = (*SPACE, "--method", "rad")
BUILD = ("build", "facts.jsonl", "--out", "x.space")
FAILURES = {  # those that are found without torch are in test_preflight.py
    "not a space": (["info", "."], "there is no space at"),
    "no question": (["compare", *SPACE], "there is no question"),
    "only a comma": (["compare", *SPACE, "--methods", ",", QUESTION], "name a method: greedy"),
    "alpha of another method": (
        ["ask", *SPACE, "--set", "alpha=0.5", QUESTION],
        "corrective has no setting 'alpha'; it has strength, margin, threshold, only_covered",
    ),
    "threshold": (["chat", *SPACE, "--threshold", "7"], r"threshold must lie in \[0, 1\]"),
    "only covered": (["ask", *RAD, "--only-covered", QUESTION], "no setting 'only_covered'"),
    "model without entries": (
        [*BUILD, "--model", "smollm2-135m"],
        "--model is for the model that makes RAD's entries.* --context 8",
    ),
    "end without entries": ([*BUILD, "--end"], "end=True is about entries"),
    "folder taken": (["build", "facts.jsonl", "--out", "."], "not empty and holds no space"),
    "context": ([*BUILD, "--context", "all"], "`full` or `none`"),
    "column": ([*BUILD, "--column", "Q"], "FIELD=COLUMN"),
    "workers": ([*BUILD, "--workers", "2"], "--workers needs a cluster; add --on ray"),
    "no out": (["build", "facts.jsonl"], "Missing option '--out'"),
    "unknown id": (["compare", *ANSWERS, "--file", "unknown.jsonl"], "no example has the id"),
}


@pytest.mark.parametrize(("args", "reason"), FAILURES.values(), ids=FAILURES.keys())
def test_what_a_user_can_mend_is_one_error_before_a_model_is_opened(args, reason, no_model):
    Path("unknown.jsonl").write_text('{"question": "q", "id": "no such"}', "utf-8")
    ran = run(*args)
    assert (ran.code, ran.out) == (1, "")
    assert re.match(f"Error: .*{reason}", ran.err)
    assert "Traceback" not in ran.err
    assert not Path("x.space").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["--set", "beta=0.5"], "trueline build --wrong"), (["--device", "cuda:99"], "cuda:99")],
)
def test_what_only_the_model_shows_is_one_error_too(options, reason):
    ran = run("ask", *RAD, *options, QUESTION)
    assert (ran.code, ran.err[:7]) == (1, "Error: ")
    assert reason in ran.err


BUILDING = "building entries, once for this space and model: "


def test_rad_builds_the_entries_that_a_space_lacks_once_and_keeps_them(edited):
    rad = (*ANSWERS, "--method", "rad", QUESTION)
    first, again = run("ask", *rad), run("ask", *rad)
    assert first.code == 0, first.err
    assert (BUILDING in first.err, BUILDING in again.err) == (True, False)
    assert first.out == again.out
    entries = len(tl.open("answers.space").entries)
    assert f"{entries} of {entries}" in first.err


def test_a_chat_builds_entries_when_its_method_needs_them(edited):
    talk = run("chat", *ANSWERS, stdin=f"/method rad\n{QUESTION}\n/quit\n")
    assert (talk.code, BUILDING in talk.err, "Error" in talk.err) == (0, True, False)


def test_entries_of_another_model_stay_in_the_space(tmp_path):
    other = tiny.language_model("llama", chat=True, seed=1)
    with quiet():
        other.model.save_pretrained(tmp_path / "other")
        other.tokenizer.save_pretrained(tmp_path / "other")
    made = tl.open("facts.space").info()
    ran = run("ask", *RAD, "--model", str(tmp_path / "other"), QUESTION)
    assert (ran.code, BUILDING in ran.err) == (0, True)
    assert tl.open("facts.space").info() == made


def test_no_command_prints_the_help():
    ran = run()
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Usage: trueline [OPTIONS] COMMAND")
    assert all(f"\n  {name} " in ran.out for name in cli.commands)


def test_no_line_of_the_help_is_cut_off(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for name in ("", *cli.commands):
        text = run(*([name] if name else []), "--help").out
        below = text.partition("\n\n")[2]  # the usage, which shows that arguments repeat
        assert [line for line in below.splitlines() if line.endswith("...")] == []


def test_signs_without_a_code_are_spelled_out_and_json_stays_json(monkeypatch):
    question = "Is \u22121 less than 0, \U0001f987?"  # neither sign is in latin-1
    given = [*SPACE, "--method", "greedy", "--json", question]
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["trueline", "explain", *given])
    main()
    assert json.loads(out.buffer.getvalue().decode("latin-1"))["question"] == question


def test_an_interrupted_command_prints_how_to_go_on(monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("trueline.space.read_space", interrupted)
    assert run("info", "facts.space") == (130, "", "\nError: stopped\n")
    monkeypatch.setattr("trueline.space.build", interrupted)
    ran = run("build", "facts.jsonl", "--out", "x.space")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.endswith(
        "\nError: stopped; run the same command again, and it goes on where it was\n"
    )


def test_an_answer_that_repeats_itself_is_marked(tiny_home, monkeypatch):
    long = ["--max-new-tokens", "40", "Are bats blind?"]
    for command in (["ask"], ["compare", "--methods", "greedy"]):
        module = sys.modules[f"trueline.cli.{command[0]}"]
        monkeypatch.setattr(module, "repeats_itself", lambda text: True)
        ran = run(*command, *long)
        assert "the answer repeats itself" in ran.out + ran.err


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("It is a bat. It is a bat.", True),
        ("It is a bat. It is a cat.", False),
        ("No, no, no, no, no.", True),
        ("", False),
    ],
)
def test_four_words_in_a_row_twice_are_a_repetition(text, is_so):
    assert repeats_itself(text) is is_so
