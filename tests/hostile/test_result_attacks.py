"""Results files that were edited, cut or made by others, and reports into folders of others."""

import csv
import io
import json
import os
import re
import resource
from pathlib import Path
from xml.etree import ElementTree

import pytest
from attack import ODD_TEXTS, mutated, mutated_bytes, rounds, within
from click.testing import CliRunner
from test_report import GREEDY, RAD, answers, cell, done, failed, verdicts
from tiny_run import use_tiny_parts

from trueline.cli import cli
from trueline.errors import SettingError, TruelineError
from trueline.lab.plan import plan_from
from trueline.lab.report.pages import write_files, write_report
from trueline.lab.report.tables import MARK
from trueline.lab.results import (
    encode_lines,
    open_journal,
    plain,
    read_results,
    read_written,
    replace_line,
)
from trueline.lab.run import run_plan

ALL = ("md", "html", "csv", "latex")


@pytest.fixture(scope="module")
def real(tmp_path_factory, embedder, table, data):
    """The bytes of the results of a small run: greedy, RAD and a judge, both tasks."""
    folder = tmp_path_factory.mktemp("real")
    plan = {**table, "tasks": ["generate", "choose"], "judges": ["fake"], "max_new_tokens": 3}
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_parts(patch, embedder)
        run_plan(plan_from(plan), folder)
    return steady((folder / "results.jsonl").read_bytes().replace(str(data).encode(), b"data"))


def steady(content) -> bytes:
    """The same lines without what differs from run to run, so that a seed gives its rounds."""
    always = {"seconds": 0.25, "time": "2026-01-01T00:00:00+00:00"}
    lines = [json.loads(line) for line in content.splitlines()]
    fixed = [line | {name: x for name, x in always.items() if name in line} for line in lines]
    texts = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in fixed)
    return "".join(f"{text}\n" for text in texts).encode()


def put(folder, content) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_bytes(content)
    return folder


def refused(folder) -> str:
    """Why a report of this folder is refused; the file must be named."""
    with pytest.raises(SettingError) as caught, within(60):
        write_report(folder, formats=ALL, plots=())
    assert "results.jsonl" in str(caught.value)
    assert str(caught.value).isprintable()
    return str(caught.value)


# Single edits


def changed(number, **fields):
    """A line of the real file with other fields."""

    def edit(lines):
        lines[number] = json.dumps({**json.loads(lines[number]), **fields}).encode()
        return lines

    return edit


def raw(number, old, new):
    return lambda lines: [
        *lines[:number],
        lines[number].replace(old, new, 1),
        *lines[number + 1 :],
    ]


def inserted(number, content):
    return lambda lines: [*lines[:number], content, *lines[number:]]


def repeated(number, after):
    return lambda lines: [*lines[: after + 1], lines[number], *lines[after + 1 :]]


