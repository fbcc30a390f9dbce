"""Edits of a space: each equals one build, a kill or a race leaves the old state or the new."""

import copy
import json
import os
import random
import shutil
import signal
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from test_space import contents, noon

import trueline as tl
from trueline.embed import load_embedder
from trueline.errors import (
    ExampleError,
    SettingError,
    SpaceConflictError,
    SpaceError,
    SpaceFormatError,
    SpaceMismatchError,
)
from trueline.space.folder import PRIVATE

MORE = [
    tl.Example("Is water wet?", ["Water is wet.", "Yes."], ["No, water is dry."], id="water"),
    tl.Example("Do owls see?", "Owls see well in the dark.", id="owls"),
    tl.Example("Is air blue?", ["Air is not blue."], ["Air is blue."], id="air"),
]
BATS = tl.Example("Are bats blind?", ["No, bats see."], ["Bats are blind."], id="fact-2")


@pytest.fixture(scope="module")
def build(embedder):
    """Builds with the tiny parts and a clock that stands still."""

    def made(examples, **options):
        lm = tiny.language_model("llama")
        options = {"context": 8, "embedder": embedder, "now": noon, **options}
        return tl.build(lm, examples, **options)

    return made


def ids(space):
    return [example.id for example in space.examples]


def same(one, other):
    """Whether two spaces hold the same examples and entries, vectors up to rounding."""
    sets = [(one.entries, other.entries), (one.wrong, other.wrong)]
    for mine, theirs in [pair for pair in sets if pair[0] is not None]:
        for name, array in mine.arrays().items():
            if name in ("keys", "values"):
                assert np.allclose(array, getattr(theirs, name), rtol=2e-3, atol=2e-3), name
            else:
                assert np.array_equal(array, getattr(theirs, name)), name
    vectors = [space.question_vectors("cpu") for space in (one, other)]
    assert torch.allclose(*vectors, atol=1e-3)
    return list(one.examples) == list(other.examples)


def answers(lm, space):
    found = tl.generate(lm, tl.RAD(space, tau=0.5), tiny.QUESTIONS[:3], max_new_tokens=4)
    return [answer.token_ids for answer in found]


class Edits:
    """Draws edits that a space allows."""

    def __init__(self, seed, lm, build):
        self.chance, self.lm, self.build, self.made = random.Random(seed), lm, build, 0

    def example(self, id=None):
        self.made += 1
        question, given = self.chance.choice(tiny.FACTS)
        wrong = self.chance.choice(tiny.WRONG)[: self.chance.randrange(3)]
        id = id or f"new-{self.made}"
        return tl.Example(f"{question} {self.made}", given[: 1 + self.made % 2], wrong, id=id)

    def step(self, space):
        kind = self.chance.choice(["add", "remove", "replace", "merge", "compact"])
        if kind == "add":
            return space.add(
                [self.example() for _ in range(self.chance.choice([1, 2]))], self.lm
            )
        if kind == "remove" and len(space) > 1:
            return space.remove(self.chance.sample(ids(space), 1))
        if kind == "replace":
            return space.replace([self.example(self.chance.choice(ids(space)))], self.lm)
        if kind == "merge":
            both = [self.example(), self.chance.choice(space.examples)]
            other = self.build(both, context=space.recipe.context, wrong=space.recipe.wrong)
            return tl.merge(space, other, out=space.folder)
        return space.compact()


@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_edits_equals_one_build(seed, build, lm, tmp_path):
    edits = Edits(seed, lm, build)
    begun = [edits.example(), replace(edits.example(), wrong_answers=["No."]), *MORE]
    out = tmp_path / "space" if seed % 2 else None
    space = build(begun, wrong=seed % 3 == 0, out=out)
    for _ in range(7):
        before = (space, ids(space))
        space = edits.step(space)
        assert ids(before[0]) == before[1]  # the old object goes on as it was
    fresh = build(list(space.examples), wrong=space.recipe.wrong)
    assert same(space, fresh)
    assert answers(lm, space) == answers(lm, fresh)
    if out is not None:
        again = tl.open(out, embedder=space.embedder)
        assert same(again, fresh)
        assert again.history() == space.history()
        again.verify()


