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
_BLOCK = 1_000_000  # numbers drawn at once: the steps of a whole run must not fill the memory
_EQUAL = 1e-12  # what rounding may put between two equal means
_ALL_ORDERS = 8  # up to so many values, every order is tried: 8! = 40,320
_DEVIATIONS = 1.959964  # of a normal distribution that hold its middle 95 %
_ALL_SWAPS = 12  # up to so many pairs that differ, every way to swap them: 2^12 = 4,096


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
    """Return lists of equal length as one array; a gap, NaN or infinity in them is refused."""
    if len(lengths := {len(column) for column in columns}) > 1:
        raise SettingError(
            f"values that belong to the same samples have different lengths {sorted(lengths)}; "
            "give one value a sample in each list, in the same order"
        )
    array = np.array(columns, dtype=float)  # (columns, n); None becomes NaN
    if len(bad := np.argwhere(~np.isfinite(array))):
        column, index = bad[0]
        raise SettingError(
            f"value {index} of {array.shape[1]} is {columns[column][index]}, not a finite "
            "number; leave unscored samples out before averaging"
        )
    return array


def mean_interval(*factors: Sequence[float], draws: int = 2000, seed: int = 0) -> Interval:
    """Return the mean and the middle 95 % of the means of samples redrawn with replacement.

    Of several factors it is the product of their means, as in T*I; a draw takes all of them.
    """
    columns = as_columns(*factors)
    drawn = _redrawn_means(columns, draws, seed).prod(axis=0)
    n = columns.shape[1]
    return Interval(*_summary(columns.mean(axis=1).prod() if n else nan, drawn), n)


def share_interval(found: int, n: int) -> Interval:
    """Return the share of n samples that something was found in, with Wilson's 95 % interval.

    Unlike redrawing, it has a width where nothing or everything was found.
    """
    if not n:
        return Interval(nan, nan, nan, 0)
    share, square = found / n, _DEVIATIONS**2 / n
    middle = (share + square / 2) / (1 + square)
    half = _DEVIATIONS * sqrt(share * (1 - share) / n + square / n / 4) / (1 + square)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Interval(share, min(low, share), max(high, share), n)  # which rounding may pass


Statistic = Callable[[list[float], list[bool]], float | None]


