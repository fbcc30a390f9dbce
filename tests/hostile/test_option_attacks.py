"""Command lines and options that nobody expects: one line, exit 1, and a safe terminal."""

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import pytest
import tiny
from attack import ODD_TEXTS, Hang, Ran, Terminal, rounds, run_command, steering, within
from conftest import EXAMPLES

import trueline as tl
from trueline.cli import cli, screen
from trueline.engines.fetch import say
from trueline.errors import ExampleError, SettingError
from trueline.examples import read_examples, to_lines
from trueline.methods import make_method, method_names
from trueline.settings import read_settings
from trueline.text import visible, visible_json, visible_line
from trueline.types import Sampling

CLI = Path(sys.modules["trueline.cli"].__file__).parent
QUESTION = "Are bats blind?"
SHORT = ("--space", "odd.space", "--max-new-tokens", "3")
RAD = ("--method", "rad", "--set", "alpha=1.0")
BOTH = ("--methods", "greedy,rad,corrective", "--flips", "--set", "rad.alpha=1.0")
EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\ufeff\u2066\r"
WRITES = re.compile(r"(click\.)?(secho|echo)|print|input|.*std(out|err)\.(?!isatty)\w+")
WRITING = ("build", "add", "remove", "merge", "explain", "eval", "report")
WITH_MODELS = ("eval", "reproduce")  # attacked by tests of their own


@pytest.fixture(scope="module")
def parts(tiny_home, tmp_path_factory):
    """A folder with files of many kinds, and spaces whose every text is hostile."""
    here = tmp_path_factory.mktemp("far") / "from" / "everything" / "here"
    here.mkdir(parents=True)
    evil = [
        tl.Example(f"{one.question} {EVIL}", [f"{a} {EVIL}" for a in one.answers],
                   id=f"{one.id}{EVIL}", source=f"[red]{EVIL}")
        for one in EXAMPLES
    ]  # fmt: skip
    lm = tl.load("smollm2-135m")
    for name, examples in {"facts": EXAMPLES, "odd": evil}.items():
        (here / f"{name}.jsonl").write_text("".join(to_lines(examples)), "utf-8")
        prompt = tl.Prompt(f"{EVIL if name == 'odd' else ''}{{question}}")
        tl.build(lm, examples, context=8, out=here / f"{name}.space", prompt=prompt)
    (here / "faq.csv").write_text("question,answers\nq,a\n", "utf-8")
    (here / "marked.txt").write_bytes(b"\xef\xbb\xbfAre bats blind?\r\n\r\nDo fish sleep?\r\n")
    (here / "latin.txt").write_bytes(b"Are bats blind?\nDo f\xeete sleep?\n")
    (here / "wide.txt").write_bytes("Are bats blind?\n".encode("utf-16"))
    (here / "empty.txt").touch()
    (here / "file.txt").write_text("mine", "utf-8")
    (here / "run.toml").write_text('benchmarks = ["facts"]\n', "utf-8")
    (here / "folder").mkdir()
    os.symlink("nowhere", here / "dangling")
    os.symlink("loop", here / "loop")
    os.mkfifo(here / "fifo")
    return here


@pytest.fixture(autouse=True)
def inside(parts, monkeypatch):
    monkeypatch.chdir(parts)
    for name in [name for name in os.environ if name.startswith("TRUELINE_")]:
        if name != "TRUELINE_HOME":
            monkeypatch.delenv(name)


def refused(*args, **how):
    ran = run_command(*args, **how)
    assert ran.code == 1, ran
    assert ran.err.count("Error: ") == 1
    assert "Traceback" not in ran.err
    return ran.err


def test_only_the_screen_writes_in_the_command_line():
    found = [
        f"{path.name}:{node.lineno}"
        for path in CLI.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and path.name != "screen.py"
        if WRITES.fullmatch(ast.unparse(node.func))
    ]
    assert found == []


def test_what_steers_a_terminal_is_spelled_out_and_the_rest_stays():
    assert visible("a\tb\n\x1b[1m") == "a\tb\n\\x1b[1m"
    assert visible_line("a\tb\n") == "a\\tb\\n"
    assert visible("\u202e\u2066\ufeff\u200b\x9b\r\x7f\ud800\u2028\U000e0041") == (
        "\\u202e\\u2066\\ufeff\\u200b\\x9b\\r\\x7f\\ud800\\u2028\\U000e0041"
    )
    plain = (
        "na\u00efve\u00a0\u4e2d\u6587 \u0645\u06cc\u200c\u062e\u0648 \U0001f469\u200d\U0001f680"
    )
    assert visible(plain) == visible_line(plain) == plain


