"""Arrays in, numbers out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from ablate.report.statistics import paired_difference


def test_a_paired_difference_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, sd 1, and t(0.975, 2) = 4.3027."""
    found = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found.mean, found.n, found.sd) == (2.0, 3, 1.0)
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)


@pytest.mark.parametrize("n", [2, 3, 8, 30])
def test_the_interval_is_that_of_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    arm, baseline = rng.normal(1, 0.1, n), rng.normal(1.05, 0.1, n)
    found, expected = paired_difference(arm.tolist(), baseline.tolist()), ttest_rel(arm, baseline).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_one_block_has_a_difference_and_no_interval() -> None:
    found = paired_difference([1.5], [1.0])
    assert (found.mean, found.n) == (0.5, 1)
    assert found.sd is found.low is found.high is None


def test_arms_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0, 2.0], [1.0])


def test_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        paired_difference([], [])
