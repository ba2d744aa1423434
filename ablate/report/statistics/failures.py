"""Failures are outcomes: how a run ended, and what counts of failed runs say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

OUTCOMES = ("ok", "nan", "diverged", "collapsed", "spiky", "incomplete")

DIVERGED_RATIO, STRETCHES = 1.5, 20
"""Of the training loss at the end to the smallest before: medians of twentieths of the run, since single batches are noisy."""
COLLAPSE_SLACK = 0.02
"""Nats below the unigram entropy, within which a model has learned token frequencies and nothing else."""
SPIKE_DEVIATIONS, SPIKE_WINDOW, LEAST_WINDOW = 7.0, 100, 20
ROUNDING = 1e-6
"""Nats; on a flat curve every rounding error is many deviations."""
SPIKY_SHARE = 0.001
"""One spike in a thousand steps."""


def outcome(
    losses: Sequence[float],
    state: str,
    reason: str | None,
    initial_loss: float | None,
    unigram_entropy: float | None,
    final_loss: float | None,
) -> str:
    """How a run ended, in one of OUTCOMES: the first of these that applies. `losses` are those of training, in order.

    incomplete: it has not ended. nan: a loss or gradient was no number. diverged: the final loss is above the initial one, or training
    ended above 1.5 times its smallest loss. collapsed: the final loss is not 0.02 nats below the unigram entropy, so that the model knows
    token frequencies only. spiky: more than one training loss in a thousand is a spike (`spike_share`); such a run did not fail.
    """
    if state not in ("done", "failed"):
        return "incomplete"
    if reason == "non-finite" or not all(map(math.isfinite, losses)) or (final_loss is not None and not math.isfinite(final_loss)):
        return "nan"
    if _diverged(losses, initial_loss, final_loss):
        return "diverged"
    low = final_loss is None or unigram_entropy is None or final_loss < unigram_entropy - COLLAPSE_SLACK
    if reason == "collapsed" or not low:
        return "collapsed"
    return "spiky" if spike_share(losses) > SPIKY_SHARE else "ok"


def _diverged(losses: Sequence[float], initial_loss: float | None, final_loss: float | None) -> bool:
    if initial_loss is not None and final_loss is not None and final_loss > initial_loss:
        return True
    size = max(1, len(losses) // STRETCHES)
    stretches = [median(losses[max(0, end - size) : end]) for end in range(len(losses), 0, -size)]
    return bool(stretches) and stretches[0] > DIVERGED_RATIO * min(stretches)


def spike_share(losses: Sequence[float]) -> float:
    """The share of training losses that are more than 7 deviations above the mean of the up to 100 before them.

    After OLMo's spike score (Groeneveld et al. 2024), upwards only: a fall is learning. The first 20 have too
    little before them, and while the loss still falls steeply its slope hides a spike.
    """
    import numpy as np

    values = np.asarray(losses, dtype=np.float64)
    if len(values) <= LEAST_WINDOW:
        return 0.0
    ends = np.arange(LEAST_WINDOW, len(values))
    sizes = np.minimum(ends, SPIKE_WINDOW)
    about = values - values[0]  # squares of small numbers lose fewer digits
    sums, squares = (np.concatenate([[0.0], np.cumsum(about**power)]) for power in (1, 2))
    means = (sums[ends] - sums[ends - sizes]) / sizes
    variances = np.maximum((squares[ends] - squares[ends - sizes]) / sizes - means**2, 0) * sizes / (sizes - 1)
    return float(np.count_nonzero(about[ends] - means > SPIKE_DEVIATIONS * np.sqrt(variances) + ROUNDING)) / len(values)


def failure_interval(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a failure rate, k of n runs (Clopper and Pearson 1934). Raises ValueError unless 0 <= k <= n and n > 0."""
    from scipy.stats import binomtest

    found = binomtest(k, n).proportion_ci(confidence, method="exact")
    return float(found.low), float(found.high)


def failures_differ(k1: int, n1: int, k2: int, n2: int) -> float:
    """The two-sided p value of equal failure rates (Barnard 1945); 1 where all runs failed, or none."""
    from scipy.stats import barnard_exact

    if k1 + k2 in (0, n1 + n2):
        return 1.0
    return float(barnard_exact([[k1, k2], [n1 - k1, n2 - k2]]).pvalue)
