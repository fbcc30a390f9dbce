"""Values of samples -> means with intervals, paired tests and rank correlations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.errors import SettingError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Statistic = Callable[[Any, Any], float | None]  # of values and flags, such as ECE and AUROC
_BLOCK = 1_000_000  # random numbers drawn at once, to bound the memory
_EQUAL = 1e-12  # rounding may put this much between two equal means
_Z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations
_ALL_ORDERS = 8  # up to so many values every order is tried: 8! = 40,320


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


def mean_interval(
    *factors: Sequence[float], draws: int = 2000, seed: int = 0, block: int = _BLOCK
) -> Interval:
    """The mean and its percentile bootstrap interval over samples.

    With several factors it is the product of their means, as in T*I; each draw takes the same
    samples of all factors.
    """
    columns = as_columns(*factors)
    n = columns.shape[1]
    if not n:
        return Interval(nan, nan, nan, 0)
    drawn = _drawn_means(columns, draws, seed, block).prod(axis=0)
    return Interval(float(columns.mean(axis=1).prod()), *_bounds(drawn), n)


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
    statistic: Statistic,
    values: Sequence[float],
    flags: Sequence[bool],
    *,
    draws: int = 500,
    seed: int = 0,
) -> tuple[float, float] | None:
    """The percentile bootstrap interval of a statistic of pairs, such as ECE or AUROC.

    Draws without a value (AUROC of right answers only) do not count; None if no draw has one.
    """
    drawn = _drawn_values(lambda x: statistic(*x), as_columns(values, flags), draws, seed)
    return _bounds(drawn) if drawn.size else None


def paired_statistic(
    statistic: Statistic,
    ours: tuple[Sequence[float], Sequence[bool]],
    base: tuple[Sequence[float], Sequence[bool]],
    *,
    draws: int = 300,
    seed: int = 0,
) -> Difference | None:
    """statistic(ours) - statistic(base) on the same samples; None if either has no value.

    The interval redraws samples with both sides of each; p swaps the sides at random.
    """
    columns = as_columns(*ours, *base)  # (4, n)
    n = columns.shape[1]

    def gap(both: Floats) -> float | None:
        one, other = statistic(*both[:2]), statistic(*both[2:])
        return None if one is None or other is None else one - other

    if (seen := gap(columns)) is None:
        return None
    low, high = _bounds(_drawn_values(gap, columns, draws, seed))
    generator = np.random.default_rng(seed)
    as_far = 1  # the observed assignment is one more
    for _ in range(draws):
        is_swapped = generator.integers(0, 2, size=n).astype(bool)
        other = gap(np.where(is_swapped, columns[[2, 3, 0, 1]], columns))
        as_far += other is None or abs(other) >= abs(seen) - _EQUAL
    return Difference(seen, low, high, as_far / (draws + 1), n)


def paired_difference(
    *columns: Sequence[float], draws: int = 2000, seed: int = 0, all_swaps: int = 12
) -> Difference:
    """mean(values) - mean(base), its bootstrap interval, and p of a paired permutation test.

    With four columns it is mean(a) * mean(b) - mean(base_a) * mean(base_b), as for T*I. Up to
    `all_swaps` pairs that differ, every way to swap them is tried: 2^12 = 4,096.
    """
    both = as_columns(*columns)
    half, n = len(both) // 2, both.shape[1]
    if not n:
        return Difference(nan, nan, nan, nan, 0)
    ours, base = both[:half], both[half:]  # (factors, n) each
    drawn = _drawn_means(both, draws, seed)
    mean = ours.mean(axis=1).prod() - base.mean(axis=1).prod()
    low, high = _bounds(drawn[:half].prod(axis=0) - drawn[half:].prod(axis=0))
    return Difference(float(mean), low, high, _swap_p(ours, base, draws, seed, all_swaps), n)


def mcnemar(is_right: Sequence[bool], base: Sequence[bool]) -> float:
    """The exact two-sided p of McNemar's test on right and wrong of the same samples.

    Pairs that differ should go either way equally often: p is twice the smaller binomial tail
    at 1/2, at most 1; it is 1 if no pair differs.
    """
    ours, theirs = as_columns(is_right, base).astype(bool)
    won, lost = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    discordant = won + lost
    term = tail = 1  # C(n, 0); exact integers, so that no factorial overflows
    for k in range(min(won, lost)):
        term = term * (discordant - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << discordant))


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p corrected for the number of comparisons, in the given order (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, highest = [0.0] * len(order), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def average_ranks(values: Sequence[float] | Floats) -> Floats:
    """The rank of each value from 1; equal values share the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return ranks


