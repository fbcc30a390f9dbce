"""Intervals and tests: worked by hand, held to SciPy, and their error rates counted."""

from math import inf, isnan, nan

import numpy as np
import pytest
from scipy import stats

from trueline.errors import SettingError
from trueline.lab.metrics import auroc, ece
from trueline.lab.statistics import (
    holm,
    mcnemar,
    mean_interval,
    paired_difference,
    paired_statistic,
    rank_correlation,
    redrawn_interval,
)

COIN = [0.0] * 50 + [1.0] * 50


def test_the_interval_is_scipys_percentile_bootstrap():
    values = np.random.default_rng(3).exponential(size=60)
    found = mean_interval(values.tolist())
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=5
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_the_product_interval_covers_the_true_product_about_95_times_in_100():
    generator = np.random.default_rng(1)
    covered = []
    for _ in range(200):
        truth, info = (generator.random((2, 80)) < [[0.6], [0.9]]).astype(float)
        found = mean_interval(truth.tolist(), info.tolist())
        covered.append(found.low <= 0.54 <= found.high)
    assert 0.91 <= np.mean(covered) <= 0.985  # 0.95 -+ two standard errors of 0.0154


def test_a_difference_of_zero_is_reported_about_5_times_in_100():
    generator = np.random.default_rng(2)
    found = [paired_difference(*generator.normal(size=(2, 60)).tolist()).p for _ in range(300)]
    assert 0.025 <= np.mean(np.array(found) < 0.05) <= 0.085


@pytest.mark.parametrize(
    "found", [mean_interval([]), mean_interval([], []), paired_difference([], [])]
)
def test_no_samples_give_nan_and_a_count_of_zero(found):
    assert found.n == 0
    assert all(map(isnan, (found.mean, found.low, found.high, getattr(found, "p", nan))))


def test_the_interval_of_a_statistic_redraws_pairs_and_leaves_out_draws_without_a_value():
    # Pairs stay together: the mean of a times b of (1, True) and (0, False) is that of a alone.
    def product(a, b):
        return float(np.mean(np.array(a) * np.array(b)))

    whole = redrawn_interval(product, COIN, [value == 1 for value in COIN])
    plain = mean_interval(COIN)
    assert whole == pytest.approx((plain.low, plain.high), abs=0.03)
    # AUROC is not known where one class was drawn alone; of the rest every draw is perfect.
    assert redrawn_interval(auroc, [0.9, 0.1], [True, False]) == (1.0, 1.0)
    assert redrawn_interval(auroc, [0.9, 0.1], [True, True]) is None
    assert redrawn_interval(ece, [], []) is None


def test_pairs_make_a_steady_difference_certain_that_means_alone_would_hide():
    base = np.random.default_rng(5).normal(0, 10, size=40)
    found = paired_difference((base + 0.5).tolist(), base.tolist())
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.p == pytest.approx(1 / 2001)  # no draw of 2000 swaps none or all of 40 pairs
    alone = mean_interval((base + 0.5).tolist())
    assert alone.low < base.mean() < alone.high


@pytest.mark.parametrize(
    ("values", "base", "p"),
    [
        ([1.0], [0.0], 1.0),  # swapped or not, the difference is as large
        ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], 0.25),  # of 8 ways, none and all swapped: 2/8
        ([1.0, 1.0, 1.0, 0.5], [0.0, 0.0, 0.0, 0.5], 0.25),  # a pair that agrees adds nothing
        ([1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], 0.625),  # sums of 2 or 4: 2 + 8 of 16
        ([0.4, 0.2], [0.1, 0.1], 0.5),  # 0.3 and 0.1: only 0.4 is as far, 2 of 4 ways
    ],
)
def test_the_p_of_a_difference_is_the_share_of_swaps_that_go_as_far(values, base, p):
    assert paired_difference(values, base).p == p
    assert paired_difference(values, [1.0] * len(base), base, [1.0] * len(base)).p == p


def test_drawn_swaps_come_near_to_all_of_them():
    values, base = np.random.default_rng(11).random((2, 14))  # more than 12: swaps are drawn
    signs = 1 - 2 * ((np.arange(1 << 14)[:, None] >> np.arange(14)) & 1)
    sums = np.abs(signs @ (values - base))
    drawn = paired_difference(values.tolist(), base.tolist())
    assert drawn.p == pytest.approx(np.mean(sums >= sums[0] - 1e-9), abs=0.03)


