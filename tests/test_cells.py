"""Cells: everything that changes an answer changes the id of its cell, and nothing more."""

import copy
import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny
import torch
from conftest import EXAMPLES

import trueline as tl
from trueline.embed import load_embedder
from trueline.engines.transformers.model import LanguageModel
from trueline.lab import cells as module
from trueline.lab.cells import benchmark_of, cells_of
from trueline.lab.judges.models import LocalJudge
from trueline.lab.judges.offline import OfflineJudge
from trueline.lab.plan import plan_from

pytestmark = pytest.mark.usefixtures("parts")
MODULE = "transformers_modules.attack.modeling"


@pytest.fixture(scope="module")
def table(table):
    return {**table, "methods": ["greedy"], "max_new_tokens": 2}


def built(embedder, examples=EXAMPLES, **options):
    options = {"context": 8, **options}
    return tl.build(tiny.language_model("llama"), examples, embedder=embedder, **options)


@pytest.fixture(scope="module")
def space(embedder):
    return built(embedder)


def id_of(table, lm=None, space=None, **changed) -> str:
    """The id of the first cell of a plan; the benchmark may be changed after it was read."""
    plan = plan_from(table)
    benchmark = replace(benchmark_of(plan, plan.benchmarks[0]), **changed)
    variant = plan.variants[0]
    given = space if variant.build is not None else None
    lm = lm or tiny.language_model("llama")
    return cells_of(plan, lm, benchmark, variant, given)[0].id


def model_with(*, weight=None, tokenizer=None, dtype=None, end=None, **config):
    """A copy of the tiny model with something changed."""
    base = tiny.language_model("llama")
    model, words = copy.deepcopy(base.model), copy.deepcopy(base.tokenizer)
    if weight is not None:
        model.base_model.layers[0].mlp.up_proj.weight.data[weight] += 0.5
    if tokenizer is not None:
        tokenizer(words)
    for name, value in config.items():
        setattr(model.config, name, value)
    if end is not None:
        model.generation_config.eos_token_id = end
    return LanguageModel(model.to(dtype or torch.float32).eval(), words, id="tiny-llama")


def chat(template):
    return lambda words: setattr(words, "chat_template", template)


def no_beginning(words):
    from tokenizers import processors

    words.backend_tokenizer.post_processor = processors.Sequence([])


MODELS = {
    "weights": {"weight": (3, 5)},
    "dtype": {"dtype": torch.bfloat16},
    "chat template": {"tokenizer": chat(tiny.CHAT)},
    "another chat template": {"tokenizer": chat(tiny.CHAT.replace("<|end|>", ""))},
    "tokenizer": {"tokenizer": lambda words: words.add_tokens(["sleep?"])},
    "special tokens": {"tokenizer": no_beginning},
    "config": {"rms_norm_eps": 0.1},
    "end tokens": {"end": [2, 9]},
}
PLANS = {
    "length": {"max_new_tokens": 3},
    "stop": {"stop": ["."]},
    "temperature": {"temperature": 0.5},
    "seed": {"temperature": 0.5, "seeds": [1]},
    "task": {"tasks": ["choose"]},
    "method": {"methods": ["dola"]},
    "setting": {"methods": ["dola"], "settings": {"dola": {"candidates": [0]}}},
    "batch size": {"batch_size": 3},  # rounding: in bfloat16 another size picks other tokens
    "test": {"test": 3},
    "ground": {"ground": 2},
    "prompt": {"prompts": "one-line"},
}
SPACES = [{"context": 4}, {"window": "answer"}, {"end": True}, {"values": "logits"}]
SPACES += [{"dtype": "float32"}, {"examples": EXAMPLES[:-1]}]


@pytest.mark.parametrize("what", MODELS)
def test_what_changes_the_model_changes_the_id(what, table):
    assert id_of(table, model_with(**MODELS[what])) != id_of(table)
    assert id_of(table, model_with()) == id_of(table)  # a copy does not


def test_every_difference_of_a_plan_is_another_id(table):
    ids = [id_of({**table, **changes}) for changes in ({}, *PLANS.values())]
    assert len({*ids}) == 1 + len(PLANS)


def test_the_code_a_model_brings_is_part_of_it(table, tmp_path, monkeypatch):
    path = tmp_path / "modeling.py"
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(__file__=str(path)))
    ids = [id_of(table)]
    for part, code in [("model", "step = 1"), ("model", "step = 2"), ("tokenizer", "step = 2")]:
        path.write_text(code)
        lm = model_with()
        kind = type(getattr(lm, part))
        named = type(kind.__name__, (kind,), {"__module__": MODULE})
        getattr(lm, part).__class__ = named
        ids.append(id_of(table, lm))
    assert len(set(ids)) == 4


