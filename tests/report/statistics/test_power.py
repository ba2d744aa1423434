"""Power: as tabulated, against quadrature and scipy, and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, norm, t

from ablate.report.statistics import blocks_to_certify, blocks_to_find, smallest_certifiable, smallest_detectable, table
from ablate.report.statistics.power import certify_power, find_power

SIZES = (0.5, 0.75, 1, 1.5, 2, 3, 4, 5)
NS = (3, 4, 5, 6, 8, 10)


@pytest.mark.parametrize(("alpha", "expected"), [(0.05, (34, 16, 10, 6, 5, 4, 3, 3)), (0.005, (58, 28, 18, 10, 8, 6, 5, 4))])
def test_blocks_to_find_a_difference_are_as_tabulated(alpha: float, expected: tuple[int, ...]) -> None:
    assert tuple(blocks_to_find(size, alpha) for size in SIZES) == expected


def test_blocks_to_certify_are_as_tabulated() -> None:
    assert tuple(blocks_to_certify(size) for size in (0.5, 0.75, 1, 1.5, 2, 3)) == (36, 17, 11, 6, 4, 3)


@pytest.mark.parametrize(("n", "expected"), list(zip(NS, (3.26, 2.13, 1.68, 1.43, 1.16, 1.00), strict=True)))
def test_the_smallest_detectable_difference_is_as_tabulated(n: int, expected: float) -> None:
    assert smallest_detectable(n, n - 1) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(("n", "expected"), list(zip(NS, (2.65, 1.95, 1.65, 1.40, 1.20, 1.05), strict=True)))
def test_the_smallest_certifiable_margin_is_as_simulated(n: int, expected: float) -> None:
    """The simulation went in steps of 0.05 and names the first that reached 80 %."""
    assert expected - 0.055 < smallest_certifiable(n, n - 1) < expected + 0.015


def test_the_power_that_statsmodels_has_no_number_for() -> None:
    assert find_power(4, 5, 4, 0.005) == pytest.approx(0.948, abs=0.0005)


@pytest.mark.parametrize(("margin", "n", "df"), [(2.65, 3, 2), (1.2, 8, 7), (1.5, 4, 21), (0.5, 36, 35)])
def test_the_power_to_certify_is_the_integral_over_the_noise(margin: float, n: int, df: int) -> None:
    critical = t.ppf(0.95, df)

    def density(square: float) -> float:
        room = margin * math.sqrt(n) - critical * math.sqrt(square / df)
        return max(0.0, 2 * norm.cdf(room) - 1) * chi2.pdf(square, df)

    kink = df * n * margin**2 / critical**2
    expected = quad(density, 0, kink, limit=200)[0]
    assert certify_power(margin, n, df) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("blocks", [blocks_to_find, blocks_to_certify])
@pytest.mark.parametrize("size", [0.4, 1.1, 2.7])
def test_the_fewest_blocks_reach_the_power_and_one_less_does_not(blocks: object, size: float) -> None:
    power = find_power if blocks is blocks_to_find else certify_power
    n = blocks(size)  # type: ignore[operator]
    assert power(size, n, n - 1) >= 0.8 > power(size, n - 1, n - 2)


def test_a_larger_difference_takes_no_more_blocks() -> None:
    for blocks in (blocks_to_find, blocks_to_certify):
        numbers = [blocks(size) for size in np.linspace(0.2, 6, 30)]
        assert numbers == sorted(numbers, reverse=True)


def test_no_difference_is_found_by_no_number_of_blocks() -> None:
    assert blocks_to_find(0) is None
    assert blocks_to_find(1e-6) is None
    assert blocks_to_certify(1e-6) is None


def test_a_difference_is_as_easily_found_below_zero() -> None:
    assert blocks_to_find(-1.5) == blocks_to_find(1.5)


def test_noise_pooled_over_arms_needs_fewer_blocks() -> None:
    assert (blocks_to_find(2.0), blocks_to_find(2.0, arms=7)) == (5, 3)
    assert blocks_to_find(0.5, arms=7) == blocks_to_find(0.5)


def test_too_few_blocks_certify_nothing() -> None:
    assert smallest_certifiable(1, 0) == math.inf
    assert smallest_detectable(1, 0) == math.inf


def test_a_table_is_in_nats_of_its_own_noise() -> None:
    rows = table(0.0083)
    assert [row.difference for row in rows] == pytest.approx([0.0083 * size for size in SIZES])
    assert [row.to_find for row in rows] == [34, 16, 10, 6, 5, 4, 3, 3]
    assert [row.to_certify for row in rows][:6] == [36, 17, 11, 6, 4, 3]


def test_without_noise_there_is_no_table() -> None:
    assert table(0.0) == []
