"""The arithmetic, on numbers a reader can check."""

import math

import pytest
import torch

from trueline.decode.sampling import entropy, move_of
from trueline.rad.method import aggregate, fuse, neutralize, weigh

ROW = torch.tensor([0, 0])  # both entries were hit by row 0
SIMILARITIES = torch.tensor([0.9, 0.6])
VALUES = torch.tensor([[5.0, 0.0, 0.0, 0.0], [0.0, 10.0, 0.0, 5.0]])  # (entries, vocabulary)
BASE = torch.tensor([[0.0, 0.0, 2.5, 0.0]])  # the model wants token 2
HIT = torch.tensor([True])
PULL = torch.tensor([[3.0, 4.0, 0.0, 2.0]])


def test_weights_are_shares_of_the_similarity_or_equal():  # 0.9 / 1.5 and 0.6 / 1.5
    assert torch.allclose(weigh(SIMILARITIES, ROW, 1), torch.tensor([0.6, 0.4]))
    assert torch.equal(weigh(SIMILARITIES, ROW, 1, "mean"), torch.tensor([0.5, 0.5]))


def test_aggregated_logits_are_the_weighted_average():
    pull = aggregate(weigh(SIMILARITIES, ROW, 1), ROW, VALUES, 1)
    assert torch.allclose(pull, PULL)


def test_mix_shares_the_scale_between_model_and_neighbors():
    final = fuse(BASE, PULL, HIT, alpha=0.5, how="mix")
    assert torch.allclose(final, torch.tensor([[1.5, 2.0, 1.25, 1.0]]))


# Base (1/4, 3/4), neighbors (1/2, 1/2).
@pytest.mark.parametrize(
    ("alpha", "wanted"), [(0.0, [0.25, 0.75]), (0.5, [0.375, 0.625]), (1.0, [0.5, 0.5])]
)
def test_prob_mixes_the_two_distributions(alpha, wanted):
    base = torch.tensor([[0.0, math.log(3)]])
    final = fuse(base, torch.zeros(1, 2), HIT, alpha=alpha, how="prob")
    assert torch.allclose(final.exp(), torch.tensor([wanted]))


def test_neutral_divides_by_one_plus_alpha_on_hit_rows_only():
    base = torch.tensor([[3.0, 0.0], [3.0, 0.0]])
    pull = torch.tensor([[0.0, 6.0], [9.0, 9.0]])
    hit = torch.tensor([True, False])
    final = neutralize(fuse(base, pull, hit, alpha=0.5), hit, 0.5)
    assert torch.allclose(final, torch.tensor([[2.0, 2.0], [3.0, 0.0]]))


@pytest.mark.parametrize("how", ["add", "mix", "prob"])
def test_a_row_without_a_hit_keeps_its_logits_to_the_bit(how):
    base = torch.randn(3, 50)
    hit = torch.tensor([True, False, True])
    final = fuse(base, torch.randn(3, 50), hit, alpha=0.5, how=how)
    assert torch.equal(final[1], base[1])
    assert not torch.equal(final[0], base[0])


def test_a_move_is_the_change_of_a_lead_or_what_puts_a_token_ahead():
    base = torch.tensor([2.0, 1.0, 0.5])
    assert move_of(base, torch.tensor([2.0, 3.0, 0.5]), 1, 0) == 2.0
    assert move_of(base, torch.tensor([-torch.inf, 1.0, 0.5]), 1, 0) == 1.0  # it trailed by 1
    assert move_of(base, torch.tensor([2.0, -torch.inf, 0.5]), 0, 1) == 0.0  # it led already


def test_entropy_of_a_fair_coin_is_the_logarithm_of_two():
    found = entropy(torch.tensor([[1.0, 1.0, -torch.inf], [9.0, -torch.inf, -torch.inf]]))
    assert found.tolist() == pytest.approx([math.log(2), 0.0])
