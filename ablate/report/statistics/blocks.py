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

Losses = Mapping[str, Mapping[int, float]]


class Fit(NamedTuple):
    """`effects`: arm -> (arm less baseline, its variance in units of the noise's)."""

    effects: dict[str, tuple[float, float]]
    mse: float
    df: int
    residuals: dict[str, NDArray[np.float64]]
    blocks: dict[int, float]  # the baseline's fitted loss in each block


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
        blocks=dict(zip(blocks, solution[len(arms) - 1 :].tolist(), strict=True)),
    )


def departures(losses: Losses, baseline: str) -> dict[str, str]:
    """Arms with more noise than the rest -> the reason: in the pool, one of them would make every other look surer than it is.

    Each arm is held against the block effects that the rest gives without it. It leaves where its deviation is above 2.5 times that of the
    rest, or is the larger one and Levene's test (about the median: Brown and Forsythe 1974) tells the two apart at 5 %; the noisiest first,
    then again. If that is the baseline, no arm can be pooled: its noise is in every difference.
    """
    pool, left = dict(losses), dict[str, str]()
    while len(pool) > 2:
        ratios = {arm: ratio for arm in pool if (ratio := _departure(pool, arm, baseline)) is not None}
        if not ratios:
            break
        worst = max(ratios, key=lambda arm: ratios[arm])
        if worst == baseline:
            return left | {arm: f"the baseline's noise is {ratios[worst]:.2g} times that of the arms" for arm in pool if arm != baseline}
        left[worst] = f"its noise is {ratios[worst]:.2g} times that of the other arms"
        del pool[worst]
    return left


def _departure(pool: Losses, arm: str, baseline: str) -> float | None:
    """The ratio of an arm's deviation to that of the rest, where it is too large; None where it is not, or cannot be told."""
    rest = {other: values for other, values in pool.items() if other != arm}
    reference = baseline if arm != baseline else next(iter(rest))
    fit = fit_blocks(rest, reference) if _connected(rest, reference) else None
    own = np.array([loss - fit.blocks[block] for block, loss in pool[arm].items() if block in fit.blocks]) if fit else np.empty(0)
    if fit is None or len(own) < 2:
        return None
    own = (own - own.mean()) / math.sqrt(1 + 1 / len(rest))  # a block's effect comes from the rest, with noise of its own
    noise, expected = math.sqrt(float(own @ own) / (len(own) - 1)), math.sqrt(fit.mse)
    if noise <= expected:
        return None
    if noise > MOST_RATIO * expected:
        return noise / expected if expected else math.inf
    residuals = np.concatenate(list(fit.residuals.values()))
    scaled = residuals * math.sqrt(len(residuals) / fit.df)  # as large as the noise that they are what is left of
    return noise / expected if _levene(own * math.sqrt(len(own) / (len(own) - 1)), scaled) < LEVENE_LEVEL else None


def _connected(losses: Losses, reference: str) -> bool:
    return all(set(values) & set(losses[reference]) for values in losses.values())


def _levene(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The p value; 1 where the test has nothing to go by."""
    from scipy.stats import levene

    if len(a) < 3 or len(b) < 3:  # two values lie equally far from their median, whatever they are
        return 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        p = float(levene(a, b, center="median").pvalue)
    return 1.0 if math.isnan(p) else p