def test_edits_of_a_space_without_entries_need_no_model(embedder, examples, tmp_path):
    space = tl.build(None, examples, embedder=embedder, context=None, out=tmp_path / "space")
    assert (len(space), space.info()["entries"]) == (4, 0)
    space = space.add(MORE).remove(["owls", "fact-1"]).replace([BATS])
    left = tl.build(None, list(space.examples), embedder=embedder, context=None)
    assert same(space.compact(), left)
    assert same(tl.open(tmp_path / "space", embedder=embedder), left)
    assert space.info()["bytes_per_example"] < 2000
    with pytest.raises(SpaceMismatchError, match=r"rad needs entries.*context=8"):
        tl.RAD(space)


def test_any_model_may_use_a_space_without_entries(embedder, examples):
    space = tl.build(None, examples, embedder=embedder, context=None)
    lm = tiny.language_model("qwen2")
    assert tl.generate(lm, tl.KATE(space, k=2), "Are bats blind?", max_new_tokens=3).token_ids


def test_a_large_space_is_named_by_the_real_vectors_of_its_questions(embedder, examples):
    space = tl.build(None, examples, embedder=embedder, context=None)
    wanted = embedder.embed([example.question for example in examples])
    assert torch.allclose(space.question_vectors("cpu"), wanted, atol=1e-3)


def test_entries_are_only_made_with_the_model_they_belong_to(build, examples, lm):
    space = build(examples)
    with pytest.raises(SettingError, match=r"lm=tl\.load\('tiny-llama'\)"):
        space.add(MORE)
    with pytest.raises(SpaceMismatchError, match="built with the model"):
        space.add(MORE, tiny.language_model("llama", seed=1))
    half = tl.LanguageModel(copy.deepcopy(lm.model).bfloat16(), lm.tokenizer, id=lm.id)
    with pytest.raises(SpaceMismatchError, match="load it with dtype='float32'"):
        space.add(MORE, half)


def test_an_id_that_is_taken_is_refused_and_names_replace(build, examples, lm):
    space = build(examples)
    with pytest.raises(ExampleError, match=r"'fact-2' \(0 of these 1 .*space\.replace"):
        space.add([BATS], lm)
    with pytest.raises(ExampleError, match=r"'fact-2' \(1 of these 1 with this very content"):
        space.add([examples[1]], lm)
    assert space.replace([examples[1]], lm) is space  # nothing changed
    changed = space.replace([BATS], lm)
    assert changed.example("fact-2") == BATS
    assert ids(changed) == ["fact-1", "fact-3", "fact-4", "fact-2"]


def test_an_unknown_id_is_refused_with_near_names(build, examples, lm):
    space = build(examples)
    with pytest.raises(ExampleError, match=r"the id 'fact-22'.*near names: 'fact-2'"):
        space.remove(["fact-1", "fact-22"])
    with pytest.raises(ExampleError, match=r"'owls'.*space\.add"):
        space.replace([MORE[1]], lm)
    with pytest.raises(SpaceError, match="nothing would be left"):
        space.remove(ids(space))
    assert len(space) == 4


def test_a_removed_example_is_gone_from_every_answer(build, examples, lm):
    space = build(examples).add(MORE, lm)
    left = space.remove(["fact-2"])
    for method in (tl.RAD(left, tau=-1.0), tl.KNNLM(left, k=5000), tl.KNNLM(left, k=7)):
        answer = tl.generate(lm, method, "Are bats blind?", max_new_tokens=2, trace=True)
        spoke = {near.example for step in answer.trace for near in step.neighbors}
        assert "fact-2" not in spoke
        assert spoke
    assert "fact-2" not in [one.id for one in tl.KATE(left, k=99).nearest("Are bats blind?")]
    hits = left.retriever("cpu").above(torch.ones(1, 32), [""], tau=-2.0)
    assert hits.entries.tolist() == list(range(len(left.entries)))
    values = left.retriever("cpu").values(hits.entries)
    assert torch.allclose(values, torch.from_numpy(left.entries.values).float())
    assert np.array_equal(left.retriever("cpu").tokens, left.entries.tokens)
    for entry in (0, 20, len(left.entries) - 1):
        example, answer, step = left.source_of(entry)
        assert example == left.examples[left.entries.examples[entry]]
        assert (answer, step) == (left.entries.answers[entry], left.entries.steps[entry])


