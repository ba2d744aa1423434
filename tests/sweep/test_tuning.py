"""Tuning: the best rate of a grid, and how the grid grows while the best is at its end."""

from __future__ import annotations

import math

import pytest

from ablate.sweep.tuning import Tuned, tune

GRID = (1e-3, 2e-3, 4e-3)


def losses(*means: float, rates: tuple[float, ...] = GRID) -> dict[float, list[float | None]]:
    """Two seeds a rate, half a nat on each side of the mean."""
    return {rate: [mean - 0.5, mean + 0.5] for rate, mean in zip(rates, means, strict=True)}


def test_rate_with_the_smallest_mean_is_the_best() -> None:
    assert tune(GRID, 2, losses(3.0, 2.0, 2.5)) == Tuned(GRID, 2e-3, None)


def test_the_mean_counts_and_not_the_best_seed() -> None:
    assert tune(GRID, 2, {1e-3: [3.0, 3.0], 2e-3: [2.4, 2.4], 4e-3: [1.0, 5.0]}).best == 2e-3


@pytest.mark.parametrize("rate", GRID)
@pytest.mark.parametrize("left", [[None, None], [2.0, None], []])
def test_nothing_is_best_before_every_run_has_ended(rate: float, left: list[float | None]) -> None:
    assert tune(GRID, 2, {**losses(3.0, 2.0, 2.5), rate: left}) == Tuned(GRID, None, None)


@pytest.mark.parametrize(("means", "rates"), [((3.0, 2.5, 2.0), (*GRID, 8e-3)), ((2.0, 2.5, 3.0), (5e-4, *GRID))])
def test_best_at_an_end_asks_for_one_more_point_there(means: tuple[float, ...], rates: tuple[float, ...]) -> None:
    assert tune(GRID, 2, losses(*means)) == Tuned(rates, None, None)


def test_point_that_was_added_ends_it_when_it_is_worse() -> None:
    assert tune(GRID, 2, losses(3.0, 2.5, 2.0, 2.1, rates=(*GRID, 8e-3))) == Tuned((*GRID, 8e-3), 4e-3, None)


def test_grid_grows_by_no_more_points_than_extend_says_and_is_then_at_its_edge() -> None:
    grown = (*GRID, 8e-3, 1.6e-2)
    assert tune(GRID, 2, losses(5.0, 4.0, 3.0, 2.0, rates=grown[:4])).rates == grown
    assert tune(GRID, 2, losses(5.0, 4.0, 3.0, 2.0, 1.0, rates=grown)) == Tuned(grown, 1.6e-2, "high")
    assert tune(GRID, 0, losses(1.0, 2.0, 3.0)) == Tuned(GRID, 1e-3, "low")


def test_where_all_rates_are_alike_the_middle_one_is_taken_and_the_grid_does_not_grow() -> None:
    assert tune(GRID, 2, losses(2.0, 2.0, 2.0)) == Tuned(GRID, 2e-3, None)


def test_of_equal_means_the_smaller_rate_is_taken() -> None:
    assert tune(GRID, 0, losses(3.0, 2.0, 2.0)).best == 2e-3


def test_new_rates_keep_the_ratio_of_the_last_two_and_three_digits() -> None:
    rates = (1e-3, 3.16e-3, 1e-2)
    assert tune(rates, 2, losses(3.0, 2.0, 1.0, rates=rates)).rates[-1] == 0.0316
    assert tune(rates, 2, losses(1.0, 2.0, 3.0, rates=rates)).rates[0] == 0.000316


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_loss_that_is_no_number_is_never_best(bad: float) -> None:
    assert tune(GRID, 0, {1e-3: [bad, 1.0], 2e-3: [3.0, 3.0], 4e-3: [4.0, 4.0]}).best == 2e-3
