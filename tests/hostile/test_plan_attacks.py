"""Plans as strangers and slips of the pen write them, and what a cell's id must hold."""

import copy
import gzip
import json
import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from attack import IS_LONG, mutated, mutated_bytes, rounds, within
from click.testing import CliRunner
from conftest import EXAMPLES

import trueline as tl
from trueline.cli import cli
from trueline.embed import load_embedder
from trueline.engines.transformers.model import LanguageModel
from trueline.errors import ExampleError, SettingError, TruelineError
from trueline.examples import to_lines
from trueline.lab import cells as module
from trueline.lab.cells import benchmark_of, cells_of
from trueline.lab.plan import plan_from, read_plan_table
from trueline.lab.results import AnswerLine, CellLine, VerdictLine, read_written
from trueline.lab.run import run_plan
from trueline.lab.samples import Verdict
from trueline.types import Example

PLAN = """
out = "results"
models = ["tiny"]
benchmarks = ["GROUND:TEST"]
methods = ["greedy", "rad", "kate"]
tasks = ["generate", "choose"]
judges = ["fake"]
ground = 4
test = 3
draw = 7
rule = "all"
max_new_tokens = 2
batch_size = 2
temperature = 0.7
seeds = [0, 1]
stop = ["\\n\\n"]
dtype = "float32"
device = "cpu"
threads = 1
trust_remote_code = false
controls = false

[judge]
concurrency = 2
per_minute = 60.5
tries = 2
timeout = 3
backoff = 0.5
patience = 9
max_tokens = 9

[settings.rad]
alpha = 0.5

[sweep]
"rad.tau" = [0.6, 0.7]
"build.context" = [4, 8]

[[variants]]
method = "rad"
beta = 0.5

[build]
window = "all"
values = "auto"

[build.rad]
end = true
"""
TEST = [
    Example(question, f"No, {question.lower()}", [f"Yes, {question.lower()}"], id=f"t{number}")
    for number, question in enumerate(tiny.QUESTIONS, 1)
]


class FakeJudge:
    """Says yes; `hash` is what it is made of."""

    id, hash, asked = "fake:1", "one", 0

    def judge(self, task, about, items, progress=None):
        type(self).asked += len(items)
        return [Verdict(self.id, about, True, self.hash) for _ in items]


@pytest.fixture(autouse=True)
def parts(embedder, monkeypatch):
    """Names stand for tiny parts."""
    load = "trueline.engines.transformers.model.load"
    monkeypatch.setattr(load, lambda name, **options: tiny.language_model("llama"))
    monkeypatch.setattr("trueline.space.load_embedder", lambda name, device: embedder)
    judge = "trueline.lab.judges.open_judge"
    monkeypatch.setattr(judge, lambda name, **options: FakeJudge())
    monkeypatch.setattr(FakeJudge, "hash", "one")
    monkeypatch.setattr(FakeJudge, "asked", 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "ground.jsonl").write_text("".join(to_lines(EXAMPLES)), "utf-8")
    (folder / "test.jsonl").write_text("".join(to_lines(TEST)), "utf-8")
    return folder


@pytest.fixture(scope="module")
def table(data):
    return {
        "models": ["tiny"],
        "benchmarks": [f"{data / 'ground.jsonl'}:{data / 'test.jsonl'}"],
        "methods": ["greedy"],
        "max_new_tokens": 2,
        "batch_size": 2,
        "controls": False,
    }


@pytest.fixture(scope="module")
def space(embedder):
    return tl.build(tiny.language_model("llama"), EXAMPLES, context=8, embedder=embedder)


def plan_text(data) -> str:
    return PLAN.replace("GROUND:TEST", f"{data / 'ground.jsonl'}:{data / 'test.jsonl'}")


def asked(*arguments):
    """A command's exit code and output; anything but an orderly end fails the test."""
    with within(60):
        return CliRunner().invoke(cli, [str(x) for x in arguments], catch_exceptions=False)


# What a cell's id holds


def id_of(table, lm=None, space=None, **changed) -> str:
    """The id of the first cell of a plan; the benchmark may be changed after it was read."""
    plan = plan_from(table)
    benchmark = replace(benchmark_of(plan, plan.benchmarks[0]), **changed)
    variant = plan.variants[0]
    given = space if variant.build is not None else None
    lm = lm or tiny.language_model("llama")
    return cells_of(plan, lm, benchmark, variant, given)[0].id