def rank_correlation(
    a: Sequence[float], b: Sequence[float], *, draws: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Spearman's rho and its two-sided permutation p; NaN if a list is constant.

    Up to 8 values every order is tried, so p is exact; beyond, orders are drawn.
    """
    columns = as_columns(a, b)
    x, y = (average_ranks(column) - (len(a) + 1) / 2 for column in columns)  # (n,), mean 0
    scale = float(np.sqrt((x @ x) * (y @ y)))
    if scale == 0:
        return nan, nan
    rho = float(x @ y) / scale
    least = abs(rho) * scale - _EQUAL
    if len(a) <= _ALL_ORDERS:
        extreme = [abs(float(x @ np.array(order))) >= least for order in permutations(y)]
        return rho, sum(extreme) / len(extreme)
    generator = np.random.default_rng(seed)
    as_far = sum(abs(float(x @ generator.permutation(y))) >= least for _ in range(draws))
    return rho, (as_far + 1) / (draws + 1)  # the observed order is one more


def _blocks(
    draws: int, n: int, high: int, seed: int, block: int = _BLOCK
) -> Iterator[Integers]:
    """Random numbers below `high` for each draw, in blocks (draws of the block, n)."""
    generator = np.random.default_rng(seed)
    size = max(1, block // max(1, n))
    for start in range(0, draws, size):
        yield generator.integers(0, high, size=(min(size, draws - start), n))


def _drawn_means(columns: Floats, draws: int, seed: int, block: int = _BLOCK) -> Floats:
    """The means of samples drawn with replacement, (columns, draws)."""
    n = columns.shape[1]
    blocks = _blocks(draws, n, n, seed, block)
    means = [np.take(columns, picks, axis=1).mean(axis=2) for picks in blocks]
    return np.concatenate(means, axis=1)


def _drawn_values(
    statistic: Callable[[Floats], float | None], columns: Floats, draws: int, seed: int
) -> Floats:
    """A statistic of samples drawn with replacement; draws without a value are left out."""
    n = columns.shape[1]
    blocks = _blocks(draws, n, max(1, n), seed)
    values = (statistic(columns[:, picks]) for rows in blocks for picks in rows)
    return np.array([value for value in values if value is not None])


def _bounds(drawn: Floats) -> tuple[float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _swap_p(ours: Floats, base: Floats, draws: int, seed: int, all_swaps: int) -> float:
    """How often swapping the two sides of pairs gives a difference as large."""
    gaps = (ours - base)[:, (ours != base).any(axis=0)]  # (factors, differing)
    sums, differing = (ours + base).sum(axis=1), gaps.shape[1]  # (factors,)

    def difference(is_swapped: Integers) -> Floats:
        moved = (1.0 - 2 * is_swapped) @ gaps.T  # (ways, factors)
        found: Floats = (((sums + moved) / 2).prod(1) - ((sums - moved) / 2).prod(1)).round(9)
        return np.abs(found)

    seen = difference(np.zeros((1, differing), np.int64))[0]
    if differing <= all_swaps:
        ways = (np.arange(1 << differing)[:, None] >> np.arange(differing)) & 1
        return float((difference(ways) >= seen).mean())
    blocks = _blocks(draws, differing, 2, seed)
    as_far = 1 + sum(int((difference(ways) >= seen).sum()) for ways in blocks)
    return as_far / (draws + 1)