def test_json_spells_the_same_signs_and_is_read_as_the_same_value():
    value = {"evil": EVIL + "\U000e0041\x7f", "fine": "\u00e9\U0001f469\u200d\U0001f680"}
    text = visible_json(json.dumps(value, indent=1, ensure_ascii=False))
    assert steering(text) == []
    assert "\u00e9\U0001f469\u200d\U0001f680" in text
    assert json.loads(text) == value


@pytest.mark.parametrize("terminal", [False, True], ids=["piped", "terminal"])
@pytest.mark.parametrize(
    "args",
    [
        ["info", "odd.space"],
        ["compare", *SHORT, *BOTH, QUESTION],
        ["explain", *SHORT, *RAD, QUESTION],
    ],
    ids=lambda args: args[0],
)
def test_text_of_a_space_steers_no_terminal(args, terminal):
    ran = run_command(*args, terminal=terminal)
    assert (ran.code, steering(ran.out + ran.err)) == (0, [])
    if not terminal:  # in a terminal it is wrapped
        assert "\\x1b]0;owned\\x07\\x1b[2J\\u202e\\x9b31m" in ran.out


def test_chat_shows_foreign_text_safely():
    lines = [QUESTION + EVIL, "/why", f"/method {EVIL}", f"/{EVIL}", f"/space {EVIL}"]
    for terminal in (False, True):
        ran = run_command("chat", *SHORT, stdin="\n".join(lines) + "\n", terminal=terminal)
        assert ran.code == 0, ran.err
        assert steering(ran.err + (ran.out if terminal else "")) == []


def test_an_answer_is_exact_in_a_pipe_and_safe_in_a_terminal(monkeypatch):
    def stream(*_, **__):
        yield from (tl.Piece(text, ()) for text in ("\x1b[1m", "bold\u202e"))

    monkeypatch.setattr("trueline.decode.generate.stream", stream)
    assert run_command("ask", *SHORT, QUESTION).out == "\x1b[1mbold\u202e\n"
    assert run_command("ask", *SHORT, QUESTION, terminal=True).out == "\\x1b[1mbold\\u202e\n"


def test_tables_bars_and_notes_show_foreign_text_safely(capsys, monkeypatch):
    screen.print_table(["a", "b"], [["1\t2\n3", "[bold]x[/bold]"]])
    screen.print_facts({"name": "x\nforged  1"})
    assert capsys.readouterr().out == "a\tb\n1\\t2\\n3\t[bold]x[/bold]\nname  x\\nforged  1\n"
    say(f"converting {EVIL}.gguf")
    assert steering(capsys.readouterr().err) == []
    monkeypatch.setenv("TERM", "dumb")
    for kind in (io.StringIO, Terminal):
        monkeypatch.setattr(sys, "stderr", kind())
        with screen.progress_bars("done") as tell:
            tell(f"[red]{EVIL}", 1, 2)
        assert steering(sys.stderr.getvalue()) == []


def test_a_warning_is_one_safe_line(monkeypatch):
    def info(*_):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(f"beware of {EVIL}", stacklevel=1)
        raise SettingError("enough")

    monkeypatch.setattr("trueline.space.read_space", info)
    ran = run_command("info", "odd.space")
    assert steering(ran.err) == []
    assert [line.partition(":")[0] for line in ran.err.splitlines()] == ["note", "Error"]


ODD_OPTIONS = {
    "stop": [5, b"x", [5], [None], {"a": 1}, "", "\ud800"],
    "stop_ids": [5, ["a"], [1.5]],
    "temperature": [None, "hot", True, float("nan"), 10**400, -1],
    "seed": [1.5, -1, 10**5000],
    "top_k": [1.0],
    "top_p": ["x"],
    "max_new_tokens": [True, 1.0, None, "5", -(10**5000), np.array([1, 2])],
    "trace": [1],
}


@pytest.mark.parametrize("name", ODD_OPTIONS)
def test_an_option_that_cannot_be_is_refused_by_its_name(name):
    for value in ODD_OPTIONS[name]:
        with pytest.raises(SettingError, match=name.partition("_")[0]) as caught:
            tl.generate(lm(), tl.Greedy(), "q", **{"temperature": 1.0, name: value})
        assert len(str(caught.value)) < 200
        assert "\n" not in str(caught.value)