def model_with(
    *, chat=None, weight=None, tokenizer=None, dtype=None, **config
) -> LanguageModel:
    """A copy of the tiny model with something changed."""
    base = tiny.language_model("llama")
    model, words = copy.deepcopy(base.model), copy.deepcopy(base.tokenizer)
    if chat is not None:
        words.chat_template = chat
    if weight is not None:
        model.base_model.layers[0].mlp.up_proj.weight.data[weight] += 0.5
    if tokenizer is not None:
        tokenizer(words)
    for name, value in config.items():
        setattr(model.config, name, value)
    return LanguageModel(model.to(dtype or torch.float32).eval(), words, id="tiny-llama")


def no_beginning(words):
    from tokenizers import processors

    words.backend_tokenizer.post_processor = processors.Sequence([])


def stops_elsewhere():
    lm = model_with()
    lm.model.generation_config.eos_token_id = [2, 9]
    return lm


MODELS = {
    "weights": lambda: model_with(weight=(3, 5)),
    "dtype": lambda: model_with(dtype=torch.bfloat16),
    "chat template": lambda: model_with(chat=tiny.CHAT),
    "another chat template": lambda: model_with(chat=tiny.CHAT.replace("<|end|>", "")),
    "tokenizer": lambda: model_with(tokenizer=lambda words: words.add_tokens(["sleep?"])),
    "special tokens": lambda: model_with(tokenizer=no_beginning),
    "config": lambda: model_with(rms_norm_eps=0.1),
    "end tokens": stops_elsewhere,
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
}


@pytest.mark.parametrize("what", MODELS)
def test_what_changes_the_model_changes_the_id(what, table):
    assert id_of(table, MODELS[what]()) != id_of(table)
    assert id_of(table, model_with()) == id_of(table)  # a copy does not


def test_the_code_a_model_brings_is_part_of_it(table, tmp_path, monkeypatch):
    path = tmp_path / "modeling.py"
    name = "transformers_modules.attack.modeling"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(__file__=str(path)))
    ids = [id_of(table)]
    for part in ("model", "tokenizer"):
        for code in ("step = 1", "step = 2"):
            path.write_text(code)
            lm = model_with()
            kind = type(getattr(lm, part))
            getattr(lm, part).__class__ = type(kind.__name__, (kind,), {"__module__": name})
            ids.append(id_of(table, lm))
    assert len(set(ids)) == 5


@pytest.mark.parametrize("what", PLANS)
def test_what_changes_the_answers_changes_the_id(what, table):
    ids = {id_of(table), id_of({**table, **PLANS[what]})}
    if what == "setting":
        ids.add(id_of({**table, "methods": ["dola"]}))
    assert len(ids) == (3 if what == "setting" else 2)


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
    other = SimpleNamespace(
        **{name: getattr(lm, name) for name in facts}, device=torch.device("meta")
    )
    assert id_of(table, other) != usual
    real = module._version
    for package in ("torch", "trueline", "tokenizers", "rouge-score", "sacrebleu"):
        with monkeypatch.context() as patch:
            patch.setattr(module, "_version", lambda n, p=package: "9" if n == p else real(n))
            assert id_of(table) != usual, package


SPACES = [{"context": 4}, {"window": "answer"}, {"end": True}, {"values": "logits"}]
SPACES += [{"dtype": "float32"}]


@pytest.mark.parametrize("options", SPACES, ids=lambda options: next(iter(options)))
def test_how_the_space_is_built_is_in_the_id(options, table, space, embedder):
    rad = {**table, "methods": ["rad"]}
    lm = tiny.language_model("llama")
    other = tl.build(lm, EXAMPLES, embedder=embedder, **{"context": 8, **options})
    assert id_of(rad, space=other) != id_of(rad, space=space)


def test_the_embedder_the_examples_and_faiss_are_in_the_id(
    table, space, embedder, tmp_path, monkeypatch
):
    rad, lm = {**table, "methods": ["rad"]}, tiny.language_model("llama")
    usual = id_of(rad, space=space)
    weights = load_embedder(tiny.write_embedder(tmp_path / "tiny-bert", seed=1))
    assert weights.id == embedder.id  # the name is the same
    assert id_of(rad, space=tl.build(lm, EXAMPLES, context=8, embedder=weights)) != usual
    fewer = tl.build(lm, EXAMPLES[:-1], context=8, embedder=embedder)
    assert id_of(rad, space=fewer) != usual
    assert id_of(rad, space=tl.build(lm, EXAMPLES, context=8, embedder=embedder)) == usual
    real = module._version
    monkeypatch.setattr(module, "_version", lambda n: "9" if n == "faiss-cpu" else real(n))
    assert id_of(rad, space=space) != usual
    assert id_of(table) == id_of(table, space=space)  # greedy has none


