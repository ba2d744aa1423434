"""Curves: the difference of two arms along training, and fewer points for drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


class DifferenceCurve(NamedTuple):
    """Arm less baseline at each number of tokens, over `n` blocks; low and high are NaN where n is 1."""

    tokens: Array
    mean: Array
    low: Array
    high: Array
    n: NDArray[np.int64]


def difference_curve(
    tokens: Sequence[float], arm: Mapping[int, Sequence[float]], baseline: Mapping[int, Sequence[float]], confidence: float = 0.95
) -> DifferenceCurve:
    """The mean paired difference with its t interval, point by point: a band for each point, not for the whole curve.

    `arm` and `baseline`: block -> a loss for each of `tokens`, NaN where none was logged. A block counts where both have a loss; points
    without a block are left out. Raises ValueError where the two share no block, or a curve has another length than `tokens`.
    """
    from scipy.stats import t

    blocks = sorted(set(arm) & set(baseline))
    if not blocks:
        raise ValueError("a difference needs at least one block that both arms have")
    differences = np.stack([_on_grid(arm[block], tokens) - _on_grid(baseline[block], tokens) for block in blocks])
    known = ~np.isnan(differences)
    some = known.any(axis=0)
    differences, known = differences[:, some], known[:, some]
    n = known.sum(axis=0)
    mean = differences.sum(axis=0, where=known) / n
    squares = ((differences - mean) ** 2).sum(axis=0, where=known)
    several = n > 1
    half = np.full(mean.shape, math.nan)
    count = n[several]
    half[several] = t.ppf((1 + confidence) / 2, count - 1) * np.sqrt(squares[several] / (count - 1) / count)
    return DifferenceCurve(np.asarray(tokens, float)[some], mean, mean - half, mean + half, n)


def _on_grid(losses: Sequence[float], tokens: Sequence[float]) -> Array:
    """As an array, NaN where the loss is not finite."""
    if len(losses) != len(tokens):
        raise ValueError(f"{len(losses)} losses for {len(tokens)} numbers of tokens: one for each")
    values = np.asarray(losses, float)
    return np.where(np.isfinite(values), values, math.nan)


def binned(tokens: Sequence[float], losses: Sequence[float], points: int) -> tuple[Array, Array]:
    """Mean tokens and mean loss in `points` bins of equal width in tokens, in order.

    Empty bins and losses that are not finite are left out. A curve with no more than `points` losses stays as it is.
    """
    if points < 1:
        raise ValueError(f"needs at least one bin, not {points}")
    x, y = np.asarray(tokens, float), _on_grid(losses, tokens)
    known = ~np.isnan(y)
    order = np.argsort(x[known], kind="stable")
    x, y = x[known][order], y[known][order]
    if len(x) <= points:
        return x, y
    edges = np.linspace(x[0], x[-1], points + 1)
    bins = np.minimum(np.searchsorted(edges, x, side="right") - 1, points - 1)
    counts = np.bincount(bins, minlength=points)
    filled = counts > 0
    return tuple(np.bincount(bins, weights=values, minlength=points)[filled] / counts[filled] for values in (x, y))  # type: ignore[return-value]
