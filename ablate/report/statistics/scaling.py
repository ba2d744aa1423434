"""Scaling: whether the order of arms holds from one scale to another, and power laws that are not stretched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

STRETCH = 2.0
"""How far beyond what was measured a fit may be asked, as a ratio."""

HUBER = 1e-3
"""Relative error from which on a point counts by its distance, not by its square (Hoffmann et al. 2022, 2203.15556)."""

STEEPEST = 10.0
"""The largest exponent that is looked for."""

STARTS = np.geomspace(0.01, STEEPEST / 2, 60)
"""Exponents of which the best is where a fit starts."""


class PowerLaw(NamedTuple):
    """y = alpha * x^-exponent + floor, fitted over smallest..largest. `residuals` are y less the fit, in the order of the points."""

    alpha: float
    exponent: float
    floor: float
    smallest: float
    largest: float
    residuals: tuple[float, ...]

    def predict(self, x: float) -> float:
        """y at x; raises ValueError where x is more than twice beyond what was measured."""
        self._within(x)
        return self.floor + self._above(x)

    def slope(self, x: float) -> float:
        """|dy / d ln x| = exponent * alpha * x^-exponent, the fall per e-fold of x; raises ValueError as predict does."""
        self._within(x)
        return self.exponent * self._above(x)

    def _above(self, x: float) -> float:
        return self.alpha * x**-self.exponent

    def _within(self, x: float) -> None:
        if not self.smallest / STRETCH <= x <= self.largest * STRETCH:
            raise ValueError(f"{x:g} is more than {STRETCH:g}x beyond what was measured, {self.smallest:g} to {self.largest:g}")


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw:
    """The power law with the smallest Huber loss of relative errors; alpha, exponent and floor are at least 0.

    x and y above 0, at least three distinct x. Three points are met exactly where such a law goes through them. Raises ValueError where y
    does not fall with x.
    """
    from scipy.optimize import least_squares, nnls

    points_x, points_y = _falling(x, y)
    if len(set(x)) < 3:
        raise ValueError(f"a power law needs three different x, not {sorted(set(x))}")
    middle, unit = float(np.exp(np.log(points_x).mean())), float(np.exp(np.log(points_y).mean()))
    u, target = np.log(points_x / middle), points_y / unit  # so that no unit of x or y moves the fit

    def errors(theta: Array) -> Array:
        return np.log((theta[0] * np.exp(-theta[1] * u) + theta[2]) / target)

    def start(exponent: float) -> Array:
        (alpha, floor), _ = nnls(np.stack([np.exp(-exponent * u), np.ones_like(u)], axis=1), target)
        return np.array([max(alpha, 1e-6), exponent, max(floor, 1e-6)])

    best = min((start(exponent) for exponent in STARTS), key=lambda theta: float(np.abs(errors(theta)).sum()))
    end = least_squares(
        errors, best, bounds=([0, 0, 0], [np.inf, STEEPEST, np.inf]), loss="huber", f_scale=HUBER, xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    alpha, exponent, floor = (float(value) for value in end.x)
    fitted = unit * (alpha * np.exp(-exponent * u) + floor)
    residuals = tuple(float(value) for value in points_y - fitted)
    return PowerLaw(alpha * unit * middle**exponent, exponent, floor * unit, min(x), max(x), residuals)


def fall_per_fold(x: Sequence[float], y: Sequence[float]) -> float:
    """The fall of y per e-fold of x, of the straight line in ln x with the smallest squares; raises ValueError where y does not fall."""
    points_x, points_y = _falling(x, y)
    return -float(np.polyfit(np.log(points_x), points_y, 1)[0])


def _falling(x: Sequence[float], y: Sequence[float]) -> tuple[Array, Array]:
    """As arrays, once they are positive and y falls with x on the whole."""
    if len(x) != len(y):
        raise ValueError(f"{len(x)} x and {len(y)} y: one for each")
    if not all(math.isfinite(value) and value > 0 for value in (*x, *y)):
        raise ValueError("x and y must be finite and above 0")
    if len(set(x)) < 2:
        raise ValueError(f"needs at least two different x, not {sorted(set(x))}")
    points_x, points_y = np.asarray(x, float), np.asarray(y, float)
    u = np.log(points_x)
    if np.dot(u - u.mean(), points_y - points_y[0]) >= 0:
        raise ValueError("y does not fall as x grows")
    return points_x, points_y


class RankStability(NamedTuple):
    """The order of arms at two scales. `accuracy` is the share of pairs of arms that both scales order alike; None where it is unknown."""

    small: float
    large: float
    arms: int
    tau: float | None
    low: float | None
    high: float | None
    accuracy: float


def rank_stability(
    losses: Mapping[str, Mapping[float, Mapping[int, float]]], *, confidence: float = 0.95, draws: int = 4000, seed: int = 0
) -> list[RankStability]:
    """Kendall's tau-b of the mean losses of arms between each two scales, smaller scale first. `losses`: arm -> scale -> block -> loss.

    At a scale the blocks count that all arms have there; an arm that lacks one of two scales is left out of that pair. Decision accuracy is
    that of DataDecide (2504.11393). The interval is of simulated repeats: means from the t distribution of the block model, with the
    residual of arm by block pooled, (arms - 1)(blocks - 1) degrees of freedom. Repeats add noise to noise, so that where arms are close it
    lies nearer to 0 than tau. Without two blocks at both scales it is None. Raises ValueError for less than two arms or scales.
    """
    scales = sorted({scale for by_scale in losses.values() for scale in by_scale})
    if len(scales) < 2:
        raise ValueError(f"needs at least two scales, not {scales}")
    rng = np.random.default_rng(seed)
    return [_between(losses, small, large, confidence, draws, rng) for small, large in combinations(scales, 2)]


def _between(
    losses: Mapping[str, Mapping[float, Mapping[int, float]]],
    small: float,
    large: float,
    confidence: float,
    draws: int,
    rng: np.random.Generator,
) -> RankStability:
    arms = [arm for arm, by_scale in losses.items() if small in by_scale and large in by_scale]
    if len(arms) < 2:
        raise ValueError(f"needs at least two arms that have both scales, {small:g} and {large:g}, not {arms}")
    tables = [_table([losses[arm][scale] for arm in arms], scale) for scale in (small, large)]
    ours, theirs = (_signs(table.mean(axis=1)) for table in tables)
    tau = float(_tau(ours, theirs))
    low = high = None
    if min(table.shape[1] for table in tables) > 1:
        repeats = _tau(*(_signs(_repeats(table, draws, rng)) for table in tables))
        if not np.isnan(repeats).any():
            low, high = (float(value) for value in np.quantile(repeats, [(1 - confidence) / 2, (1 + confidence) / 2]))
    return RankStability(small, large, len(arms), None if math.isnan(tau) else tau, low, high, float((ours == theirs).mean()))


def _table(by_arm: Sequence[Mapping[int, float]], scale: float) -> Array:
    """Arm x block, of the blocks that all arms have."""
    blocks = sorted(set.intersection(*(set(losses) for losses in by_arm)))
    if not blocks:
        raise ValueError(f"at scale {scale:g} no block has all arms")
    table = np.array([[losses[block] for block in blocks] for losses in by_arm])
    if not np.isfinite(table).all():
        raise ValueError(f"at scale {scale:g} a loss is not finite; leave failed runs out")
    return table


def _repeats(table: Array, draws: int, rng: np.random.Generator) -> Array:
    """draws x arm: means of arms, were all blocks run again."""
    arms, blocks = table.shape
    df = (arms - 1) * (blocks - 1)
    residuals = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    sd = np.sqrt((residuals**2).sum() / rng.chisquare(df, (draws, 1)))
    return table.mean(axis=1) + sd / math.sqrt(blocks) * rng.standard_normal((draws, arms))


def _signs(means: Array) -> Array:
    """... x pair: which of two arms has the larger loss."""
    left, right = np.triu_indices(means.shape[-1], 1)
    return np.sign(means[..., left] - means[..., right])


def _tau(ours: Array, theirs: Array) -> Array:
    """Kendall's tau-b; NaN where one side has nothing but ties."""
    decided = np.abs(ours).sum(axis=-1) * np.abs(theirs).sum(axis=-1)
    agreed = (ours * theirs).sum(axis=-1)
    return np.divide(agreed, np.sqrt(decided), out=np.full(np.shape(agreed), np.nan), where=decided > 0)