def test_what_changes_no_answer_leaves_the_id(table, tmp_path, monkeypatch):
    usual = id_of(table)
    same = [
        {"threads": 1},
        {"data": str(tmp_path)},
        {"out": "elsewhere"},
        {"judges": ["fake"], "judge": {"max_tokens": 9}},
        {"trust_remote_code": True},  # the code that runs is part of the model
        {"rule": "all"},  # every question has an answer
        {"draw": None},
        {"models": ["another name"]},
        {"seeds": [5]},  # nothing is drawn
        {"dtype": "float32", "device": "cpu"},  # which is what auto is here
        {"tasks": ["generate", "choose"]},
        {"variants": [{"method": "greedy"}]},
    ]
    for extra in same:
        given = {key: x for key, x in {**table, **extra}.items() if x is not None}
        assert id_of(given) == usual, extra
    renamed = LanguageModel(
        tiny.language_model("llama").model, tiny.tokenizer(), id="another-name"
    )
    assert id_of(table, renamed) == usual
    monkeypatch.setattr(module.platform, "python_version", lambda: "3.99")
    monkeypatch.setattr(module.os, "cpu_count", lambda: 99)
    assert id_of(table) == usual


def test_a_plugged_in_method_is_known_by_its_source_too(table, tmp_path, monkeypatch):
    source = (
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from trueline.methods.prompting import Greedy\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Greedy):\n"
        "    name: ClassVar[str] = 'mine'\n"
    )
    (tmp_path / "attack_method.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    point = SimpleNamespace(name="mine", value="attack_method:Mine")
    point.load = lambda: __import__("attack_method").Mine
    monkeypatch.setattr("trueline.methods._plugged_in", lambda: {"mine": point})
    mine = {**table, "methods": ["mine"]}
    before = id_of(mine)
    assert before != id_of(table)
    (tmp_path / "attack_method.py").write_text(source + "# a step is done otherwise\n")
    assert id_of(mine) != before
    monkeypatch.delitem(sys.modules, "attack_method")


def test_the_source_of_a_package_is_known_by_its_places_and_read_once(tmp_path, monkeypatch):
    package, read = tmp_path / "attack_package", []
    for name in ("a", "b"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text(f"name = {name!r}\n")
    (package / "__init__.py").write_text("")
    real = module.file_hash
    monkeypatch.setattr(module, "file_hash", lambda path: read.append(path) or real(path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "attack_package", __import__("attack_package"))
    before = module.versions("attack_package.a")["attack_package source"]
    assert module.versions("attack_package.b")["attack_package source"] == before
    assert len(read) == 3
    (package / "a").rename(package / "c")  # the same names and contents, elsewhere
    assert module.versions("attack_package.b")["attack_package source"] != before


def test_an_encoder_of_bertscore_is_known_by_its_files(table, embedder_folder, tmp_path):
    import shutil

    folders = [tmp_path / name / "encoder" for name in ("one", "two", "three")]
    for folder in folders:
        shutil.copytree(embedder_folder, folder)
    config = json.loads((folders[1] / "config.json").read_text("utf-8"))
    (folders[1] / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.1}))
    ids = [id_of({**table, "bertscore": str(one), "bertscore_layers": 1}) for one in folders]
    assert ids[0] != ids[1]
    assert ids[0] == ids[2]  # the same files in another place
    assert ids[0] != id_of({**table, "bertscore": str(folders[0]), "bertscore_layers": 2})


def test_another_chat_template_is_asked_anew_end_to_end(table, tmp_path, monkeypatch):
    """On 0.1.0 the second run kept the answers of the first."""
    load = "trueline.engines.transformers.model.load"
    for chat in (None, tiny.CHAT):
        lm = model_with(chat=chat)
        monkeypatch.setattr(load, lambda name, lm=lm, **options: lm)
        run_plan(plan_from({**table, "test": 2}), tmp_path)
    lines = read_written(tmp_path / "results.jsonl").lines
    first, second = (line for line in lines if isinstance(line, CellLine))
    assert first.cell != second.cell
    answers = [line for line in lines if isinstance(line, AnswerLine)]
    assert [line.cell for line in answers] == [first.cell] * 2 + [second.cell] * 2
    assert answers[0].prompt_tokens != answers[2].prompt_tokens


def test_a_judge_that_changed_is_asked_again(table, tmp_path, monkeypatch):
    plan = {**table, "judges": ["fake"], "test": 2}
    run_plan(plan_from(plan), tmp_path)
    run_plan(plan_from(plan), tmp_path)
    assert FakeJudge.asked == 4  # two answers, truth and info, once
    monkeypatch.setattr(FakeJudge, "hash", "two")  # a prompt, a limit or weights
    run_plan(plan_from(plan), tmp_path)
    assert FakeJudge.asked == 8
    lines = read_written(tmp_path / "results.jsonl").lines
    found = [(x.judge_hash, x.raw) for x in lines if isinstance(x, VerdictLine)]
    assert found == [("two", "two")] * 4
    monkeypatch.setattr(FakeJudge, "hash", "three")
    outcome = run_plan(plan_from({**plan, "stop": ["."]}), tmp_path)
    assert not any("different settings" in warning for warning in outcome.warnings)
    told = asked("report", tmp_path, "--plots", "none", "--format", "md")
    assert told.exit_code == 0
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "fake:1 judged with different settings, prompts or weights" in text


def test_every_judge_is_known_by_what_it_is_made_of(embedder, tmp_path, monkeypatch):
    from trueline.lab.judges import questions
    from trueline.lab.judges.models import LocalJudge, ServiceJudge
    from trueline.lab.judges.offline import OfflineJudge

    monkeypatch.setenv("GEMINI_API_KEY", "made-up-4711-0815")
    lm, other = tiny.language_model("llama"), model_with(weight=(0, 0))
    vectors = load_embedder(tiny.write_embedder(tmp_path / "tiny-bert", seed=1))

    def remote(most):
        return ServiceJudge("gemini", cache=tmp_path / "cache", max_tokens=most)

    pairs = [
        (OfflineJudge(embedder), OfflineJudge(vectors)),
        (LocalJudge(lm), LocalJudge(other)),
        (LocalJudge(lm), LocalJudge(lm, max_new_tokens=9)),
        (remote(16), remote(17)),
    ]
    for one, two in pairs:
        assert one.id == two.id
        assert one.hash != two.hash
    before = remote(16).hash
    changed = {**questions._texts(), "info": {"text": "Is it?"}}
    monkeypatch.setattr(questions, "_texts", lambda: changed)
    assert remote(16).hash != before


# Plans as people and strangers write them


@pytest.mark.parametrize(
    "mangle",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
    ],
    ids=["mark", "crlf", "both"],
)
def test_a_plan_is_read_as_editors_write_it(mangle, data, tmp_path):
    path, text = tmp_path / "run.toml", plan_text(data)
    path.write_text(text, "utf-8")
    wanted = plan_from(read_plan_table(path))
    path.write_bytes(mangle(text))
    assert plan_from(read_plan_table(path)) == wanted