def test_after_compact_no_byte_in_the_folder_tells_of_what_was_removed(build, lm, tmp_path):
    secret = tl.Example("Who is Xyzzyx?", "Xyzzyx is a secret.", id="xyzzyx-id")
    space = build([*MORE, secret], out=tmp_path / "space")
    with torch.no_grad():
        gone = space.remove("xyzzyx-id")
    held = b"".join(contents(tmp_path / "space").values())
    assert b"Xyzzyx" in held  # still on disk, in no answer
    old = answers(lm, space)
    compact = gone.compact()
    held = b"".join(contents(tmp_path / "space").values())
    assert b"yzzyx" not in held
    assert answers(lm, space) == old  # what was open stays readable
    assert same(tl.open(tmp_path / "space", embedder=space.embedder), compact)


def test_adding_writes_the_new_segment_and_leaves_the_old_files_alone(build, lm, tmp_path):
    space = build(MORE[:2], out=tmp_path / "space")
    before = {path: path.stat() for path in (tmp_path / "space").glob("*-*")}
    space.add(MORE[2:], lm)
    for path, stat in before.items():
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    assert len(list((tmp_path / "space").glob("*-*"))) == 2 * len(before)


def test_spaces_merge_if_they_were_made_alike_and_agree(build, examples, embedder, lm):
    space = build(examples)
    both = tl.merge(space, build([examples[1], *MORE]))
    assert ids(both) == [*ids(space), "water", "owls", "air"]
    assert same(both, build([*examples, *MORE]))
    with pytest.raises(ExampleError, match="under one id: 'fact-2'"):
        tl.merge(space, build([BATS]))
    for options, reason in [
        ({"context": 4}, "context 8 and 4"),
        ({"prompt": tl.Prompt("{question}")}, "prompt"),
        ({"end": True}, "end False and True"),
    ]:
        with pytest.raises(SpaceMismatchError, match=f"not made alike: {reason}"):
            tl.merge(space, build(MORE, **options))
    other = tl.build(tiny.language_model("llama", seed=1), MORE, context=8, embedder=embedder)
    with pytest.raises(SpaceMismatchError, match="model_fingerprint"):
        tl.merge(space, other)


def test_spaces_that_share_a_segment_merge_to_what_either_holds(build, examples, lm):
    space = build(examples)
    left, right = space.remove("fact-1"), space.remove("fact-3")
    both = tl.merge(left, right)
    assert ids(both) == ["fact-2", "fact-3", "fact-4", "fact-1"]
    assert same(both, build(list(both.examples)))


def test_history_says_what_was_committed(build, examples, lm, tmp_path):
    space = build(examples, out=tmp_path / "space").add(MORE, lm).remove("air").compact()
    lines = [(one.what, one.changed, one.examples) for one in space.history()]
    assert lines == [("build", 4, 4), ("add", 3, 7), ("remove", 1, 6), ("compact", 6, 6)]
    assert {one.time for one in space.history()} == {"2026-01-01T12:00:00Z"}
    assert space.history()[-1].entries == len(space.entries)


def test_a_reader_moves_to_the_newest_state_and_shares_what_is_open(build, lm, tmp_path):
    space = build(MORE, out=tmp_path / "space")
    reader = tl.open(tmp_path / "space", embedder=space.embedder)
    assert reader.current() is reader
    reader.retriever("cpu")
    added = space.add([BATS], lm)
    now = reader.current()
    assert (ids(reader), ids(now)) == (ids(space), ids(added))
    assert now.parts[0].segment is reader.parts[0].segment
    assert now.parts[0].segment.opened  # its keys and values too
    assert now.open_embedder("cpu") is reader.open_embedder("cpu")
    assert now.current() is now