DEEP = b"[" * 100_000 + b"]" * 100_000
# Of the real file: 0 a cell, 1-5 its answers, 6 done; 7 a cell, 8-12 choices, 13 done; 14 and
# 21 RAD's; 28 the leaks; 29-48 verdicts.
EDITS = {
    "no prompt": (changed(0, prompt_hashes=[]), 1, "length >= 1"),
    "nested bomb": (raw(0, b'"settings":{}', b'"settings":' + DEEP), 1, ""),
    "unknown field": (changed(0, more=1), 1, "unknown field `more`"),
    "another type": (changed(1, index="first"), 2, "Expected `int`, got `str` - at `$.index`"),
    "nan": (raw(1, b'"seconds":', b'"seconds":NaN,"x":'), 2, "malformed"),
    "sample twice": (repeated(1, after=1), 3, "it repeats line 2"),
    "verdict twice": (repeated(30, after=30), 32, "it repeats line 31"),
    "no head": (lambda lines: lines[1:], 1, "no line before it has its cell"),
    "no answer": (lambda lines: [lines[0], *lines[2:]], 29, "or the answer judged"),
    "text": (inserted(4, b"note: mine"), 5, "malformed"),
    "long line": (inserted(4, b"x" * 100_000_000), 5, "malformed"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_line_is_named_with_its_number(what, real, tmp_path):
    edit, number, reason = EDITS[what]
    lines = real.splitlines()
    content = b"\n".join(edit(list(lines))) + b"\n"
    error = refused(put(tmp_path, content))
    assert f"results.jsonl:{number} is not a line of results of this release (" in error
    assert reason in error
    with pytest.raises(SettingError), open_journal(tmp_path):  # a run does not go on with it
        pass
    assert (tmp_path / "results.jsonl").read_bytes() == content


def test_what_editors_do_to_a_file_is_read(real, tmp_path):
    wanted = read_results(put(tmp_path, real)).cells
    for content in (b"\xef\xbb\xbf" + real, real.replace(b"\n", b"\r\n")):
        assert read_results(put(tmp_path, content)).cells == wanted
        with open_journal(tmp_path) as journal:
            assert encode_lines(journal.lines) == real
    assert "UTF-16; save it as UTF-8" in refused(put(tmp_path, real.decode().encode("utf-16")))


def test_a_torn_end_is_dropped_counted_and_shown(real, tmp_path):
    lines = real.splitlines(keepends=True)
    torn = b"".join(lines[:4]) + lines[4][:30]
    put(tmp_path, torn)
    assert read_results(tmp_path).torn
    write_report(tmp_path, formats=ALL, plots=())
    for name in ("report.md", "report.html", "report.tex"):
        assert "The last line of the results is cut off" in (tmp_path / name).read_text("utf-8")
    with open_journal(tmp_path) as journal:
        assert journal.dropped == 2  # the torn one and the other one of its chunk
    assert not read_results(tmp_path).torn
    put(tmp_path / "whole", real)
    write_report(tmp_path / "whole", formats=["md"], plots=())
    whole = (tmp_path / "whole" / "report.md").read_text("utf-8")
    assert "The last line of the results is cut off" not in whole
    assert "results.jsonl:5 is not a line of results" in refused(
        put(tmp_path / "odd", b"".join(lines[:4]) + b"x")
    )


def test_only_a_regular_file_of_a_sane_size_is_read(tmp_path):
    with pytest.raises(TruelineError):
        write_report("x" * 300)
    os.mkfifo(tmp_path / "results.jsonl")
    assert "it is no regular file" in refused(tmp_path)
    (tmp_path / "results.jsonl").unlink()
    with (tmp_path / "results.jsonl").open("wb") as file:
        file.truncate(3_000_000_000)  # of holes; it takes no room
    with within(10):
        assert "it has more than 2,000,000,000 bytes" in refused(tmp_path)


# What stands in a report


HOSTILE = [
    *(text for text in ODD_TEXTS if not text.isprintable() and "\ud800" not in text),
    "<script>alert(1)</script>",
    '=HYPERLINK("http://x","y")',
    "\t=1",
    "\r=1",
    "\uff1d1+1",
    "a|b\nc | d",
    "$\\frac{x}$ $$",
    "_hidden",
    "</script><img src=x onerror=alert(1)>",
    "![x](http://x) [y](javascript:x) `z` ~~w~~",
    "\\input{/etc/passwd} ^^M % # & ~ {",
    "\x9b31m\x85\u2028\u2029\u2066\u200b",
    "\u4e2d\u6587 \U0001f9ea",
]


DRAWN = [text for text in HOSTILE if text[:1] in "\x00$<\u4e2d"]  # drawing takes long


def hostile_lines(text):
    """A run in which everything that has a name has this one."""
    head = {"model": text, "benchmark": text, "dtype": text, "device": text, "time": text}
    head |= {"fingerprint": text, "versions": {text: text}, "machine": {text: [text]}}
    more = {"defaults": {}, "build": {"embedder": text}}
    runs = []
    for number, (id, method) in enumerate(
        [("g", "greedy"), ("r", text), ("s", "rad"), ("t", "rad"), ("u", "rad")]
    ):
        given = {} if method == "greedy" else {"settings": {text: text}}
        if method == "rad":
            given = {**more, "settings": {"alpha": number / 10, text: number}}
        runs += [
            cell(id, method, is_plain=method == "greedy", **given, **head),
            *answers(id, rouge=[0.1, 0.2, 0.3, 0.4], text=text, flipped=(0, number % 2)),
            *verdicts(id, "truth", [True, False, True, bool(number % 2)], judge=text),
            done(id),
        ]
    last = cell("f", "dola", **head)
    lost = replace_line(failed("f", "q1", 0), reason=text)
    return [*runs, last, lost]


def steering(text) -> set[str]:
    """What a terminal or a page would obey; newlines end lines in every format."""
    return {sign for sign in text if not sign.isprintable() and sign not in "\n\u200c\u200d"}


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:24])
def test_hostile_names_stand_spelled_out_in_every_format(text, tmp_path):
    put(tmp_path, encode_lines(hostile_lines(text)))
    plots = ("svg",) if text in DRAWN else ()
    with within(120):
        files = write_report(tmp_path, out=tmp_path / "out", formats=ALL, plots=plots)
    read = {path.name: path.read_text("utf-8") for path in files}
    assert any(name.endswith(".svg") for name in read) == bool(plots)
    for name, content in read.items():
        assert not steering(content), name
        if name.endswith(".svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
    tags = re.findall(r"<[a-z][^>]*>", read["report.html"])
    assert not [
        tag for tag in tags if re.match(r"<(script|img|a|link|iframe)\b|.*\bon\w+=", tag)
    ]
    rows = list(csv.DictReader(io.StringIO(read["report.csv"])))
    for row in rows:
        for name in ("model", "dtype", "benchmark", "label", "method", "judge"):
            assert not row[name].startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d")), row
        float(row["mean"])  # numbers stay numbers, also those below 0
        assert row["difference"] == "" or float(row["difference"]) <= 100
    tables = [line for line in read["report.md"].splitlines() if line.startswith("|")]
    widths = [len(re.split(r"(?<!\\)(?:\\\\)*\|", line)) for line in tables]
    assert len(set(widths)) <= 5  # a pipe in a name opens no column: as many as there are grids
    markdown = read["report.md"].removesuffix(f"<!-- {MARK} -->\n")
    assert not re.search(r"(?<!\\)<(?!br>)", markdown)
    assert not re.search(r"(?<!\\)[~$]", read["report.md"])
    tex = re.sub(r"(?m)^%.*", "", read["report.tex"])
    assert r"\input" not in tex


# Where a report is written


def files_of(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_report_replaces_its_own_files_and_no_others(tmp_path):
    run = put(tmp_path / "run", encode_lines([*GREEDY, *RAD]))
    options = {"out": tmp_path / "out", "formats": ALL, "plots": ("svg", "png")}
    options["out"].mkdir()
    (options["out"] / "report.md").write_text("my own notes")
    with pytest.raises(SettingError, match=r"report\.md would be replaced, .* --overwrite"):
        write_report(run, **options)
    assert files_of(options["out"]) == {"report.md": b"my own notes"}
    assert write_report(run, **options, overwrite=True)
    assert write_report(run, **options)  # once more, over its own
    (options["out"] / "report.html").write_text("<p>another page", "utf-8")
    with pytest.raises(SettingError, match=r"report\.html would be replaced"):
        write_report(run, **options)


@pytest.mark.parametrize("name", ["reproduce.md", "facts-tiny-alpha.svg"])
def test_reproduce_refuses_a_file_of_others_before_it_runs(name, tmp_path, monkeypatch):
    monkeypatch.setattr("trueline.lab.paper.reproduce.reproduce", None)  # it is not called
    (tmp_path / name).write_text("mine")
    flags = ["reproduce", "alpha", "--benchmark", "facts", "--out", str(tmp_path)]
    with pytest.raises(SettingError, match=re.escape(f"{name} would be replaced")):
        CliRunner().invoke(cli, flags, catch_exceptions=False)
    assert (tmp_path / name).read_text() == "mine"


def test_only_files_are_replaced_and_all_are_checked_before_one_is_written(tmp_path):
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "link.md").symlink_to("/dev/zero")
    (tmp_path / "folder.md").mkdir()
    for name in ("pipe.md", "link.md", "folder.md"):
        message = rf"{name} (would be replaced|should be a file and is a folder)"
        with within(10), pytest.raises(SettingError, match=message):
            write_files(tmp_path, {"a.md": b"new", name: b"new"})
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize("room", [0, 6_000])
def test_a_full_disk_leaves_what_was_there(room, tmp_path):
    out = tmp_path / "out"
    write_report(put(tmp_path / "old", encode_lines(GREEDY)), out=out, formats=ALL, plots=())
    before = files_of(out)
    run = put(tmp_path / "new", encode_lines([*GREEDY, *RAD]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(SettingError, match=r"cannot be written to \(File too large\)"):
            write_report(run, out=out, formats=ALL, plots=())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files_of(out) == before


# The fuzzer


def attacked(chance, content):
    """The bytes of a results file with something changed in them."""
    if chance.random() < 0.3:
        return mutated_bytes(chance, content)
    lines = content.splitlines()
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(10)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        ids = [json.loads(line)["cell"] for line in (lines[0], lines[7], lines[14])]
        lines[at] = json.dumps({**json.loads(lines[at]), "cell": chance.choice(ids)}).encode()
    elif kind == 4:
        return content[: chance.randrange(len(content))]
    else:
        line = json.dumps(mutated(chance, json.loads(lines[at])))
        lines[at] = line.encode("utf-8", "surrogatepass")
    return b"\n".join(lines) + b"\n"


def unread(content, lines, torn) -> str:
    """What of a file was not read as it stands there, by another reader; nothing if all was.

    Every line must be there and hold what Python's own JSON reads in it; fields that a line
    leaves out have their defaults. Only a last line without its end may be missing.
    """
    *pieces, rest = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if len(pieces) != len(lines) or bool(rest) != torn:
        return "lines are missing"
    for number, (piece, line) in enumerate(zip(pieces, lines), 1):
        message, found = json.loads(piece), json.loads(json.dumps(plain(line)))
        if any(found[name] != value for name, value in message.items()):
            return f"line {number} was read as something else"
    return ""


def contradiction(lines) -> str:
    """What lines say against each other, by rules that are written down here once more."""
    heads, seen = {}, set()
    for line in map(plain, lines):
        kind, cell = line["kind"], line.get("cell")
        if kind == "leaks":
            continue
        if kind != "cell" and cell not in heads:
            return f"{cell} is not described"
        is_sample = kind in ("answer", "choice", "failed")
        names = ("sample", "judge", "about")
        key = ("sample" if is_sample else kind, cell, *(line.get(name) for name in names))
        if key in seen:
            return f"{key} is stated twice"
        seen.add(key)
        if kind == "cell":
            heads[cell] = line
        elif kind == "verdict" and ("sample", cell, line["sample"], None, None) not in seen:
            return f"{line['sample']} is judged and not answered"
    return ""


def test_mutated_results_are_refused_or_reported_as_they_stand(real, tmp_path):
    """A round is refused by an error that names the file, or every line of it is used.

    Damage used silently would be a line that is skipped or read as something it does not say,
    lines that contradict each other, a torn end that is not reported, a number that is none.
    """
    counts, unnamed = {"refused": 0, "reported": 0, "torn": 0}, []
    for number, chance in enumerate(rounds("results", 80, 2_000)):
        content = attacked(chance, real)
        folder = put(tmp_path / "run", content)
        plots = ("svg", "png") if number % 10 == 0 else ()
        try:
            with within(120):
                written = write_report(
                    folder, out=tmp_path / "out", formats=ALL, plots=plots, overwrite=True
                )
        except TruelineError as error:
            counts["refused"] += 1
            unnamed += [] if "results.jsonl" in str(error) else [f"{chance.name}: {error}"]
            continue
        except BaseException as error:
            error.add_note(f"{chance.name}: {content!r}")
            raise
        lines, torn = read_written(folder / "results.jsonl")
        counts["torn" if torn else "reported"] += 1
        problem = unread(content, lines, torn) or contradiction(lines)
        assert not problem, f"{chance.name}: {problem}"
        message = (tmp_path / "out" / "report.md").read_text("utf-8")
        assert ("is cut off" in message) == torn, chance.name
        text = (tmp_path / "out" / "report.csv").read_text("utf-8")
        for row in csv.DictReader(io.StringIO(text)):
            assert abs(float(row["mean"])) < 1e15, f"{chance.name}: {row}"
        assert all(not steering(path.read_text("utf-8")) for path in written[:4]), chance.name
    print(f"results: {counts}")
    assert not unnamed
    assert min(counts.values()) > 0
