"""Spaces: what is built is what is read; each edit equals one build."""

import copy
import json
import os
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from click.testing import CliRunner

import trueline as tl
from trueline.cli import cli
from trueline.embed import load_embedder
from trueline.errors import (
    ExampleError,
    SettingError,
    SpaceConflictError,
    SpaceError,
    SpaceFormatError,
    SpaceMismatchError,
)
from trueline.examples import digest, to_lines
from trueline.session import open_session
from trueline.store import PRIVATE

MORE = [
    tl.Example("Is water wet?", ["Water is wet.", "Yes."], ["No, water is dry."], id="water"),
    tl.Example("Do owls see?", "Owls see well in the dark.", id="owls"),
    tl.Example("Is air blue?", ["Air is not blue."], ["Air is blue."], id="air"),
]
BATS = tl.Example("Are bats blind?", ["No, bats see."], ["Bats are blind."], id="fact-2")


def noon():
    """A clock that stands still."""
    return datetime(2026, 1, 1, 12, tzinfo=UTC)


def contents(folder):
    """Everything in a folder: links as links, files to the byte, folders by their names."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else None
        content = os.readlink(path) if path.is_symlink() else data
        found[path.relative_to(folder).as_posix()] = content
    return found


def ids(space):
    return [example.id for example in space.examples]


@pytest.fixture(scope="module")
def build(embedder):
    """Builds with the tiny parts and a clock that stands still."""

    def made(examples, **options):
        lm = tiny.language_model("llama")
        return tl.build(
            lm, examples, **{"context": 8, "embedder": embedder, "now": noon, **options}
        )

    return made


@pytest.fixture
def space(build, examples):
    return build(examples)


@pytest.fixture
def folder(space, tmp_path):
    space.save(tmp_path / "facts.space")
    return tmp_path / "facts.space"


def same(one, other):
    """Whether two spaces hold the same examples and entries, vectors up to rounding."""
    pairs = [(one.vectors, other.vectors)]
    if one.entries is not None:
        sets = zip(one.entries.sets(), other.entries.sets(), strict=True)
        pairs += [(mine.arrays(), theirs.arrays()) for (_, mine), (_, theirs) in sets]
    for mine, theirs in pairs:
        for name, array in mine.items():
            if array.dtype == np.float16:
                assert np.allclose(array, theirs[name], rtol=2e-3, atol=2e-3), name
            else:
                assert np.array_equal(array, theirs[name]), name
    return one.examples == other.examples


# Building


def test_examples_alone_are_enough_for_any_model(embedder, examples, tmp_path):
    (tmp_path / "facts.jsonl").write_text('{"question": "Is it?", "answer": "Yes."}\n')
    for source in (tmp_path / "facts.jsonl", str(tmp_path / "facts.jsonl")):
        assert len(tl.build(source, embedder=embedder)) == 1
    space, lm = tl.build(examples, embedder=embedder), tiny.language_model("qwen2")
    for same in (tl.build(one, examples, embedder=embedder) for one in (None, lm)):
        assert same.counts() == space.counts() == {"entries": 0, "examples": 4}
    assert space.info()["bytes_per_example"] < 2000
    assert tl.generate(lm, tl.KATE(space, k=2), "Are bats blind?", max_new_tokens=3).token_ids
    with pytest.raises(SpaceMismatchError, match=r"rad needs entries.*context=8"):
        tl.RAD(space)
    wanted = embedder.embed([example.question for example in examples])
    assert torch.allclose(space.question_vectors("cpu"), wanted, atol=1e-3)


def test_options_of_entries_are_refused_where_none_are_made(embedder, examples):
    with pytest.raises(SettingError, match=r"wrong=True is about entries.*context, such as 8"):
        tl.build(examples, embedder=embedder, wrong=True)
    with pytest.raises(SettingError, match="entries need a model"):
        tl.build(examples, embedder=embedder, context=8)
    with pytest.raises(TypeError, match="no 'tau'"):
        tl.build(examples, embedder=embedder, tau=1)


def test_progress_counts_every_entry_and_a_finished_build_is_not_done_again(
    build, examples, tmp_path
):
    seen = []
    options = {"out": tmp_path / "space", "progress": lambda *now: seen.append(now)}
    count = len(build(examples, **options).entries)
    assert (seen[0], seen[-1]) == ((0, count), (count, count))
    seen.clear()
    assert len(build(examples, **options)) == 4
    assert seen == []


def test_two_builds_and_a_save_give_the_same_bytes(build, examples, folder, tmp_path):
    for name in ("one", "two"):
        build(examples, out=tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(folder)


def test_a_folder_holds_space_json_and_one_folder_and_nothing_else(folder, tmp_path):
    held = contents(folder)
    (generation,) = folder.glob("g-*")
    names = "examples.jsonl", "vectors.safetensors", "rad", "rad/truthful.safetensors"
    inner = {f"{generation.name}/{name}" for name in names}
    assert set(held) == {"space.json", generation.name} | inner
    for name, content in held.items():  # and no path of this machine
        assert str(tmp_path).encode() not in (content or b""), name
        assert str(Path.home()).encode() not in (content or b""), name


def test_a_space_reads_back_as_it_was_written(space, folder, embedder):
    again = tl.open(folder, embedder=embedder)
    assert again.made_with() == space.made_with()
    assert again.plan == space.plan
    assert again.history() == space.history()
    assert same(again, space)
    assert again.verify() == {"files": 3, "entries": len(space.entries), "examples": 4}
    assert again.info() == space.info()


def test_a_build_leaves_another_space_alone_unless_overwrite_is_given(
    build, examples, lm, tmp_path
):
    out = tmp_path / "space"
    space = build(examples, out=out).remove("fact-2")
    for attempt in (
        lambda: build(examples, out=out),
        lambda: tl.merge(build(MORE[:1]), build(MORE[1:2]), out=out),
    ):
        with pytest.raises(SpaceError, match=r"another space \(3 examples, last changed by "):
            attempt()
    assert tl.open(out).history() == space.history()
    assert len(build(examples, out=out, overwrite=True)) == 4
    assert not (out / PRIVATE).exists()


# Refused models and embedders


def test_another_model_or_tokenizer_is_refused(lm, space):
    other = tiny.language_model("llama", seed=1)
    with pytest.raises(SpaceMismatchError, match=r"model tiny-llama .*trueline build --model"):
        tl.generate(other, tl.RAD(space), "Are bats blind?")
    other = tl.LanguageModel(lm.model, tiny.tokenizer(chat=True), id=lm.id)
    with pytest.raises(SpaceMismatchError, match="another tokenizer"):
        tl.generate(other, tl.RAD(space), "Are bats blind?")


def test_a_padded_tokenizer_is_the_same_tokenizer(lm):
    before = tl.LanguageModel(lm.model, lm.tokenizer).tokenizer_hash
    lm.tokenizer(["a", "a b c"], padding=True, truncation=True, max_length=2)
    assert tl.LanguageModel(lm.model, lm.tokenizer).tokenizer_hash == before


def test_another_embedder_is_refused(folder, tmp_path):
    other = load_embedder(tiny.write_embedder(tmp_path / "tiny-bert", seed=1))
    with pytest.raises(SpaceMismatchError, match="embedder tiny-bert"):
        tl.open(folder, embedder=other)


@pytest.mark.parametrize("field", ["model", "embedder"])
def test_what_only_a_space_names_is_not_fetched_from_the_hub(
    field, folder, tmp_path, monkeypatch
):
    from forged import Forged

    calls = []

    def snapshot_download(name, **options):
        calls.append(options)
        raise FileNotFoundError(name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    forged = Forged.of(folder)
    part = forged.manifest if field == "embedder" else forged.manifest["entries"]
    part[field] = "somebody/else"
    space = tl.open(forged.write(tmp_path / "theirs.space"))
    with pytest.raises(tl.TruelineError, match=f"because a space names it.*--{field}"):
        space.open_embedder("cpu") if field == "embedder" else open_session(
            ["rad"], space=space
        )
    assert calls == [{"local_files_only": True}]


# Edits


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
        kind = self.chance.choice(["add", "remove", "replace", "merge"])
        if kind == "add":
            new = [self.example() for _ in range(self.chance.choice([1, 2]))]
            return space.add(new, lm=self.lm)
        if kind == "remove" and len(space) > 1:
            return space.remove(self.chance.sample(ids(space), 1))
        if kind == "merge":
            wrong = replace(self.example(), wrong_answers=["No."])
            both = [wrong, self.chance.choice(space.examples)]
            other = self.build(both, wrong=space.entries.settings.wrong)
            return tl.merge(space, other, out=space.folder)
        return space.replace([self.example(self.chance.choice(ids(space)))], self.lm)


def answers(lm, space):
    found = tl.generate(lm, tl.RAD(space, tau=0.5), tiny.QUESTIONS[:3], max_new_tokens=4)
    return [answer.token_ids for answer in found]


@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_edits_equals_one_build(seed, build, lm, tmp_path):
    edits = Edits(seed, lm, build)
    begun = [edits.example(), replace(edits.example(), wrong_answers=["No."]), *MORE]
    out = tmp_path / "space" if seed % 2 else None
    space = build(begun, wrong=seed % 3 == 0, out=out)
    for _ in range(7):
        before = (space, ids(space), answers(lm, space))
        space = edits.step(space)
        assert (ids(before[0]), answers(lm, before[0])) == before[1:]  # it goes on as it was
    has_wrong = any(example.wrong_answers for example in space.examples)
    fresh = build(space.examples, wrong=space.entries.settings.wrong and has_wrong)
    assert same(space, fresh)
    assert answers(lm, space) == answers(lm, fresh)
    if out is not None:
        again = tl.open(out, embedder=space.embedder)
        assert same(again, fresh)
        assert again.history() == space.history()
        again.verify()
        assert len(list(out.iterdir())) == 2


def test_edits_of_a_space_without_entries_need_no_model(embedder, examples, tmp_path):
    space = tl.build(examples, embedder=embedder, out=tmp_path / "space")
    space = space.add(MORE).remove(["owls", "fact-1"]).replace([BATS])
    left = tl.build(space.examples, embedder=embedder)
    assert same(space, left)
    assert same(tl.open(tmp_path / "space", embedder=embedder), left)


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
    assert space.remove([]) is space
    changed = [replace(one, source="new") for one in examples]
    assert len(space.replace(changed, lm)) == 4  # all at once, too


def test_a_removed_example_is_gone_from_every_answer_and_every_byte(build, lm, tmp_path):
    secret = tl.Example("Who is Xyzzyx?", "Xyzzyx is a secret.", id="xyzzyx-id")
    space = build([*MORE, secret], out=tmp_path / "space")
    assert b"Xyzzyx" in b"".join(filter(None, contents(tmp_path / "space").values()))
    old = answers(lm, space)
    left = space.remove("xyzzyx-id")
    assert b"yzzyx" not in b"".join(filter(None, contents(tmp_path / "space").values()))
    assert answers(lm, space) == old  # what is open stays as it was
    for method in (tl.RAD(left, tau=-1.0), tl.KNNLM(left, k=5000), tl.KNNLM(left, k=7)):
        answer = tl.generate(lm, method, "Are bats blind?", max_new_tokens=2, trace=True)
        near = {near.example for step in answer.trace for near in step.neighbors}
        assert near
        assert "xyzzyx-id" not in near
    assert "xyzzyx-id" not in [one.id for one in tl.KATE(left, k=99).nearest("Who is it?")]


def test_spaces_merge_if_they_were_made_alike_and_agree(build, examples, embedder, lm):
    space = build(examples)
    both = tl.merge(space, build([examples[1], *MORE]))
    assert ids(both) == [*ids(space), "water", "owls", "air"]
    assert same(both, build([*examples, *MORE]))
    assert (both.folder, both.history()[-1].what) == (None, "merge")
    with pytest.raises(ExampleError, match="under one id: 'fact-2'"):
        tl.merge(space, build([BATS]))
    for options, reason in [
        ({"context": 4}, "context 8 and 4"),
        ({"prompt": tl.Prompt("{question}")}, "prompt"),
        ({"end": True}, "end False and True"),
        ({"context": None}, "context 8 and None"),
    ]:
        with pytest.raises(SpaceMismatchError, match=f"not made alike: {reason}"):
            tl.merge(space, build(MORE, **options))
    other = tl.build(tiny.language_model("llama", seed=1), MORE, context=8, embedder=embedder)
    with pytest.raises(SpaceMismatchError, match="model_fingerprint"):
        tl.merge(space, other)


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
    assert {*ids(made)} == {*ids(one), *ids(newest)}
    assert len(tl.open(tmp_path / "other", embedder=one.embedder)) == 4
    assert len(tl.open(tmp_path / "one", embedder=one.embedder)) == 2


def test_history_lists_what_was_committed(build, examples, lm, tmp_path):
    space = build(examples, out=tmp_path / "space").add(MORE, lm).remove("air")
    space = space.tune({"threshold": 0.5})
    lines = [(one.what, one.changed, one.examples) for one in space.history()]
    assert lines == [("build", 4, 4), ("add", 3, 7), ("remove", 1, 6), ("tune", 0, 6)]
    assert {one.time for one in space.history()} == {"2026-01-01T12:00:00Z"}
    assert space.history()[-1].entries == len(space.entries)


def test_tuning_writes_no_array_anew_and_refuses_what_no_method_can_use(space, folder):
    before = {path: path.stat().st_ino for path in folder.glob("g-*/*")}
    tuned = space.tune({"threshold": 0.5, "from": "mine.jsonl"})
    assert {path: path.stat().st_ino for path in folder.glob("g-*/*")} == before
    assert tl.open(folder).tuned == tuned.tuned
    assert tuned.tune(tuned.tuned) is tuned
    assert tuned.tune({}).tuned == {}
    for odd in ({"threshold": 2}, {"k": [1]}, {"k": float("nan")}, {1: 2}):
        with pytest.raises(SettingError, match="tuned"):
            tuned.tune(odd)


def test_a_reader_moves_to_the_newest_state_and_shares_the_embedder(build, lm, tmp_path):
    space = build(MORE, out=tmp_path / "space")
    reader = tl.open(tmp_path / "space", embedder=space.embedder)
    assert reader.current() is reader
    reader.open_embedder("cpu")
    added = space.add([BATS], lm)
    now = reader.current()
    assert (ids(reader), ids(now)) == (ids(space), ids(added))
    assert now.open_embedder("cpu") is reader.open_embedder("cpu")
    assert now.current() is now
    os.utime(tmp_path / "space" / "space.json")  # copied back, or touched
    assert now.current() is now


def test_a_space_in_memory_that_is_saved_has_this_folder_from_then_on(space, tmp_path, lm):
    space.save(tmp_path / "one")
    assert space.folder == tmp_path / "one"
    space.save(tmp_path / "copy")
    assert space.folder == tmp_path / "one"
    space.remove("fact-1")
    assert [len(tl.open(tmp_path / name)) for name in ("one", "copy")] == [3, 4]


# Spaces of 0.2.0


def old_space(folder, examples):
    """The examples of a space as 0.2.0 wrote it, in two segments, with one removed."""
    folder.mkdir()
    segments = []
    for part, removed in ((examples[:2], []), (examples[2:], [examples[-1].id])):
        file = {"name": f"examples-{digest(part)[:16]}.jsonl", "sha256": digest(part)}
        (folder / file["name"]).write_text("".join(to_lines(part)), "utf-8")
        segments.append({"name": "x", "files": {"examples": file}, "removed": removed})
    manifest = {"format": "trueline grounding space", "format_version": 2, "segments": segments}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_space_of_0_2_0_is_refused_with_the_command_that_takes_its_examples(
    examples, embedder, tmp_path, tiny_home
):
    old_space(tmp_path / "old.space", examples)
    before = contents(tmp_path / "old.space")
    with pytest.raises(SpaceFormatError, match=r"0\.2\.0") as caught:
        tl.open(tmp_path / "old.space")
    assert f"`trueline build {tmp_path / 'old.space'} --out NEW.space`" in str(caught.value)
    assert "\n" not in str(caught.value)
    taken = tl.build(str(tmp_path / "old.space"), embedder=embedder)
    assert list(taken.examples) == examples[:-1]
    with pytest.raises(SpaceError, match="holds no space of this release"):
        tl.build(examples, embedder=embedder, out=tmp_path / "old.space", overwrite=True)
    command = ["build", str(tmp_path / "old.space"), "--out", str(tmp_path / "new.space")]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0
    assert list(tl.open(tmp_path / "new.space").examples) == examples[:-1]
    assert list(tl.build(tmp_path / "new.space", embedder=embedder).examples) == examples[:-1]
    assert contents(tmp_path / "old.space") == before
    for path in (tmp_path / "old.space").glob("*.jsonl"):
        path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(SpaceFormatError, match="its checksum differs"):
        tl.build(tmp_path / "old.space", embedder=embedder)
