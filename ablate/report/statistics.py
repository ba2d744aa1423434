"""Arrays in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences over n blocks, with its t interval; one block has none."""

    mean: float
    n: int
    sd: float | None
    low: float | None
    high: float | None


def paired_difference(arm: Sequence[float], baseline: Sequence[float], *, confidence: float = 0.95) -> Difference:
    """mean(d) -+ t(1 - (1 - confidence) / 2, n - 1) * sd(d) / sqrt(n), d the difference in each block (Student 1908)."""
    differences = [a - b for a, b in zip(arm, baseline, strict=True)]
    n = len(differences)
    if not n:
        raise ValueError("a difference needs at least one block that both arms have")
    mean = math.fsum(differences) / n
    if n == 1:
        return Difference(mean, n, None, None, None)
    from scipy.stats import t  # a third of a second, which one block does not need

    sd = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n - 1))
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * sd / math.sqrt(n)
    return Difference(mean, n, sd, mean - half, mean + half)


def smallest_detectable(n: int, df: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """The mean paired difference over n blocks, in standard deviations of one, that a two-sided t test finds with this power.

    Solves P(T > t(1 - alpha / 2, df)) = power for the noncentral t with noncentrality d sqrt(n) (Cohen 1988, chapter 2); that the test
    rejects on the wrong side is left out, which is below 1e-4 here. Infinite where there is nothing to estimate noise from.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    if n < 2 or df < 1:
        return math.inf
    critical = float(t.ppf(1 - alpha / 2, df))

    def missing(d: float) -> float:
        return float(nct.sf(critical, df, d * math.sqrt(n))) - power

    high = 1.0
    while missing(high) < 0:
        high *= 2
    return float(brentq(missing, 0.0, high))


def pooled_deviation(groups: Sequence[Sequence[float]]) -> tuple[float, int] | None:
    """The standard deviation within groups, each about its own mean, and its degrees of freedom; None if no group has two values."""
    squares, df = 0.0, 0
    for values in groups:
        if len(values) < 2:
            continue
        mean = math.fsum(values) / len(values)
        squares += math.fsum((value - mean) ** 2 for value in values)
        df += len(values) - 1
    return (math.sqrt(squares / df), df) if df else None
