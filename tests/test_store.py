"""The folder of a space: kills and races lose nothing, damage and foreign data are refused."""

import json
import math
import os
import random
import resource
import shutil
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from forged import KINDS, Forged
from safetensors.numpy import load, save
from test_space import MORE, contents, ids, noon

import trueline as tl
from trueline import store
from trueline.embed import load_embedder
from trueline.errors import SpaceConflictError, SpaceError, SpaceFormatError, TruelineError
from trueline.store import PRIVATE

sys.path.insert(0, str(Path(__file__).parent / "hostile"))
from attack import mutated, mutated_bytes, rounds, within

LM = tiny.language_model("llama")
OTHER = [tl.Example("Do fish swim?", ["Fish swim."], ["Fish fly."], id="fish")]
OWLS = tl.Example("Do owls see?", ["Owls see."], ["Owls are blind."], id="owls")


@pytest.fixture(scope="module")
def build(embedder):
    def made(examples, **options):
        usual = {"context": 8, "embedder": embedder, "now": noon, "wrong": True, "end": True}
        return tl.build(LM, examples, **{**usual, **options})

    made.embedder, made.other = embedder, made(OTHER)
    return made


@pytest.fixture(scope="module")
def origin(build, tmp_path_factory):
    """A space that was edited; nobody changes it."""
    folder = tmp_path_factory.mktemp("origin") / "facts.space"
    build(MORE[:2], out=folder).add(MORE[2:], LM).remove("water")
    return folder


@pytest.fixture
def folder(origin, tmp_path):
    shutil.copytree(origin, tmp_path / "facts.space")
    return tmp_path / "facts.space"


def opened(build, folder):
    return tl.open(folder, embedder=build.embedder, now=noon)


ACTS = {  # all that writes to a folder of a space
    "build": lambda build, folder: build(OTHER, out=folder, overwrite=True),
    "save": lambda build, folder: replace(build.other).save(folder),
    "merge": lambda build, folder: tl.merge(opened(build, folder), build.other, out=folder),
    "add": lambda build, folder: opened(build, folder).add(OTHER, LM),
    "replace": lambda build, folder: opened(build, folder).replace([OWLS], LM),
    "remove": lambda build, folder: opened(build, folder).remove("owls"),
    "tune": lambda build, folder: opened(build, folder).tune({"threshold": 0.5}),
}


# Kills


class Killed(BaseException):
    """The process is gone: nothing it would still do happens."""


