"""What the printed intervals and words promise, over many simulated studies."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import t

from ablate.report.statistics import blocks_to_certify, blocks_to_find, family, judge, smallest_certifiable
from tests.report.statistics.test_contrasts import Losses

pytestmark = pytest.mark.slow


def studies(count: int, arms: int, n: int, seed: int, effect: float = 0.0) -> Iterator[Losses]:
    """Normal noise of deviation 1 and blocks as noisy; arm 1 differs by `effect`, in deviations of a paired difference."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        values = rng.normal(0, 1, (arms, n)) + rng.normal(0, 1, n)
        values[1] += effect * math.sqrt(2)
        yield {str(arm): dict(enumerate(row.tolist())) for arm, row in enumerate(values)}


def slack(share: float, count: int, deviations: float = 3) -> float:
    """Of a share of so many simulations."""
    return deviations * math.sqrt(share * (1 - share) / count)


@pytest.mark.parametrize(("n", "method"), [(3, "pooled blocks"), (8, "paired t")])
def test_a_printed_interval_covers_the_truth_as_often_as_it_says(n: int, method: str) -> None:
    contrasts = [contrast for losses in studies(1500, 4, n, seed=n) for contrast in family(losses, "0").contrasts.values()]
    of_method = [contrast for contrast in contrasts if contrast.method == method]
    assert len(of_method) > 0.9 * len(contrasts)
    for group in (contrasts, of_method):
        covered = sum(contrast.low <= 0 <= contrast.high for contrast in group if contrast.low is not None and contrast.high is not None)
        assert 0.93 <= covered / len(group) <= 0.97


@pytest.mark.parametrize("n", [3, 5, 8])
def test_equal_arms_are_seldom_called_better_or_worse(n: int) -> None:
    """In so many studies that a true rate of 5 % stays below 6 %: of 500 it would not, one time in seven."""
    count = 2000
    wrong = 0
    for losses in studies(count, 4, n, seed=n):
        wrong += any(judgement.verdict.word in ("BETTER", "WORSE") for judgement in judge(losses, "0", None).values())
    assert wrong / count <= 0.06


def test_an_arm_that_all_but_repeats_the_baseline_does_not_make_the_others_look_surer() -> None:
    """Counted as an arm of its own, it would make 13 % of such studies say something of arms that are equal."""
    count, wrong = 1000, 0
    for losses in studies(count, 4, 3, seed=5):
        losses["3"] = {block: loss * (1 + 1e-7) for block, loss in losses["0"].items()}
        wrong += any(judgement.verdict.word in ("BETTER", "WORSE") for judgement in judge(losses, "0", None).values())
    assert wrong / count <= 0.05 + slack(0.05, count)


@pytest.mark.parametrize("n", [3, 8])
def test_arms_at_the_margin_are_seldom_called_equivalent(n: int) -> None:
    """One arm at the very margin, which is the largest error of an equivalence test, and three equal ones."""
    margin = 3.0
    wrong = sum(
        judge(losses, "0", margin * math.sqrt(2))["1"].verdict.word == "EQUIVALENT" for losses in studies(300, 4, n, seed=n, effect=margin)
    )
    assert wrong / 300 <= 0.06


@pytest.mark.parametrize(("arms", "n", "effect", "own", "pooled"), [(4, 3, 3, 0.37, 0.93), (8, 3, 3, 0.17, 0.96), (8, 5, 2, 0.46, 0.94)])
def test_pooling_finds_what_an_arm_alone_does_not(arms: int, n: int, effect: float, own: float, pooled: float) -> None:
    """As tabulated for the first step of Holm, without the guard; the guard sends a few arms out of the pool."""
    count, level = 600, 0.05 / (arms - 1)
    found = [family(losses, "0") for losses in studies(count, arms, n, seed=arms + n, effect=effect)]
    alone = [each.own["1"].p for each in found]
    inside = [each.pooled["1"].p for each in found if "1" in each.pooled]
    assert len(inside) > 0.85 * count
    assert sum(p < level for p in alone if p is not None) / count == pytest.approx(own, abs=slack(own, count) + 0.02)
    assert sum(p < level for p in inside if p is not None) / len(inside) == pytest.approx(pooled, abs=slack(pooled, count) + 0.02)


def differences(count: int, n: int, mean: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means and standard errors of paired differences of deviation 1."""
    draws = np.random.default_rng(n).normal(mean, 1, (count, n))
    return draws.mean(1), draws.std(1, ddof=1) / math.sqrt(n)


@pytest.mark.parametrize("size", [0.5, 0.75, 1, 1.5, 2, 3, 4])
def test_so_many_blocks_find_the_difference_in_four_of_five_studies(size: float) -> None:
    count, n = 20_000, blocks_to_find(size)
    assert n is not None
    for blocks, enough in ((n, True), (n - 1, False)):
        means, errors = differences(count, blocks, size)
        power = np.mean(np.abs(means) > t.ppf(0.975, blocks - 1) * errors)
        assert (power > 0.8 - slack(0.8, count)) if enough else (power < 0.8 + slack(0.8, count))


@pytest.mark.parametrize("margin", [0.5, 0.75, 1, 1.5, 2, 3])
def test_so_many_blocks_certify_equivalence_in_four_of_five_studies(margin: float) -> None:
    count, n = 20_000, blocks_to_certify(margin)
    assert n is not None
    for blocks, enough in ((n, True), (n - 1, False)):
        means, errors = differences(count, blocks, 0)
        power = np.mean(np.abs(means) < margin - t.ppf(0.95, blocks - 1) * errors)
        assert (power > 0.8 - slack(0.8, count)) if enough else (power < 0.8 + slack(0.8, count))


@pytest.mark.parametrize("n", [3, 4, 5, 6, 8, 10])
def test_the_smallest_certifiable_margin_is_certified_in_four_of_five_studies(n: int) -> None:
    count, margin = 40_000, smallest_certifiable(n, n - 1)
    means, errors = differences(count, n, 0)
    power = np.mean(np.abs(means) < margin - t.ppf(0.95, n - 1) * errors)
    assert power == pytest.approx(0.8, abs=slack(0.8, count))
