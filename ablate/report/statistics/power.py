"""Power: what a number of blocks can find or certify. All sizes are in standard deviations of a paired difference."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablate.report.statistics.contrasts import POOLED_UP_TO

MOST_BLOCKS = 100_000
TABLE = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)


class Row(NamedTuple):
    """Of the power table: a difference, in nats, and the blocks that find it or certify that it is not there."""

    difference: float
    to_find: int | None
    to_certify: int | None


def find_power(size: float, n: int, df: float, alpha: float = 0.05) -> float:
    """P(T > t(1 - alpha / 2, df)) for the noncentral t with noncentrality size sqrt(n) (Cohen 1988, chapter 2).

    That the test rejects on the wrong side is left out, which is below 1e-4 where the power is of use.
    """
    from scipy.special import stdtrit
    from scipy.stats import nct

    return float(nct.sf(float(stdtrit(df, 1 - alpha / 2)), df, size * math.sqrt(n)))


def certify_power(margin: float, n: int, df: float, alpha: float = 0.05) -> float:
    """The chance that two one-sided tests certify equivalence where there is no difference at all.

    Given the estimated deviation s, that is P(|mean| < margin - t(1 - alpha, df) s / sqrt(n)) = 2 Phi(margin sqrt(n) - t s) - 1, or 0 where
    that is negative; the mean is taken over s, whose square times df is chi-square (Phillips 1990, by quadrature).
    """
    from scipy.special import gammaincinv, ndtr, stdtrit

    nodes, weights = _quadrature()
    s = np.sqrt(2 * gammaincinv(df / 2, nodes) / df)
    room = margin * math.sqrt(n) - float(stdtrit(df, 1 - alpha)) * s
    return float(weights @ np.maximum(2 * ndtr(room) - 1, 0))


@cache
def _quadrature() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights of Gauss and Legendre on 0..1."""
    nodes, weights = np.polynomial.legendre.leggauss(128)
    return (nodes + 1) / 2, weights / 2


def smallest_detectable(n: int, df: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """The mean paired difference over n blocks that a two-sided t test finds with this power (see `find_power`).

    Infinite where there is nothing to estimate noise from.
    """
    return _smallest(lambda size: find_power(size, n, df, alpha), n, df, power)


def smallest_certifiable(n: int, df: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """The margin within which n blocks certify equivalence with this power, if there is no difference (see `certify_power`)."""
    return _smallest(lambda margin: certify_power(margin, n, df, alpha), n, df, power)


def _smallest(reached: Callable[[float], float], n: int, df: float, power: float) -> float:
    from scipy.optimize import brentq

    if n < 2 or df < 1:
        return math.inf
    high = 1.0
    while reached(high) < power:
        high *= 2
    return float(brentq(lambda size: reached(size) - power, 0.0, high))


def blocks_to_find(effect_over_sd: float, alpha: float = 0.05, power: float = 0.8, arms: int = 1) -> int | None:
    """The fewest blocks whose paired t test finds the effect with this power; None beyond 100,000.

    With `arms` above 1, up to five blocks are judged by the noise pooled over so many arms and the baseline: arms (n - 1) degrees of
    freedom.
    """
    return _fewest(lambda n, df: find_power(abs(effect_over_sd), n, df, alpha), effect_over_sd, power, arms)


def blocks_to_certify(margin_over_sd: float, alpha: float = 0.05, power: float = 0.8, arms: int = 1) -> int | None:
    """The fewest blocks that certify equivalence within the margin with this power, if there is no difference; None beyond 100,000."""
    return _fewest(lambda n, df: certify_power(margin_over_sd, n, df, alpha), margin_over_sd, power, arms)


def _fewest(reached: Callable[[int, float], float], size: float, power: float, arms: int) -> int | None:
    if size == 0 or not math.isfinite(size):
        return None if size == 0 else 2
    pooled = range(3, POOLED_UP_TO + 1) if arms > 1 else ()
    for n in pooled:
        if reached(n, arms * (n - 1)) >= power:
            return n
    low, high = POOLED_UP_TO if pooled else 1, 2 * POOLED_UP_TO
    while reached(high, high - 1) < power:
        low, high = high, 2 * high
        if high > MOST_BLOCKS:
            return None
    while high - low > 1:  # `low` does not reach it, `high` does
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle, middle - 1) >= power else (middle, high)
    return high


def table(sd: float, alpha: float = 0.05, power: float = 0.8) -> list[Row]:
    """For differences of half a deviation to five, in nats; nothing where nothing varies."""
    if not sd > 0:
        return []
    return [Row(size * sd, blocks_to_find(size, alpha, power), blocks_to_certify(size, alpha=0.05, power=power)) for size in TABLE]