def test_a_product_draws_and_swaps_both_verdicts_of_a_sample_together():
    # Truth 1 and info 0 against truth 0 and info 1: products 0 and 0, and swapped the same.
    assert paired_difference([1], [0], [0], [1]).p == 1.0
    # Two samples, right and informative against neither: 1 - 0 for none and all of 4 ways.
    assert paired_difference([1, 1], [1, 1], [0, 0], [0, 0]).p == 0.5
    found = paired_difference([1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1])
    assert (found.mean, found.n) == (0.3125, 4)  # 9/16 - 4/16
    # Where both are the same list, the product is the square of one mean: its ends are the
    # squares of that mean's ends only if both are drawn together.
    one, square = mean_interval(COIN), mean_interval(COIN, COIN)
    assert (square.low, square.high) == pytest.approx((one.low**2, one.high**2))


def test_mcnemar_is_scipys_binomial_test_of_the_pairs_that_differ():
    generator = np.random.default_rng(8)
    for n in (1, 2, 4, 7, 40, 3000):
        ours, base = generator.random((2, n)) < [[0.6], [0.5]]
        won, lost = int((ours & ~base).sum()), int((base & ~ours).sum())
        theirs = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
        assert mcnemar(ours.tolist(), base.tolist()) == pytest.approx(theirs, rel=1e-9)
        assert mcnemar(base.tolist(), ours.tolist()) == mcnemar(ours.tolist(), base.tolist())
    assert mcnemar([True, False], [False, True]) == mcnemar([True], [True]) == 1.0


def test_rank_correlation_by_hand():
    # Ranks 1 2 3 4 and 2 1 4 3: rho = 1 - 6 * 4 / (4 * 15) = 0.6. Of the 24 orders the sum of
    # squared rank differences is 0 once, 2 three times (a swap of neighbors), 4 once (both
    # swaps): 5 are as far this way, and 5, these in reverse, the other way.
    assert rank_correlation([10, 20, 30, 40], [2, 1, 4, 3]) == pytest.approx((0.6, 10 / 24))
    assert rank_correlation([1, 2, 3], [5, 4, 0]) == pytest.approx((-1.0, 2 / 6))


def test_rank_correlation_is_scipys_rho_and_p():
    generator = np.random.default_rng(9)
    a = generator.normal(size=80)
    b = 0.15 * a + generator.normal(size=80)
    rho, p = rank_correlation(a.tolist(), b.tolist())
    theirs = stats.spearmanr(a, b)
    assert rho == pytest.approx(theirs.statistic)
    assert p == pytest.approx(theirs.pvalue, abs=0.03)
    # For few values every order is tried, and p is exact.
    a, b = generator.permuted([[1.0, 1, 2, 3, 5], [0, 2, 2, 3, 3]], axis=1)  # with ties
    theirs = stats.permutation_test(
        (a,),
        lambda values: stats.spearmanr(values, b).statistic,
        permutation_type="pairings",
        vectorized=False,
        n_resamples=np.inf,
    )
    exact = np.mean(np.abs(theirs.null_distribution) >= abs(theirs.statistic) - 1e-9)
    assert rank_correlation(a.tolist(), b.tolist()) == pytest.approx((theirs.statistic, exact))


@pytest.mark.parametrize(("a", "b"), [([], []), ([1], [2]), ([1, 1, 1], [1, 2, 3])])
def test_a_constant_list_has_no_rank_correlation(a, b):
    assert all(isnan(value) for value in rank_correlation(a, b))


def test_a_gap_among_the_values_and_lists_of_other_lengths_are_refused():
    for gap in (nan, inf, None):
        with pytest.raises(SettingError, match="value 1 of 3"):
            mean_interval([0.0, gap, 1.0])
    with pytest.raises(SettingError, match=r"different lengths \[1, 2\]"):
        paired_difference([1, 0], [1])


def test_holm_multiplies_the_smallest_p_by_all_and_keeps_the_order():
    # Three comparisons: 3 * 0.01, 2 * 0.04, 1 * 0.03 lifted to the one before it.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_difference_of_two_aurocs_is_paired():
    # Ours orders all four right; the base has one of four pairs the wrong way: 1 - 3/4.
    right = [True, True, False, False]
    found = paired_statistic(
        auroc, ([0.9, 0.8, 0.2, 0.1], right), ([0.9, 0.3, 0.4, 0.1], right)
    )
    assert (found.mean, found.n) == (0.25, 4)
    assert found.low <= 0.25 <= found.high
    same = paired_statistic(ece, ([0.9, 0.2], [True, False]), ([0.9, 0.2], [True, False]))
    assert (same.mean, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    assert paired_statistic(auroc, ([0.9], [True]), ([0.9], [True])) is None


def test_the_p_of_a_difference_of_statistics_is_small_only_where_it_is_large():
    rng = np.random.default_rng(7)
    right = (rng.uniform(size=80) < 0.5).tolist()
    knowing = [0.8 if x else 0.2 for x in right]
    guessing, other = rng.uniform(size=(2, 80)).tolist()
    assert paired_statistic(auroc, (knowing, right), (guessing, right)).p < 0.01
    assert paired_statistic(auroc, (other, right), (guessing, right)).p > 0.05