def test_fifty_settings_open_nothing_twice(build, examples, lm, tmp_path, monkeypatch):
    build(examples, out=tmp_path / "space", wrong=True)
    opened = Counter()

    def counted(name):
        module, _, attribute = name.rpartition(".")
        function = getattr(__import__(module, fromlist=[attribute]), attribute)

        def call(*given, **options):
            opened[attribute] += 1
            return function(*given, **options)

        monkeypatch.setattr(name, call)

    for name in ("opened.load_embedder", "retriever.open_search", "retriever.Reader"):
        counted(f"trueline.space.{name}")
    counted("trueline.space.opened.Retriever")
    monkeypatch.setattr("trueline.space.opened.load_embedder", lambda *_, **__: embedder)
    embedder = build(examples).embedder
    space = tl.open(tmp_path / "space")
    rad = tl.RAD(space, beta=0.1)
    for number in range(50):
        swept = replace(rad, alpha=number / 50, tau=0.5 + number / 200)
        tl.generate(lm, swept, "Are bats blind?", max_new_tokens=1)
    tl.generate(lm, tl.KNNLM(space), "Are bats blind?", max_new_tokens=1)
    assert opened == {"Retriever": 2, "Reader": 2, "open_search": 2}  # truthful and wrong
    grown = space.add(MORE, lm)
    tl.generate(lm, tl.RAD(grown), "Are bats blind?", max_new_tokens=1)
    assert opened == {"Retriever": 3, "Reader": 3, "open_search": 2}  # the new segment only


def test_another_program_reads_a_space_with_numpy_and_json_alone(build, lm, tmp_path):
    folder = tmp_path / "space"
    space = build(MORE, out=folder, wrong=True).add([BATS], lm).remove("owls")
    segments = json.loads((folder / "manifest.json").read_text("utf-8"))["segments"]
    read = {"entries": [], "wrong": [], "vectors": []}
    for segment in segments:
        lines = (folder / segment["files"]["examples"]["name"]).read_text("utf-8").split("\n")
        names = [json.loads(line)["id"] for line in lines if line]
        live = np.array([name not in segment["removed"] for name in names])
        for kind in read:
            data = (folder / segment["files"][kind]["name"]).read_bytes()
            size = int(np.frombuffer(data, "<u8", 1)[0])
            found = {}
            for name, array in json.loads(data[8 : 8 + size]).items():
                begin, end = array["data_offsets"]
                code = {"F16": "<f2", "I32": "<i4", "I64": "<i8"}[array["dtype"]]
                flat = np.frombuffer(data[8 + size + begin : 8 + size + end], code)
                found[name] = flat.reshape(array["shape"])
            kept = live if kind == "vectors" else live[found["examples"]]
            read[kind].append({name: array[kept] for name, array in found.items()})
    for kind, entries in (("entries", space.entries), ("wrong", space.wrong)):
        for name, array in entries.arrays().items():
            if name != "examples":
                joined = np.concatenate([part[name] for part in read[kind]])
                assert np.array_equal(joined, array), name
    questions = np.concatenate([part["questions"] for part in read["vectors"]])
    assert np.array_equal(questions, space.question_vectors("cpu").half())


@pytest.mark.parametrize("method", [tl.RAD, tl.KNNLM])
def test_a_large_segment_keeps_its_index_when_a_space_is_edited(
    method, build, examples, lm, monkeypatch, tmp_path
):
    from trueline import search

    made = []
    monkeypatch.setattr(search, "home", lambda: tmp_path)
    monkeypatch.setattr(search, "LARGE", 30)
    monkeypatch.setattr("trueline.space.retriever._SMALL", 30)
    monkeypatch.setattr(search, "PROBE_FACTOR", 9)  # every list: nothing is missed
    index = search._index
    monkeypatch.setattr(search, "_index", lambda *given: made.append(1) or index(*given))
    space = build(examples, out=tmp_path / "space")
    settings = {"tau": 0.5} if method is tl.RAD else {}

    def tokens(space):
        found = tl.generate(lm, method(space, **settings), tiny.QUESTIONS, max_new_tokens=4)
        return [answer.token_ids for answer in found]

    tokens(space)
    edited = space.add(MORE[1:2], lm).remove("fact-2")  # a small segment beside the large one
    fast = tokens(edited)
    assert [type(block.search).__name__ for block in edited.retriever("cpu").blocks] == [
        "Index",
        "Exact",
    ]
    assert made == [1]
    again = tl.open(tmp_path / "space", embedder=space.embedder)
    assert tokens(again) == fast
    assert made == [1]  # found again under the segment's own hash
    queries = edited.question_vectors("cpu")
    near = edited.retriever("cpu").nearest(queries, 20).similarities.view(len(edited), 20)
    every = queries @ torch.from_numpy(edited.entries.keys).float().T
    assert torch.allclose(near, every.topk(20).values, atol=1e-3)
    assert tokens(build(list(edited.examples))) == fast
    old = {path.name for path in (tmp_path / "indexes").iterdir()}
    (record,) = [part.segment.records["entries"] for part in space.parts]
    assert any(name.startswith(record.sha256[:32]) for name in old)
    again.compact()  # the index holds keys of what was removed: it goes too
    left = {path.name for path in (tmp_path / "indexes").iterdir()}
    assert not any(name.startswith(record.sha256[:32]) for name in left)


