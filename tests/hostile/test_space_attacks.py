"""Attacks on spaces: folders of others, links, forged and damaged files, full disks."""

import errno
import io
import json
import math
import os
import resource
import shutil
import socket
import threading
from collections import Counter
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from attack import mutated, mutated_bytes, rounds, within
from forged import Forged, name_segment, sha256, sign
from safetensors.numpy import load, save
from test_space import contents, noon

import trueline as tl
from trueline import files, search
from trueline.cli import main
from trueline.errors import SpaceError, SpaceFormatError, TruelineError
from trueline.session import open_session
from trueline.space import reading, storage
from trueline.space.folder import PRIVATE
from trueline.space.json_text import parse_json

LM = tiny.language_model("llama")
MORE = [tl.Example("Do owls see?", ["Owls see well."], ["Owls are blind."], id="owls")]
OTHER = [tl.Example("Do fish swim?", ["Fish swim."], ["Fish fly."], id="fish")]


@pytest.fixture(scope="module")
def build(embedder):
    def made(examples, **options):
        made_with = {
            "context": 8,
            "embedder": embedder,
            "now": noon,
            "wrong": True,
            "end": True,
        }
        return tl.build(LM, examples, **{**made_with, **options})

    made.embedder = embedder
    return made


@pytest.fixture(scope="module")
def origin(build, tmp_path_factory):
    """A space of two segments, with an example removed; nobody changes it."""
    from conftest import EXAMPLES

    folder = tmp_path_factory.mktemp("origin") / "facts.space"
    build(EXAMPLES, out=folder).add(MORE, LM).remove("fact-4")
    return folder


@pytest.fixture
def forged(origin):
    return Forged.of(origin)


@pytest.fixture
def folder(origin, tmp_path):
    shutil.copytree(origin, tmp_path / "facts.space")
    return tmp_path / "facts.space"


# Folders and links of others


