"""Values of samples -> means with intervals, paired tests and rank correlations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import comb, isnan, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.errors import SettingError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Statistic = Callable[[Any, Any], float | None]  # of values and flags, such as ECE and AUROC
_DRAWS = 2000  # of the bootstrap, and of swapped pairs; always with the seed 0
_BLOCK = 1_000_000  # random numbers drawn at once, to bound the memory
_EQUAL = 1e-12  # rounding may put this much between two equal means
_Z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean of n samples and its 95 % interval; all NaN when n is 0."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference of n pairs, its 95 % interval and two-sided p; all NaN when n is 0."""

    mean: float
    low: float
    high: float
    p: float
    n: int


def as_columns(*columns: Sequence[float]) -> Floats:
    """Lists of equal length as one array (columns, n); every value must be finite."""
    if len(lengths := {len(column) for column in columns}) > 1:
        raise SettingError(
            f"lists of the same samples have different lengths {sorted(lengths)}; give one "
            "value for each sample in each list"
        )
    array = np.array(columns, dtype=float)  # None becomes NaN
    if len(bad := np.argwhere(~np.isfinite(array))):
        column, index = bad[0]
        raise SettingError(
            f"value {index} of {array.shape[1]} is {columns[column][index]}, not a finite "
            "number; leave unscored samples out before averaging"
        )
    return array


def mean_interval(*factors: Sequence[float]) -> Interval:
    """The mean and its percentile bootstrap interval over samples.

    With several factors it is the product of their means, as in T*I; each draw takes the same
    samples of all factors.
    """
    columns = as_columns(*factors)
    n = columns.shape[1]
    mean = float(columns.mean(axis=1).prod()) if n else nan
    return Interval(mean, *_bounds(columns, lambda x: x.mean(axis=2).prod(axis=0)), n)


def share_interval(found: int, n: int) -> Interval:
    """The share of n samples with a property, with Wilson's 95 % interval.

    Unlike the bootstrap, it has a width also at 0 and 1.
    """
    if not n:
        return Interval(nan, nan, nan, 0)
    share, square = found / n, _Z**2 / n
    middle = (share + square / 2) / (1 + square)
    half = _Z * sqrt(share * (1 - share) / n + square / n / 4) / (1 + square)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Interval(share, min(low, share), max(high, share), n)  # rounding may pass the share


def redrawn_interval(
    statistic: Statistic, values: Sequence[float], flags: Sequence[bool]
) -> tuple[float, float] | None:
    """The percentile bootstrap interval of a statistic of pairs, such as ECE or AUROC.

    Draws without a value (AUROC of right answers only) do not count; None if no draw has one.
    """
    columns = as_columns(values, flags)
    bounds = _bounds(columns, lambda x: (statistic(*one) for one in x.swapaxes(0, 1)), 500)
    return None if isnan(bounds[0]) else bounds


def paired_statistic(
    statistic: Statistic,
    ours: tuple[Sequence[float], Sequence[bool]],
    base: tuple[Sequence[float], Sequence[bool]],
) -> Difference | None:
    """statistic(ours) - statistic(base) on the same samples; None if either has no value.

    The interval redraws samples with both sides of each; p swaps the sides at random.
    """
    columns, draws = as_columns(*ours, *base), 300  # (4, n)
    n = columns.shape[1]

    def gap(both: Floats) -> float | None:
        one, other = statistic(*both[:2]), statistic(*both[2:])
        return None if one is None or other is None else one - other

    if (seen := gap(columns)) is None:
        return None
    swaps = (swap for block in _random(draws, n, 2) for swap in block.astype(bool))
    others = [gap(np.where(swap, columns[[2, 3, 0, 1]], columns)) for swap in swaps]
    as_far = sum(other is None or abs(other) >= abs(seen) - _EQUAL for other in others)
    low, high = _bounds(columns, lambda x: map(gap, x.swapaxes(0, 1)), draws)
    return Difference(seen, low, high, (as_far + 1) / (draws + 1), n)  # +1: as observed


