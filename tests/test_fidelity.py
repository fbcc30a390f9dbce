"""Fidelity settings: what `as = "paper"` means, and the effect of each of them."""

from types import SimpleNamespace

import pytest
import tiny

import trueline as tl
from trueline.errors import SettingError
from trueline.lab.benchmarks.tables import Benchmark, Sample
from trueline.lab.judges import prompt_for
from trueline.lab.metrics import BertScore
from trueline.lab.plan import plan_from
from trueline.lab.run import _confidence, text_scores
from trueline.prompts import Prompt, prompt_sets, prompts_with

LEAST = {"benchmarks": ["facts"], "methods": ["greedy"]}
SAMPLE = Sample("s", "Do bats see?", ("They are seeing well.", "Yes."))
BLIND = Sample("s", "Do bats see?")


def test_as_paper_sets_every_part_and_what_is_given_wins():
    plan = plan_from({**LEAST, "as": "paper"})
    words = {"prompts": "one-line", "confidence": "arithmetic-raw", "references": "first"}
    assert plan.fidelity == {**words, "stemmer": True}
    assert (plan.sampling.max_new_tokens, plan.rule) == (256, "all")
    assert plan.judge == {"questions": "paper"}
    mixed = {**LEAST, "as": "paper", "max_new_tokens": 32, "judge": {"tries": 2}}
    plan = plan_from({**mixed, "stemmer": False})
    assert (plan.sampling.max_new_tokens, plan.stemmer) == (32, False)
    assert plan.judge == {"questions": "paper", "tries": 2}
    scored = {"bertscore": "folder", "bertscore_layers": 40}
    assert plan_from({**LEAST, "as": "paper", **scored}).bertscore_baseline == (
        "microsoft/deberta-xlarge-mnli"
    )
    assert plan_from(LEAST).fidelity == plan_from({**LEAST, "prompts": "lines"}).fidelity == {}


def test_one_line_prompts_are_those_of_the_appendix_for_every_method():
    sets = prompt_sets("one-line")
    assert sets["question"].base.template == (
        "Answer the following question with one or two sentences.\nQ: {question} A:"
    )
    assert sets["summary"].base.template.endswith("Document: {question} Summary:")
    prompt = Benchmark("b", "question", (), (), "h", layout="one-line").prompt
    assert prompts_with(prompt).bare == Prompt("Q: {question} A:")
    assert prompts_with(sets["summary"].base).demonstration.startswith("Document:")


def test_rouge_can_stem_words_and_look_at_the_first_reference_alone():
    plain = text_scores(SAMPLE, "They see well.")["rouge_l"]
    stemmed = text_scores(SAMPLE, "They see well.", stemmer=True)["rouge_l"]
    # 3 words and 4: two in common, then three as `seeing` becomes `see`.
    assert (plain, stemmed) == (pytest.approx(4 / 7, abs=1e-6), pytest.approx(6 / 7, abs=1e-6))
    assert text_scores(SAMPLE, "Yes.")["rouge_l"] == 1.0
    assert text_scores(SAMPLE, "Yes.", references="first")["rouge_l"] == 0.0


def test_confidence_is_the_mean_that_was_asked_for():
    steps = [SimpleNamespace(probability=p) for p in (0.25, 1.0)]
    answer = SimpleNamespace(trace=steps)
    assert _confidence(answer, "geometric") == 0.5
    assert _confidence(answer, "arithmetic") == 0.625
    none = SimpleNamespace(trace=[SimpleNamespace(probability=0.0)])
    assert (_confidence(none, "geometric"), _confidence(none, "arithmetic")) == (None, 0.0)


def test_raw_confidence_reads_the_fused_logits_as_they_are(lm, examples, embedder):
    space = tl.build(lm, examples, context=8, embedder=embedder)
    question = {"max_new_tokens": 6, "trace": True}
    usual = tl.generate(lm, tl.RAD(space, tau=0.5), tiny.QUESTIONS[0], **question)
    raw = tl.generate(lm, tl.RAD(space, tau=0.5, neutral=False), tiny.QUESTIONS[0], **question)
    assert usual.token_ids == raw.token_ids
    hits = [index for index, step in enumerate(usual.trace) if step.hits]
    assert hits
    for index in hits:  # add stretches logits by 1 + alpha, which makes the first choice surer
        assert raw.trace[index].probability > usual.trace[index].probability


def test_the_papers_questions_are_halueval_s_own_and_need_no_reference():
    for task, kind in (("dialogue", "response"), ("summary", "summary")):
        text = prompt_for(task, "hallucination", SAMPLE, "Bats see.", "paper")
        assert text.startswith(f"I want you act as a {kind} judge.")
    assert prompt_for("question", "truth", BLIND, "Yes.") is None
    assert "Known right answers:\n\n" in prompt_for("question", "truth", BLIND, "Yes.", "paper")


def test_an_unknown_baseline_or_a_layer_beyond_it_is_refused(tmp_path):
    folder = tiny.write_embedder(tmp_path / "encoder")
    for layer, encoder in ((2, "nobody"), (99, "microsoft/deberta-xlarge-mnli")):
        with pytest.raises(SettingError, match=f"no baseline of layer {layer} of '{encoder}'"):
            BertScore(folder, layer, encoder).scores([], [])
    plain, scaled = (
        BertScore(folder, 2, baseline).scores(["bats see well"], [["bats see"]])[0]
        for baseline in (None, "microsoft/deberta-xlarge-mnli")
    )
    base = 0.7  # of F1 in layer 2, from the file of bert-score, to a tenth
    assert scaled == pytest.approx((plain - base) / (1 - base), abs=0.35)
    assert scaled < plain