def lm():
    return tiny.language_model("llama")


def test_numbers_of_numpy_are_numbers():
    given = {"max_new_tokens": np.int64(3), "temperature": np.float32(0.5)}
    given |= {"top_p": np.float64(0.5), "seed": np.uint8(7), "stop_ids": np.array([1, 2])}
    options = Sampling(**given)
    plain = {"max_new_tokens": 3, "temperature": 0.5, "top_p": 0.5, "seed": 7}
    assert options == Sampling(**plain, stop_ids=(1, 2))
    assert type(options.max_new_tokens) is type(options.stop_ids[0]) is int
    assert type(options.temperature) is float
    assert type(make_method("id", settings={"eta": np.float32(0.5)}).settings()["eta"]) is float
    answers = tl.generate(lm(), tl.Greedy(), ["q"], batch_size=np.int64(2), max_new_tokens=2)
    assert len(answers) == 1
    assert read_examples(EXAMPLES, limit=np.int64(1)) == EXAMPLES[:1]


QUESTIONS = ["", "\n\t", "\u3000", None, 5, b"q", {"q": 1}, "\ud800"]
REFUSED = {  # a call, and what it cannot take
    "size": (
        lambda size: tl.generate(lm(), tl.Greedy(), ["q"], batch_size=size),
        [1.5, 0, None, "4", True, float("nan")],
    ),
    "generate": (
        lambda question: tl.generate(lm(), tl.Greedy(), question),
        [*QUESTIONS, ["q", None], ["q", ""], [b"q"]],
    ),
    "stream": (lambda question: list(tl.stream(lm(), tl.Greedy(), question)), QUESTIONS),
    "score": (lambda question: tl.score(lm(), tl.Greedy(), question, ["a"]), QUESTIONS),
    "candidates": (lambda x: tl.score(lm(), tl.Greedy(), "q", x), [5, "yes", [None], [""]]),
    "methods": (lambda given: tl.compare(lm(), given, ["q"]), [5, [5]]),
    "many": (lambda given: tl.compare(lm(), [tl.Greedy()], given), ["q", 5, [], [None]]),
    "method": (lambda method: tl.generate(lm(), method, "q"), ["rad", None]),
    "messages": (
        lambda given: tl.generate(lm(), tl.Greedy(), messages=given),
        [5, [5], [{"role": [], "content": "x"}], [{"role": "user", "content": " "}]],
    ),
    "source": (read_examples, [5, None, b"facts", {"question": "q"}, [None], [], ""]),
    "reading": (
        lambda options: read_examples("facts", **options),
        [{"limit": 1.5}, {"limit": 0}, {"separator": 5}, {"split": 5}, {"columns": {5: "x"}}],
    ),
    "build": (lambda examples: tl.build(None, examples, context=None), [5]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_call_cannot_take_is_one_line(name):
    call, values = REFUSED[name]
    for value in values:
        with pytest.raises((SettingError, ExampleError)) as caught:
            call(value)
        assert "\n" not in str(caught.value).partition(" rows cannot be used")[0]


def test_questions_and_candidates_may_come_from_an_iterator():
    answers = tl.generate(lm(), tl.Greedy(), ["a", "b"], max_new_tokens=2)
    assert tl.generate(lm(), tl.Greedy(), iter(["a", "b"]), max_new_tokens=2) == answers
    scores = tl.score(lm(), tl.Greedy(), "a", ["yes", "no"])
    assert tl.score(lm(), tl.Greedy(), "a", iter(["yes", "no"])) == scores
    assert tl.generate(lm(), tl.Greedy(), []) == tl.score(lm(), tl.Greedy(), "a", []) == []


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("latin.txt", "in line 2 the byte 0xee is not UTF-8; save the file as UTF-8"),
        ("wide.txt", "UTF-16; save it as UTF-8"),
        ("large.txt", "it has more than 16,000,000 bytes"),
        ("folder", "it is a folder"),
        ("fifo", "it is no regular file"),
        ("/dev/zero", "it is no regular file"),
        ("loop", "Too many levels of symbolic links"),
        ("a" * 300, "File name too long"),
        ("faq.csv/x", "Not a directory"),
    ],
)
def test_a_file_of_questions_that_cannot_be_read_is_one_line(file, reason):
    if file == "large.txt":
        Path(file).touch()
        os.truncate(file, 20_000_000)
    with within(20):
        err = refused("compare", *SHORT, "--file", file)
    assert file in err
    assert reason in err
    assert len(err.splitlines()) == 1


