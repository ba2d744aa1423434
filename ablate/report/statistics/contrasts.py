"""Contrasts of arms with the baseline over blocks: paired and pooled t intervals, Holm's correction over a family, equivalence."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ablate.report.statistics.blocks import Fit, departures, doubles, fit_blocks

POOLED_UP_TO = 5
"""Blocks up to which the pooled contrast is the primary one: beyond, an arm's own noise is known well enough."""

POOLED_DF = 6
"""Degrees of freedom from which the pooled contrast says something of two blocks, whose own interval has one."""


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


class Contrast(NamedTuple):
    """The mean of an arm less the baseline in nats; what one block cannot tell is None.

    `sd` is that of the paired differences; `se`, `df` and `p` (two-sided, of no difference) are those of the method.
    """

    mean: float
    low: float | None
    high: float | None
    n: int  # blocks that the arm and the baseline share
    df: int
    sd: float | None
    se: float | None
    p: float | None
    method: str  # "paired t", "pooled blocks" or "one block"

    @property
    def resolution(self) -> float | None:
        """The standard deviation of a paired difference that the standard error stands for."""
        return None if self.se is None else self.se * math.sqrt(self.n)


class Family(NamedTuple):
    """The contrasts of all arms that share a block with the baseline."""

    contrasts: dict[str, Contrast]  # the primary ones
    own: dict[str, Contrast]
    pooled: dict[str, Contrast]  # of the arms in the pool
    left_pool: dict[str, str]  # arm -> reason

    @property
    def is_pooled(self) -> bool:
        """Whether any arm is judged by the noise of all."""
        return any(contrast.method == "pooled blocks" for contrast in self.contrasts.values())


class Equivalence(NamedTuple):
    """Two one-sided tests of a difference within -margin..margin; low..high lies within exactly where p is below the level."""

    p: float
    low: float
    high: float
    margin: float


def t_interval(mean: float, se: float, df: float, confidence: float) -> tuple[float, float]:
    """mean -+ t((1 + confidence) / 2, df) se; of no width where nothing varies."""
    from scipy.special import stdtrit

    half = float(stdtrit(df, (1 + confidence) / 2)) * se if se else 0.0
    return mean - half, mean + half


def t_tail(distance: float, se: float, df: float) -> float:
    """P(T > distance / se). Where nothing varies: 0 beyond zero, else 1, so that identical losses are no finding."""
    from scipy.special import stdtr

    if not se:
        return 0.0 if distance > 0 else 1.0
    return float(stdtr(df, -distance / se))


def paired_contrast(differences: Sequence[float], confidence: float = 0.95) -> Contrast:
    """The paired t interval and test of the mean difference (Student 1908). Identical losses: 0, an interval of no width, p = 1."""
    n = len(differences)
    if not n:
        raise ValueError("a difference needs at least one block that both arms have")
    mean = math.fsum(differences) / n
    if n == 1:
        return Contrast(mean, None, None, 1, 0, None, None, None, "one block")
    sd = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n - 1))
    return _contrast(mean, sd / math.sqrt(n), n - 1, n, sd, "paired t", confidence)


def _contrast(mean: float, se: float, df: int, n: int, sd: float | None, method: str, confidence: float = 0.95) -> Contrast:
    low, high = t_interval(mean, se, df, confidence)
    return Contrast(mean, low, high, n, df, sd, se, min(1.0, 2 * t_tail(abs(mean), se, df)), method)