def snapshot(folder):
    """Everything in a folder: its links as links, its files to the byte."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = ("link", os.readlink(path))
        elif path.is_file():
            found[str(path)] = ("file", path.read_bytes())
        else:
            found[str(path)] = ("other", path.lstat().st_mode)
    return found


def plant(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


FIRST_FORMAT = {"format_version": 1, "recipe": {}, "files": {}, "sha256": "0" * 64}
FOREIGN = {
    "a file": {"letters.txt": "dear"},
    "a folder called building": {"building/letters.txt": "dear"},
    "a private folder of somebody else": {f"{PRIVATE}/letters.txt": "dear"},
    "a private folder with another mark": {f"{PRIVATE}/mark": "of another program"},
    "a mark half written beside letters": {f"{PRIVATE}/mark": "true", "letters.txt": "dear"},
    "an empty mark beside work": {f"{PRIVATE}/mark": "", f"{PRIVATE}/build-{'0' * 16}/x": "y"},
    "a manifest of an extension": {"manifest.json": '{"name": "x", "version": "1"}'},
    "a manifest with a format": {"manifest.json": '{"format": "x", "format_version": 2}'},
    "a manifest with a version": {"manifest.json": '{"format_version": 1, "files": {}}'},
    "a manifest like the first": {"manifest.json": json.dumps(FIRST_FORMAT)},
    "a manifest without end": {"manifest.json": "[" * 100_000},
    "names like ours": {
        f"entries-{'0' * 16}.safetensors": "x",
        f"examples-{'0' * 16}.jsonl": "y",
        ".manifest.json.1-2.tmp": "z",
    },
}
ACTS = {
    "build": lambda build, folder: build(OTHER, out=folder, overwrite=True),
    "save": lambda build, folder: build(OTHER).save(folder),
    "merge": lambda build, folder: tl.merge(
        build(OTHER), build(MORE), out=folder, overwrite=True
    ),
}


UNASKED = {  # the same, where nobody said that something may be replaced
    "build without overwrite": lambda build, folder: build(OTHER, out=folder),
    "merge without overwrite": lambda build, folder: tl.merge(
        build(OTHER), build(MORE), out=folder
    ),
}


@pytest.mark.parametrize("act", ACTS | UNASKED)
@pytest.mark.parametrize("kind", FOREIGN)
def test_nothing_is_changed_in_a_folder_of_somebody_else(kind, act, build, tmp_path):
    plant(tmp_path, FOREIGN[kind])
    before = snapshot(tmp_path)
    with pytest.raises(SpaceError, match="holds no space"):
        (ACTS | UNASKED)[act](build, tmp_path)
    assert snapshot(tmp_path) == before


def link_private(folder, outside):
    shutil.rmtree(folder / PRIVATE)
    (folder / PRIVATE).symlink_to(outside / "private")


def link_private_elsewhere(folder, outside):
    """To the private folder of another space, whose mark is right."""
    shutil.move(folder / PRIVATE, outside / "ours")
    (folder / PRIVATE).symlink_to(outside / "ours")


def link_in_work(name):
    def planted(folder, outside):
        for plan in plans(folder):
            (folder / PRIVATE / plan).mkdir()
            (folder / PRIVATE / plan / name).symlink_to(outside / "letters.txt")

    return planted


def plans(folder):
    """The names that work on the attacked acts may have: those seen in a dry run."""
    return sorted(json.loads((folder.parent / "plans.json").read_text()))


def link(name, target="letters.txt"):
    def planted(folder, outside):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside / target)

    return planted


def hard_link(name):
    def planted(folder, outside):
        (folder / name).unlink(missing_ok=True)
        os.link(outside / "letters.txt", folder / name)

    return planted


def hard_link_in_work(name):
    def planted(folder, outside):
        for plan in plans(folder):
            (folder / PRIVATE / plan).mkdir()
            os.link(outside / "letters.txt", folder / PRIVATE / plan / name)

    return planted


def link_work(folder, outside):
    for plan in plans(folder):
        (folder / PRIVATE / plan).symlink_to(outside / "private")


def link_work_locks(folder, outside):
    for plan in plans(folder):
        (folder / PRIVATE / f"{plan}.lock").symlink_to(outside / "letters.txt")


def link_scratch(folder, outside):
    name = f".manifest.json.{os.getpid()}-{threading.get_ident()}.tmp"
    (folder / name).symlink_to(outside / "letters.txt")


def pipe(name):
    def planted(folder, outside):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return planted


def stray_link(folder, outside):
    (folder / f"entries-{'0' * 16}.safetensors").symlink_to(outside / "letters.txt")
    (folder / f"examples-{'1' * 16}.jsonl").symlink_to(outside / "private")
    (folder / f"wrong-{'2' * 16}.safetensors").mkdir()


def letters_in_work(folder, outside):
    work = folder / PRIVATE / f"build-{'0' * 16}"
    plant(work, {"letters.txt": "dear", "00000.safetensors": "half"})


REFUSED, DONE = "refused", "done"
PLANTED = {  # what is planted into a space of ours, and what becomes of an edit there
    "the private folder is a link": (link_private, REFUSED),
    "the private folder is a link to one of ours": (link_private_elsewhere, REFUSED),
    "the mark is a link": (link(f"{PRIVATE}/mark"), REFUSED),
    "the mark is a pipe": (pipe(f"{PRIVATE}/mark"), REFUSED),
    "the lock is a link": (link(f"{PRIVATE}/lock"), REFUSED),
    "the lock is a link to nothing": (link(f"{PRIVATE}/lock", "new"), REFUSED),
    "the lock is a hard link to letters": (hard_link(f"{PRIVATE}/lock"), REFUSED),
    "the lock of builds is a link": (link(f"{PRIVATE}/build.lock"), REFUSED),
    "the lock of builds is a pipe": (pipe(f"{PRIVATE}/build.lock"), REFUSED),
    "the work folder is a link": (link_work, REFUSED),
    "the lock of the work is a link": (link_work_locks, REFUSED),
    "a finished batch is a link": (link_in_work("00000.safetensors"), REFUSED),
    "a file to be written is a link": (link_in_work("0-examples"), REFUSED),
    "the vectors to be written are a link": (link_in_work("1-vectors"), REFUSED),
    "a file to be written is a hard link": (hard_link_in_work("0-examples"), DONE),
    "an array to be written is a hard link": (hard_link_in_work("0-entries"), DONE),
    "a finished batch is a hard link": (hard_link_in_work("00000.safetensors"), DONE),
    "the new manifest is a link": (link_scratch, REFUSED),
    "the manifest is a link": (link("manifest.json"), REFUSED),
    "links named like stray files": (stray_link, DONE),
    "letters in work that was left": (letters_in_work, DONE),
}
EDITS = {
    **ACTS,
    "add": lambda build, folder: opened(build, folder).add(OTHER, LM),
    "replace": lambda build, folder: opened(build, folder).replace(
        [tl.Example("Do owls see?", "Yes.", id="owls")], LM
    ),
    "remove": lambda build, folder: opened(build, folder).remove("owls"),
    "compact": lambda build, folder: opened(build, folder).compact(),
}


def opened(build, folder):
    return tl.open(folder, embedder=build.embedder, now=noon)


@pytest.fixture(scope="module")
def seen_plans(build, origin, tmp_path_factory):
    """The names of the work of every edit, as a file beside the attacked folder has them."""
    from trueline.space import folder as folders

    seen, made = set(), folders.clear
    with pytest.MonkeyPatch.context() as patch:
        for module in ("build", "space"):
            patch.setattr(
                f"trueline.space.{module}.clear", lambda work: (seen.add(work.name), made(work))
            )
        for name, act in EDITS.items():
            copy = tmp_path_factory.mktemp("dry") / name
            shutil.copytree(origin, copy)
            act(build, copy)
    assert len(seen) >= 5
    return json.dumps(sorted(seen))


@pytest.mark.parametrize("act", EDITS)
@pytest.mark.parametrize("kind", PLANTED)
def test_nothing_is_written_or_deleted_through_a_link(
    kind, act, build, folder, tmp_path, seen_plans
):
    outside = tmp_path / "outside"
    plant(outside, {"letters.txt": "dear", "private/letters.txt": "dear"})
    (tmp_path / "plans.json").write_text(seen_plans)
    planted, outcome = PLANTED[kind]
    planted(folder, outside)
    foreign = {
        path: content
        for path, content in snapshot(folder).items()
        if content[0] == "link" or "letters" in path
    }
    before = snapshot(outside)
    with within(60):
        if outcome == REFUSED:
            with pytest.raises(SpaceError) as caught:
                EDITS[act](build, folder)
            assert "\n" not in str(caught.value)
        else:
            EDITS[act](build, folder)
            tl.open(folder).verify()
    assert snapshot(outside) == before
    assert foreign.items() <= snapshot(folder).items()


def test_a_pipe_for_a_manifest_without_our_mark_ends_at_once(build, tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with within(30), pytest.raises(SpaceError, match="holds no space"):
        build(OTHER).save(tmp_path)
    with within(30), pytest.raises(SpaceFormatError, match="no regular file"):
        tl.open(tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/below", "file"])
def test_a_path_that_can_hold_no_space_is_one_error(name, build, tmp_path):
    (tmp_path / "file").write_text("mine")
    for act in (tl.open, lambda folder: build(OTHER).save(folder)):
        with pytest.raises(SpaceError) as caught:
            act(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == {str(tmp_path / "file"): ("file", b"mine")}


def newer_format(folder):
    forged = Forged.of(folder)
    forged.manifest["format_version"] = 99
    forged.manifest["sha256"] = sign(forged.manifest)
    (folder / "manifest.json").write_text(json.dumps(forged.manifest), "utf-8")


def edited_manifest(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text("utf-8").replace('"tuned": {}', '"tuned": {"k": 1}'))


def bad_byte(folder):
    path = sorted(folder.glob("entries-*"))[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def not_text(folder):
    (folder / "manifest.json").write_bytes(b"\xff")


UNREAD = {  # a space that is there and cannot be read, and why
    "a newer format": (newer_format, "format 99.*install a newer trueline"),
    "an edited manifest": (edited_manifest, "its checksum differs"),
    "a bad byte": (bad_byte, "entries-.* was changed"),
    "a manifest that is no text": (not_text, "is not UTF-8"),
}


@pytest.mark.parametrize("act", ["build", "merge"])
@pytest.mark.parametrize("kind", UNREAD)
def test_a_space_that_cannot_be_read_is_replaced_only_where_that_is_asked_for(
    kind, act, build, folder
):
    damage, reason = UNREAD[kind]
    damage(folder)

    def attempt(**options):
        if act == "build":
            return build(OTHER, out=folder, **options)
        return tl.merge(build(OTHER), build(MORE), out=folder, **options)

    before = without_private(folder)
    with pytest.raises(SpaceError, match=f"nothing was written.*{reason}.*--overwrite"):
        attempt()
    assert without_private(folder) == before
    attempt(overwrite=True)
    assert "fish" in {example.id for example in tl.open(folder).examples}


# What a manifest may name

ZEROS = "0" * 64


def escape(digits):
    """A hash that is none, so that the name it gives leads elsewhere."""

    def change(forged, folder):
        segment = forged.manifest["segments"][0]
        file = segment["files"]["examples"]
        file.update(sha256=digits, name=f"examples-{digits[:16]}.jsonl")
        name_segment(segment)
        (folder / "examples-").mkdir(parents=True)

    return change


def named(name):
    def change(forged, folder):
        forged.manifest["segments"][0]["files"]["entries"]["name"] = name

    return change


ESCAPES = {
    "up by a hash": escape("/../../secret"),
    "up by a long hash": escape("/../../secret" + "0" * 51),
    "absolute": named("/etc/passwd"),
    "a device": named("/dev/zero"),
    "up": named("../../secret.jsonl"),
    "itself": named("."),
    "nothing": named(""),
    "with a zero": named(f"entries-{'0' * 16}.safetensors\0"),
    "upper case": escape("A" * 64),
}


@pytest.mark.parametrize("kind", ESCAPES)
def test_a_manifest_names_nothing_outside_the_folder(kind, forged, tmp_path):
    folder = tmp_path / "in" / "facts.space"
    folder.mkdir(parents=True)
    (tmp_path / "in" / "secret.jsonl").write_bytes(b"x" * 123_457)
    ESCAPES[kind](forged, folder)
    forged.write(folder)
    with within(30), pytest.raises(SpaceFormatError) as caught:
        tl.open(folder)
    assert not any(size in str(caught.value) for size in ("123457", "123,457"))


def put_socket(path, outside):
    sock = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        sock.bind(path.name)
    finally:
        os.chdir(here)
        sock.close()


STANDINS = {
    "a link": lambda path, outside: path.symlink_to(outside),
    "a link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path, outside: path.symlink_to(path),
    "a pipe": lambda path, outside: os.mkfifo(path),
    "a folder": lambda path, outside: path.mkdir(),
    "a socket": put_socket,
    "nothing": lambda path, outside: None,
}


@pytest.mark.parametrize("kind", ["manifest", "examples", "vectors", "entries", "wrong"])
@pytest.mark.parametrize("standin", STANDINS)
def test_what_is_no_regular_file_is_refused_at_once(standin, kind, folder, tmp_path):
    space = tl.open(folder)
    path = sorted(folder.glob(f"{kind}*"))[0]
    path.rename(tmp_path / "elsewhere")
    STANDINS[standin](path, tmp_path / "elsewhere")
    for act in (lambda: tl.open(folder), space.verify):
        with within(30), pytest.raises(SpaceFormatError) as caught:
            act()
        assert str((tmp_path / "elsewhere").stat().st_size) not in str(caught.value)


@pytest.mark.parametrize("standin", ["a link to a device", "a pipe", "a folder", "a socket"])
def test_what_is_swapped_between_look_and_open_is_refused_too(standin, tmp_path, monkeypatch):
    regular = tmp_path / "regular"
    regular.write_text("x")
    stat = regular.stat()
    STANDINS[standin](tmp_path / "swapped", regular)
    monkeypatch.setattr(Path, "lstat", lambda self: stat)  # the look saw a regular file
    with (
        within(30),
        pytest.raises(OSError, match=r"regular file|symbolic links|No such device"),
    ):
        files.open_regular(tmp_path / "swapped")


class FailingFile(io.BufferedReader):
    """A file on a disk that opens, and fails when it is read."""

    def readinto(self, *_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def failing_map(*_, **__):
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


@pytest.mark.parametrize("most", [0, 1 << 30])
def test_a_disk_that_fails_while_it_is_read_is_one_error_of_the_space(
    most, folder, monkeypatch
):
    space, opened = tl.open(folder), files.open_regular

    def failing(path):
        file = opened(path)
        return file if path.name == "manifest.json" else FailingFile(file.detach())

    monkeypatch.setattr(files, "open_regular", failing)
    monkeypatch.setattr(reading, "IN_MEMORY", most)
    for act in (lambda: tl.open(folder), space.verify):
        with pytest.raises(SpaceFormatError, match=r"cannot be read .*Input/output error"):
            act()


def test_a_file_that_cannot_be_mapped_is_one_error_of_the_space(folder, monkeypatch):
    monkeypatch.setattr(reading, "IN_MEMORY", 0)
    monkeypatch.setattr(reading, "mmap", failing_map)
    with pytest.raises(SpaceFormatError, match=r"cannot be read .*Cannot allocate memory"):
        tl.open(folder)


# Broken spaces, signed anew


def recipe(**changes):
    return lambda forged: forged.manifest["entries"].update(changes)


def top(**changes):
    return lambda forged: forged.manifest.update(changes)


def prompt(**changes):
    return lambda forged: forged.manifest["prompt"].update(changes)


def segment(**changes):
    return lambda forged: forged.manifest["segments"][0].update(changes)


def history(**changes):
    return lambda forged: forged.manifest["history"][-1].update(changes)


def poke(kind, name, index, value):
    return lambda forged: forged.poke(kind, name, index, value)


def make(kind, name, change):
    return lambda forged: forged.set(kind, name, change)


def drop(kind, name):
    def changed(arrays):
        return {other: array for other, array in arrays.items() if other != name}

    return lambda forged: forged.change(kind, changed)


def line(change, **options):
    return lambda forged: forged.line(change, **options)


def file_bytes(kind, change):
    def changed(forged):
        forged.files[0][kind] = change(forged.files[0][kind])

    return changed


def header(change):
    """Change the header of the entries' arrays."""

    def changed(data):
        length = int.from_bytes(data[:8], "little")
        found = json.loads(data[8 : 8 + length])
        found = change(found) or found
        text = found if isinstance(found, bytes) else json.dumps(found).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return file_bytes("entries", changed)