def test_a_name_with_line_breaks_forges_no_second_error():
    ran = run_command("info", "x\nError: forged\n\tand more")
    assert ran.err.count("\n") == 1
    assert "x\\nError: forged" in ran.err


SETTINGS = {"5": 5, "-0.5": -0.5, ".5": 0.5, "True": True, "none": None, "[0, 2]": [0, 2]}
SETTINGS |= {'"a b"': "a b", "mean": "mean", "__import__('os')": "__import__('os')"}


@pytest.mark.parametrize(("text", "value"), SETTINGS.items())
def test_a_setting_is_read_as_a_number_a_word_or_a_list(text, value):
    read = read_settings([f"x={text}"])["x"]
    assert (read, type(read)) == (value, type(value))


def test_bytes_that_are_not_text_go_through_as_a_path_and_are_refused_as_text():
    assert "there is no space at \\udcff" in refused("info", "\udcff")
    assert "not valid UTF-8" in refused("ask", *SHORT, "\udcff")
    ran = run_command("chat", *SHORT, stdin=f"\udcff\n{QUESTION}\n")
    assert (ran.code, ran.err.count("Error: ")) == (0, 1)
    assert ran.out.endswith("\n")


@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        (">&-", 1, "Error: standard output is closed"),
        ("<&- 2>&-", 0, ""),
        (">/dev/full", 1, "Error: standard output cannot be written: No space left on device"),
        ("--none 2>/dev/full", 1, ""),
        ("| head -0", 0, ""),
        ("--json | true", 0, ""),
        ("--help >/dev/full", 1, "Error: No space left on device"),
        ("--help | true", 0, ""),
    ],
)
def test_a_stream_that_is_closed_full_or_left_is_one_line_at_most(redirection, code, error):
    status = "; echo ${PIPESTATUS[0]}" if "|" in redirection else "; echo $?"
    script = f"trueline models {redirection}{status}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    how = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(["bash", "-c", script], env={**os.environ, "PATH": path}, **how)
    assert done.stdout.splitlines()[-1] == str(code), done
    assert done.stderr.startswith(error), done.stderr
    assert len(done.stderr.splitlines()) == bool(error), done.stderr


def odd_arguments(chance):
    """A command line of a command there is: options and values by chance."""
    name = chance.choice([one for one in cli.commands if one != "serve"])  # which does not end
    line, params = [name], cli.commands[name].params
    options = [param for param in params if isinstance(param, click.Option)]
    for param in params:
        if isinstance(param, click.Argument):
            count = chance.choice([1, 1, 1, 1, 1, 0, 2])
            line += [odd_argument(chance, param) for _ in range(count)]
        elif param.required and chance.random() < 0.9:
            line += [param.opts[0], odd_argument(chance, param)]
    for param in chance.sample(options, min(len(options), chance.choice([0, 0, 1, 1, 2, 3]))):
        line += [param.opts[0], *([] if param.is_flag else [odd_argument(chance, param)])]
    if name in ("ask", "chat", "compare", "explain") and chance.random() < 0.8:
        line += [*SHORT[:1], chance.choice(["odd.space", "facts.space"]), *SHORT[2:]]
    if name in WITH_MODELS:
        line += ["--model", "nowhere"]
    if chance.random() < 0.05:
        line.insert(chance.randrange(len(line) + 1), odd_text(chance))
    return [as_argument(text) for text in line]


def as_argument(text):
    """A text as a system hands it over: no NUL, and what is no text as bytes."""
    data = text.replace("\0", "").encode("utf-8", "surrogatepass")
    return data.decode("utf-8", "surrogateescape")


PATHS = """odd.space facts.space odd.jsonl facts.jsonl faq.csv marked.txt latin.txt wide.txt
    empty.txt folder dangling loop fifo new.space folder/new.space folder/new.html new.json
    /dev/null /dev/zero /dev/full /proc/self/mem /proc/self/environ ~nouser ~nouser/x . .. /
    faq.csv/x folder/../new.txt odd.space/space.json""".split()


def odd_text(chance):
    made = "".join(
        chance.choices("a=,.[]{}()'\"\\ -10e/~%$\u202e\x1b\udc80", k=chance.randrange(9))
    )
    return chance.choice([*ODD_TEXTS, made])