def redrawn_interval(
    statistic: Statistic,
    a: Sequence[float],
    b: Sequence[bool],
    *,
    draws: int = 500,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Return the middle 95 % of a statistic (ECE, AUROC) of redrawn pairs; None without any.

    Draws it cannot be worked out from, such as those with right answers alone, do not count.
    """
    columns = as_columns(a, b)
    drawn = (_statistic(statistic, columns[:, row]) for row in _picks(columns, draws, seed))
    known = [value for value in drawn if value is not None]
    if not known:
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def paired_statistic(
    statistic: Statistic,
    ours: tuple[Sequence[float], Sequence[bool]],
    base: tuple[Sequence[float], Sequence[bool]],
    *,
    draws: int = 300,
    seed: int = 0,
) -> Difference | None:
    """Return statistic(ours) - statistic(base) of the same samples, as for paired means.

    A redrawn sample brings what both sides have of it; for p the two sides of samples are
    swapped by chance. None where the statistic of either cannot be worked out.
    """
    columns = as_columns(*ours, *base)  # (4, n)

    def gap(both: Floats) -> float | None:
        pair = _statistic(statistic, both[:2]), _statistic(statistic, both[2:])
        return None if pair[0] is None or pair[1] is None else pair[0] - pair[1]

    seen = gap(columns)
    if seen is None:
        return None
    drawn = [gap(columns[:, row]) for row in _picks(columns, draws, seed)]
    known = np.array([value for value in drawn if value is not None])
    generator, n = np.random.default_rng(seed), columns.shape[1]
    as_far = 1  # what was seen is one more way
    for _ in range(draws):
        is_swapped = generator.integers(0, 2, size=n).astype(bool)
        other = gap(np.where(is_swapped, columns[[2, 3, 0, 1]], columns))
        as_far += other is None or abs(other) >= abs(seen) - _EQUAL
    return Difference(*_summary(seen, known), as_far / (draws + 1), n)


def _statistic(statistic: Statistic, columns: Floats) -> float | None:
    return statistic(columns[0].tolist(), columns[1].astype(bool).tolist())


def _picks(columns: Floats, draws: int, seed: int) -> NDArray[np.int64]:
    """Which samples each draw takes, with replacement: (draws, n)."""
    n = columns.shape[1]
    size = (_checked(draws), n)
    return np.random.default_rng(seed).integers(0, max(1, n), size=size)


def paired_difference(
    *columns: Sequence[float], draws: int = 2000, seed: int = 0
) -> Difference:
    """Return mean(values) - mean(base), its interval of redrawn pairs, its p of swapped ones.

    Of four columns it is mean(a) * mean(b) - mean(base_a) * mean(base_b), as for T*I.
    """
    both = as_columns(*columns)
    half, n = len(both) // 2, both.shape[1]
    drawn = _redrawn_means(both, draws, seed)
    if not n:
        return Difference(nan, nan, nan, nan, 0)
    ours, base = both[:half], both[half:]  # (factors, n) each
    mean = float(ours.mean(axis=1).prod() - base.mean(axis=1).prod())
    spread = drawn[:half].prod(axis=0) - drawn[half:].prod(axis=0)
    return Difference(*_summary(mean, spread), _swapped_p(ours, base, draws, seed), n)


def mcnemar(is_right: Sequence[bool], base: Sequence[bool]) -> float:
    """Return the exact two-sided p of McNemar's test on right and wrong of the same samples.

    Of the pairs that differ, as many should go either way: p is twice the smaller binomial
    tail at 1/2, at most 1; it is 1 where no pair differs.
    """
    ours, theirs = as_columns(is_right, base).astype(bool)
    won, lost = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    discordant = won + lost
    term = tail = 1  # C(n, 0), exact integers: no factorial overflows
    for k in range(min(won, lost)):
        term = term * (discordant - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << discordant))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return each p corrected for the number of comparisons, in their order (Holm 1979).

    The smallest is multiplied by their number, the next by one less and so on; none may come
    out below one that was smaller, nor above 1.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, highest = [0.0] * len(order), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def average_ranks(values: Iterable[float]) -> Floats:
    """Return the rank of each value from 1; equal values share the mean of their ranks."""
    _, group, counts = np.unique(
        np.array(list(values), dtype=float), return_inverse=True, return_counts=True
    )
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return ranks


def rank_correlation(
    a: Sequence[float], b: Sequence[float], *, draws: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return Spearman's rho and its two-sided permutation p; NaN where a list is constant.

    Up to 8 values every order is tried, so p is exact; beyond, orders are drawn.
    """
    columns = as_columns(a, b)
    x, y = (average_ranks(column) - (len(a) + 1) / 2 for column in columns)  # (n,), mean 0
    scale = float(np.sqrt((x @ x) * (y @ y)))
    if scale == 0:
        return nan, nan
    rho = float(x @ y) / scale
    is_exact = len(a) <= _ALL_ORDERS
    orders = permutations(y) if is_exact else _shuffles(y, _checked(draws), seed)
    least = abs(rho) * scale - _EQUAL
    extreme = [abs(float(x @ np.asarray(order))) >= least for order in orders]
    spare = 0 if is_exact else 1  # the order that was seen is one more possible draw
    return rho, (sum(extreme) + spare) / (len(extreme) + spare)


def _shuffles(values: Floats, draws: int, seed: int) -> Iterator[Floats]:
    generator = np.random.default_rng(seed)
    return (generator.permutation(values) for _ in range(draws))


def _redrawn_means(columns: Floats, draws: int, seed: int) -> Floats:
    """Draw n samples with replacement, again and again: the means, (columns, draws)."""
    n = columns.shape[1]
    means = np.full((len(columns), _checked(draws)), nan)  # (columns, draws)
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // max(1, n))
    for start in range(0, draws if n else 0, block):
        stop = min(draws, start + block)
        picks = generator.integers(0, n, size=(stop - start, n))
        for column, values in enumerate(columns):
            means[column, start:stop] = values[picks].mean(axis=1)  # (draws of the block,)
    return means


def _checked(draws: int) -> int:
    if draws < 1:
        raise SettingError(f"draws must be at least 1, got {draws}; 2000 is the default")
    return draws


def _summary(mean: float, drawn: Floats) -> tuple[float, float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(mean), float(low), float(high)


def _swapped_p(ours: Floats, base: Floats, draws: int, seed: int) -> float:
    """How often a difference as large comes from swapping the two of a pair by chance.

    Where the method does nothing, either value of a pair could be the other's. Up to 12 pairs
    that differ every way to swap them is tried, so p is exact; beyond, ways are drawn.
    """
    gaps = (ours - base)[:, (ours != base).any(axis=0)]  # (factors, differing)
    sums, differing = (ours + base).sum(axis=1), gaps.shape[1]  # (factors,)

    def difference(is_swapped: NDArray[np.int64]) -> Floats:
        moved = (1.0 - 2 * is_swapped) @ gaps.T  # (ways, factors)
        found: Floats = (((sums + moved) / 2).prod(1) - ((sums - moved) / 2).prod(1)).round(9)
        return np.abs(found)

    seen = difference(np.zeros((1, differing), np.int64))[0]
    if differing <= _ALL_SWAPS:
        ways = (np.arange(1 << differing)[:, None] >> np.arange(differing)) & 1
        return float((difference(ways) >= seen).mean())
    generator, as_far = np.random.default_rng(seed), 1  # what was seen is one more way
    block = max(1, _BLOCK // differing)
    for start in range(0, draws, block):
        ways = generator.integers(0, 2, size=(min(block, draws - start), differing))
        as_far += int((difference(ways) >= seen).sum())
    return as_far / (draws + 1)