def all_rows(forged, kind, change):
    forged.change(kind, lambda arrays: {name: change(array) for name, array in arrays.items()})


def swap_rows(forged):
    all_rows(forged, "entries", lambda array: array[::-1].copy())


def cut_rows(forged):
    all_rows(forged, "entries", lambda array: array[:-1].copy())


def without_file(kind):
    def changed(forged):
        forged.manifest["segments"][0]["files"].pop(kind)
        forged.files[0].pop(kind)
        forged.manifest["segments"][0]["counts"].pop(kind, None)

    return changed


def same_id_in_two_segments(forged):
    forged.line(lambda record: record.update(id="fact-1"), segment=1)


def all_removed(forged):
    forged.manifest["segments"][1]["removed"] = ["owls"]


def no_context_but_entries(forged):
    forged.manifest["entries"] = None


def wider_vectors_in_one_segment(forged):
    for kind, name in (("vectors", "questions"), ("entries", "keys"), ("wrong", "keys")):
        forged.set(kind, name, lambda array: np.pad(array, [(0, 0), (0, 4)]), segment=1)


def wider_values_in_one_segment(forged):
    for kind in ("entries", "wrong"):
        forged.set(kind, "values", lambda array: np.pad(array, [(0, 0), (0, 4)]), segment=1)


def narrow(array):
    return array.astype(np.int64) if array.dtype == np.int32 else array.astype(np.float32)