VALUES = {  # of options and arguments; others take a path or any text
    "question": [QUESTION, QUESTION + EVIL, "<|im_end|>", "x" * 3000],
    "method": [*method_names(), "all", "greedy,rad", "rad,rad", ","],
    "ids": ["fact-1", f"fact-1{EVIL}"],
    "columns": ["question=question", "answers=answer", "x=y", "question="],
    "model": ["smollm2-135m", "nowhere", "all-minilm-l6-v2", "folder", "odd.space"],
    "embedder": ["all-minilm-l6-v2", "nowhere", "folder"],
    "device": ["cpu", "cuda", "meta", "cpu:1"],
    "context": ["4", "none", "full", "0", "9" * 30, "\u0664"],
    "template": ["{question}", "{question} {x}", "Q"],
}
VALUES |= {"questions": VALUES["question"], "methods": VALUES["method"]}


def odd_argument(chance, param):
    if chance.random() < 0.15:
        return odd_text(chance)
    if isinstance(param.type, click.Choice):
        return chance.choice(param.type.choices)
    if param.type in (click.INT, click.FLOAT):
        return chance.choice([*"0 1 2 -1 0.5 1e-300 inf nan x".split(), "9" * 40])
    if isinstance(param.type, click.Path) or param.name in ("examples", "data", "out"):
        return chance.choice([*PATHS, "a" * 300, f"{EVIL}.html"])
    if param.name == "set":
        names = "alpha tau k rad.alpha beta gamma candidates strength margin".split()
        value = chance.choice(["0.5", "1", "[0]", "-1", "x", "1e999", odd_text(chance)])
        return f"{chance.choice(names)}={value}"
    return chance.choice(VALUES.get(param.name, ["x", "facts", "1", "none"]))


def odd_environment(chance, args):
    if chance.random() < 0.9:
        return {}
    command = cli.commands[args[0]] if args and args[0] in cli.commands else cli
    names = [f"TRUELINE_{command.name}_{p.name}".upper() for p in command.params]
    names.append("COLUMNS")
    return {chance.choice(names): as_argument(odd_text(chance))}


SPECIAL = ("fifo", "dangling", "loop", "folder")


def keep(parts, place):
    """A copy of what is in the folder, but for what cannot be copied."""
    return shutil.copytree(parts, place, ignore=shutil.ignore_patterns(*SPECIAL))


def fresh(parts, kept):
    """The folder as it was, after a command that may have changed it or written around it."""
    stay = [(parts, SPECIAL), (parts / "folder", ())]
    stay += [(outer, (inner.name,)) for inner, outer in pairwise([parts, *parts.parents][:4])]
    for path in [
        path for folder, names in stay for path in folder.iterdir() if path.name not in names
    ]:
        is_folder = path.is_dir() and not path.is_symlink()
        shutil.rmtree(path) if is_folder else path.unlink()
    shutil.copytree(kept, parts, dirs_exist_ok=True)


def check(ran: Ran, args, terminal):
    assert ran.code in (0, 1, 130)
    assert "Traceback" not in ran.err
    if args[:1] != ["chat"]:
        count = len(re.findall(r"^Error: ", ran.err, re.M))
        assert count == (ran.code != 0), ran.err
    is_answer = args[:1] in (["ask"], ["chat"]) and "--json" not in args
    assert steering(ran.err) == []
    assert steering(ran.out) == [] or (is_answer and not terminal)


def test_no_command_line_breaks_anything(parts, tmp_path):
    kept = keep(parts, tmp_path / "kept")
    codes = Counter()
    for chance in rounds("options", 60, 2_000):
        args = odd_arguments(chance)
        terminal = chance.random() < 0.4
        environment = odd_environment(chance, args)
        lines = [QUESTION, "/why", "/plain", "/new", f"/set {odd_text(chance)} 1", "/help"]
        lines += [f"/space {chance.choice(PATHS)}", f"/method {odd_text(chance)}"]
        stdin = "\n".join(chance.sample(lines, 4))
        how = {"stdin": stdin, "terminal": terminal, "environment": environment}
        try:
            with within(60):
                ran = run_command(*args, **how)
            check(ran, args, terminal)
        except (Exception, Hang) as error:
            raise AssertionError(f"{chance.name}: {args!r} {how!r}") from error
        codes[ran.code] += 1
        if args and args[0] in WRITING:
            fresh(parts, kept)
    print(f"\noptions: {codes[0]} used, {codes[1]} refused")
