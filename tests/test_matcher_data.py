"""The programs that assemble the matcher's pairs and train it, on a handful of pairs."""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import contrast_pairs
import matcher_data
import train_matcher
from matcher_data import Held, Pair
from train_matcher import Judged, PairModel, PairTokenizer, Settings, TrainingData

HERBS = "00000001 13 n 01 herb 0 000 | a plant\n" + "".join(
    f"0000000{n} 13 n 01 {word} 0 001 @ 00000001 n 0000 | an herb\n"
    for n, word in ((2, "basil"), (3, "oregano"), (4, "parsley"))
)
SENSES = "".join(
    f"{word}%1:13:00:: 0000000{n} 1 {seen}\n"
    for n, word, seen in ((1, "herb", 5), (2, "basil", 2), (3, "oregano", 2), (4, "parsley", 1))
)
ENTRY = ("Can I grow basil on Sunday?", ("Yes, basil grows on any windowsill.",))
BASE = Pair(ENTRY[0], *ENTRY, 1, "", 1.0)


@pytest.fixture
def contrasts(tmp_path):
    (tmp_path / "data.noun").write_text(HERBS)
    (tmp_path / "index.sense").write_text(SENSES)
    return contrast_pairs.Contrasts(contrast_pairs.WordNet(tmp_path))


def made(contrasts, pair):
    return dict(contrasts.negatives(random.Random(0), pair))


def test_a_word_is_swapped_for_a_sibling_that_the_answer_does_not_name(contrasts):
    found = made(contrasts, BASE)["sibling"]
    assert found in ("Can I grow oregano on Sunday?", "Can I grow parsley on Sunday?")
    pair = replace(BASE, answers=("Basil, oregano and parsley all grow.",))
    assert "sibling" not in made(contrasts, pair)


def test_pairs_near_to_a_held_text_in_any_order_of_words_are_dropped_and_counted():
    held = Held(["When does the reading room open?", "Who pays?"])
    again, other = "open the reading room when does", "When does the reading club open?"
    assert held.near([again, other, "Who pays the bill?"]) == {again}
    group = [BASE, replace(BASE, question="who pays", source="faqs")]
    kept, dropped = matcher_data.without_held([group], held)
    assert [one.question for one in kept] == [ENTRY[0]]
    assert dropped == {"faqs": 1}


def test_faqs_to_train_on_and_to_calibrate_and_test_on_are_different_ones():
    lines = (matcher_data.HERE / "pairs" / "unrelated.txt").read_text("utf-8").splitlines()
    assert len(lines) == len(set(lines)) >= 200
    sets = [matcher_data.written_faqs("train"), matcher_data.written_faqs("calibration")]
    sets += [matcher_data.repo_faqs(tested=tested) for tested in (False, True)]
    train, calibration, fitted, held = ({space.name for space in one} for one in sets)
    assert (len(train), len(calibration), len(fitted), len(held)) == (74, 10, 33, 11)
    assert not train & calibration
    assert not fitted & held


def test_a_long_answer_is_truncated_first(embedder_folder):
    tokenizer = PairTokenizer(embedder_folder)
    ids, asked = tokenizer.row("bats see", "bats see well", "sky " * 200)
    assert (len(ids), asked) == (train_matcher.LIMIT, 4)
    question, example = tokenizer.ids("bats see"), tokenizer.ids("bats see well")
    assert ids[:4] == [tokenizer.first, *question, tokenizer.last]
    assert ids[4:8] == [*example, tokenizer.last]
    assert len(tokenizer.row("sky " * 200, "bats " * 200, "no")[0]) == train_matcher.LIMIT


def test_listwise_loss_takes_each_right_example_against_the_wrong_ones_and_none():
    scores, labels = torch.tensor([1.0, 2.0, 0.5, 3.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    e = np.exp
    expected = -np.log(
        [e(1) / (1 + e(1) + e(0.5)), e(2) / (1 + e(2) + e(0.5)), 1 / (1 + e(3))]
    ).mean()
    found = train_matcher.listwise_loss(scores, labels, None, [3, 1], 0.0)
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_figures_of_a_held_set_by_hand():
    own = [("own", 0.9, True, 0.9), ("own", 0.8, False, 0.1), ("own", 0.6, True, 0.6)]
    near = [("near miss", p, False, -1.0) for p in (0.7, *(0.01,) * 9)]
    figures = train_matcher.set_figures([Judged(*one) for one in own + near])
    assert figures["first"] == pytest.approx(2 / 3)
    assert figures["found"] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert figures["auc"] == pytest.approx((10 + 9 + 9) / 30)
    assert figures["ece"] == pytest.approx((0.1 + 0.8 + 0.4 + 0.7 + 9 * 0.01) / 13)


@pytest.fixture
def pairs_file(tmp_path):
    texts = ["bats see well", "gold does rust", "fish sleep", "the sky is blue"]
    pairs = [
        {"question": a, "example": b, "answers": [b], "label": int(a == b)}
        | {"weight": 1.0, "group": n}
        for n, a in enumerate(texts)
        for b in texts
    ]
    matcher_data.write_lines(tmp_path / "pairs.jsonl.gz", pairs)
    return tmp_path / "pairs.jsonl.gz"


def opened(folder, pairs_file, **options):
    settings = Settings(batch=4, **options)
    model, tokenizer = PairModel(folder, settings), PairTokenizer(folder)
    return model, TrainingData(pairs_file, tokenizer, settings)


@pytest.mark.parametrize(("objective", "lora"), [("binary", 0), ("listwise", 2)])
def test_a_run_that_was_ended_gives_the_same_weights(
    objective, lora, embedder_folder, pairs_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(train_matcher, "probe", lambda *_: ("f32", 1.0))
    given = {"objective": objective, "lora": lora}
    whole, data = opened(embedder_folder, pairs_file, **given)
    (tmp_path / "whole").mkdir()
    train_matcher.train(whole, data, tmp_path / "whole", minutes=0, steps=10)

    monkeypatch.setattr(train_matcher, "SAVED_EVERY", 0)
    ended, data = opened(embedder_folder, pairs_file, **given)
    batch = TrainingData.batch
    monkeypatch.setattr(
        TrainingData, "batch", lambda self, step: batch(self, step) if step < 5 else 1 / 0
    )
    (tmp_path / "ended").mkdir()
    with pytest.raises(ZeroDivisionError):
        train_matcher.train(ended, data, tmp_path / "ended", minutes=0, steps=10)
    monkeypatch.setattr(TrainingData, "batch", batch)
    again, data = opened(embedder_folder, pairs_file, **given)
    train_matcher.train(again, data, tmp_path / "ended", minutes=0)
    for name, weights in whole.trained().items():
        assert torch.equal(weights, again.trained()[name]), name


def test_what_is_written_is_what_is_loaded(embedder_folder, pairs_file, tmp_path):
    model, data = opened(embedder_folder, pairs_file, lora=2, layers=1)
    train_matcher.save(model, tmp_path, {"data": data.hash})
    fresh, _ = opened(embedder_folder, pairs_file, lora=2, layers=1, seed=1)
    train_matcher.load(fresh, tmp_path)
    texts = [("bats see", "fish sleep", "no")]
    same = [train_matcher.score(one, data.tokenizer, texts)[0] for one in (model, fresh)]
    assert same[0] == pytest.approx(same[1], abs=1e-2)
    assert "word_embeddings" not in str([*model.trained()])
    assert json.loads((tmp_path / "matcher.json").read_text())["data"] == data.hash