LINE = b'{"id": "z", "question": "q", "answers": ["a"], "wrong_answers": [], "source": ""}\n'
BROKEN = {
    "a token of a million": poke("entries", "tokens", 3, 10**6),
    "the first token that is none": poke("entries", "tokens", 0, LM.vocabulary),
    "a token below the end": poke("entries", "tokens", 3, -2),
    "a wrong token of a million": poke("wrong", "tokens", 3, 10**6),
    "example 99": poke("entries", "examples", -1, 99),
    "example -1": poke("entries", "examples", 0, -1),
    "wrong example 99": poke("wrong", "examples", -1, 99),
    "answer 99": poke("entries", "answers", -1, 99),
    "answer -1": poke("entries", "answers", 0, -1),
    "wrong answer 99": poke("wrong", "answers", -1, 99),
    "step 99": poke("entries", "steps", 1, 99),
    "step -1": poke("entries", "steps", 0, -1),
    "the largest step": poke("wrong", "steps", -1, 2**31 - 1),
    "rows in another order": swap_rows,
    "an entry less than counted": cut_rows,
    "tokens of 64 bits": make("entries", "tokens", narrow),
    "tokens of 16 bits": make("entries", "tokens", lambda a: a.astype(np.int16)),
    "tokens as numbers with a point": make("entries", "tokens", lambda a: a.astype(np.float32)),
    "windows of 32 bits": make("entries", "windows", lambda a: a.astype(np.int32)),
    "keys of 32 bits in a space of 16": make("entries", "keys", narrow),
    "values of 32 bits in a space of 16": make("entries", "values", narrow),
    "values of 64 bits": make("entries", "values", lambda a: a.astype(np.float64)),
    "values as whole numbers": make("entries", "values", lambda a: a.astype(np.int32)),
    "vectors of 32 bits": make("vectors", "questions", narrow),
    "keys in three dimensions": make("entries", "keys", lambda a: a[:, None]),
    "values in three dimensions": make("entries", "values", lambda a: a[:, :, None]),
    "vectors in three dimensions": make("vectors", "questions", lambda a: a[:, None]),
    "tokens in two dimensions": make("entries", "tokens", lambda a: a[:, None]),
    "keys in one dimension": make("entries", "keys", lambda a: a[:, 0].copy()),
    "values of no width": make("entries", "values", lambda a: a[:, :0].copy()),
    "keys narrower than vectors": make("entries", "keys", lambda a: a[:, :16].copy()),
    "vectors narrower than keys": make("vectors", "questions", lambda a: a[:, :16].copy()),
    "fewer vectors than examples": make("vectors", "questions", lambda a: a[:2].copy()),
    "fewer tokens than keys": make("entries", "tokens", lambda a: a[:-1].copy()),
    "wider vectors in one segment": wider_vectors_in_one_segment,
    "wider values in one segment": wider_values_in_one_segment,
    "keys twice as long": make("entries", "keys", lambda a: 2 * a),
    "one key twice as long": poke("entries", "keys", 3, 0.5),
    "a key that is no number": poke("entries", "keys", (3, 0), np.nan),
    "a key without end": poke("wrong", "keys", (3, 0), np.inf),
    "a value that is no number": poke("entries", "values", (3, 0), np.nan),
    "all values no numbers": make("entries", "values", lambda a: a * np.float16(np.nan)),
    "a value without end": poke("entries", "values", (3, 0), -np.inf),
    "a wrong value without end": poke("wrong", "values", (0, 0), np.inf),
    "a vector that is no number": poke("vectors", "questions", (0, 0), np.nan),
    "vectors half as long": make("vectors", "questions", lambda a: a / 2),
    "one id in two segments": same_id_in_two_segments,
    "one id twice in a segment": line(lambda record: record.update(id="fact-2")),
    "removed ids of nobody": segment(removed=["nobody"]),
    "removed ids as numbers": segment(removed=[1]),
    "an id removed twice": segment(removed=["fact-4", "fact-4"]),
    "removed as a text": segment(removed="fact-4"),
    "nothing left of a segment": all_removed,
    "no segments": top(segments=[]),
    "segments as an object": top(segments={}),
    "counts of one less": segment(counts={"examples": 3, "entries": 1, "wrong": 1}),
    "counts as texts": lambda forged: forged.manifest["segments"][0]["counts"].update(
        examples="4"
    ),
    "counts with a point": lambda forged: forged.manifest["segments"][0]["counts"].update(
        examples=4.0
    ),
    "a kind of file nobody knows": lambda forged: forged.manifest["segments"][0][
        "files"
    ].update(more=forged.manifest["segments"][0]["files"]["entries"]),
    "no file of entries": without_file("entries"),
    "no file of vectors": without_file("vectors"),
    "a recipe without entries beside entries": no_context_but_entries,
    "entries that are false": top(entries=False),
    "entries that are empty": top(entries={}),
    "context true": recipe(context=True),
    "context 0": recipe(context=0),
    "context -1": recipe(context=-1),
    "context 8.0": recipe(context=8.0),
    "context none": recipe(context=None),
    "context of another word": recipe(context="all"),
    "window of another word": recipe(window="half"),
    "end as a number": recipe(end=1),
    "end false where an entry has no token": lambda forged: (
        recipe(end=False)(forged),
        forged.poke("entries", "tokens", 3, -1),
    ),
    "wrong false beside wrong entries": recipe(wrong=False),
    "wrong as a text": recipe(wrong="yes"),
    "vocabulary true": recipe(vocabulary=True),
    "vocabulary 0": recipe(vocabulary=0),
    "vocabulary as a text": recipe(vocabulary="420"),
    "vocabulary smaller than a token": recipe(vocabulary=9),
    "values of another word": recipe(values="states"),
    "values that are logits of another width": recipe(values="logits"),
    "head of another word": recipe(head="own"),
    "an opaque head with hidden states": recipe(head="opaque"),
    "dtype of another word": recipe(dtype="int8"),
    "dtype of another width": recipe(dtype="float32"),
    "computed of another word": recipe(computed="float33"),
    "model as a number": recipe(model=7),
    "fingerprint none": recipe(model_fingerprint=None),
    "a recipe with one field more": recipe(temperature=1),
    "a recipe with one field less": lambda forged: forged.manifest["entries"].pop("head"),
    "a prompt without a question": prompt(template="Answer!"),
    "a prompt as a list": prompt(template=["{question}"]),
    "a prompt's system as a number": prompt(system=1),
    "a prompt's chat as a text": prompt(chat="yes"),
    "a prompt that is a text": top(prompt="{question}"),
    "another prompt than its hash": prompt(template="Say: {question}"),
    "embedder as a list": top(embedder=["x"]),
    "embedder_hash none": top(embedder_hash=None),
    "format_version 2.0": top(format_version=2.0),
    "format_version true": top(format_version=True),
    "a field that nobody knows": top(more=1),
    "tuned as a list": top(tuned=[]),
    "tuned as a text": top(tuned="alpha"),
    "tuned with a list": top(tuned={"alpha": [1]}),
    "history as a text": top(history="build"),
    "history of texts": top(history=["build"]),
    "history of another word": history(what="burn"),
    "history at no time": history(time="noon"),
    "history with a time as a number": history(time=0),
    "history with -1 changed": history(changed=-1),
    "history with true examples": history(examples=True),
    "history with other counts": history(examples=99),
    "a line more than vectors": file_bytes("examples", lambda data: data + LINE),
    "entries with an array more": lambda forged: forged.change(
        "entries", lambda arrays: arrays | {"more": np.zeros(3, np.float32)}
    ),
    "entries with an array less": drop("entries", "windows"),
    "vectors without questions": drop("vectors", "questions"),
    "vectors with another shape beside questions": lambda forged: forged.change(
        "vectors", lambda arrays: arrays | {"more": np.zeros((9, 32), np.float16)}
    ),
    "vectors of a name in one segment only": lambda forged: forged.change(
        "vectors", lambda arrays: arrays | {"more": arrays["questions"]}
    ),
    "bytes behind the arrays": file_bytes("entries", lambda data: data + b"more"),
    "an empty file of entries": file_bytes("entries", lambda data: b""),
    "a header longer than the file": file_bytes(
        "entries", lambda data: (2**62).to_bytes(8, "little") + data[8:]
    ),
    "a header that is a list": header(lambda found: b"[]"),
    "a header nested without end": header(lambda found: b"[" * 50_000),
    "a header with an array twice": header(
        lambda found: json.dumps(found).encode()[:-1] + b', "steps": {}}'
    ),
    "arrays over each other": header(
        lambda found: found["steps"].update(data_offsets=found["tokens"]["data_offsets"])
    ),
    "an array of negative size": header(lambda found: found["keys"].update(shape=[-1, 32])),
    "an array of 2^60 rows": header(lambda found: found["keys"].update(shape=[2**60, 2**60])),
    "an array of an unknown type": header(lambda found: found["keys"].update(dtype="F8")),
    "an array with a type that is none": header(lambda found: found["keys"].update(dtype=[])),
    "an empty question": line(lambda record: record.update(question=" ")),
    "a question as a number": line(lambda record: record.update(question=1)),
    "no answers": line(lambda record: record.update(answers=[])),
    "answers as a text": line(lambda record: record.update(answers="x")),
    "answers as an object": line(lambda record: record.update(answers={"a": 1, "b": 2})),
    "an answer as a number": line(lambda record: record.update(answers=[1, 2])),
    "an answer twice": line(lambda record: record.update(answers=["a", "a"])),
    "an answer less than entries": line(lambda record: record.update(answers=["a"])),
    "a wrong answer less than entries": line(lambda record: record.update(wrong_answers=[])),
    "no id": line(lambda record: record.update(id="")),
    "an id as a number": line(lambda record: record.update(id=7)),
    "a source that is none": line(lambda record: record.update(source=None)),
    "half a character": line(lambda record: record.update(question="\ud800?")),
    "half a character, escaped": file_bytes(
        "examples", lambda data: data.replace(b"Are bats", b"\\ud800")
    ),
    "a field more in a line": line(lambda record: record.update(more=1)),
    "a field less in a line": line(lambda record: record.pop("source") and None),
    "a line that is a list": line(lambda record: [record]),
    "a line with a key twice": file_bytes(
        "examples", lambda data: data.replace(b'{"id"', b'{"id": "x", "id"', 1)
    ),
    "a line of 20 million characters": line(lambda record: record.update(question="q" * 20**6)),
    "a line nested without end": file_bytes(
        "examples", lambda data: data.replace(b"[", b"[" * 100_000, 1)
    ),
    "a number of 5,000 digits in a line": file_bytes(
        "examples", lambda data: data.replace(b'"fact-1"', b"9" * 5_000, 1)
    ),
    "a last line without its end": file_bytes("examples", lambda data: data + b'{"id": "x"'),
    "bytes that are no text": file_bytes("examples", lambda data: b"\xff" + data),
}


