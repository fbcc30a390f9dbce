"""An audit: anybody's processor as a method, and verdicts that committed answers bear out."""

import gzip
import json
from dataclasses import replace

import pytest
import torch
from conftest import run_command
from test_controls import COMMITTED, OLD, TODAY
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor

import trueline as tl
from trueline import methods
from trueline.errors import SettingError
from trueline.lab.audit import audits_of
from trueline.lab.results import read_results

PENALTY = "transformers:RepetitionPenaltyLogitsProcessor"
QUESTION = "Are bats blind?"


class Quiet(LogitsProcessor):
    """Changes nothing."""

    def __call__(self, input_ids, scores):
        return scores


class Parrot(LogitsProcessor):
    """Writes the beginning of the first example, whatever the question."""

    def __init__(self, examples, tokenizer, weight=50.0):
        self.ids = tokenizer.encode(examples[0].answers[0])
        self.weight, self.step = weight, 0

    def __call__(self, input_ids, scores):
        scores[0, self.ids[self.step % len(self.ids)]] += self.weight
        self.step += 1
        return scores


def test_a_processor_of_transformers_picks_the_tokens_that_transformers_picks_with_it(lm):
    with methods.processor_added(PENALTY):
        method = methods.make_method(PENALTY, settings={"penalty": 1.7})
    questions, options = [QUESTION, "Does gold rust?"], {"max_new_tokens": 12, "stop": []}
    answers = tl.generate(lm, method, questions, **options)
    plain = tl.generate(lm, tl.Greedy(), questions, **options)
    assert [one.token_ids for one in answers] != [one.token_ids for one in plain]
    for question, answer in zip(questions, answers, strict=True):
        ids = method.question_prompt.encode(question, lm.tokenizer)
        made = lm.model.generate(
            torch.tensor([ids]),
            max_new_tokens=12,
            do_sample=False,
            logits_processor=[RepetitionPenaltyLogitsProcessor(1.7)],
        )
        assert list(answer.token_ids) == made[0, len(ids) :].tolist()


def test_a_processor_with_a_datastore_is_made_from_the_examples_for_every_answer(
    lm, examples, embedder
):
    space = tl.build(lm, examples, embedder=embedder)
    with methods.processor_added("test_audit:Parrot"):
        method = methods.make_method("test_audit:Parrot", space=space)
    assert method.settings() == {"weight": 50.0}
    options = {"max_new_tokens": 5, "stop": []}
    both = tl.generate(lm, method, [QUESTION, "Does gold rust?"], **options)
    wanted = lm.tokenizer.encode(examples[0].answers[0])[:5]
    assert [list(one.token_ids[: len(wanted)]) for one in both] == [wanted, wanted]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing_there:Name", "nothing_there:Name cannot be imported"),
        ("transformers:Nothing", "transformers:Nothing cannot be imported"),
    ],
)
def test_a_path_that_names_no_processor_is_refused(path, message):
    with pytest.raises(SettingError, match=message):
        methods.processor_added(path).__enter__()


def test_only_who_types_a_processor_may_add_one():
    with methods.processor_added(PENALTY):
        assert PENALTY in methods.method_names()
    assert PENALTY not in methods.method_names()
    with pytest.raises(
        SettingError, match="there is no method 'transformers:MinPLogitsWarper'"
    ):
        methods.make_method("transformers:MinPLogitsWarper")


def test_an_audit_writes_its_verdict_first_and_goes_on_where_it_stopped(tiny_home, tmp_path):
    command = ["audit", PENALTY, "--set", "penalty=3", "--test", "3", "--max-new-tokens", "6"]
    out = ["--out", str(tmp_path)]
    ran = run_command(*command, *out, "--json").json
    (found,) = ran["audits"]
    assert found["changes"][f"{PENALTY} penalty=3"]["answers"] == 3
    lines = (tmp_path / "results.jsonl").read_bytes()
    assert run_command(*command, *out, "--json").json["audits"] == ran["audits"]
    assert (tmp_path / "results.jsonl").read_bytes() == lines
    page = (tmp_path / "audit.md").read_text("utf-8")
    assert found["sentence"].split(";")[0] in page.replace("\\", "").split("##")[0]
    assert json.loads((tmp_path / "audit.json").read_text("utf-8"))["audits"] == ran["audits"]
    assert "<html" in (tmp_path / "audit.html").read_text("utf-8")


def test_a_method_that_does_nothing_is_called_so(tiny_home, tmp_path):
    command = ["audit", "test_audit:Quiet", "--test", "3", "--max-new-tokens", "4"]
    ran = run_command(*command, "--out", str(tmp_path))
    assert "it does nothing; all 3 answers are greedy's, token for token" in ran.out


def test_a_missing_or_a_wrong_argument_is_named(tiny_home, tmp_path):
    command = ["audit", PENALTY, "--test", "1", "--out", str(tmp_path)]
    assert "give --set penalty=VALUE" in run_command(*command).err
    ran = run_command(*command, "--set", "penalty=-1")
    assert "every sample failed; the first one: transformers:Repetition" in ran.out


@pytest.mark.parametrize(
    ("judge", "finding", "words"),
    [
        (OLD, "shared", "not an effect of the examples: answers shuffled +12.0"),
        (TODAY, "none", "no effect that can be told from chance"),
    ],
)
def test_the_verdict_on_rad_is_that_of_its_controls(judge, finding, words, tmp_path):
    (tmp_path / "results.jsonl").write_bytes(gzip.decompress(COMMITTED.read_bytes()))
    results = read_results(tmp_path)
    kept = [
        replace(cell, verdicts=tuple(x for x in cell.verdicts if x.judge == judge))
        for cell in results.cells
    ]
    _, (audit,) = audits_of(replace(results, cells=tuple(kept)), "rad")
    assert (audit.finding, audit.column) == (finding, f"truth_info@{judge}")
    assert words in audit.sentence
    own = audit.changes["rad"]
    assert (own.answers, own.changed) == (68, 47)
    assert own.flipped_first <= own.flipped
