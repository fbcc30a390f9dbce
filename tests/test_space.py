"""A space on disk: what was written is read, damage is refused, a kill loses nothing."""

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
import transformers
from safetensors import SafetensorError
from test_retriever import with_arrays

import trueline as tl
from trueline.embed import load_embedder
from trueline.errors import (
    ExampleError,
    SettingError,
    SpaceError,
    SpaceFormatError,
    SpaceMismatchError,
)
from trueline.examples import to_lines
from trueline.space import manifest as manifests
from trueline.space.folder import PRIVATE


@pytest.fixture
def space(lm, examples, embedder):
    return tl.build(lm, examples, context=8, embedder=embedder, now=noon)


@pytest.fixture
def folder(space, tmp_path):
    space.save(tmp_path / "facts.space")
    return tmp_path / "facts.space"


def contents(folder):
    """Every file but those of the locks, which stay."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("lock")
    }


def noon():
    """A clock that stands still."""
    return datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_there_is_one_entry_for_every_token_of_every_answer(lm, space, examples):
    lengths = [
        len(tl.Prompt().encode_answer(example.question, answer, lm.tokenizer))
        for example in examples
        for answer in example.answers
    ]
    assert (len(space), len(space.entries)) == (len(examples), sum(lengths))
    assert space.entries.steps.tolist() == [
        step for length in lengths for step in range(length)
    ]


def test_entries_remember_the_token_that_followed(lm, space, examples):
    first = space.entries.tokens[: space.entries.answers.tolist().index(1)]
    wanted = tl.Prompt().encode_answer(
        examples[0].question, examples[0].answers[0], lm.tokenizer
    )
    assert first.tolist() == wanted


def test_end_adds_one_entry_an_answer_and_it_names_the_stop_token(
    lm, space, examples, embedder
):
    longer = tl.build(lm, examples, context=8, embedder=embedder, end=True)
    answers = sum(len(example.answers) for example in examples)
    assert len(longer.entries) == len(space.entries) + answers
    assert (longer.entries.tokens == lm.tokenizer.eos_token_id).sum() == answers


def test_an_answer_given_twice_counts_once(lm, embedder):
    twice = tl.Example("Are bats blind?", ["Bats see.", "Bats see."])
    once = tl.Example("Are bats blind?", ["Bats see."])
    sizes = [
        len(tl.build(lm, [x], context=8, embedder=embedder).entries) for x in (twice, once)
    ]
    assert sizes[0] == sizes[1]


def test_hidden_states_through_the_head_are_the_stored_logits(lm, space, examples, embedder):
    stored = tl.build(lm, examples, context=8, embedder=embedder, values="logits")
    states = tl.build(lm, examples, context=8, embedder=embedder, dtype="float32")
    assert (space.recipe.values, stored.recipe.values) == ("hidden", "logits")
    with torch.no_grad():
        logits = lm.head(torch.from_numpy(states.entries.values)).numpy()
    assert np.allclose(logits, stored.entries.values, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "head"), [("llama", "linear"), ("phi", "linear"), ("gemma2", "nonlinear")]
)
def test_the_manifest_says_how_the_head_was_found_to_be(architecture, head, examples, embedder):
    space = tl.build(tiny.language_model(architecture), examples, context=8, embedder=embedder)
    assert (space.recipe.values, space.recipe.head) == ("hidden", head)


def odd_copy(lm, odd_class=None):
    """The same weights in another class."""
    model = (odd_class or type(lm.model))(lm.model.config)
    model.load_state_dict(lm.model.state_dict())
    return tl.LanguageModel(model.eval(), lm.tokenizer, id="odd")


class OddForward(transformers.LlamaForCausalLM):
    """Its logits cannot be told from its hidden states by any known rule."""

    def forward(self, *args, **options):
        out = super().forward(*args, **options)
        out.logits = out.logits - out.logits.mean(-1, keepdim=True).abs()
        return out


class OddHead(torch.nn.Linear):
    """A head that calls itself linear and is not."""

    def forward(self, hidden):
        return super().forward(hidden).abs()


def test_a_head_of_no_known_form_makes_the_space_keep_logits(lm, examples, embedder):
    odd = odd_copy(lm, OddForward)
    assert odd.head is None
    space = tl.build(odd, examples, context=8, embedder=embedder)
    assert (space.recipe.values, space.recipe.head) == ("logits", "opaque")
    answer = tl.generate(odd, tl.RAD(space, tau=0.8), "Is the sea blue?", max_new_tokens=9)
    plain = tl.generate(odd, tl.Greedy(), "Is the sea blue?", max_new_tokens=9)
    assert answer.token_ids != plain.token_ids
    with pytest.raises(SettingError, match="no known form"):
        tl.build(odd, examples, context=8, embedder=embedder, values="hidden")


def test_a_head_that_only_calls_itself_linear_goes_entry_by_entry(lm, examples, embedder):
    odd = odd_copy(lm)
    plain = odd.model.lm_head
    odd.model.lm_head = OddHead(plain.in_features, plain.out_features, bias=False)
    odd.model.lm_head.weight = plain.weight
    hidden = tl.build(odd, examples, context=8, embedder=embedder)
    logits = tl.build(odd, examples, context=8, embedder=embedder, values="logits")
    assert (hidden.recipe.values, hidden.recipe.head) == ("hidden", "nonlinear")
    one, other = (
        tl.generate(odd, tl.RAD(space, tau=0.8), tiny.QUESTIONS, max_new_tokens=9)
        for space in (hidden, logits)
    )
    assert [answer.token_ids for answer in one] == [answer.token_ids for answer in other]


def test_a_space_reads_back_as_it_was_written(space, folder):
    again = tl.open(folder)
    assert again.recipe == space.recipe
    assert list(again.examples) == list(space.examples)
    for name, array in space.entries.arrays().items():
        assert np.array_equal(again.entries.arrays()[name], array), name
    assert again.verify() == {"files": 3, "entries": len(space.entries), "examples": 4}


def test_two_builds_give_the_same_bytes(lm, examples, embedder, tmp_path):
    for name in ("one", "two"):
        tl.build(lm, examples, context=8, embedder=embedder, out=tmp_path / name, now=noon)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_building_to_disk_and_saving_give_the_same_bytes(
    lm, examples, embedder, folder, tmp_path
):
    tl.build(lm, examples, context=8, embedder=embedder, out=tmp_path / "direct", now=noon)
    assert contents(tmp_path / "direct") == contents(folder)


def test_no_path_of_the_machine_is_written_into_a_space(folder, tmp_path):
    for name, content in contents(folder).items():
        assert str(tmp_path).encode() not in content, name
        assert str(Path.home()).encode() not in content, name


def test_a_space_may_replace_another_and_leaves_nothing_behind(lm, examples, embedder, folder):
    before = set(contents(folder))
    space = tl.build(lm, examples[:2], context=8, embedder=embedder, out=folder, overwrite=True)
    assert len(tl.open(folder)) == len(space)
    assert len(contents(folder)) == len(before)
    assert before & set(contents(folder)) == {"manifest.json", f"{PRIVATE}/mark"}


def test_a_folder_of_something_else_is_never_written_to(space, tmp_path):
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(SpaceError, match="not empty and holds no space"):
        space.save(tmp_path)
    assert contents(tmp_path) == {"letters.txt": b"dear"}


@pytest.mark.parametrize("name", ["building", PRIVATE])
def test_a_folder_that_only_holds_a_name_like_ours_is_never_touched(name, space, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "letters.txt").write_text("dear")
    with pytest.raises(SpaceError, match="holds no space"):
        space.save(tmp_path)
    assert contents(tmp_path) == {f"{name}/letters.txt": b"dear"}


def test_only_names_we_made_are_ever_deleted(lm, examples, embedder, folder):
    kept = {
        "notes.txt",
        "entries-notes.safetensors",
        "examples-0123.jsonl",
        "a-0123456789abcdef",
    }
    for name in kept:
        (folder / name).write_text("mine")
    (folder / "entries-0123456789abcdef.safetensors").write_text("left by a kill")
    (folder / ".manifest.json.17-42.tmp").write_text("left by a kill")
    tl.build(
        lm, examples[:2], context=8, embedder=embedder, out=folder, overwrite=True
    ).compact()
    found = {path.name for path in folder.iterdir()}
    assert kept <= found
    assert not found & {"entries-0123456789abcdef.safetensors", ".manifest.json.17-42.tmp"}


def test_a_build_clears_the_work_that_others_left_but_not_what_somebody_is_at(
    lm, examples, embedder, folder
):
    from filelock import FileLock

    left, held = (folder / PRIVATE / f"{kind}-{'0' * 16}" for kind in ("build", "edit"))
    for work in (left, held):
        work.mkdir()
        (work / "00000.safetensors").write_bytes(b"half")
    with FileLock(f"{held}.lock"):
        tl.build(lm, examples[:2], context=8, embedder=embedder, out=folder, overwrite=True)
    assert (left.exists(), held.exists()) == (False, True)
    tl.open(folder).compact()
    assert not held.exists()


def point_to(folder, name):
    """Let the manifest name another file for the entries."""
    (segment,) = json.loads((folder / "manifest.json").read_text())["segments"]
    files = segment["files"]
    files["entries"] = files["entries"] | {"name": name}
    change_segment(folder, files=files)


@pytest.mark.parametrize(
    "name", ["../x/entries", "/etc/passwd", "..", "", "sub/entries", "manifest.json", "CON"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name, folder):
    point_to(folder, name)
    with pytest.raises(SpaceFormatError, match="no name of a file of ours"):
        tl.open(folder)


@pytest.mark.parametrize("kind", ["manifest", "entries", "examples", "vectors"])
@pytest.mark.parametrize("made", ["link", "pipe", "folder"])
def test_what_is_no_regular_file_is_refused(kind, made, folder, tmp_path):
    (path,) = folder.glob(f"{kind}*")
    path.rename(tmp_path / "elsewhere")
    if made == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif made == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(SpaceFormatError, match="no regular file"):
        tl.open(folder)


def test_a_space_of_the_first_format_is_refused_with_the_command_that_makes_it_anew(
    lm, examples, embedder, embedder_folder, tmp_path
):
    folder = tmp_path / "old.space"
    folder.mkdir()
    lines = f"examples-{'0' * 12}.jsonl"
    (folder / lines).write_text("".join(to_lines(examples)), "utf-8")
    (folder / f"entries-{'0' * 12}.safetensors").write_bytes(b"")
    recipe = {
        **{
            "model": "tiny-llama",
            "embedder": "all-minilm-l6-v2",
            "context": 8,
            "window": "all",
        },
        **{"end": True, "wrong": False, "values": "hidden", "head": "linear"},
        "dtype": "float16",
        "prompt": {"template": "Say: {question}", "system": None, "chat": None},
    }
    old = {"format_version": 1, "recipe": recipe, "files": {lines: {}}, "plan": ""}
    content = {**old, "sha256": manifests.manifest_hash(old)}
    (folder / "manifest.json").write_text(json.dumps(content))
    command = (
        f"trueline build {folder / lines} --model tiny-llama "
        "--embedder all-minilm-l6-v2 --context 8 --template 'Say: {question}' --end "
        f"--out {folder}"
    )
    with pytest.raises(SpaceFormatError, match="has format 1") as caught:
        tl.open(folder)
    assert f"`{command}`" in str(caught.value)
    tl.build(lm, folder / lines, context=8, embedder=embedder, out=folder)
    assert list(tl.open(folder).examples) == list(examples)
    assert not list(folder.glob("*-000000000000*"))


def test_removed_ids_that_were_never_there_are_refused(folder):
    change_segment(folder, removed=["nobody"])
    with pytest.raises(SpaceFormatError, match="never there"):
        tl.open(folder)


def test_an_in_memory_space_that_is_saved_has_this_folder_from_then_on(space, folder, lm):
    assert space.folder == folder
    space.remove("fact-1")
    assert len(tl.open(folder)) == 3


def test_a_read_that_is_overtaken_by_a_commit_starts_again(folder, monkeypatch):
    from trueline.space import storage

    opened, read = tl.open(folder), storage._open

    def overtaken(*given):
        monkeypatch.setattr(storage, "_open", read)
        opened.remove("fact-1").compact()  # what the manifest just read names is gone
        return read(*given)

    monkeypatch.setattr(storage, "_open", overtaken)
    assert len(tl.open(folder)) == 3


def files_of(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["manifest", "entries", "wrong", "examples", "vectors"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "flipped", "removed", "swapped"])
def test_a_damaged_file_is_refused_with_its_name(
    kind, damage, lm, examples, embedder, tmp_path
):
    folder, other = tmp_path / "facts.space", tmp_path / "other.space"
    tl.build(lm, examples, context=8, embedder=embedder, wrong=True).save(folder)
    tl.build(lm, examples[1:], embedder=embedder, context=4, wrong=True).save(other)
    (path,) = folder.glob(f"{kind}*")
    good = path.read_bytes()
    if damage == "cut":
        path.write_bytes(good[: len(good) // 2])
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "removed":
        path.unlink()
    elif damage == "swapped":
        (theirs,) = other.glob(f"{kind}*")
        path.write_bytes(theirs.read_bytes())
    else:
        return flip_bits(folder, path, good)
    with pytest.raises(SpaceFormatError) as caught:
        tl.open(folder)
    assert str(folder) in str(caught.value)


def flip_bits(folder, path, good):
    """Forty single bits, spread over the file; each is noticed."""
    chance = random.Random(0)
    for _ in range(40):
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(SpaceFormatError):
            tl.open(folder)
    path.write_bytes(good)
    tl.open(folder)


def rewrite(folder, **changes):
    """A manifest with other content and a right checksum."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | changes
    manifest.pop("sha256")
    path.write_text(json.dumps({**manifest, "sha256": manifests.manifest_hash(manifest)}))


