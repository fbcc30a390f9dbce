"""Values of samples -> means with intervals, paired tests and rank correlations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import nan, sqrt

import numpy as np
from numpy.typing import NDArray

from trueline.errors import SettingError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Statistic = Callable[[list[float], list[bool]], float | None]  # such as ECE and AUROC
_BLOCK = 1_000_000  # random numbers drawn at once, to bound the memory
_EQUAL = 1e-12  # rounding may put this much between two equal means
_Z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations
_ALL_ORDERS = 8  # up to so many values every order is tried: 8! = 40,320
_ALL_SWAPS = 12  # up to so many differing pairs every way to swap them: 2^12 = 4,096


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
            f"values that belong to the same samples have different lengths {sorted(lengths)}; "
            "give one value a sample in each list, in the same order"
        )
    array = np.array(columns, dtype=float)  # None becomes NaN
    if len(bad := np.argwhere(~np.isfinite(array))):
        column, index = bad[0]
        raise SettingError(
            f"value {index} of {array.shape[1]} is {columns[column][index]}, not a finite "
            "number; leave unscored samples out before averaging"
        )
    return array


def mean_interval(*factors: Sequence[float], draws: int = 2000, seed: int = 0) -> Interval:
    """The mean and its percentile bootstrap interval over samples.

    With several factors it is the product of their means, as in T*I; each draw takes the same
    samples of all factors.
    """
    columns = as_columns(*factors)
    n = columns.shape[1]
    mean = columns.mean(axis=1).prod() if n else nan
    drawn = _redrawn_means(columns, draws, seed).prod(axis=0)
    return Interval(*_with_bounds(mean, drawn), n)


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
    columns = as_columns(values, flags)
    drawn = [_value(statistic, columns[:, picks]) for picks in _picks(columns, draws, seed)]
    known = [value for value in drawn if value is not None]
    return _with_bounds(0.0, np.array(known))[1:] if known else None


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

    def gap(both: Floats) -> float | None:
        one, other = _value(statistic, both[:2]), _value(statistic, both[2:])
        return None if one is None or other is None else one - other

    if (seen := gap(columns)) is None:
        return None
    drawn = [gap(columns[:, picks]) for picks in _picks(columns, draws, seed)]
    known = np.array([value for value in drawn if value is not None])
    generator, n = np.random.default_rng(seed), columns.shape[1]
    as_far = 1  # the observed assignment is one more
    for _ in range(draws):
        is_swapped = generator.integers(0, 2, size=n).astype(bool)
        other = gap(np.where(is_swapped, columns[[2, 3, 0, 1]], columns))
        as_far += other is None or abs(other) >= abs(seen) - _EQUAL
    return Difference(*_with_bounds(seen, known), as_far / (draws + 1), n)


def paired_difference(
    *columns: Sequence[float], draws: int = 2000, seed: int = 0
) -> Difference:
    """mean(values) - mean(base), its bootstrap interval, and p of a paired permutation test.

    With four columns it is mean(a) * mean(b) - mean(base_a) * mean(base_b), as for T*I.
    """
    both = as_columns(*columns)
    half, n = len(both) // 2, both.shape[1]
    ours, base = both[:half], both[half:]  # (factors, n) each
    drawn = _redrawn_means(both, draws, seed)
    if not n:
        return Difference(nan, nan, nan, nan, 0)
    mean = ours.mean(axis=1).prod() - base.mean(axis=1).prod()
    gaps = drawn[:half].prod(axis=0) - drawn[half:].prod(axis=0)
    return Difference(*_with_bounds(mean, gaps), _permutation_p(ours, base, draws, seed), n)


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


def average_ranks(values: Iterable[float]) -> Floats:
    """The rank of each value from 1; equal values share the mean of their ranks."""
    _, group, counts = np.unique(
        np.array(list(values), dtype=float), return_inverse=True, return_counts=True
    )
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
    is_exact = len(a) <= _ALL_ORDERS
    generator = np.random.default_rng(seed)
    drawn = (generator.permutation(y) for _ in range(0 if is_exact else _checked(draws)))
    least = abs(rho) * scale - _EQUAL
    orders = permutations(y) if is_exact else drawn
    extreme = [abs(float(x @ np.asarray(order))) >= least for order in orders]
    seen = 0 if is_exact else 1  # the observed order is one more
    return rho, (sum(extreme) + seen) / (len(extreme) + seen)


def _checked(draws: int) -> int:
    if draws < 1:
        raise SettingError(f"draws must be at least 1, got {draws}; 2000 is the default")
    return draws


def _value(statistic: Statistic, columns: Floats) -> float | None:
    return statistic(columns[0].tolist(), columns[1].astype(bool).tolist())


def _blocks(draws: int, n: int, most: int, seed: int) -> Iterator[Integers]:
    """Random numbers below `most` for each draw, in blocks (draws of the block, n)."""
    generator = np.random.default_rng(seed)
    size = max(1, _BLOCK // max(1, n))
    for start in range(0, _checked(draws), size):
        yield generator.integers(0, max(1, most), size=(min(size, draws - start), n))


def _picks(columns: Floats, draws: int, seed: int) -> Iterator[Integers]:
    """The samples each draw takes, with replacement: (n,) a draw."""
    n = columns.shape[1]
    return (picks for block in _blocks(draws, n, n, seed) for picks in block)


def _redrawn_means(columns: Floats, draws: int, seed: int) -> Floats:
    """The means of samples drawn with replacement, (columns, draws)."""
    n = columns.shape[1]
    if not n:
        return np.full((len(columns), _checked(draws)), nan)
    blocks = _blocks(draws, n, n, seed)
    means = [[values[picks].mean(axis=1) for values in columns] for picks in blocks]
    return np.concatenate([np.stack(block) for block in means], axis=1)


def _with_bounds(mean: float, drawn: Floats) -> tuple[float, float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(mean), float(low), float(high)


def _permutation_p(ours: Floats, base: Floats, draws: int, seed: int) -> float:
    """How often swapping the two sides of pairs at random gives a difference as large.

    Up to 12 pairs that differ every way to swap them is tried, so p is exact; beyond, ways
    are drawn.
    """
    gaps = (ours - base)[:, (ours != base).any(axis=0)]  # (factors, differing)
    sums, differing = (ours + base).sum(axis=1), gaps.shape[1]  # (factors,)

    def difference(is_swapped: Integers) -> Floats:
        moved = (1.0 - 2 * is_swapped) @ gaps.T  # (ways, factors)
        found: Floats = (((sums + moved) / 2).prod(1) - ((sums - moved) / 2).prod(1)).round(9)
        return np.abs(found)

    seen = difference(np.zeros((1, differing), np.int64))[0]
    if differing <= _ALL_SWAPS:
        ways = (np.arange(1 << differing)[:, None] >> np.arange(differing)) & 1
        return float((difference(ways) >= seen).mean())
    blocks = _blocks(draws, differing, 2, seed)
    as_far = 1 + sum(int((difference(ways) >= seen).sum()) for ways in blocks)
    return as_far / (draws + 1)