BAD_FILES = {
    "utf-16": ("methods = []".encode("utf-16"), "UTF-16; save it as UTF-8"),
    "utf-32": ("methods = []".encode("utf-32"), "UTF-32; save it as UTF-8"),
    "latin-1": (
        b'out = "caf\xe9"',
        "in line 1 the byte 0xe9 is not UTF-8; save the file as UTF-8",
    ),
    "deep": (b"stop = " + b"[" * 5_000, "is not readable TOML"),
    "deep keys": (b"settings." + b"a." * 3_000 + b"b = 1", "tables at most 8 levels deep"),
    "digits": (b"test = " + b"9" * 5_000, "is not readable TOML: Exceeds the limit"),
    "hex": (b"test = 0x" + b"f" * 5_000, "test must be a whole number from 1"),
    "twice": (
        b"test = 1\ntest = 2\n#",
        "is not readable TOML: Cannot overwrite a value (at line 2",
    ),
    "large": (b"#" * 1_100_000, "more than 1,000,000 bytes"),
    "nul": (b"out = \x00", "is not readable TOML"),
    "empty": (b"", "benchmarks is missing"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_file_that_is_no_plan_says_why(what, tmp_path):
    content, told = BAD_FILES[what]
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(SettingError) as caught, within(20):
        plan_from(read_plan_table(path), str(path))
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_pipe_or_a_folder_is_no_plan(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path, tmp_path / "pipe.toml", Path("/dev/zero"), tmp_path / ("x" * 300)):
        with pytest.raises(SettingError, match="cannot be read"), within(20):
            read_plan_table(path)


WRONG = ["1979-05-27", "07:32:00", "inf", "nan", "-1", "''", "{}", "[]", "[[]]", "0.5", "1e300"]
WRONG += ["'\\u0000'", '"\\u0000"', str(2**63), "true", "[1979-05-27]", "[{}]", '["\\u0000"]']


def mistakes_of(text) -> str:
    """What is wrong with a plan; nothing where it is accepted."""
    try:
        plan_from(tomllib.loads(text), "run.toml")
    except SettingError as error:
        return str(error)
    return ""


def test_a_wrong_value_at_every_key_is_named_with_its_place():
    """Each key takes few of these; each of the others is named, alone and all together."""
    from trueline.lab.plan import BUILD, JUDGE, KEYS, SAMPLING

    least = {"benchmarks": '["facts"]', "methods": '["greedy"]'}
    keys = [*KEYS, *(f"judge.{key}" for key in JUDGE), *(f"build.{key}" for key in BUILD)]
    named = 0
    for key in keys:
        for value in WRONG:
            table = {**least, key: value}
            told = mistakes_of("".join(f"{name} = {x}\n" for name, x in table.items()))
            named += bool(told)
            assert not told or key.partition(".")[0] in told, (key, value, told)
    assert named > 500
    told = mistakes_of("".join(f"{key} = 1979-05-27\n" for key in KEYS))
    assert all(f"- {key} must be " in told for key in KEYS if key not in SAMPLING)


def test_odd_keys_are_quoted_and_long_lists_are_cut(table):
    with pytest.raises(SettingError) as caught:
        plan_from({**table, "\x1b[31m\u202e": 1, "settings": {"\x1b]0;x\x07": {}}})
    assert str(caught.value).replace("\n", "").isprintable()
    with pytest.raises(SettingError, match="and 961 more") as caught:
        plan_from({**table, **{f"key{number}": 1 for number in range(1_001)}})
    assert str(caught.value).count("\n") == 41


def test_a_sweep_of_more_than_a_thousand_variants_is_refused_at_once(table):
    names = ["alpha", "tau", "beta", "from_step", "k"]
    sweep = {f"rad.{name}": [0.1] * 50 for name in names}
    with pytest.raises(SettingError, match="more than 1,000 variants"), within(20):
        plan_from({**table, "methods": ["rad"], "sweep": sweep})
    apart = {"rad.alpha": [0.1, 0.2] * 15, "dola.repetition_penalty": [1.0, 1.1] * 15}
    wide = {**table, "methods": ["greedy", "rad", "dola"], "sweep": apart}
    assert len(plan_from(wide).variants) == 5


def test_a_plan_alone_cannot_have_code_run(data, tmp_path, monkeypatch):
    text = plan_text(data).replace("trust_remote_code = false", "trust_remote_code = true")
    text = text.replace('"tiny"', '"smollm2-135m"')  # a name that is none is refused before
    path = tmp_path / "run.toml"
    path.write_text(text.replace('methods = ["greedy", "rad", "kate"]', 'methods = ["greedy"]')
                    .partition("[settings.rad]")[0], "utf-8")  # fmt: skip
    given = []

    def load(name, **options):
        given.append(options["trust_remote_code"])
        return tiny.language_model("llama")

    monkeypatch.setattr("trueline.engines.transformers.model.load", load)
    with pytest.raises(SettingError, match=r"a plan alone may not; .* --trust-remote"):
        asked("eval", path, "--out", tmp_path / "out")
    assert given == []
    assert not (tmp_path / "out").exists()
    with pytest.raises(SettingError, match="a plan alone may not"):
        read_plan_table(path)
    done = asked("eval", path, "--out", tmp_path / "out", "--trust-remote-code")
    assert (done.exit_code, given) == (0, [True])


LONG = "x" * 300


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--benchmark", LONG], "File name too long"),
        (["--benchmark", f"{LONG}:{LONG}"], "File name too long"),
        (["--benchmark", "~nouser/x"], "there is no benchmark and no file '~nouser/x'"),
        (["--benchmark", "\x1b[31m"], r"no file '\x1b[31m'"),
        (["--benchmark", "wikiqa", "--data", LONG], "File name too long"),
        (["--benchmark", "wikiqa", "--data", "~nouser"], "there is no data folder ~nouser"),
        (["--benchmark", "wikiqa", "--data", "FILE"], "there is no data folder"),
        (["--benchmark", "FOLDER"], "there is no benchmark and no file"),
        (["--benchmark", "facts", "--out", "FILE"], "cannot hold results (File exists)"),
        (["--benchmark", "facts", "--out", "FILE/below"], "cannot hold results (Not a dir"),
        (["--benchmark", "facts", "--out", LONG], "cannot hold results (File name too long)"),
        (["--benchmark", "facts", "--out", "/proc/self/x"], "cannot hold results"),
        (["--benchmark", "facts", "--test", "9" * 5_000], "test must be a whole number from 1"),
        (["--benchmark", "facts", "--draw", "9" * 40], "draw must be a whole number from 0"),
        (["--benchmark", "facts", "--temperature", "inf"], "temperature has what results"),
    ],
)
def test_odd_paths_and_numbers_of_eval_are_one_line(flags, told, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    names = {
        "FILE": tmp_path / "file",
        "FOLDER": tmp_path,
        "FILE/below": tmp_path / "file/below",
    }
    given = [str(names.get(flag, flag)) for flag in flags]
    monkeypatch.chdir(tmp_path)
    if "--out" not in given:
        given += ["--out", str(tmp_path / "out")]
    with pytest.raises(TruelineError) as caught:
        asked("eval", "--methods", "greedy", *given)
    assert told in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


# Files of benchmarks

ROW = {"document": "A long one.", "right_summary": "Right.", "hallucinated_summary": "Wrong."}


def summaries(folder, content, *, packed=False):
    target = folder / "halueval" / f"halueval_summarization_short700.jsonl{'.gz' * packed}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def rows(*changes) -> bytes:
    made = [{**ROW, "document": f"Document {n}."} for n in range(700)]
    for number, change in changes:
        made[number] = change if not isinstance(change, dict) else {**made[number], **change}
    return "".join(json.dumps(row) + "\n" for row in made).encode()


def bomb() -> bytes:
    return gzip.compress(b"x" * 40_000_000, 1)


DATA = {
    "number": (rows((41, {"document": 5})), ":42: the field 'document' must be a text"),
    "list": (rows((41, {"right_summary": ["a"]})), ":42: the field 'right_summary' must be"),
    "null": (rows((41, {"right_summary": None})), ":42: the field 'right_summary' must be"),
    "half": (rows((41, {"right_summary": "\ud800"})), ":42: the field 'right_summary' must be"),
    "no object": (rows((41, [1])), ":42: expected an object"),
    "no json": (rows().replace(b"{", b"[", 1), ":1: expected an object"),
    "latin-1": (rows().replace(b"Document 7.", b"Docum\xe9nt"), ":8: expected an object"),
    "deep": (b"[" * 100_000 + b"\n", ":1: expected an object"),
    "digits": (
        rows((3, {"document": 0})).replace(b": 0", b": " + b"9" * 5_000),
        ":4: expected",
    ),
    "cut": (rows()[:9_000], ":"),
    "utf-16": (rows().decode().encode("utf-16"), ":1: expected an object"),
    "long line": (b"x" * 17_000_000, "cannot be read past line 0: it has a line of more than"),
}
PACKED = {
    "no gzip": (rows(), "cannot be read past line 0: Not a gzipped file"),
    "cut gzip": (gzip.compress(rows())[:-40], "cannot be read past line"),
    "flipped": (gzip.compress(rows())[:-6] + b"abcdef", "cannot be read past line"),
    "bomb": (bomb(), "cannot be read past line 0: it has a line of more than 16,000,000 bytes"),
}


@pytest.mark.parametrize("what", [*DATA, *PACKED])
def test_damaged_data_is_named_with_its_line(what, tmp_path):
    content, told = (DATA | PACKED)[what]
    path = summaries(tmp_path, content, packed=what in PACKED)
    with pytest.raises(ExampleError) as caught, within(60):
        benchmark_of(
            plan_from({"benchmarks": ["halueval-summary"], "methods": ["greedy"],
                       "data": str(tmp_path)}), "halueval-summary")  # fmt: skip
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_data_with_a_mark_or_packed_reads_as_it_is(tmp_path):
    plan = {"benchmarks": ["halueval-summary"], "methods": ["greedy"], "data": str(tmp_path)}

    def read():
        return benchmark_of(plan_from(plan), "halueval-summary").hash

    path = summaries(tmp_path, rows())
    wanted = read()
    summaries(tmp_path, b"\xef\xbb\xbf" + rows().replace(b"\n", b"\r\n"))
    assert read() == wanted
    path.unlink()
    summaries(tmp_path, gzip.compress(rows()), packed=True)
    assert read() == wanted


# The fuzzer


def attacked(chance, text):
    """A plan that was changed: its table or its bytes, which a file then holds."""
    if chance.random() < 0.5:
        return mutated_bytes(chance, text.encode())
    lines = text.split("\n")
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(len(lines))
        kind = chance.randrange(4)
        key, _, _ = lines[at].partition(" = ")
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(chance.randrange(len(lines)), lines[at])
        elif kind == 2:
            lines[at] = f"{key} = {chance.choice(WRONG)}"
        else:
            lines[at] = f"{key}.{chance.choice(['x', 'rad', '0', 'alpha'])} = 1"
    return "\n".join(lines).encode()


def plan_cells(plan, lm, space):
    """Everything of a run that comes before the model is asked."""
    for name in plan.benchmarks:
        benchmark = benchmark_of(plan, name)
        for variant in plan.variants:
            given = space if variant.build is not None else None
            yield from cells_of(plan, lm, benchmark, variant, given)


def test_mutated_plans_are_refused_or_planned(data, embedder, tmp_path, monkeypatch):
    """A round is refused by a TruelineError, or its cells are planned, each with its own id.

    Damage used silently would be a value that no key takes in the plan: every value of an
    accepted plan is checked again here, by rules of this file.
    """
    monkeypatch.chdir(tmp_path)
    lm, text = tiny.language_model("llama"), plan_text(data)
    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder, wrong=True)
    table, path = read_table(text, tmp_path), tmp_path / "run.toml"
    assert len(list(plan_cells(plan_from(table), lm, space))) == 21  # 7 variants, 2 + 1 cells
    counts = {"refused": 0, "planned": 0, "run": 0}
    for number, chance in enumerate(rounds("plans", 150, 2_000)):
        is_file = number % 2 == 0
        given = attacked(chance, text) if is_file else mutated(chance, table)
        try:
            with within(60):
                if is_file:
                    path.write_bytes(given)
                    given = read_plan_table(path)
                plan = plan_from(given, "run.toml")
                cells = list(plan_cells(plan, lm, space))
                if is_cheap(plan) and counts["run"] < (40 if IS_LONG else 3):
                    run_plan(plan, tmp_path / f"out-{number}", max_samples=1)
                    counts["run"] += 1
        except TruelineError as error:
            counts["refused"] += bool(str(error))
            continue
        except BaseException as error:
            error.add_note(f"{chance.name}: {given!r}")
            raise
        counts["planned"] += 1
        assert is_sound(plan), f"{chance.name}: {plan}"
        for cell in cells:
            json.loads(json.dumps(cell.head.settings))
    print(f"plans: {counts}")
    assert min(counts.values()) > 0


