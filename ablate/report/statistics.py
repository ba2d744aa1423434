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
