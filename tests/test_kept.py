"""What is kept between openings."""

import os

import pytest
import tiny
import torch

from trueline.engines.transformers import kept
from trueline.engines.transformers.kept import Kept, read_kept
from trueline.engines.transformers.language import load
from trueline.engines.transformers.quiet import quiet

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
