"""Paths that nobody expects: one line that names the path and the system's word."""

import os
import resource
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import click
import pytest
from attack import ODD_TEXTS, Hang, as_nobody, rounds, run_command, within
from conftest import EXAMPLES
from test_option_attacks import (  # noqa: F401
    WRITING,
    as_argument,
    check,
    fresh,
    inside,
    keep,
    parts,
)

import trueline as tl
from trueline import files
from trueline.cli import cli
from trueline.errors import ExampleError, SettingError, TruelineError
from trueline.examples import read_examples, to_lines

QUESTION = "Are bats blind?"


@pytest.fixture(autouse=True)
def bounded():
    """Whoever reads /dev/zero to its end gets an error, not the machine's whole memory."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError):  # not Linux
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        most = pages * resource.getpagesize() + (4 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def path_options():
    """Every argument and option that takes a path, and those where a name may be a path."""
    named = "examples data out model embedder models benchmarks bertscore".split()
    for name, command in cli.commands.items():
        for param in command.params:
            if isinstance(param.type, click.Path) or param.name in named:
                yield name, param.name


def line_with(name, wanted, path):
    """A command line that would work, but for one path."""
    given = {
        "examples": "facts.jsonl",
        **dict.fromkeys(("folder", "first", "second"), "facts.space"),
        "question": QUESTION,
        "ids": "none",
        "method": "greedy",
        "plan": "run.toml",
    }
    line = [name]
    for param in cli.commands[name].params:
        if isinstance(param, click.Argument) and (param.required or param.name == wanted):
            line.append(path if param.name == wanted else given[param.name])
        elif param.name == wanted:
            line += [param.opts[0], path]
        elif param.required:
            line += [param.opts[0], "new.space"]
    if name == "compare":
        line.append(QUESTION)
    if name in ("ask", "chat", "compare", "explain") and wanted != "space":
        line += ["--space", "nowhere.space"]
    if name in ("eval", "reproduce") and wanted not in ("model", "models"):
        line += ["--model", "nowhere"]
    return line


@pytest.mark.parametrize("path", ["\0", "a\0b.jsonl", Path("a\0b")], ids=repr)
def test_a_name_with_nul_is_an_error_of_ours(path):
    with pytest.raises(ExampleError):
        read_examples(path)
    with pytest.raises(SettingError):
        files.read_text(path, "the file")
    with pytest.raises(TruelineError):
        tl.open(path)
    with pytest.raises(TruelineError):
        tl.load(path)


def refuse(*_, **__):
    raise OSError(5, "Input/output error", "x\ny\x1b")


def test_chat_goes_on_after_a_path_that_cannot_be():
    bad = ["a" * 300, "~nouser/x", "loop", "fifo", "/dev/zero", "file.txt/x", "a\0b", "~"]
    lines = [*(f"/space {path}" for path in bad), QUESTION]
    line = ["chat", "--method", "greedy", "--max-new-tokens", "3"]
    with within(60):
        ran = run_command(*line, stdin="\n".join(lines) + "\n")
    assert (ran.code, bool(ran.out.strip())) == (0, True)
    assert len([x for x in ran.err.splitlines() if x.startswith("Error: ")]) == len(bad)


def test_an_error_of_the_system_that_nobody_expects_is_one_line(monkeypatch):
    monkeypatch.setattr("trueline.space.read_space", refuse)
    message = "Error: x\\ny\\x1b: Input/output error\n"
    assert run_command("info", "facts.space") == (1, "", message)
    line = ["chat", "--method", "greedy", "--max-new-tokens", "3"]
    ran = run_command(*line, stdin=f"/space x\n{QUESTION}\n")
    assert (ran.code, bool(ran.out.strip()), ran.err.count(message)) == (0, True, 1)


@pytest.mark.parametrize("home", ["file.txt/x", "~nouser", "loop"])
@pytest.mark.parametrize("args", [["models"], ["ask", QUESTION]], ids=lambda args: args[0])
def test_a_home_that_cannot_be_is_one_line(args, home):
    with within(60):
        ran = run_command(*args, environment={"TRUELINE_HOME": home})
    errors = [line for line in ran.err.splitlines() if line.startswith("Error: ")]
    assert (ran.code, len(errors)) in ([(0, 0), (1, 1)] if args == ["models"] else [(1, 1)])


@pytest.fixture
def closed():
    """A folder that others may enter, with a file and a folder in it that they may not open."""
    folder = Path(tempfile.mkdtemp(prefix="trueline-closed-"))
    folder.chmod(0o755)
    (folder / "examples.jsonl").write_text("".join(to_lines(EXAMPLES)), "utf-8")
    (folder / "inner").mkdir()
    (folder / "inner" / "facts.jsonl").touch()
    for name in ("examples.jsonl", "inner"):
        (folder / name).chmod(0)
    yield folder
    (folder / "inner").chmod(0o700)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "args",
    [
        ["build", "{}/examples.jsonl", "--out", "{}/x.space"],
        ["build", "facts", "--context", "none", "--limit", "2", "--out", "{}/inner/x.space"],
        ["info", "{}/inner/x.space"],
        ["explain", "--out", "{}/inner/x.html", QUESTION],
    ],
    ids=lambda args: " ".join(args)[:50],
)
def test_permission_denied_is_one_line(args, closed, tiny_home):
    if os.getuid() == 0:
        try:
            assert as_nobody(lambda: str(os.getuid())) == "65534"
        except AssertionError:
            pytest.skip("this process can become nobody else")
    line = [part.replace("{}", str(closed)) for part in args]
    run_command(*args[:1], "--help")  # what the child needs is imported here

    def work():
        os.chdir("/")
        with within(60):
            ran = run_command(*line)
        return f"{ran.code}\n{ran.err}"

    code, _, err = as_nobody(work).partition("\n")
    assert code == "1", err
    errors = [one for one in err.splitlines() if one.startswith("Error: ")]
    assert len(errors) == 1, err
    assert str(closed) in errors[0]
    assert "Traceback" not in err


def test_explain_replaces_a_file_only_with_overwrite(tmp_path):
    out = tmp_path / "gum.json"
    out.write_text("mine", "utf-8")
    line = ["explain", "--method", "greedy", "--max-new-tokens", "3"]
    line += ["--out", str(out), QUESTION]
    ran = run_command(*line)
    assert (ran.code, out.read_text("utf-8")) == (1, "mine")
    assert "--overwrite" in ran.err
    assert run_command(*line, "--overwrite").code == 0
    assert QUESTION in out.read_text("utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["gum.json"]


def test_a_pipe_of_the_shell_is_read_as_a_file():
    reader, writer = os.pipe()
    os.write(writer, b"\xef\xbb\xbfAre bats blind?\r\n")
    os.close(writer)
    try:
        assert files.read_text(f"/dev/fd/{reader}", "the questions") == "Are bats blind?\n"
    finally:
        os.close(reader)


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old", "utf-8")

    def write_half():
        with files.replacing(path) as scratch:
            scratch.write_text("half", "utf-8")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_half()
    assert [one.read_text("utf-8") for one in tmp_path.iterdir()] == ["old"]


def test_a_link_planted_beside_a_file_is_not_followed(tmp_path):
    path, victim = tmp_path / "page.html", tmp_path / "victim"
    victim.write_text("precious", "utf-8")
    with files.scratch_file(path) as scratch:
        name = scratch.name
    os.symlink(victim, tmp_path / name)
    files.write_text(path, "new")
    assert (path.read_text("utf-8"), victim.read_text("utf-8")) == ("new", "precious")
    assert not path.is_symlink()


def test_a_name_as_long_as_a_system_takes_can_be_written(tmp_path):
    for name in ("a" * 255, "\u4e2d" * 85):
        files.write_text(tmp_path / name, "x")
        assert (tmp_path / name).read_text("utf-8") == "x"


def odd_path(chance):
    pieces = ["", ".", "..", "~", "~nouser", "folder", "file.txt", "dangling", "loop", "fifo",
              "facts.space", "facts.jsonl", "a" * 300, "\u202e", "\x1b[2J", "\udc80", " ", "-",
              "new.html", "x.gguf", "/dev/zero", "/proc/self", *ODD_TEXTS]  # fmt: skip
    return as_argument("/".join(chance.choices(pieces, k=chance.choice([1, 1, 2, 3]))))


def test_odd_paths_break_nothing(parts, tmp_path):  # noqa: F811
    options, codes = list(path_options()), Counter()
    kept = keep(parts, tmp_path / "kept")
    for chance in rounds("paths", 120, 2_000):
        name, wanted = chance.choice(options)
        line = line_with(name, wanted, odd_path(chance))
        try:
            with within(60):
                ran = run_command(*line, terminal=chance.random() < 0.5)
            check(ran, line, terminal=True)
            assert "Errno" not in ran.err
        except (Exception, Hang) as error:
            raise AssertionError(f"{chance.name}: {line!r}") from error
        codes[ran.code] += 1
        assert Path("file.txt").read_text("utf-8") == "mine", chance.name
        if name in WRITING:
            fresh(parts, kept)
    print(f"\npaths: {codes[0]} used, {codes[1]} refused")