@contextmanager
def killed_at(moment, monkeypatch):
    """Let the n-th change of the disk be the last thing that happens, done or half done.

    From then on every further change fails, so that no `finally` tidies up, as after a kill.
    """
    changes = 0

    def watched(function, done):
        def call(*given, **options):
            nonlocal changes
            changes += 1
            if changes <= moment:
                return function(*given, **options)
            if changes == moment + 1:
                done(*given)
            raise Killed

        return call

    def half(path, data):
        write(path, data[: len(data) // 2])

    write = Path.write_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", watched(write, half))
        for name in ("replace", "rename", "fsync", "unlink", "mkdir", "rmdir"):
            patch.setattr(os, name, watched(getattr(os, name), lambda *_: None))
        with suppress(Killed):
            yield lambda: changes > moment


# How many points there are at least, more than two hundred together.
LEAST = dict(build=45, save=28, merge=28, add=42, replace=42, remove=28, tune=8)
LEAST["first build"] = 40


@pytest.mark.parametrize("kind", LEAST)
def test_killed_at_any_point_it_is_the_old_state_or_the_new_one(
    kind, build, origin, tmp_path, monkeypatch
):
    act = ACTS.get(kind, ACTS["build"])
    if kind == "first build":
        origin = tmp_path / "empty"
        origin.mkdir()
    act(build, shutil.copytree(origin, tmp_path / "wanted"))
    old, new = contents(origin), contents(tmp_path / "wanted")
    for moment in count():
        folder = shutil.copytree(origin, tmp_path / f"killed-{moment}")
        with killed_at(moment, monkeypatch) as is_killed:
            act(build, folder)
        if not is_killed():
            break
        held = contents(folder)
        state = old if held.get("space.json") == old.get("space.json") else new
        assert state.items() <= held.items(), moment  # space.json, and every file it names
        if state:
            opened(build, folder).verify()
        else:
            with pytest.raises(SpaceFormatError):
                tl.open(folder)
        if state is old:
            act(build, folder)
        else:
            opened(build, folder).save(folder)
        assert contents(folder) == new, moment  # and nothing is left over
        shutil.rmtree(folder)
    assert moment >= LEAST[kind], moment


MANY = [
    tl.Example(f"{question} {n}", answers)
    for n in range(10)
    for question, answers in tiny.FACTS
]


def build_many(embedder_folder, out):
    """What a child process runs until it is killed."""
    torch.set_num_threads(1)
    embedder, lm = load_embedder(embedder_folder), tiny.language_model("llama")
    tl.build(lm, MANY, context=8, embedder=embedder, out=out, overwrite=True, now=noon)


@pytest.fixture(scope="module")
def children():
    """Children forked from a server that has imported everything: no start-up cost."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        fork = get_context("forkserver")
        fork.set_forkserver_preload(["test_store"])
        yield fork


@pytest.mark.slow
def test_a_build_that_is_really_killed_resumes_to_the_same_bytes(
    build, embedder_folder, tmp_path, children
):
    def start(out):
        child = children.Process(target=build_many, args=(embedder_folder, out))
        child.start()
        return child

    build(MORE, out=tmp_path / "out")
    start(tmp_path / "whole").join()
    child = start(tmp_path / "out")  # which replaces an older space
    kept = f"{PRIVATE}/work-*/entries-*.safetensors"
    while child.is_alive() and not list((tmp_path / "out").glob(kept)):
        child.join(0.001)
    child.kill()
    child.join()
    assert ids(tl.open(tmp_path / "out")) == [one.id for one in MORE]
    start(tmp_path / "out").join()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


# Races


def race(folder, embedder_folder, number, turns):
    """What a child runs: commits of its own until all are in, whoever comes in between."""
    torch.set_num_threads(1)
    lm, embedder = tiny.language_model("llama"), load_embedder(embedder_folder)
    space = tl.open(folder, embedder=embedder)
    for turn in range(turns):
        example = tl.Example(f"Is it {turn}?", "Yes, it is.", id=f"{number}-{turn}")
        while True:
            try:
                space = space.current().add([example], lm)
                break
            except SpaceConflictError:
                continue


@pytest.mark.slow
def test_writers_that_race_lose_nothing_and_readers_see_whole_states(
    build, embedder_folder, tmp_path, children
):
    space = build(MORE, out=tmp_path / "space")
    runs = [
        children.Process(target=race, args=(tmp_path / "space", embedder_folder, number, 5))
        for number in range(3)
    ]
    for run in runs:
        run.start()
    sizes = [len(space)]
    while any(run.is_alive() for run in runs):
        space = space.current()
        sizes.append(len(space))
    assert sizes == sorted(sizes)
    space = tl.open(tmp_path / "space")
    wanted = {f"{number}-{turn}" for number in range(3) for turn in range(5)}
    assert {*ids(space)} == wanted | {one.id for one in MORE}
    assert len(space.history()) == 16
    space.verify()
    assert len(contents(tmp_path / "space")) == 7  # nothing is left over


def test_a_writer_that_comes_second_is_refused_and_goes_on(build, tmp_path, monkeypatch):
    first = build(MORE[:2], out=tmp_path / "space")
    second = opened(build, tmp_path / "space")
    first.add(OTHER, LM)
    with pytest.raises(SpaceConflictError, match=r"add of 1 example at 2026.*current\(\)"):
        second.add(MORE[2:], LM)
    for edit in (lambda: second.remove("water"), lambda: second.tune({"threshold": 1})):
        with pytest.raises(SpaceConflictError):
            edit()
    assert ids(tl.open(tmp_path / "space")) == ["water", "owls", "fish"]

    def passes(*_):
        pytest.fail("the model ran again for what was computed before")

    with monkeypatch.context() as patch:
        patch.setattr("trueline.rad.build._entries", passes)
        done = second.current().add(MORE[2:], LM)
    assert ids(done) == ["water", "owls", "fish", "air"]
    assert not (tmp_path / "space" / PRIVATE).exists()


def test_a_build_notices_an_edit_that_came_in_between(build, examples, tmp_path):
    space = build(MORE, out=tmp_path / "space")
    edits = iter([lambda: space.remove("owls")])

    def meanwhile(done, total):
        next(edits, lambda: None)()

    with pytest.raises(SpaceConflictError, match="remove of 1 example"):
        build(examples, out=tmp_path / "space", overwrite=True, progress=meanwhile)
    assert ids(tl.open(tmp_path / "space")) == ["water", "air"]
    build(examples, out=tmp_path / "space", overwrite=True)
    assert ids(tl.open(tmp_path / "space")) == [one.id for one in examples]


def test_a_read_that_is_overtaken_by_a_commit_starts_again(build, folder):
    space = opened(build, folder)

    def parse(manifest, read):
        if len(manifest.history) == len(space.history()):
            space.remove("owls")  # the folder that was just named is gone
        return store.examples_in(read(store.EXAMPLES))

    examples = store.read(folder, parse)
    assert [example.id for example in examples] == ["air"]


def test_a_space_that_is_gone_takes_no_edit(build, folder):
    space = opened(build, folder)
    shutil.rmtree(folder)
    with pytest.raises(SpaceConflictError, match="gone or damaged"):
        space.remove("owls")
    with pytest.raises(SpaceFormatError, match="no space at"):
        space.current()


def test_two_builds_alike_do_not_write_to_one_folder(build, tmp_path):
    out, tries = tmp_path / "space", []

    def meanwhile(done, total):
        if not tries:
            tries.append(1)
            with pytest.raises(SpaceError, match="another build or edit like this one"):
                build(MORE, out=out)

    build(MORE, out=out, progress=meanwhile)
    assert tries
    assert not (out / PRIVATE).exists()


def test_a_build_clears_the_work_that_others_left_but_not_what_is_in_use(build, folder):
    left, held = (folder / PRIVATE / f"work-{digit * 16}" for digit in "01")
    for work in (left, held):
        work.mkdir(parents=True)
        (work / "entries-00000.safetensors").write_bytes(b"half")
    with store.locked(held / "lock", 0.0):
        build(OTHER, out=folder, overwrite=True)
        assert (left.exists(), held.exists()) == (False, True)
    build(MORE, out=folder, overwrite=True)
    assert not (folder / PRIVATE).exists()


# Folders and links of others


def plant(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


G = f"g-{'0' * 16}"
FOREIGN = {
    "a file": {"letters.txt": "dear"},
    "a private folder of somebody else": {f"{PRIVATE}/letters.txt": "dear"},
    "letters in a folder like ours": {f"{G}/letters.txt": "dear"},
    "letters in work like ours": {f"{PRIVATE}/work-{'0' * 16}/letters.txt": "dear"},
    "letters next to a folder like ours": {f"{G}/examples.jsonl": "x", "letters.txt": "dear"},
    "a space.json of something else": {"space.json": '{"name": "x", "version": "1"}'},
    "another form of our name": {"space.json": '{"format": "trueline space"}'},
}
NEW = {
    "build": ACTS["build"],
    "save": ACTS["save"],
    "build without overwrite": lambda build, folder: build(OTHER, out=folder),
    "merge": lambda build, folder: tl.merge(build.other, build(MORE), out=folder),
}


@pytest.mark.parametrize("act", NEW)
@pytest.mark.parametrize("kind", FOREIGN)
def test_nothing_is_changed_in_a_folder_of_somebody_else(kind, act, build, tmp_path):
    plant(tmp_path, FOREIGN[kind])
    before = contents(tmp_path)
    with pytest.raises(SpaceError, match="holds no space"):
        NEW[act](build, tmp_path)
    assert contents(tmp_path) == before


def links(name, target):
    """Puts a link where a file of ours stands or will stand."""

    def planted(folder, outside):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside / target)

    return planted


def strays(folder, outside):
    """Links and letters where only what a kill left is deleted."""
    for number, target in enumerate(("private", "letters.txt")):
        (folder / f"g-{number:016d}").symlink_to(outside / target)
    plant(folder / f"g-{'2' * 16}", {"letters.txt": "dear", "examples.jsonl": "left"})
    (folder / f"g-{'2' * 16}" / "rad").symlink_to(outside / "private")
    plant(folder, {"letters.txt": "dear", "g-0123/examples.jsonl": "dear letters"})


PLANTED = {  # what is planted into a space of ours, and whether edits are refused then
    "the private folder is a link": (links(PRIVATE, "private"), True),
    "the lock is a link": (links(f"{PRIVATE}/lock", "letters.txt"), True),
    "space.json is a link": (links("space.json", "letters.txt"), True),
    "links and letters named like strays": (strays, False),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", PLANTED)
def test_nothing_is_written_or_deleted_through_a_link(kind, act, build, folder, tmp_path):
    outside = tmp_path / "outside"
    plant(outside, {"letters.txt": "dear", "private/examples.jsonl": "dear"})
    planted, is_refused = PLANTED[kind]
    planted(folder, outside)
    foreign = {
        path: content
        for path, content in contents(folder).items()
        if isinstance(content, str) or "dear" in str(content)
    }
    before = contents(outside)
    with within(60):
        if is_refused:
            with pytest.raises(SpaceError) as caught:
                ACTS[act](build, folder)
            assert "\n" not in str(caught.value)
        else:
            ACTS[act](build, folder)
            tl.open(folder).verify()
    assert contents(outside) == before
    assert foreign.items() <= contents(folder).items()


def test_a_linked_folder_of_files_is_not_read_and_not_written(build, folder, tmp_path):
    (tmp_path / "outside").mkdir()
    (generation,) = folder.glob("g-*")
    shutil.move(generation, tmp_path / "outside" / generation.name)
    shutil.copytree(folder, tmp_path / "copy")
    shutil.copytree(tmp_path / "outside", tmp_path / "copy", dirs_exist_ok=True)
    generation.symlink_to(tmp_path / "outside" / generation.name)
    before = contents(tmp_path)
    with pytest.raises(SpaceFormatError, match="no folder of the space"):
        tl.open(folder)
    with pytest.raises(SpaceError, match="cannot be written"):
        opened(build, tmp_path / "copy").save(folder)  # it would have that very name
    assert before.items() <= contents(tmp_path).items()


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/below", "file"])
def test_a_path_that_can_hold_no_space_is_one_error(name, build, tmp_path):
    (tmp_path / "file").write_text("mine")
    for act in (tl.open, lambda folder: replace(build.other).save(folder)):
        with pytest.raises(SpaceError) as caught:
            act(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_missing_folder_is_named_with_what_is_like_it(folder):
    with pytest.raises(SpaceFormatError, match=r"no space at .*did you mean facts\.space\?"):
        tl.open(folder.with_name("fakts.space"))


# Disks that are full or fail


@contextmanager
def full_disk(most):
    """No file may grow beyond some bytes: the system refuses in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("act", ["first build", *ACTS])
def test_a_full_disk_leaves_the_old_state_and_the_same_call_goes_on(
    act, build, folder, tmp_path
):
    do = ACTS.get(act, lambda build, folder: build(OTHER, out=folder))
    if act == "first build":
        shutil.rmtree(folder)
        do(build, tmp_path / "wanted")
    else:
        do(build, shutil.copytree(folder, tmp_path / "wanted"))
    wanted, before = contents(tmp_path / "wanted"), contents(folder)
    new = [data for name, data in wanted.items() if data and data != before.get(name)]
    for most in [0, *sorted({len(data) - 1 for data in new})]:
        with full_disk(most), pytest.raises(SpaceError, match="cannot be written") as caught:
            do(build, folder)
        assert "\n" not in str(caught.value)
        assert before.items() <= contents(folder).items()
        if before:
            tl.open(folder).verify()
        else:
            with pytest.raises(SpaceFormatError):
                tl.open(folder)
    do(build, folder)
    assert contents(folder) == wanted  # and nothing is left over


# Damage


STANDINS = {
    "a link": lambda path, outside: path.symlink_to(outside),
    "a link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "a pipe": lambda path, outside: os.mkfifo(path),
    "a folder": lambda path, outside: path.mkdir(),
    "nothing": lambda path, outside: None,
}


@pytest.mark.parametrize("name", ["space.json", "g-*/examples.jsonl", "g-*/rad/wrong*"])
@pytest.mark.parametrize("standin", STANDINS)
def test_what_is_no_regular_file_is_refused_at_once(standin, name, folder, tmp_path):
    space = tl.open(folder)
    (path,) = folder.glob(name)
    path.rename(tmp_path / "elsewhere")
    STANDINS[standin](path, tmp_path / "elsewhere")
    for act in (lambda: tl.open(folder), space.verify):
        with within(30), pytest.raises(SpaceFormatError) as caught:
            act()
        assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["space.json", *(f"g-*/{name}" for name in KINDS.values())])
def test_any_damage_is_noticed_and_replaced_only_with_overwrite(
    name, build, examples, tmp_path
):
    folder, other = tmp_path / "facts.space", tmp_path / "other.space"
    build(examples, out=folder)
    build(examples[1:], context=4).save(other)
    wanted, chance = contents(folder), random.Random(0)
    (path,), (theirs,) = folder.glob(name), other.glob(name)
    good = path.read_bytes()
    damaged = [good[: len(good) // 2], good[:-7], b"", theirs.read_bytes(), b"\xff" + good]
    for _ in range(40):
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(bad))
    for number, bad in enumerate(damaged):
        path.write_bytes(bad)
        with pytest.raises(SpaceFormatError) as caught:
            tl.open(folder)
        assert str(folder) in str(caught.value)
        assert "\n" not in str(caught.value)
        if number > 5:
            continue
        with pytest.raises(SpaceError, match=r"nothing was written.*--overwrite"):
            build(examples, out=folder)
        build(examples, out=folder, overwrite=True)
        assert contents(folder) == wanted


def test_a_space_does_not_feel_what_becomes_of_its_files(build, folder):
    space = opened(build, folder)
    wanted = tl.generate(LM, tl.RAD(space, tau=0.2), "Are bats blind?", max_new_tokens=4)
    for path in folder.glob("g-*/**/*.*"):
        os.truncate(path, 0)
    again = tl.generate(LM, tl.RAD(space, tau=0.2), "Are bats blind?", max_new_tokens=4)
    assert again.token_ids == wanted.token_ids
    with pytest.raises(SpaceFormatError, match="checksum differs"):
        space.verify()


# Broken spaces, signed anew


def top(**changes):
    return lambda forged: forged.manifest.update(changes)


def entries(**changes):
    return lambda forged: forged.manifest["entries"].update(changes)


def array(name, change, kind="wrong"):
    return lambda forged: forged.set(kind, name, change)


def poke(name, index, value):
    def poked(array):
        array = array.copy()
        array[index] = value
        return array

    return array(name, poked)


def line(**changes):
    return lambda forged: forged.line(changes)


def last_commit(**changes):
    return lambda forged: forged.manifest["history"][-1].update(changes)


BROKEN = {  # one row a check
    "a newer format": (top(format_version=99), "format 99.*install a newer trueline"),
    "a prompt without a question": (top(prompt={"template": "Answer!"}), "needs {question}"),
    "tuned beyond 1": (top(tuned={"threshold": 2}), r"tuned threshold must lie in \[0, 1\]"),
    "no history": (top(history=[]), "history"),
    "a commit at no time": (last_commit(time="noon"), "time"),
    "other counts": (last_commit(examples=99), "not as many as after"),
    "entries not settled": (entries(dtype="auto"), "does not say how"),
    "an array of another type": (array("tokens", lambda a: a.astype(np.int64)), "arrays are"),
    "fewer vectors": (array("answers", lambda a: a[:1].copy(), "vectors"), "shape"),
    "vectors half as long": (array("questions", lambda a: a / 2, "vectors"), "unit length"),
    "fewer rows of one array": (array("tokens", lambda a: a[:-1].copy()), "rows"),
    "keys narrower than vectors": (array("keys", lambda a: a[:, :16].copy()), "numbers"),
    "a token of a million": (poke("tokens", 3, 10**6), "a token that"),
    "example 99": (poke("examples", -1, 99), "an example that does not exist"),
    "answer -1": (poke("answers", 0, -1), "an answer that does not exist"),
    "a key that is no number": (poke("keys", (3, 0), np.nan), "unit length"),
    "a value without end": (poke("values", (0, 0), np.inf), "not finite"),
    "bytes after the arrays": (lambda x: x.files.update(wrong=x.files["wrong"] + b"x"), "read"),
    "one id twice": (line(id="air"), "two with one id"),
    "an example of other bytes": (line(more=1), "as trueline writes it"),
    "a file too many": (top(entries=None), "has the files"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_space_that_is_signed_anew_is_refused_when_it_is_opened(
    kind, origin, tmp_path
):
    change, reason = BROKEN[kind]
    forged = Forged.of(origin)
    change(forged)
    forged.write(tmp_path / "broken")
    with within(60), pytest.raises(SpaceFormatError, match=reason) as caught:
        tl.open(tmp_path / "broken")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2_000


# The fuzzer


def fingerprint(space):
    """All that a space holds."""
    arrays = [*space.vectors.values()]
    arrays += [a for _, each in space.entries.sets() for a in each.arrays().values()]
    values = [space.made_with(), space.examples, space.commits, dict(space.tuned)]
    return repr(values), [array.tobytes() for array in arrays]


def check_answers(space):
    """Ask with every method that looks into a space; tokens and reasons must be real ones."""
    for method in (
        tl.Corrective(space, threshold=0.0),
        tl.RAD(space, tau=0.2, beta=0.1),
        tl.KNNLM(space, k=8),
        tl.KATE(space, k=2),
        tl.Lookup(space, threshold=0.0),
    ):
        answer = tl.generate(LM, method, "Are bats blind?", max_new_tokens=2, trace=True)
        assert all(0 <= token < LM.vocabulary for token in answer.token_ids)
        for step in answer.trace:
            numbers = [c.logit for c in (*step.base, *step.final) if c.probability]
            numbers += [x for n in step.neighbors for x in (n.similarity, n.weight, n.push)]
            assert all(map(math.isfinite, numbers)), step


def outcome(folder, embedder, wanted):
    """What becomes of a space: refused when opened or used, unchanged, or used soundly."""
    try:
        space = tl.open(folder, embedder=embedder)
        space.verify()
        json.dumps(space.info(), allow_nan=False)
        if fingerprint(space) == wanted:
            return "unchanged"
        check_answers(space)
    except TruelineError as error:
        return "refused" + "".join(str(error).splitlines()[1:])
    return "sound"


def mutated_manifest(chance, forged):
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        changed = mutated(chance, forged.manifest)
        forged.manifest = changed if isinstance(changed, dict) else forged.manifest


def mutated_lines(chance, data):
    lines = data.decode("utf-8").split("\n")
    number = chance.randrange(len(lines) - 1)
    line = mutated(chance, json.loads(lines[number]))
    separators = (",", ":") if chance.random() < 0.8 else None
    lines[number] = json.dumps(line, ensure_ascii=False, separators=separators)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@np.errstate(all="ignore")
def mutated_arrays(chance, data):
    """Arrays with a number poked, of another type or shape, dropped or swapped."""
    arrays = load(data)
    name = chance.choice(sorted(arrays))
    array, way = arrays.pop(name).copy(), chance.randrange(7)
    if way <= 3:
        odd = [np.nan, np.inf, -np.inf, 0, -1, 1, 6e4, 1e-7]
        if array.dtype.kind != "f":
            odd = [np.iinfo(array.dtype).min, np.iinfo(array.dtype).max, -1, 0, 1, 99]
        array.reshape(-1)[chance.randrange(array.size)] = chance.choice(odd)
    elif way == 4:
        array = array.astype(chance.choice([np.float32, np.float64, np.int32, np.uint8, bool]))
    elif way == 5:
        array = chance.choice([array[:-1], array[:, None], array[::-1], array[..., :1]])
    else:
        array = array[np.array([chance.randrange(len(array)) for _ in array])]
    name = name if chance.random() < 0.9 else f"{name}2"
    return save(arrays | {name: np.ascontiguousarray(array)})


def test_mutated_spaces_are_refused_or_sound(origin, embedder, tmp_path):
    wanted = fingerprint(tl.open(origin, embedder=embedder))
    whole, counts, folder = Forged.of(origin), Counter(), tmp_path / "space"
    for chance in rounds("spaces", 150, 10_000):
        forged, is_signed, text = deepcopy(whole), chance.random() < 0.7, None
        kind = chance.choice(["space.json", "space.json", *KINDS])
        if kind == "space.json" and not is_signed:
            text = mutated_bytes(chance, (origin / kind).read_bytes())
        elif kind == "space.json":
            mutated_manifest(chance, forged)
        else:
            ways = [mutated_bytes, mutated_lines if kind == "examples" else mutated_arrays]
            forged.files[kind] = chance.choice([*ways, ways[1]])(chance, forged.files[kind])
        forged.write(folder, is_signed=is_signed, text=text)
        try:
            with within(120):
                result = outcome(folder, embedder, wanted)
            assert is_signed or result != "sound", "unsigned damage was used"
        except BaseException as error:
            raise AssertionError(f"{chance.name}: {kind}, signed: {is_signed}") from error
        counts[is_signed, result] += 1
    print(f"{sum(counts.values())} spaces (signed, result): {dict(counts)}")
    assert {*counts} >= {(True, "refused"), (True, "sound"), (False, "refused")}
    assert {result for _, result in counts} <= {"refused", "sound", "unchanged"}  # in one line