def test_a_writer_that_comes_second_is_told_and_goes_on(build, lm, tmp_path, monkeypatch):
    first = build(MORE[:2], out=tmp_path / "space")
    second = tl.open(tmp_path / "space", embedder=first.embedder, now=noon)
    first.add([BATS], lm)
    with pytest.raises(SpaceConflictError, match=r"add of 1 example at 2026.*current\(\)"):
        second.add(MORE[2:], lm)
    with pytest.raises(SpaceConflictError):
        second.remove("water")
    with pytest.raises(SpaceConflictError):
        second.compact()
    assert ids(tl.open(tmp_path / "space")) == ["water", "owls", "fact-2"]

    def passes(*_):
        pytest.fail("the model ran again for what was computed before")

    with monkeypatch.context() as patch:
        patch.setattr("trueline.space.worker.Worker.entries", passes)
        done = second.current().add(MORE[2:], lm)
    assert same(done, build([*MORE[:2], BATS, *MORE[2:]]))
    assert not list((tmp_path / "space" / PRIVATE).glob("edit-*"))


def test_a_commit_that_slips_in_while_another_writes_is_noticed(
    build, lm, tmp_path, monkeypatch
):
    from trueline.space import storage

    first = build(MORE[:2], out=tmp_path / "space")
    second = tl.open(tmp_path / "space", embedder=first.embedder)
    write = storage._write_segment

    def overtaken(*given):
        monkeypatch.setattr(storage, "_write_segment", write)
        second.remove("owls")
        return write(*given)

    monkeypatch.setattr(storage, "_write_segment", overtaken)
    with pytest.raises(SpaceConflictError, match="remove of 1 example"):
        first.add(MORE[2:], lm)
    assert ids(tl.open(tmp_path / "space")) == ["water"]
    assert ids(first.current().add(MORE[2:], lm)) == ["water", "air"]


def test_a_build_notices_an_edit_that_came_in_between(build, examples, lm, tmp_path):
    space = build(MORE, out=tmp_path / "space")
    edits = iter([lambda: space.remove("owls")])

    def meanwhile(done, total):
        next(edits, lambda: None)()

    with pytest.raises(SpaceConflictError, match="remove of 1 example"):
        build(examples, out=tmp_path / "space", overwrite=True, progress=meanwhile)
    assert ids(tl.open(tmp_path / "space")) == ["water", "air"]
    seen = []
    told = {"progress": lambda *now: seen.append(now)}
    build(examples, out=tmp_path / "space", overwrite=True, **told)
    assert ids(tl.open(tmp_path / "space")) == [one.id for one in examples]


def race(folder, embedder_folder, number, count):
    """What a child runs: commits of its own until all are in, whoever comes in between."""
    torch.set_num_threads(1)
    lm, embedder = tiny.language_model("llama"), load_embedder(embedder_folder)
    space = tl.open(folder, embedder=embedder)
    for turn in range(count):
        example = tl.Example(f"Is it {turn}?", "Yes, it is.", id=f"{number}-{turn}")
        while True:
            try:
                space = space.current().add([example], lm)
                break
            except SpaceConflictError:
                continue


