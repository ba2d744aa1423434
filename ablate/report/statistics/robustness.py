"""Robustness: does a verdict hold without an assumption, or without a block; and where the noise comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ablate.report.statistics.blocks import fit_blocks
from ablate.report.statistics.verdicts import judge

MOST_FLIPPED = 20
"""Blocks up to which all 2^n sign patterns are counted."""
LEAST_RESAMPLED = 10
"""Blocks below which a bootstrap interval covers too seldom to be shown: 76 % instead of 95 % at three."""
RESAMPLES = 9999


class Pairing(NamedTuple):
    """What sharing seeds between two arms bought."""

    rho: float | None  # correlation over blocks
    sd_paired: float
    sd_unpaired: float  # of a difference, had the arms not shared their seeds
    saving: float | None  # unpaired blocks that one paired block is worth


class Components(NamedTuple):
    """Standard deviations of the noise: what all arms share in a block, and what is each run's own."""

    block: float
    residual: float
    df: int


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """The exact two-sided p of the mean if each difference could as well have the other sign (Fisher 1935); at least 2^(1 - n).

    None beyond 20 blocks. Raises ValueError for none.
    """
    if not differences:
        raise ValueError("a test needs at least one block")
    if len(differences) > MOST_FLIPPED:
        return None
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    seen = abs(math.fsum(differences))
    return float(np.mean(np.abs(sums) >= seen * (1 - 1e-12)))  # the same sum in another order is rounded otherwise


def leave_one_out(
    losses: Mapping[str, Mapping[int, float]], baseline: str, margin: float | None, **rules: Any
) -> dict[str, dict[int, str]]:
    """arm -> block -> the word without that block, where it is another; `rules` are those of `judge`.

    Words that say only that too few blocks are left do not count.
    """
    words = {arm: judgement.verdict.word for arm, judgement in judge(losses, baseline, margin, **rules).items()}
    flips: dict[str, dict[int, str]] = {arm: {} for arm in words}
    for block in sorted({block for values in losses.values() for block in values}):
        rest = {arm: {other: loss for other, loss in values.items() if other != block} for arm, values in losses.items()}
        for arm, judgement in judge(rest, baseline, margin, **rules).items():
            if judgement.verdict.word not in (words[arm], "SCREEN ONLY"):
                flips[arm][block] = judgement.verdict.word
    return flips


def bca(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The bias-corrected and accelerated bootstrap interval of the mean (Efron 1987), of seeded draws; None below ten blocks."""
    from scipy.stats import bootstrap

    if len(differences) < LEAST_RESAMPLED:
        return None
    if len(set(differences)) == 1:
        return differences[0], differences[0]
    found = bootstrap(
        (differences,), np.mean, n_resamples=RESAMPLES, confidence_level=confidence, method="BCa", random_state=np.random.default_rng(0)
    ).confidence_interval
    return float(found.low), float(found.high)


def pairing(arm: Sequence[float], baseline: Sequence[float]) -> Pairing:
    """From the losses of both in the same blocks. Raises ValueError for fewer than two blocks, or unequal numbers of them.

    rho is None below three blocks (two are always on a line) and where an arm does not vary; the saving is var_unpaired / var_paired.
    """
    a, b = np.asarray(arm, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"a pairing needs two or more blocks that both arms have, not {len(a)} and {len(b)}")
    paired, unpaired = float(np.std(a - b, ddof=1)), math.sqrt(float(np.var(a, ddof=1) + np.var(b, ddof=1)))
    varies = len(a) > 2 and np.ptp(a) > 0 and np.ptp(b) > 0
    return Pairing(float(np.corrcoef(a, b)[0, 1]) if varies else None, paired, unpaired, (unpaired / paired) ** 2 if paired else None)


def components(losses: Mapping[str, Mapping[int, float]]) -> Components | None:
    """By the mean squares of arm + block + noise over the blocks that all arms have: sd_block^2 = (MS_block - MS_noise) / arms, or 0.

    None with fewer than two arms or two such blocks.
    """
    blocks = set.intersection(*(set(values) for values in losses.values())) if losses else set()
    if len(losses) < 2 or len(blocks) < 2:
        return None
    whole = {arm: {block: values[block] for block in blocks} for arm, values in losses.items()}
    fit = fit_blocks(whole, next(iter(whole)))
    assert fit is not None  # two arms in two blocks leave a degree of freedom
    between = len(losses) * float(np.var([np.mean([values[block] for values in whole.values()]) for block in blocks], ddof=1))
    return Components(math.sqrt(max(between - fit.mse, 0) / len(losses)), math.sqrt(fit.mse), fit.df)
