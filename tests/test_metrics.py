"""Metrics: worked by hand, and held to the packages people compare with, on random input."""

from math import exp, inf, log, nan

import numpy as np
import pytest
import sacrebleu
from rouge_score import rouge_scorer
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

from trueline.errors import ModelError, SettingError
from trueline.lab.metrics import (
    BertScore,
    auroc,
    bleu,
    closer_to_truth,
    ece,
    mc1,
    mc2,
    mc3,
    quartile_shares,
    reliability,
    rouge_l,
)

WORDS = "the a bats bat are blind not no see seeing well gold rusts in water .".split()


def random_texts(seed, number, longest=12):
    generator = np.random.default_rng(seed)
    return [
        " ".join(generator.choice(WORDS, size=generator.integers(1, longest)))
        for _ in range(number)
    ]


def test_rouge_l_is_that_of_rouge_score_and_its_lsum_on_one_line():
    scorer = rouge_scorer.RougeScorer(["rougeL", "rougeLsum"])
    references = random_texts(1, 5)
    for answer in random_texts(0, 60):
        theirs = scorer.score_multi(references, answer)
        assert rouge_l(answer, references) == theirs["rougeL"].fmeasure
        assert rouge_l(answer, references) == theirs["rougeLsum"].fmeasure  # TruthfulQA's


def test_bleu_is_the_best_of_sacrebleus_sentence_scores():
    references = random_texts(3, 4)
    for answer in random_texts(2, 60):
        theirs = max(sacrebleu.sentence_bleu(answer, [text]).score for text in references)
        assert bleu(answer, references) == pytest.approx(theirs / 100)


@pytest.mark.parametrize("score", [rouge_l, bleu])
def test_an_empty_answer_scores_zero_and_references_must_be_a_list(score):
    assert score(" \n", ["bats see well"]) == score("bats", [""]) == 0.0
    for references in ([], "one text"):
        with pytest.raises(SettingError, match="at least one reference"):
            score("bats", references)


@pytest.mark.parametrize("score", [rouge_l, bleu])
def test_an_answer_nearer_to_the_truth_counts_and_a_tie_does_not(score):
    truthful, wrong = ["bats see well"], ["bats are blind", "gold rusts"]
    assert closer_to_truth("bats see", truthful, wrong, score) == 1.0
    assert closer_to_truth("they are blind", truthful, wrong, score) == 0.0
    assert closer_to_truth("bats", truthful, truthful, score) == 0.0
    assert closer_to_truth("", truthful, wrong, score) == 0.0
    assert closer_to_truth("bats", [], wrong, score) is None
    assert closer_to_truth("bats", truthful, [], score) is None


PROBABILITIES = [0.4, 0.1, 0.3, 0.2]
SCORES = [log(value) for value in PROBABILITIES]


def test_multiple_choice_by_hand():
    assert mc1(SCORES, [True, False, False, False]) == 1.0
    assert mc1(SCORES, [False, False, True, False]) == 0.0
    is_true = [True, True, False, False]
    assert mc2(SCORES, is_true) == pytest.approx(0.5)
    assert mc3(SCORES, is_true) == 0.5  # 0.4 is above 0.3 and 0.2, 0.1 is not
    assert mc3(SCORES, [True, False, True, False]) == 1.0
    # e^-1000 is 0 in floats; the ratio of e^-1000 to e^-1001 is not: 1 / (1 + 1/e).
    assert mc2([-1000.0, -1001.0], [True, False]) == pytest.approx(1 / (1 + exp(-1)))


def test_a_tie_is_no_win_and_probability_zero_loses_to_any_other():
    assert mc1([-1.0, -1.0], [True, False]) == 0.0
    assert mc2([-1.0, -1.0], [True, False]) == 0.5
    assert mc3([-1.0, -1.0, -0.5], [True, False, True]) == 0.5
    assert mc1([-5.0, -inf], [True, False]) == mc2([-5.0, -inf], [True, False]) == 1.0
    assert mc3([-5.0, -inf, -inf], [True, False, True]) == 0.5
    assert [metric([-inf, -inf], [True, False]) for metric in (mc1, mc2, mc3)] == [0.0] * 3


@pytest.mark.parametrize(
    ("scores", "is_true"),
    [
        ([-1.0, nan], [True, False]),
        ([], []),
        ([-1.0, -2.0], [False, False]),
        ([-1.0, -2.0], [True]),
    ],
)
def test_choices_that_cannot_be_scored_are_refused(scores, is_true):
    with pytest.raises(SettingError, match="at least one true and one false candidate"):
        mc1(scores, is_true)