@pytest.fixture(scope="module")
def children():
    """Children forked from a server that has imported everything: no start-up cost."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        fork = get_context("forkserver")
        fork.set_forkserver_preload(["test_edits"])
        yield fork


@pytest.mark.slow
def test_writers_that_race_lose_nothing(build, embedder_folder, tmp_path, children):
    build(MORE, out=tmp_path / "space")
    runs = [
        children.Process(target=race, args=(tmp_path / "space", embedder_folder, number, 5))
        for number in range(2)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    space = tl.open(tmp_path / "space")
    wanted = {f"{number}-{turn}" for number in range(2) for turn in range(5)}
    assert {*ids(space)} == wanted | {*ids(build(MORE))}
    assert len(space.history()) == 11
    space.verify()


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

    def nothing(*_):
        pass

    def cut(arrays, path):
        Path(path).write_bytes(b"cut short")

    def half(path, text, *_, **__):
        path.write_bytes(text.encode()[: len(text) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", watched(Path.write_text, half))
        for name in ("replace", "fsync", "unlink", "mkdir", "rmdir"):
            patch.setattr(os, name, watched(getattr(os, name), nothing))
        for module in ("storage", "making"):
            name = f"trueline.space.{module}.save_file"
            patch.setattr(name, watched(tiny_import(name), cut))
        with suppress(Killed):
            yield lambda: changes > moment


def tiny_import(name):
    module, _, attribute = name.rpartition(".")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


OTHER = [tl.Example("Do fish swim?", "Fish swim.", id="fish")]
KILLED = {
    "build": lambda space, lm, build: build(OTHER, out=space.folder, overwrite=True),
    "save": lambda space, lm, build: build(OTHER).save(space.folder),
    "add": lambda space, lm, build: space.add(OTHER, lm),
    "remove": lambda space, lm, build: space.remove("owls"),
    "replace": lambda space, lm, build: space.replace(
        [tl.Example("Do owls see?", "Owls see.", id="owls")], lm
    ),
    "merge": lambda space, lm, build: tl.merge(space, build(OTHER), out=space.folder),
    "compact": lambda space, lm, build: space.compact(),
}
# How many points there are at least; with those of a first build, more than two hundred.
LEAST = dict(build=35, save=25, add=30, remove=11, replace=33, merge=20, compact=28)


@pytest.mark.parametrize("kind", KILLED)
def test_killed_at_any_point_it_is_the_old_state_or_the_new_one(
    kind, build, lm, tmp_path, monkeypatch
):
    start = build(MORE[:2], out=tmp_path / "start").add(MORE[2:], lm).remove("water")
    wanted = tmp_path / "wanted"
    shutil.copytree(tmp_path / "start", wanted)
    embedder = start.embedder
    KILLED[kind](tl.open(wanted, embedder=embedder, now=noon), lm, build)
    states = [contents(tmp_path / "start"), contents(wanted)]
    allowed = [{n: b for n, b in state.items() if PRIVATE not in n} for state in states]
    for moment in count():
        folder = tmp_path / f"killed-{moment}"
        shutil.copytree(tmp_path / "start", folder)
        space = tl.open(folder, embedder=embedder, now=noon)
        with killed_at(moment, monkeypatch) as is_killed:
            KILLED[kind](space, lm, build)
        if not is_killed():
            break
        held = contents(folder)
        found = [state for state in allowed if state["manifest.json"] == held["manifest.json"]]
        assert len(found) == 1, moment  # the old manifest or the new one
        assert found[0].items() <= held.items(), moment  # and every file it names
        again = tl.open(folder, embedder=embedder, now=noon)
        again.verify()
        if found[0] is allowed[0]:
            KILLED[kind](again, lm, build)
        else:
            again.compact()
            assert {*ids(tl.open(folder))} == {*ids(tl.open(wanted))}
        if found[0] is allowed[0]:
            assert contents(folder) == states[1], moment  # and nothing is left over
        shutil.rmtree(folder)
    assert moment >= LEAST[kind]


def test_a_first_build_killed_at_any_point_goes_on_to_the_same_bytes(
    build, tmp_path, monkeypatch
):
    build(MORE, out=tmp_path / "wanted")
    wanted = contents(tmp_path / "wanted")
    for moment in count():
        folder = tmp_path / f"killed-{moment}"
        with killed_at(moment, monkeypatch) as is_killed:
            build(MORE, out=folder)
        if not is_killed():
            break
        if (folder / "manifest.json").exists():
            tl.open(folder).verify()
        else:
            with pytest.raises(SpaceFormatError):
                tl.open(folder)
        build(MORE, out=folder)
        assert contents(folder) == wanted, moment
    assert moment >= 30


MANY = [
    tl.Example(f"{question} {n}", answers)
    for n in range(10)
    for question, answers in tiny.FACTS
]


def build_many(embedder_folder, out):
    """What a child process runs until it is killed."""
    torch.set_num_threads(1)
    embedder = load_embedder(embedder_folder)
    lm = tiny.language_model("llama")
    tl.build(lm, MANY, context=8, embedder=embedder, out=out, overwrite=True, now=noon)


@pytest.mark.slow
def test_a_build_that_is_really_killed_resumes_to_the_same_bytes(
    build, embedder_folder, tmp_path, children
):
    def start(out):
        child = children.Process(target=build_many, args=(embedder_folder, out))
        child.start()
        return child

    build(MORE, out=tmp_path / "old")
    start(tmp_path / "whole").join()
    wanted = contents(tmp_path / "whole")
    assert "manifest.json" in wanted
    finished = 0
    for batches in (0, 1, 2):  # how many batches are kept when the kill comes
        out = tmp_path / f"run-{batches}"
        if batches % 2:  # one of the runs replaces an older space
            shutil.copytree(tmp_path / "old", out)
        child = start(out)
        while child.is_alive() and len(list(out.glob(f"{PRIVATE}/build-*/0*"))) < batches:
            child.join(0.001)
        child.kill()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        if (out / "manifest.json").exists():
            tl.open(out)  # old or new, it is whole
        else:
            with pytest.raises(SpaceFormatError):
                tl.open(out)
        start(out).join()
        finished += 1
        assert contents(out) == wanted
    assert finished == 3


def test_merging_into_the_second_folder_loses_no_commit_that_came_meanwhile(
    build, examples, lm, tmp_path
):
    one = build(examples[:2], out=tmp_path / "one")
    other = build(MORE[:1], out=tmp_path / "other")
    other.add(MORE[1:2], lm)  # `other` goes on as it was
    with pytest.raises(SpaceConflictError):
        tl.merge(one, other, out=tmp_path / "other")
    newest = other.current()
    made = tl.merge(one, newest, out=tmp_path / "other")
    assert {example.id for example in made.examples} == {
        *(example.id for example in one.examples), *(example.id for example in newest.examples)
    }  # fmt: skip
    assert len(tl.open(tmp_path / "other", embedder=one.embedder)) == 4


def test_a_commit_between_two_looks_is_a_conflict_and_no_crash(
    build, examples, lm, tmp_path, monkeypatch
):
    from trueline.space import storage

    space = build(examples, out=tmp_path / "space")
    check, looks = storage.check_base, []

    def commit_meanwhile(folder, base):
        check(folder, base)
        if not looks:
            looks.append(1)
            tl.open(folder, embedder=space.embedder).add(MORE[1:2], lm)

    monkeypatch.setattr(storage, "check_base", commit_meanwhile)
    with pytest.raises(SpaceConflictError):
        space.remove(examples[0].id)


def test_a_build_and_a_merge_leave_another_space_alone_unless_told(
    build, examples, lm, tmp_path
):
    space = build(examples, out=tmp_path / "space").remove("fact-2")
    other = build(MORE[:1])
    for attempt in (
        lambda **options: build(examples, out=tmp_path / "space", **options),
        lambda **options: tl.merge(other, build(MORE[1:2]), out=tmp_path / "space", **options),
    ):
        with pytest.raises(
            SpaceError, match=r"holds another space \(3 examples, last changed by "
        ):
            attempt()
    assert tl.open(tmp_path / "space").history() == space.history()
    assert len(build(examples, out=tmp_path / "space", overwrite=True)) == 4