@pytest.mark.parametrize("field", ["question", "answers", "wrong_answers", "id"])
@pytest.mark.parametrize("file", ["ground.jsonl", "test.jsonl"])
def test_an_edit_of_the_data_changes_the_id(file, field, table, data, tmp_path):
    for name in ("ground.jsonl", "test.jsonl"):
        (tmp_path / name).write_bytes((data / name).read_bytes())
    copied = {**table, "benchmarks": [f"{tmp_path / 'ground.jsonl'}:{tmp_path / 'test.jsonl'}"]}
    before = id_of(copied)
    rows = [json.loads(line) for line in (tmp_path / file).read_text("utf-8").splitlines()]
    value = rows[-1][field]
    rows[-1][field] = [*value[:-1], value[-1] + "!"] if isinstance(value, list) else value + "!"
    (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert id_of(copied) != before


def test_the_prompt_the_device_and_the_versions_are_in_the_id(table, monkeypatch):
    usual = id_of(table)
    assert id_of(table, task="summary") != usual  # another prompt
    lm = tiny.language_model("llama")
    facts = "id fingerprint tokenizer_hash dtype stop_ids limit".split()
    elsewhere = {name: getattr(lm, name) for name in facts} | {"device": torch.device("meta")}
    assert id_of(table, SimpleNamespace(**elsewhere)) != usual
    real = module._version
    for package in ("torch", "trueline", "tokenizers", "rouge-score", "sacrebleu"):
        with monkeypatch.context() as patch:
            patch.setattr(module, "_version", lambda n, p=package: "9" if n == p else real(n))
            assert id_of(table) != usual, package


@pytest.mark.parametrize("options", SPACES, ids=lambda options: next(iter(options)))
def test_how_the_space_is_built_is_in_the_id(options, table, space, embedder):
    rad = {**table, "methods": ["rad"]}
    assert id_of(rad, space=built(embedder, **options)) != id_of(rad, space=space)


def test_the_embedder_and_faiss_are_in_the_id(table, space, embedder, tmp_path, monkeypatch):
    rad = {**table, "methods": ["rad"]}
    usual = id_of(rad, space=space)
    weights = load_embedder(tiny.write_embedder(tmp_path / "tiny-bert", seed=1))
    assert weights.id == embedder.id  # the name is the same
    assert id_of(rad, space=built(weights)) != usual
    assert id_of(rad, space=built(embedder)) == usual
    real = module._version
    monkeypatch.setattr(module, "_version", lambda n: "9" if n == "faiss-cpu" else real(n))
    assert id_of(rad, space=space) != usual
    assert id_of(table) == id_of(table, space=space)  # greedy has none


SAME = [
    {"threads": 1, "data": ".", "out": "elsewhere", "models": ["another name"]},
    {"judges": ["fake"], "judge": {"max_tokens": 9}},
    {"trust_remote_code": True},  # the code that runs is part of the model
    {"rule": "all"},  # every question has an answer
    {"seeds": [5]},  # nothing is drawn
    {"dtype": "float32", "device": "cpu"},  # which is what auto is here
    {"tasks": ["generate", "choose"]},
    {"variants": [{"method": "greedy"}], "prompts": "lines"},
]


def test_what_changes_no_answer_leaves_the_id(table, monkeypatch):
    usual = id_of(table)
    for extra in SAME:
        assert id_of({**table, **extra}) == usual, extra
    lm = tiny.language_model("llama")
    assert id_of(table, LanguageModel(lm.model, tiny.tokenizer(), id="another")) == usual
    monkeypatch.setattr(module.platform, "python_version", lambda: "3.99")
    monkeypatch.setattr(module.os, "cpu_count", lambda: 99)
    assert id_of(table) == usual


MINE = """
from dataclasses import dataclass
from typing import ClassVar
from trueline.methods.prompting import Greedy
@dataclass(frozen=True)
class Mine(Greedy):
    name: ClassVar[str] = 'mine'
"""


def test_a_plugged_in_method_is_known_by_its_source_too(table, tmp_path, monkeypatch):
    package = tmp_path / "attack_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(MINE)
    (package / "b.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    point = SimpleNamespace(name="mine", value="attack_package.a:Mine")
    point.load = lambda: __import__("attack_package.a").a.Mine
    monkeypatch.setattr("trueline.methods._plugged_in", lambda: {"mine": point})
    mine = {**table, "methods": ["mine"]}
    ids = [id_of(table), id_of(mine)]
    (package / "b.py").write_text("# a step is done otherwise")
    ids.append(id_of(mine))
    (package / "b.py").rename(package / "c.py")  # the same contents, elsewhere
    ids.append(id_of(mine))
    assert len({*ids}) == 4
    for name in ("attack_package", "attack_package.a"):
        monkeypatch.delitem(sys.modules, name)


def test_an_encoder_of_bertscore_is_known_by_its_files(table, embedder_folder, tmp_path):
    folders = [tmp_path / name / "encoder" for name in ("one", "two", "three")]
    for folder in folders:
        shutil.copytree(embedder_folder, folder)
    config = json.loads((folders[1] / "config.json").read_text("utf-8"))
    (folders[1] / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.1}))
    ids = [id_of({**table, "bertscore": str(one), "bertscore_layers": 1}) for one in folders]
    assert ids[0] != ids[1]
    assert ids[0] == ids[2]  # the same files in another place
    assert ids[0] != id_of({**table, "bertscore": str(folders[0]), "bertscore_layers": 2})


def test_every_judge_is_known_by_what_it_is_made_of(embedder, tmp_path):
    vectors = load_embedder(tiny.write_embedder(tmp_path / "tiny-bert", seed=1))
    lm, other = tiny.language_model("llama"), model_with(weight=(0, 0))
    pairs = [
        (OfflineJudge(embedder), OfflineJudge(vectors)),
        (LocalJudge(lm, 8, "ours"), LocalJudge(other, 8, "ours")),
        (LocalJudge(lm, 8, "ours"), LocalJudge(lm, 9, "ours")),
    ]
    for one, two in pairs:
        assert one.id == two.id
        assert one.hash != two.hash