def test_reliability_has_the_bins_of_scikit_learn():
    generator = np.random.default_rng(4)
    confidences = np.concatenate([generator.random(200) ** 2, [0.0, 0.2, 0.4, 1.0]])
    is_right = generator.random(204) < confidences
    accuracy, confidence = calibration_curve(is_right, confidences, n_bins=10)
    found = reliability(confidences.tolist(), is_right.tolist())
    assert [b.confidence for b in found] == pytest.approx(confidence.tolist())
    assert [b.accuracy for b in found] == pytest.approx(accuracy.tolist())
    edges = reliability([0.0, 0.1, 0.10001, 1.0], [True, True, False, False])
    assert [(b.accuracy, b.n) for b in edges] == [(1.0, 2), (0.0, 1), (0.0, 1)]  # 0.1 is below
    gaps = np.array([b.n for b in found]) / 204 @ np.abs(accuracy - confidence)
    assert ece(confidences.tolist(), is_right.tolist()) == pytest.approx(float(gaps))


@pytest.mark.parametrize("bad", [-0.1, 1.1])
def test_a_confidence_that_is_no_probability_is_refused(bad):
    with pytest.raises(SettingError, match="from 0 to 1"):
        ece([0.5, bad], [True, False])


def test_auroc_is_that_of_scikit_learn_with_ties_and_none_for_one_class():
    # Right: 0.9, 0.4; wrong: 0.4, 0.1. Of four pairs three are won and one is a tie.
    assert auroc([0.9, 0.4, 0.4, 0.1], [True, True, False, False]) == 0.875
    generator = np.random.default_rng(5)
    for _ in range(10):
        confidences = generator.integers(0, 8, size=50) / 8
        is_right = generator.random(50) < 0.3
        assert auroc(confidences.tolist(), is_right.tolist()) == pytest.approx(
            roc_auc_score(is_right, confidences)
        )
    assert auroc([0.5, 0.6], [True, True]) is auroc([], []) is ece([], []) is None


def test_quartiles_by_hand():
    entropies = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]  # their quartiles are 2, 4, 6
    flags = [False, False, False, False, True, False, True, True, True]
    assert quartile_shares(entropies, flags) == [
        (0.0, 2.0, 0.0, 3),
        (2.0, 4.0, 0.5, 2),
        (4.0, 6.0, 0.5, 2),
        (6.0, 8.0, 1.0, 2),
    ]
    same = quartile_shares([1.0] * 4, [True, False, False, False])  # they stay together
    assert same == [(1.0, 1.0, 0.25, 4), *[(1.0, 1.0, None, 0)] * 3]
    assert quartile_shares([], []) == []


def test_bertscore_is_the_best_greedy_match_of_token_vectors(embedder_folder):
    import torch
    from transformers import AutoModel, AutoTokenizer

    answer, references = "Bats see well.", ["Gold does not rust.", "Bats are not blind."]
    words = AutoTokenizer.from_pretrained(embedder_folder)
    model = AutoModel.from_pretrained(embedder_folder).eval()

    def vectors(text):
        with torch.no_grad():
            hidden = model(**words(text, return_tensors="pt"), output_hidden_states=True)
        return torch.nn.functional.normalize(hidden.hidden_states[1][0], dim=-1)

    f1 = []
    for text in references:
        cosines = (vectors(answer) @ vectors(text).T)[1:-1, 1:-1]  # without [CLS] and [SEP]
        precision, recall = cosines.max(1).values.mean(), cosines.max(0).values.mean()
        f1.append(float(2 * precision * recall / (precision + recall)))
    found = BertScore(embedder_folder, 1).scores([answer], [references])
    assert found == pytest.approx([max(f1)], abs=1e-5)


def test_bertscore_keeps_the_order_and_scores_an_empty_answer_zero(embedder_folder, capfd):
    texts = ["Bats see well.", " ", "the sky is blue " * 300]  # the last is past all positions
    references = [["gold", "Bats see well."], ["gold"], ["the sky is blue " * 300]]
    score = BertScore(embedder_folder, 2)
    assert score.scores(texts, references) == pytest.approx([1.0, 0.0, 1.0], abs=1e-5)
    assert score.scores([], []) == []
    assert score.scores([""], [["gold"]]) == [0.0]
    assert capfd.readouterr() == ("", "")


def test_bertscore_refuses_what_it_cannot_score(embedder_folder, tmp_path):
    with pytest.raises(ModelError, match="encoder with its tokenizer, for BertScore's layer 3"):
        BertScore(embedder_folder, 3).scores(["a"], [["a"]])
    with pytest.raises(ModelError, match="none cannot be opened as an encoder"):
        BertScore(tmp_path / "none", 1).scores(["a"], [["a"]])
    with pytest.raises(SettingError, match="at least one reference"):
        BertScore(embedder_folder, 1).scores(["a"], [[]])


@pytest.mark.real
@pytest.mark.slow
def test_bertscore_of_a_real_encoder_puts_a_paraphrase_above_another_fact():
    from trueline.engines.models import resolve

    folder = resolve("all-minilm-l6-v2", "embedder").folder
    answer = "Bats can see well."
    near, far = BertScore(folder, 6).scores(
        [answer] * 2, [["Bats have good sight."], ["Gold does not rust in water."]]
    )
    assert near > far + 0.1