def test_a_manifest_from_the_future_says_so(folder):
    rewrite(folder, format_version=99)
    with pytest.raises(SpaceFormatError, match=r"format 99.*install a newer trueline"):
        tl.open(folder)


def change_segment(folder, **changes):
    """A manifest that says something else of its one segment."""
    (segment,) = json.loads((folder / "manifest.json").read_text())["segments"]
    rewrite(folder, segments=[segment | changes])


def test_a_manifest_whose_counts_lie_is_refused(folder):
    change_segment(folder, counts={"examples": 4, "entries": 1})
    with pytest.raises(SpaceFormatError, match="manifest says"):
        tl.open(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"format_version": "x"}', "\x00"])
def test_a_manifest_that_is_none_is_refused(text, folder):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(SpaceFormatError):
        tl.open(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(SpaceFormatError, match=r"there is no space at .*nowhere"):
        tl.open(tmp_path / "nowhere")


def test_verify_sees_numbers_that_mean_nothing(space):
    keys = space.entries.keys.copy()
    keys[3] *= 2
    with pytest.raises(SpaceFormatError, match="unit length"):
        with_arrays(space, entries=replace(space.entries, keys=keys)).verify()
    values = space.entries.values.copy()
    values[3, 0] = np.nan
    with pytest.raises(SpaceFormatError, match="not finite"):
        with_arrays(space, entries=replace(space.entries, values=values)).verify()
    vectors = space.parts[0].segment.vectors
    assert set(vectors) == {"questions", "answers", "wrong_answers"}
    for name in vectors:
        with pytest.raises(SpaceFormatError, match=f"vectors of {name} .*unit length"):
            with_arrays(space, vectors={**vectors, name: 2 * vectors[name]}).verify()


def test_another_model_is_refused_with_both_names(space):
    other = tiny.language_model("llama", seed=1)
    with pytest.raises(SpaceMismatchError, match=r"model tiny-llama .*trueline build --model"):
        tl.generate(other, tl.RAD(space), "Are bats blind?")


def test_one_changed_weight_makes_it_another_model(lm, space):
    model = copy.deepcopy(lm.model)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[5, 7] += 0.01
    other = tl.LanguageModel(model, lm.tokenizer)
    with pytest.raises(SpaceMismatchError):
        tl.generate(other, tl.RAD(space), "Are bats blind?")


def test_another_tokenizer_is_refused(lm, space):
    other = tl.LanguageModel(lm.model, tiny.tokenizer(chat=True), id=lm.id)
    with pytest.raises(SpaceMismatchError, match="another tokenizer"):
        tl.generate(other, tl.RAD(space), "Are bats blind?")


def test_a_padded_tokenizer_is_the_same_tokenizer(lm):
    before = tl.LanguageModel(lm.model, lm.tokenizer).tokenizer_hash
    lm.tokenizer(["a", "a b c"], padding=True, truncation=True, max_length=2)
    assert tl.LanguageModel(lm.model, lm.tokenizer).tokenizer_hash == before


def test_another_embedder_is_refused(lm, space, tmp_path):
    other = load_embedder(tiny.write_embedder(tmp_path / "tiny-bert", seed=1))
    with pytest.raises(SpaceMismatchError, match="embedder tiny-bert"):
        tl.generate(lm, tl.RAD(replace(space, embedder=other)), "Are bats blind?")


def test_another_prompt_is_refused(space):
    space.check_prompt(tl.Prompt())
    with pytest.raises(SpaceMismatchError, match="built with the prompt"):
        space.check_prompt(tl.Prompt("{question}"))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("context", 0),
        ("context", "all"),
        ("window", "half"),
        ("values", "x"),
        ("dtype", "int8"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(setting, value, lm, examples, embedder):
    with pytest.raises(SettingError, match=setting):
        tl.build(lm, examples, embedder=embedder, **{"context": 8, setting: value})


def test_every_example_too_long_for_the_model_is_named(lm, embedder):
    long = [tl.Example(f"Is it {n}?", "word " * 600, id=f"no-{n}") for n in range(2)]
    with pytest.raises(ExampleError, match=r"at most 512 tokens(?s:.*)no-0(?s:.*)no-1"):
        tl.build(lm, long, context=8, embedder=embedder)


def test_hidden_states_are_kept_in_half_precision_and_logits_are_not(
    lm, examples, embedder, space
):
    full = tl.build(lm, examples, context=8, embedder=embedder, dtype="float32")
    logits = tl.build(lm, examples, context=8, embedder=embedder, values="logits")
    assert (space.recipe.dtype, logits.recipe.dtype) == ("float16", "float32")
    assert space.entries.values.nbytes * 2 == full.entries.values.nbytes
    assert space.entries.keys.nbytes * 2 == full.entries.keys.nbytes
    assert np.allclose(space.entries.values, full.entries.values, rtol=1e-3, atol=1e-3)


def test_progress_counts_every_entry(lm, examples, embedder, space):
    seen = []
    tl.build(lm, examples, context=8, embedder=embedder, progress=lambda *now: seen.append(now))
    count = len(space.entries)
    assert (seen[0], seen[-1]) == ((0, count), (count, count))


def test_a_damaged_space_is_built_anew_where_that_is_asked_for(
    lm, examples, embedder, tmp_path
):
    out = tmp_path / "space"
    tl.build(lm, examples, context=8, embedder=embedder, out=out, now=noon)
    good = contents(out)
    for path in sorted(path for path in out.iterdir() if path.is_file()):
        path.write_bytes(path.read_bytes()[:-7])
        with pytest.raises(SpaceError, match="--overwrite"):
            tl.build(lm, examples, context=8, embedder=embedder, out=out, now=noon)
        tl.build(lm, examples, context=8, embedder=embedder, out=out, now=noon, overwrite=True)
        assert contents(out) == good


def test_a_manifest_of_something_else_is_never_written_over(space, tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "an extension", "version": "1"}')
    with pytest.raises(SpaceError, match="holds no space"):
        space.save(tmp_path)


def test_another_precision_is_another_plan(lm, examples, embedder, tmp_path):
    half = tl.LanguageModel(copy.deepcopy(lm.model).bfloat16(), lm.tokenizer, id=lm.id)
    assert half.fingerprint == lm.fingerprint
    tl.build(lm, examples, context=8, embedder=embedder, out=tmp_path / "space")
    again = tl.build(
        half, examples, context=8, embedder=embedder, out=tmp_path / "space", overwrite=True
    )
    assert again.recipe.computed == "bfloat16"


def test_a_full_disk_is_one_error(space, tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("trueline.space.storage.save_file", full)
    with pytest.raises(SpaceError, match=r"No space left on device.*free some room"):
        space.save(tmp_path / "full")


def test_a_finished_build_is_not_done_again(lm, examples, embedder, tmp_path):
    tl.build(lm, examples, context=8, embedder=embedder, out=tmp_path / "space")
    seen = []
    tl.build(
        lm,
        examples,
        context=8,
        embedder=embedder,
        out=tmp_path / "space",
        progress=lambda *n: seen.append(n),
    )
    assert seen == []


def test_two_builds_do_not_write_to_one_folder(lm, examples, embedder, tmp_path):
    from filelock import FileLock

    tl.build(lm, examples[:1], context=8, embedder=embedder, out=tmp_path / "space")
    with (
        FileLock(tmp_path / "space" / PRIVATE / "build.lock"),
        pytest.raises(SpaceError, match="another build"),
    ):
        tl.build(lm, examples, context=8, embedder=embedder, out=tmp_path / "space")