def paired_difference(*columns: Sequence[float]) -> Difference:
    """mean(values) - mean(base), its bootstrap interval, and p of a paired permutation test.

    With four columns it is mean(a) * mean(b) - mean(base_a) * mean(base_b), as for T*I. If at
    most 12 pairs differ, every way to swap them is tried: 2^12 = 4,096.
    """
    both = as_columns(*columns)
    half, n = len(both) // 2, both.shape[1]
    if not n:
        return Difference(nan, nan, nan, nan, 0)

    def gap(means: Floats) -> Floats:
        found: Floats = means[:half].prod(axis=0) - means[half:].prod(axis=0)
        return found

    ours, base = both[:half], both[half:]  # (factors, n) each
    low, high = _bounds(both, lambda x: gap(x.mean(axis=2)))
    gaps = (ours - base)[:, (ours != base).any(axis=0)]  # (factors, differing)
    sums, differing = (ours + base).sum(axis=1)[:, None], gaps.shape[1]  # (factors, 1)

    def swapped_gap(is_swapped: Integers) -> Floats:  # (ways, differing) -> (ways,)
        moved = gaps @ (1.0 - 2 * is_swapped).T  # (factors, ways)
        return np.abs(gap(np.concatenate([sums + moved, sums - moved]) / 2).round(9))

    seen = swapped_gap(np.zeros((1, differing), np.int64))[0]
    if differing <= 12:
        ways = (np.arange(1 << differing)[:, None] >> np.arange(differing)) & 1
        p = float((swapped_gap(ways) >= seen).mean())
    else:
        blocks = _random(_DRAWS, differing, 2)
        as_far = sum(int((swapped_gap(ways) >= seen).sum()) for ways in blocks)
        p = (as_far + 1) / (_DRAWS + 1)  # the observed assignment is one more
    return Difference(float(gap(both.mean(axis=1))), low, high, p, n)


def mcnemar(is_right: Sequence[float], base: Sequence[float]) -> float:
    """The exact two-sided p of McNemar's test on right and wrong of the same samples.

    Pairs that differ should go either way equally often: p is twice the smaller binomial tail
    at 1/2, at most 1; it is 1 if no pair differs.
    """
    ours, theirs = as_columns(is_right, base).astype(bool)
    won, lost = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    tail = sum(comb(won + lost, k) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / (1 << won + lost))  # exact integers: nothing overflows


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p corrected for the number of comparisons, in the given order (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.array(p_values)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(np.minimum(scaled, 1.0))
    found: list[float] = corrected.tolist()
    return found


def average_ranks(values: Sequence[float] | Floats) -> Floats:
    """The rank of each value from 1; equal values share the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return ranks


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Spearman's rho and its two-sided permutation p; NaN if a list is constant.

    Up to 8 values every order is tried (8! = 40,320), so p is exact; beyond, 10,000 are drawn.
    """
    x, y = (average_ranks(column) - (len(a) + 1) / 2 for column in as_columns(a, b))  # mean 0
    scale = float(np.sqrt((x @ x) * (y @ y)))
    if scale == 0:
        return nan, nan
    rho, generator = float(x @ y) / scale, np.random.default_rng(0)
    is_exact = len(a) <= 8
    orders = permutations(y) if is_exact else (generator.permutation(y) for _ in range(10_000))
    is_as_far = [abs(float(x @ np.array(o))) >= abs(rho) * scale - _EQUAL for o in orders]
    more = 0 if is_exact else 1  # the observed order
    return rho, (sum(is_as_far) + more) / (len(is_as_far) + more)


def _random(draws: int, n: int, high: int) -> Iterator[Integers]:
    """Numbers below `high` for each draw, in blocks (draws of the block, n)."""
    generator = np.random.default_rng(0)
    size = max(1, _BLOCK // max(1, n))
    for start in range(0, draws, size):
        yield generator.integers(0, max(1, high), size=(min(size, draws - start), n))


def _bounds(
    columns: Floats, statistic: Callable[[Floats], Iterable[Any]], draws: int = _DRAWS
) -> tuple[float, float]:
    """The middle 95 % of a statistic of samples drawn with replacement; NaN without a value.

    It takes an array (columns, draws, n), and gives a value or None for each draw.
    """
    n = columns.shape[1]
    blocks = (statistic(np.take(columns, x, axis=1)) for x in _random(draws, n, n) if n)
    values = [value for block in blocks for value in block if value is not None]
    low, high = np.quantile(values, [0.025, 0.975]) if values else (nan, nan)
    return float(low), float(high)