def refusal(act):
    """The error of ours that something ends in, or nothing."""
    try:
        act()
    except TruelineError as error:
        return error
    return None


def is_sound(space):
    """Ask with every method that looks into a space; tokens and reasons must be real ones."""
    for method in (tl.RAD(space, tau=0.2, beta=0.1), tl.KNNLM(space, k=8), tl.KATE(space, k=2)):
        answer = tl.generate(LM, method, "Are bats blind?", max_new_tokens=2, trace=True)
        assert all(0 <= token < LM.vocabulary for token in answer.token_ids)
        for step in answer.trace:
            best = [c.logit for c in (*step.base, *step.final) if c.probability]
            near = [(n.similarity, n.weight, n.push) for n in step.neighbors]
            assert all(map(math.isfinite, best)), step
            assert all(math.isfinite(x) for each in near for x in each), step


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_space_that_is_signed_anew_is_refused_when_it_is_opened(
    kind, forged, embedder, tmp_path
):
    BROKEN[kind](forged)
    forged.name_files()
    forged.write(tmp_path / "broken")
    with within(60), pytest.raises(SpaceFormatError) as caught:
        tl.open(tmp_path / "broken", embedder=embedder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize("command", ["verify", "info", "log", "compact"])
def test_a_broken_space_is_one_line_on_the_command_line(
    command, forged, tmp_path, monkeypatch, capsys
):
    history(what="burn")(forged)
    folder = forged.write(tmp_path / "broken")
    monkeypatch.setattr("sys.argv", ["trueline", command, str(folder)])
    with pytest.raises(SystemExit) as caught:
        main()
    told = capsys.readouterr()
    assert (caught.value.code, told.out) == (1, "")
    assert told.err.startswith("Error: ")
    assert told.err.count("\n") == 1


LARGE = [  # what is not looked at whole in a large space
    "keys twice as long",
    "one key twice as long",
    "a key that is no number",
    "a key without end",
    "a value that is no number",
    "all values no numbers",
    "a value without end",
    "a wrong value without end",
    "a vector that is no number",
    "vectors half as long",
]


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_broken_space_is_refused_by_verify_and_never_answers_with_garbage(
    kind, forged, embedder, tmp_path, monkeypatch
):
    monkeypatch.setattr(storage, "_CHECKED_ON_OPEN", 0)
    monkeypatch.setattr(reading, "IN_MEMORY", 0)
    BROKEN[kind](forged)
    forged.name_files()
    forged.write(tmp_path / "broken")
    space = tl.open(tmp_path / "broken", embedder=embedder)
    with pytest.raises(SpaceFormatError):
        space.verify()
    error = refusal(lambda: is_sound(space))
    assert error is None or "trueline verify" in str(error)
    if "all values" in kind or "a vector that" in kind:
        with pytest.raises(SpaceFormatError, match="no numbers"):
            is_sound(space)


@pytest.mark.parametrize("most", [0, 1 << 30])
def test_the_command_verify_checks_everything_once_however_large_the_space_is(
    most, folder, forged, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(storage, "_CHECKED_ON_OPEN", most)
    wanted, seen = tl.open(folder).verify(), Counter()
    for name in ("_check_hash", "vector_flaw"):
        check = getattr(reading, name)
        monkeypatch.setattr(
            reading, name, lambda *given, n=name, c=check: (seen.update([n]), c(*given))[1]
        )
    monkeypatch.setattr("sys.argv", ["trueline", "verify", "--json", str(folder)])
    main()
    assert json.loads(capsys.readouterr().out) == wanted
    assert seen == {"_check_hash": wanted["files"], "vector_flaw": 2}  # two segments
    BROKEN["a value that is no number"](forged)
    forged.name_files()
    broken = forged.write(tmp_path / "broken")
    monkeypatch.setattr("sys.argv", ["trueline", "verify", str(broken)])
    with pytest.raises(SystemExit):
        main()
    assert "not finite" in capsys.readouterr().err


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["entries", "wrong"])
def test_one_key_that_is_no_number_ends_every_method_that_searches_a_large_space(
    kind, number, forged, embedder, tmp_path, monkeypatch
):
    monkeypatch.setattr(storage, "_CHECKED_ON_OPEN", 0)
    forged.poke(kind, "keys", (-1, 0), number)  # far from what is asked
    forged.name_files()
    forged.write(tmp_path / "broken")
    space = tl.open(tmp_path / "broken", embedder=embedder)
    beta = 0.1 if kind == "wrong" else 0.0
    methods = [tl.RAD(space, tau=0.2, beta=beta)]
    for method in [*methods, tl.KNNLM(space, k=1)] if kind == "entries" else methods:
        with pytest.raises(SpaceFormatError, match=r"some keys .* no numbers.*verify"):
            tl.generate(LM, method, "Are bats blind?", max_new_tokens=2)


def test_keys_that_are_no_numbers_make_no_index(monkeypatch, tmp_path):
    monkeypatch.setattr(search, "LARGE", 30)
    monkeypatch.setattr(search, "home", lambda: tmp_path)
    keys = torch.nn.functional.normalize(torch.randn(64, 8), dim=1)
    keys[33, 2] = torch.nan
    with pytest.raises(SpaceFormatError, match="no numbers"):
        search.open_search(keys, "a" * 64)


MISMATCHED = {  # well formed, and not of this model
    "another vocabulary": recipe(vocabulary=10**6),
    "another fingerprint": recipe(model_fingerprint="0" * 64),
    "another tokenizer": recipe(tokenizer_hash="0" * 64),
    "another embedder": top(embedder_hash="0" * 64),
    "narrower hidden states": lambda forged: [
        forged.set(kind, "values", lambda array: array[:, :16].copy(), segment=number)
        for kind in ("entries", "wrong")
        for number in (0, 1)
    ],
}


@pytest.mark.parametrize("kind", MISMATCHED)
def test_a_well_formed_space_of_another_model_is_refused_when_it_is_asked(
    kind, forged, embedder, tmp_path
):
    MISMATCHED[kind](forged)
    forged.name_files()
    forged.write(tmp_path / "other")
    with pytest.raises(tl.TruelineError, match=r"built with|does not take") as caught:
        is_sound(tl.open(tmp_path / "other", embedder=embedder))
    assert isinstance(caught.value, SpaceError)


UNREADABLE = ("bytes that are no text", "a mark of byte order")
TEXTS = {
    "a number without end": lambda text: text.replace('"tuned": {}', '"tuned": {"a": 1e999}'),
    "NaN": lambda text: text.replace('"tuned": {}', '"tuned": {"a": NaN}'),
    "5,000 digits": lambda text: text.replace('"tuned": {}', f'"tuned": {{"a": {"9" * 5000}}}'),
    "a key twice": lambda text: text.replace('"tuned": {}', '"tuned": {}, "tuned": {}'),
    "nested without end": lambda text: text.replace(
        '"tuned": {}', '"tuned": ' + '{"a":' * 9000 + "1" + "}" * 9000
    ),
    "nested too deeply": lambda text: text.replace(
        '"tuned": {}', '"tuned": ' + '{"a":' * 40 + "1" + "}" * 40
    ),
    "half a character": lambda text: text.replace('"tuned": {}', '"tuned": {"a": "\\ud800"}'),
    "bytes that are no text": lambda text: text.encode() + b"\xff",
    "a mark of byte order": lambda text: "\ufeff" + text,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_manifest_that_readers_would_understand_differently_is_refused(
    kind, forged, tmp_path
):
    changed = TEXTS[kind](json.dumps(forged.manifest, ensure_ascii=False))
    if kind not in ("5,000 digits", "nested without end", *UNREADABLE):
        found = json.loads(changed)  # Python's own reader takes it, so it can be signed
        changed = changed.replace(found["sha256"], sign(found))
    folder = forged.write(tmp_path / "odd", text=changed)
    with within(60), pytest.raises(SpaceFormatError) as caught:
        tl.open(folder)
    assert "\n" not in str(caught.value)
    assert "checksum" not in str(caught.value)


def test_json_is_taken_up_to_32_levels_whatever_its_texts_hold():
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        parse_json(opened * 32 + "1" + closed * 32)
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(opened * 33 + "1" + closed * 33)
    assert parse_json(f'["{"[{" * 50}"]') == ["[{" * 50]


def test_a_manifest_that_is_no_text_or_too_large_is_not_called_missing(folder, monkeypatch):
    good = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(good[:10] + b"\xff" + good[10:])
    with pytest.raises(SpaceFormatError, match="is not UTF-8: byte 0xff at 10") as caught:
        tl.open(folder)
    assert "missing" not in str(caught.value)
    monkeypatch.setattr("trueline.space.folder._LONGEST", 1_000)
    with pytest.raises(SpaceFormatError, match="has more than 1,000 bytes") as caught:
        tl.open(folder)
    assert "missing" not in str(caught.value)


# Files that change under an open space


def tokens_of(space):
    answer = tl.generate(LM, tl.RAD(space, tau=0.2), "Are bats blind?", max_new_tokens=4)
    return answer.token_ids


def test_a_small_space_does_not_feel_what_becomes_of_its_files(folder, embedder):
    wanted = tokens_of(tl.open(folder, embedder=embedder))
    space = tl.open(folder, embedder=embedder)
    paths = sorted(folder.glob("*-*"))
    for path in paths:
        with path.open("rb+") as file:  # in place, as no writer of ours does
            file.write(bytes(path.stat().st_size))
    assert tokens_of(space) == wanted
    for path in paths:
        os.truncate(path, 0)
    assert len(space.examples) == 4
    assert tokens_of(tl.merge(space, space)) == wanted
    with pytest.raises(SpaceFormatError, match="bytes"):
        space.verify()


def test_a_large_space_is_mapped_and_answers_the_same(folder, embedder, monkeypatch):
    wanted = tokens_of(tl.open(folder, embedder=embedder))
    monkeypatch.setattr(reading, "IN_MEMORY", 0)
    space = tl.open(folder, embedder=embedder)
    assert tokens_of(space) == wanted
    space.compact().verify()
    assert tokens_of(space) == wanted


@pytest.mark.parametrize("act", EDITS)
def test_no_writer_of_ours_changes_a_file_in_place(act, build, folder, tmp_path):
    copy = tmp_path / "hard-links"  # a backup that shares every file with the folder
    shutil.copytree(folder, copy, copy_function=os.link)
    before = snapshot(copy)
    EDITS[act](build, folder)
    assert snapshot(copy) == before


# The kept index


def unit(seed, count=64, width=8):
    chance = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, width, generator=chance), dim=1)


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Keys with a kept index, and the same of another space; what FAISS reads is noted."""
    faiss = pytest.importorskip("faiss")
    monkeypatch.setattr(search, "LARGE", 30)
    monkeypatch.setattr(search, "home", lambda: tmp_path)
    keys, other = unit(0), unit(1)
    search.open_search(keys, "a" * 64)
    search.open_search(other, "b" * 64)
    (mine,), (theirs,) = (sorted((tmp_path / "indexes").glob(f"{x}*.faiss")) for x in "ab")
    good, read, real = sha256(mine.read_bytes()), [], faiss.read_index
    monkeypatch.setattr(
        faiss,
        "read_index",
        lambda path, *how: read.append(sha256(Path(path).read_bytes())) or real(path, *how),
    )
    return keys, mine, theirs, good, read


def resealed(path, **seal):
    path.with_suffix(".json").write_text(json.dumps(seal))


def odd_header(position, number):
    def changed(mine, theirs):
        data = bytearray(mine.read_bytes())
        data[position : position + 8] = number.to_bytes(8, "little")
        mine.write_bytes(data)

    return changed


def swapped(mine, theirs):
    shutil.copy(theirs, mine)
    shutil.copy(theirs.with_suffix(".json"), mine.with_suffix(".json"))


def swapped_and_sealed(mine, theirs):
    shutil.copy(theirs, mine)
    resealed(mine, keys="a" * 64, sha256=sha256(mine.read_bytes()))


def stand_in(which, standin):
    def changed(mine, theirs):
        path = mine if which == "index" else mine.with_suffix(".json")
        path.rename(path.with_name("elsewhere"))
        STANDINS[standin](path, path.with_name("elsewhere"))

    return changed


INDEXES = {
    "cut": lambda mine, theirs: mine.write_bytes(mine.read_bytes()[:-9]),
    "emptied": lambda mine, theirs: mine.write_bytes(b""),
    "flipped": lambda mine, theirs: mine.write_bytes(mine.read_bytes()[:-1] + b"\x77"),
    "noise": lambda mine, theirs: mine.write_bytes(bytes(range(256)) * 9),
    "another number of vectors": odd_header(8, 2**40),
    "another number of lists": odd_header(37, 2**62),
    "of another space": lambda mine, theirs: shutil.copy(theirs, mine),
    "of another space, with its seal": swapped,
    "a seal of another file": lambda mine, theirs: resealed(mine, keys="a" * 64, sha256=ZEROS),
    "a seal without a name": lambda mine, theirs: resealed(mine, sha256=ZEROS),
    "a seal that is a list": lambda mine, theirs: mine.with_suffix(".json").write_text("[]"),
    "a seal without end": lambda mine, theirs: mine.with_suffix(".json").write_text(
        "[" * 10**6
    ),
    "a seal of no text": lambda mine, theirs: mine.with_suffix(".json").write_bytes(b"\xff"),
    **{
        f"the {which} is {standin}": stand_in(which, standin)
        for which in ("index", "seal")
        for standin in STANDINS
    },
}


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_that_is_not_what_was_kept_is_not_even_read(kind, kept, caplog):
    keys, mine, theirs, good, read = kept
    INDEXES[kind](mine, theirs)
    with within(60):
        found = search.open_search(keys, "a" * 64).nearest(keys, 1)
    assert found.entries.tolist() == list(range(len(keys)))
    assert set(read) <= {good}  # FAISS read what we wrote, or nothing


def test_an_index_of_other_keys_is_noticed_even_if_it_is_sealed_for_ours(kept, caplog):
    keys, mine, theirs, good, _ = kept
    swapped_and_sealed(mine, theirs)
    found = search.open_search(keys, "a" * 64).nearest(keys, 1)
    assert found.entries.tolist() == list(range(len(keys)))
    assert "other keys" in caplog.text
    assert sha256(mine.read_bytes()) == good


def test_an_edit_uses_no_index_of_what_was_there_before(build, folder, monkeypatch, tmp_path):
    pytest.importorskip("faiss")
    monkeypatch.setattr(search, "LARGE", 20)
    monkeypatch.setattr("trueline.space.retriever._SMALL", 20)
    monkeypatch.setattr(search, "PROBE_FACTOR", 9)
    monkeypatch.setattr(search, "home", lambda: tmp_path)
    space = opened(build, folder)
    space.retriever("cpu")
    middle = tl.Example("Are bats blind?", ["Bats hear."], ["Bats are deaf."], id="fact-2")
    replaced = space.replace([middle], LM)
    for edited in (replaced, tl.open(folder, embedder=space.embedder), replaced.compact()):
        queries = torch.from_numpy(edited.entries.keys).float()
        hits = edited.retriever("cpu").nearest(queries, 3).similarities.view(-1, 3)
        exact = (queries @ queries.T).topk(3).values.clamp(max=1)
        assert torch.allclose(hits, exact, atol=2e-3)


def repeated(forged, times):
    """A space of one segment with its examples so many times, and keys at random."""
    (record,), (files,) = forged.manifest["segments"], forged.files
    lines = [json.loads(text) for text in files["examples"].splitlines()]
    copies = [{**one, "id": f"{n}-{one['id']}"} for n in range(times) for one in lines]
    files["examples"] = "".join(json.dumps(one) + "\n" for one in copies).encode()
    entries = record["counts"]["entries"]
    for kind in ("vectors", "entries"):
        all_rows(forged, kind, lambda array: np.concatenate([array] * times))
    shift = np.repeat(np.arange(times, dtype=np.int32) * len(lines), entries)
    forged.set("entries", "examples", lambda array: array + shift)
    forged.set(
        "entries", "keys", lambda array: unit(0, *array.shape).numpy().astype(array.dtype)
    )
    record["counts"] = {"examples": len(copies), "entries": entries * times}
    forged.manifest["history"][-1].update(record["counts"], changed=len(copies))


def test_one_key_changed_among_thousands_is_searched_by_an_index_of_its_own(
    build, examples, monkeypatch, tmp_path
):
    """A sample of the keys does not show the change; the file they are in does."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(search, "LARGE", 8_192)
    monkeypatch.setattr(search, "home", lambda: tmp_path)
    build(examples, out=tmp_path / "small", wrong=False)
    forged = Forged.of(tmp_path / "small")
    repeated(forged, 160)
    keys = torch.from_numpy(load(forged.files[0]["entries"])["keys"])
    changed = -keys[4_001:4_002]
    for number in (1, 2):
        forged.name_files()
        space = opened(build, forged.write(tmp_path / "large"))
        found = space.retriever("cpu").nearest(changed.float(), 1)
        assert len(list((tmp_path / "indexes").glob("*.faiss"))) == number
        assert (found.entries.item() == 4_001) == (number == 2)
        forged.poke("entries", "keys", 4_001, changed.numpy())
    assert found.similarities.item() == pytest.approx(1, abs=1e-3)


