"""What a process of our own leaves out of transformers, and what is kept between openings."""

import json
import os
import subprocess
import sys

import pytest
import tiny
import torch

from trueline.engines.transformers import kept
from trueline.engines.transformers.kept import Kept, read_kept
from trueline.engines.transformers.language import load
from trueline.engines.transformers.quiet import quiet

CHILD = """
import json, sys
from trueline.engines import claim_process, load
from trueline.embedders.loading import load_embedder
claim_process()
import torch
found = {}
for folder in sys.argv[2:]:
    lm = load(folder)
    with torch.no_grad():
        found[folder] = lm.model(input_ids=torch.arange(3, 40)[None]).logits.tolist()
found["embedder"] = load_embedder(sys.argv[1]).hash
parts = ("scipy", "sympy", "torch._dynamo", "torch.distributed.tensor")
found["imported"] = [name for name in parts if name in sys.modules]
real = torch.compiler.disable(lambda: 3)  # the compiler itself is still to be had
found["later"] = [real(), hasattr(sys.modules["torch._dynamo"], "optimize")]
print(json.dumps(found))
"""
DTYPE, CPU = torch.float32, torch.device("cpu")


def saved(lm, folder):
    with quiet():
        lm.model.save_pretrained(folder)
        lm.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path / "home"))
    return saved(tiny.language_model("llama"), tmp_path / "tiny-llama")


def test_a_lean_process_computes_the_same_bits_without_the_unused_parts(
    tmp_path, embedder_folder, embedder
):
    folders = {
        name: str(saved(tiny.language_model(name), tmp_path / name)) for name in tiny.MAIN
    }
    env = {**os.environ, "TRUELINE_HOME": str(tmp_path / "home"), "TRUELINE_WITHOUT": ""}
    child = [sys.executable, "-c", CHILD, str(embedder_folder), *folders.values()]
    done = subprocess.run(child, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for folder in folders.values():
        with torch.no_grad():
            logits = load(folder).model(input_ids=torch.arange(3, 40)[None]).logits
        assert torch.equal(torch.tensor(found[folder]), logits), folder
    assert found["embedder"] == embedder.hash
    assert found["imported"] == []
    assert found["later"] == [3, True]


def test_a_head_is_tried_once_and_recalled_as_it_was(folder, monkeypatch):
    first = load(folder)
    name = "trueline.engines.transformers.language.find_head"
    monkeypatch.setattr(name, lambda *_: pytest.fail("the head was tried again"))
    again = load(folder)
    assert (again.head.is_linear, first.head.is_linear) == (True, True)
    hidden = torch.randn(2, 32)
    assert torch.equal(again.head(hidden), first.head(hidden))
    assert again.tokenizer_hash == first.tokenizer_hash


def test_a_file_that_changed_makes_what_was_kept_void(folder):
    load(folder)
    assert read_kept(folder, DTYPE, CPU) is not None
    assert read_kept(folder, torch.bfloat16, CPU) is None
    weights = folder / "model.safetensors"
    state = weights.stat()
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert read_kept(folder, DTYPE, CPU) is None


@pytest.mark.parametrize("text", ["", "[]", '{"has_head": 1}', '{"has_head": "yes"}'])
def test_what_is_kept_and_damaged_is_not_believed(folder, text):
    load(folder)
    kept._file(folder, DTYPE, CPU).write_text(text, "utf-8")
    assert read_kept(folder, DTYPE, CPU) is None
    assert load(folder).head is not None


def test_a_cache_that_cannot_be_written_keeps_nothing_and_fails_nobody(folder, monkeypatch):
    monkeypatch.setattr(kept, "write_text", lambda *_: (_ for _ in ()).throw(OSError("full")))
    kept.keep(folder, DTYPE, CPU, Kept(True, True, "x"))
    assert read_kept(folder, DTYPE, CPU) is None