def read_table(text, tmp_path):
    path = tmp_path / "sound.toml"
    path.write_text(text, "utf-8")
    return read_plan_table(path)


def is_cheap(plan) -> bool:
    return (
        plan.sampling.max_new_tokens <= 4
        and len(plan.variants) <= 8
        and len(plan.benchmarks) == 1
    )


def is_sound(plan) -> bool:
    """Whether every value is one that a run can take, by rules written down once more."""
    numbers = [plan.ground, plan.test, plan.draw, plan.threads, plan.bertscore_layers]
    numbers += [plan.sampling.max_new_tokens, plan.batch_size, *plan.seeds]
    names = [*plan.models, *plan.benchmarks, *plan.judges, plan.device, plan.ground_from]
    names += [str(plan.data), plan.bertscore]
    return (
        all(n is None or (type(n) is int and 0 <= n <= 10**9) for n in numbers)
        and all(n is None or (isinstance(n, str) and n and "\0" not in n) for n in names)
        and (plan.sampling.temperature == 0 or 0.001 <= plan.sampling.temperature <= 10**9)
        and type(plan.trust_remote_code) is bool
        and {*plan.tasks} <= {"generate", "choose"}
        and plan.rule in ("answered", "all")
        and 0 < len(plan.variants) <= 2_000
    )
