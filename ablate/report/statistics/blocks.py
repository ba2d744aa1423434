"""The randomised-block model loss = arm + block + noise, and the guard against pooling noise that is not alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_RATIO = 2.5
"""Of an arm's deviation to that of the rest, beyond which it is judged by its own noise."""
LEVENE_LEVEL = 0.05
DOUBLE_LEVEL = 0.01
"""Of studies whose arms vary alike, the share in which chance makes one of them look like another's double."""

Losses = Mapping[str, Mapping[int, float]]


class Fit(NamedTuple):
    """`effects`: arm -> (arm less baseline, its variance in units of the noise's)."""

    effects: dict[str, tuple[float, float]]
    mse: float
    df: int
    residuals: dict[str, NDArray[np.float64]]


def fit_blocks(losses: Losses, baseline: str) -> Fit | None:
    """Least squares over all cells there are; every arm shares a block with the baseline. None where no degree of freedom is left."""
    arms = [baseline, *(arm for arm in losses if arm != baseline)]
    blocks = sorted({block for values in losses.values() for block in values})
    cells = [(row, blocks.index(block), loss) for row, arm in enumerate(arms) for block, loss in losses[arm].items()]
    owner, place = np.array([cell[0] for cell in cells]), np.array([cell[1] for cell in cells])
    loss = np.array([cell[2] for cell in cells], dtype=np.float64)
    df = len(cells) - (len(arms) + len(blocks) - 1)
    if df < 1:
        return None
    design = np.zeros((len(cells), len(arms) - 1 + len(blocks)))
    others = owner > 0
    design[others, owner[others] - 1] = 1
    design[np.arange(len(cells)), len(arms) - 1 + place] = 1
    solution = np.linalg.lstsq(design, loss, rcond=None)[0]
    residual = loss - design @ solution
    unit = np.diag(np.linalg.inv(design.T @ design))
    return Fit(
        effects={arm: (float(solution[i]), float(unit[i])) for i, arm in enumerate(arms[1:])},
        mse=float(residual @ residual) / df,
        df=df,
        residuals={arm: residual[owner == row] for row, arm in enumerate(arms)},
    )


def departures(losses: Losses, baseline: str) -> dict[str, str]:
    """Arms with more noise than the rest -> the reason: in the pool, one of them would make every other look surer than it is.

    While an arm's residual deviation in the block model is above 2.5 times that of the others together, or Levene's test (about the median:
    Brown and Forsythe 1974) says at 5 % that they are not alike, the noisiest leaves. If that is the baseline, no arm can be pooled: its
    noise is in every difference. With three blocks the guard sees little (one null arm of eight with fourfold noise: a family error of 0.12
    instead of 0.13, by simulation), with five more (0.08 instead of 0.12); a stricter one would cost level where noise is alike.
    """
    pool, left = dict(losses), dict[str, str]()
    while len(pool) > 2 and (fit := fit_blocks(pool, baseline)) is not None:
        ratios = _ratios(fit.residuals)
        worst = max(ratios, key=lambda arm: ratios[arm])
        if ratios[worst] <= MOST_RATIO and _levene(fit.residuals) >= LEVENE_LEVEL:
            break
        if worst == baseline:
            return left | {arm: f"the baseline's noise is {ratios[worst]:.2g} times that of the arms" for arm in pool if arm != baseline}
        left[worst] = f"its noise is {ratios[worst]:.2g} times that of the other arms"
        del pool[worst]
    return left


def doubles(losses: Losses, baseline: str) -> dict[str, str]:
    """Arms that repeat another arm's noise -> the reason: in the pool they would count it twice.

    In the block model the differences of any two arms vary alike. An arm leaves when its differences from an arm before it (the baseline is
    the first) vary less than chance lets them beside those of the two from the other arms, of which the median is taken so that one noisy
    arm does not make all others look like doubles: F with n - 1 and n - 1 degrees of freedom below `DOUBLE_LEVEL` over the number of pairs.
    """
    from scipy.special import fdtr

    pool, left = list(dict.fromkeys([baseline, *losses])), dict[str, str]()
    spread = {(a, b): _spread(losses[a], losses[b]) for a in pool for b in pool if a != b}
    while len(pool) > 2:
        level, found = DOUBLE_LEVEL / math.comb(len(pool), 2), list[tuple[float, str, str]]()
        for place, arm in enumerate(pool):
            for other in pool[:place]:
                variance, n = spread[arm, other]
                beside = [spread[pair] for third in pool for pair in ((third, arm), (third, other)) if third not in (arm, other)]
                usual = float(np.median([known for known, _ in beside]))
                if n > 1 and usual > 0:
                    found.append((float(fdtr(n - 1, n - 1, variance / usual)), arm, other))
        p, arm, other = min(found, default=(1.0, "", ""))
        if p >= level:
            break
        left[arm] = f"it repeats the noise of {other}"
        pool.remove(arm)
    return left


def _spread(arm: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, int]:
    """The variance of the differences in the blocks that both have, and how many these are."""
    differences = [loss - other[block] for block, loss in arm.items() if block in other]
    return (float(np.var(differences, ddof=1)) if len(differences) > 1 else 0.0), len(differences)


def _ratios(residuals: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """The deviation of each arm's residuals over that of all others; 0 where it has one residual only."""
    squares = {arm: float(values @ values) for arm, values in residuals.items()}
    df = {arm: len(values) - 1 for arm, values in residuals.items()}
    ratios = {}
    for arm in residuals:
        rest, rest_df = sum(squares.values()) - squares[arm], sum(df.values()) - df[arm]
        known = df[arm] > 0 and rest_df > 0 and squares[arm] > 0
        ratios[arm] = math.sqrt(squares[arm] / df[arm] / (rest / rest_df)) if known and rest > 0 else math.inf if known else 0.0
    return ratios


def _levene(residuals: Mapping[str, NDArray[np.float64]]) -> float:
    """The p value; 1 where the test has nothing to go by."""
    from scipy.stats import levene

    groups = [values for values in residuals.values() if len(values) > 2]  # two values lie equally far from their median
    if len(groups) < 2:
        return 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        p = float(levene(*groups, center="median").pvalue)
    return 1.0 if math.isnan(p) else p