# Disks that are full


@contextmanager
def full_disk(most):
    """No file may grow beyond some bytes: the system says so in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def without_private(folder):
    return {name: data for name, data in contents(folder).items() if PRIVATE not in name}


@pytest.mark.parametrize("act", sorted({*EDITS} - {"remove"}))
def test_a_full_disk_leaves_the_old_state_and_the_same_call_goes_on(
    act, build, folder, tmp_path
):
    shutil.copytree(folder, tmp_path / "wanted")
    EDITS[act](build, tmp_path / "wanted")
    wanted, before = contents(tmp_path / "wanted"), without_private(folder)
    sizes = sorted({len(data) for name, data in wanted.items() if data != before.get(name)})
    whole = fingerprint(tl.open(folder))
    for most in [0, *(size - 1 for size in sizes)]:
        with full_disk(most), pytest.raises(SpaceError) as caught:
            EDITS[act](build, folder)
        assert "cannot be written (" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert before.items() <= without_private(folder).items()
        assert fingerprint(tl.open(folder)) == whole
    EDITS[act](build, folder)
    assert contents(folder) == wanted  # and nothing is left over


def test_a_first_build_on_a_full_disk_goes_on_to_the_same_bytes(build, tmp_path):
    build(OTHER, out=tmp_path / "wanted")
    wanted, folder = contents(tmp_path / "wanted"), tmp_path / "space"
    for most in [0, *sorted({len(data) - 1 for data in wanted.values()})]:
        with full_disk(most), pytest.raises(SpaceError, match="cannot be written"):
            build(OTHER, out=folder)
        with pytest.raises(SpaceFormatError):
            tl.open(folder)
    build(OTHER, out=folder)
    assert contents(folder) == wanted


# The fuzzer


def fingerprint(space):
    """All that a space says."""
    arrays = [
        array.tobytes()
        for part in space.parts
        for each in [part.segment.vectors, *(e.arrays() for e in part.segment.sets().values())]
        for array in each.values()
    ]
    removed = [sorted(part.removed) for part in space.parts]
    told = [space.recipe, list(space.examples), space.commits, dict(space.tuned), removed]
    return repr(told), arrays


def attack(folder, embedder, wanted, *, is_signed):
    """What becomes of a space: which word it is refused by, or that it is used soundly."""
    with within(120):
        try:
            space = tl.open(folder, embedder=embedder)
        except SpaceError:
            return "refused by open"
        try:
            space.verify()
        except SpaceError:
            assert is_signed, "unsigned damage was opened"
            is_sound_or_refused(space)
            return "refused by verify"
        json.dumps(space.info(), allow_nan=False)
        if not is_signed:
            assert fingerprint(space) == wanted, "unsigned damage was used"
            return "opened, the same as before"
        return is_sound_or_refused(space)


def is_sound_or_refused(space):
    error = refusal(lambda: is_sound(space))
    assert "\n" not in str(error)
    return "used, finite and sound" if error is None else "refused in use"


def run_rounds(border, quick, long, origin, embedder, tmp_path, change):
    """Change the space in every round, and count what became of it."""
    wanted = fingerprint(tl.open(origin, embedder=embedder))
    whole, counted = Forged.of(origin), Counter()
    for chance in rounds(border, quick, long):
        forged, is_signed = deepcopy(whole), chance.random() < 0.7
        said = "not changed"
        try:
            said = change(chance, forged, is_signed, tmp_path / "space")
            outcome = attack(tmp_path / "space", embedder, wanted, is_signed=is_signed)
        except BaseException as error:
            raise AssertionError(f"{chance.name}, signed: {is_signed}: {said}") from error
        counted["signed" if is_signed else "unsigned", outcome] += 1
    print(f"\n{border}: {sum(counted.values())} rounds")
    for (kind, outcome), count in sorted(counted.items()):
        print(f"  {kind}, {outcome}: {count}")
    return counted


def test_mutated_manifests_are_refused_or_sound(origin, embedder, tmp_path):
    def change(chance, forged, is_signed, folder):
        text = None
        if not is_signed and chance.random() < 0.5:
            text = mutated_bytes(chance, (origin / "manifest.json").read_bytes())
        else:
            for _ in range(chance.choice([1, 1, 1, 2, 3])):
                found = mutated(chance, forged.manifest)
                forged.manifest = found if isinstance(found, dict) else forged.manifest
            for each in records(forged.manifest, "segments"):
                if chance.random() < 0.9 and is_named(each):
                    name_segment(each)
        # The files of the space stand beside it whatever the manifest says.
        Forged.of(origin).write(folder)
        manifest = json.dumps(sealed(forged.manifest, is_signed), ensure_ascii=False)
        data = manifest.encode("utf-8", "surrogatepass") if text is None else text
        (folder / "manifest.json").write_bytes(data)
        return data[:20_000]

    found = run_rounds("manifests", 75, 5_000, origin, embedder, tmp_path, change)
    assert found["signed", "refused by open"]


def records(manifest, name):
    found = manifest.get(name)
    return found if isinstance(found, list) else []


def is_named(record):
    """Whether a segment still has files to be named by."""
    found = record.get("files") if isinstance(record, dict) else None
    return isinstance(found, dict) and all(
        isinstance(file, dict) and isinstance(file.get("sha256"), str)
        for file in found.values()
    )


def sealed(manifest, is_signed):
    if not is_signed:
        return manifest
    return {**manifest, "sha256": sign(manifest)}


def test_mutated_segments_are_refused_or_sound(origin, embedder, tmp_path):
    def change(chance, forged, is_signed, folder):
        number = chance.randrange(2)
        kind = chance.choice(["examples", "examples", "vectors", "entries", "entries", "wrong"])
        data = forged.files[number][kind]
        way = chance.randrange(3)
        if way == 0:
            data = mutated_bytes(chance, data)
        elif kind == "examples":
            data = mutated_lines(chance, data)
        else:
            data = mutated_arrays(chance, data)
        forged.files[number][kind] = data
        if is_signed:
            forged.name_files()
            if chance.random() < 0.5:
                recount(forged, number)
        forged.write(folder)
        return kind, number, way, data[:5_000]

    found = run_rounds("segments", 75, 5_000, origin, embedder, tmp_path, change)
    assert found["signed", "refused by open"]
    assert found["signed", "used, finite and sound"]
    assert found["unsigned", "refused by open"]


def recount(forged, number):
    """Let the manifest say of a segment what its files say."""
    counts = forged.manifest["segments"][number]["counts"]
    for kind, data in forged.files[number].items():
        try:
            if kind == "examples":
                counts[kind] = data.count(b"\n")
            elif kind in counts:
                counts[kind] = len(load(data)["keys"])
        except Exception:  # a file that nobody can read has no count
            continue


def mutated_lines(chance, data):
    lines = data.decode("utf-8").split("\n")
    number = chance.randrange(len(lines) - 1)
    found = mutated(chance, json.loads(lines[number]))
    lines[number] = json.dumps(found, ensure_ascii=chance.random() < 0.5)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@np.errstate(all="ignore")
def mutated_arrays(chance, data):
    """Arrays with numbers poked, of another type or shape, dropped, doubled or swapped."""
    arrays = load(data)
    name = chance.choice(sorted(arrays))
    array, way = arrays[name].copy(), chance.randrange(8)
    if way <= 3:
        place = chance.randrange(array.size)
        array.reshape(-1)[place] = odd_number(chance, array.dtype)
    elif way == 4:
        kinds = [np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_]
        array = array.astype(chance.choice(kinds))
    elif way == 5:
        array = chance.choice([array[:-1], array[:, None], array[::-1], array[..., :1]])
    elif way == 6:
        rows = np.array([chance.randrange(len(array)) for _ in array])
        array = array[rows]
    else:
        arrays[f"{name}2"] = arrays.pop(name) if chance.random() < 0.5 else array
        return save(arrays)
    return save(arrays | {name: np.ascontiguousarray(array)})


def odd_number(chance, dtype):
    if dtype.kind == "f":
        return dtype.type(chance.choice([np.nan, np.inf, -np.inf, 0, -1, 1, 6e4, 1e-7]))
    limits = np.iinfo(dtype)
    return chance.choice([limits.min, limits.max, -1, 0, 1, 2, 3, 99, LM.vocabulary])


@pytest.mark.parametrize("field", ["model", "embedder"])
def test_what_only_a_space_names_is_not_fetched_from_the_hub(
    field, origin, tmp_path, monkeypatch
):
    asked = []

    def snapshot_download(name, **options):
        asked.append(options)
        raise FileNotFoundError(name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    forged = Forged.of(origin)
    part = forged.manifest if field == "embedder" else forged.manifest["entries"]
    part[field] = "somebody/else"
    forged.write(tmp_path / "theirs.space")
    space = tl.open(tmp_path / "theirs.space")
    use = {
        "model": lambda: open_session(["rad"], space=space),
        "embedder": lambda: space.retriever("cpu"),
    }[field]
    with pytest.raises(TruelineError, match=f"because a space names it.*--{field}"):
        use()
    assert asked == [{"local_files_only": True}]