def family(losses: Mapping[str, Mapping[int, float]], baseline: str, failed: Collection[str] = ()) -> Family:
    """Every arm against the baseline: `losses` of runs that are ok by arm and block (blocks may be missing), `failed` arms with failures.

    Pooled is the randomised-block model loss = arm + block + noise over all arms in the pool, by least squares (Fisher 1935): with n blocks
    of a arms the noise has (a - 1)(n - 1) degrees of freedom instead of n - 1. Out of the pool stay arms with a failed run, arms whose
    differences do not vary at all, arms that repeat another's noise (see `doubles`), and arms whose noise departs from that of the rest
    (see `departures`). Up to five blocks the pooled contrast is the primary one (of two blocks only with six degrees of freedom), beyond it
    is the paired one.
    """
    theirs = losses.get(baseline, {})
    own: dict[str, Contrast] = {}
    for arm, values in losses.items():
        shared = [block for block in values if block in theirs]
        if arm != baseline and shared:
            own[arm] = paired_contrast([values[block] - theirs[block] for block in shared])
    left = {arm: "a run of it failed" for arm in own if arm in failed}
    left |= {arm: "its differences from the baseline do not vary" for arm in own if arm not in left and own[arm].sd == 0}
    pooled: dict[str, Contrast] = {}
    if baseline in failed:
        left |= {arm: "a run of the baseline failed" for arm in own if arm not in left}
    elif own:
        pool = {arm: losses[arm] for arm in (baseline, *own) if arm in losses and arm not in left}
        left |= doubles(pool, baseline)
        left |= departures({arm: values for arm, values in pool.items() if arm not in left}, baseline)
        pool = {arm: values for arm, values in pool.items() if arm not in left}
        fit = fit_blocks(pool, baseline) if len(pool) > 2 else None
        pooled = _pooled(fit, own) if fit is not None else {}
    return Family({arm: _primary(own[arm], pooled.get(arm)) for arm in own}, own, pooled, left)


def _pooled(fit: Fit, own: Mapping[str, Contrast]) -> dict[str, Contrast]:
    return {
        arm: _contrast(effect, math.sqrt(fit.mse * unit), fit.df, own[arm].n, own[arm].sd, "pooled blocks")
        for arm, (effect, unit) in fit.effects.items()
    }


def _primary(own: Contrast, pooled: Contrast | None) -> Contrast:
    """The table of how many blocks allow what."""
    if pooled is None or own.n == 1 or own.n > POOLED_UP_TO:
        return own
    return pooled if own.n > 2 or pooled.df >= POOLED_DF else own


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down p values (Holm 1979): max over the smaller p of (m - rank + 1) p, at most 1. NaN stays NaN and does not count."""
    return {key: value if math.isnan(value) else min(1.0, value) for key, value in holm_uncapped(p).items()}


def holm_uncapped(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's p values without the bound of 1, which intervals need (statsmodels bounds them)."""
    adjusted, largest = dict(p), 0.0
    ordered = sorted((key for key, value in p.items() if not math.isnan(value)), key=lambda key: p[key])
    for rank, key in enumerate(ordered):
        adjusted[key] = largest = max(largest, (len(ordered) - rank) * p[key])
    return adjusted


def holm_share(p: float, holm_p: float) -> float:
    """The part of alpha that Holm spends on this test, so that p < share alpha exactly where holm_p < alpha."""
    return p / holm_p if holm_p > 0 else 1.0  # p = 0 is below every level


def holm_interval(contrast: Contrast, p: float, holm_p: float, confidence: float = 0.95) -> tuple[float, float]:
    """The t interval at level 1 - (1 - confidence) p / holm_p, which excludes 0 exactly where holm_p < 1 - confidence.

    A t interval at level 1 - a excludes 0 exactly where p < a. With a = alpha p / P, P being Holm's p value, that is p < alpha p / P, hence
    P < alpha. P is the uncapped one: capped, the intervals of large p would be narrower than their share. Raises ValueError for one block.
    """
    se = _error(contrast)
    return t_interval(contrast.mean, se, contrast.df, 1 - (1 - confidence) * holm_share(p, holm_p))


def equivalence(contrast: Contrast, margin: float, alpha: float = 0.05) -> Equivalence:
    """Two one-sided t tests at -margin and margin, each at alpha, and the interval at level 1 - 2 alpha (Schuirmann 1987).

    Uses the contrast's own standard error and degrees of freedom. Raises ValueError for one block or a margin that is not positive.
    """
    if not margin > 0:
        raise ValueError(f"a margin is above 0, this one is {margin}")
    se = _error(contrast)
    p = max(t_tail(contrast.mean + margin, se, contrast.df), t_tail(margin - contrast.mean, se, contrast.df))
    return Equivalence(p, *t_interval(contrast.mean, se, contrast.df, 1 - 2 * alpha), margin)


def _error(contrast: Contrast) -> float:
    if contrast.se is None:
        raise ValueError("one block has no standard error: nothing can be tested")
    return contrast.se
