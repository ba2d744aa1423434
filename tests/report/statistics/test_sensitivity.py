"""Learning-rate sensitivity and usable width."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.report.statistics import lr_sensitivity, usable_width

RATES = [1e-3, 1e-2, 1e-1]
finite = st.floats(0.5, 6.0)


def test_sensitivity_by_hand() -> None:
    """l* = 2, l0 = 5: the mean of 0.5, 0 and min(9, 5) - 2 = 3."""
    assert lr_sensitivity(RATES, [2.5, 2.0, 9.0], 5.0) == pytest.approx(3.5 / 3)


@pytest.mark.parametrize("failed", [None, math.nan, math.inf, 5.0])
def test_a_failed_run_counts_as_the_loss_at_initialisation(failed: float | None) -> None:
    assert lr_sensitivity(RATES, [2.5, 2.0, failed], 5.0) == pytest.approx(3.5 / 3)


def test_a_loss_that_no_rate_moves_has_no_sensitivity() -> None:
    assert lr_sensitivity(RATES, [2.0, 2.0, 2.0], 5.0) == 0.0


def test_without_a_rate_that_trains_sensitivity_is_unknown() -> None:
    assert lr_sensitivity(RATES, [None, 5.0, 7.0], 5.0) is None


@given(st.lists(finite, min_size=3, max_size=3), st.floats(0.1, 10.0))
def test_sensitivity_has_the_unit_of_the_loss(losses: list[float], unit: float) -> None:
    found, scaled = lr_sensitivity(RATES, losses, 7.0), lr_sensitivity(RATES, [unit * loss for loss in losses], unit * 7.0)
    assert found is not None
    assert scaled == pytest.approx(unit * found, abs=1e-9)


@given(st.permutations(range(3)), st.lists(finite, min_size=3, max_size=3))
def test_the_order_of_the_grid_is_no_matter(order: list[int], losses: list[float]) -> None:
    rates, shuffled = [RATES[i] for i in order], [losses[i] for i in order]
    assert lr_sensitivity(rates, shuffled, 7.0) == pytest.approx(lr_sensitivity(RATES, losses, 7.0))
    assert usable_width(rates, shuffled, 0.3) == pytest.approx(usable_width(RATES, losses, 0.3))


@given(st.lists(finite, min_size=3, max_size=3), st.integers(0, 2), st.floats(0.0, 3.0))
def test_a_worse_loss_at_a_rate_other_than_the_best_makes_more_sensitive(losses: list[float], at: int, more: float) -> None:
    if losses[at] == min(losses):
        return
    worse = [loss + more if i == at else loss for i, loss in enumerate(losses)]
    before, after = lr_sensitivity(RATES, losses, 7.0), lr_sensitivity(RATES, worse, 7.0)
    assert before is not None
    assert after is not None
    assert after >= before - 1e-12


def test_usable_width_by_hand() -> None:
    """Below 2.1: from 2.5 at 1e-3 the last fifth of a decade, and from 2.0 to 2.4 the first quarter of the next."""
    assert usable_width(RATES, [2.5, 2.0, 2.4], 0.1) == pytest.approx(0.2 + 0.25)


def test_a_grid_that_is_good_throughout_is_usable_from_end_to_end() -> None:
    assert usable_width(RATES, [2.05, 2.0, 2.0], 0.1) == pytest.approx(2.0)


@pytest.mark.parametrize("failed", [None, math.nan, math.inf])
def test_the_way_to_a_failed_run_is_not_usable(failed: float | None) -> None:
    assert usable_width(RATES, [2.0, 2.0, failed], 0.1) == pytest.approx(1.0)


def test_one_rate_that_trains_between_failures_has_no_width() -> None:
    assert usable_width(RATES, [None, 2.0, None], 0.1) == 0.0


def test_without_a_run_that_ended_the_width_is_unknown() -> None:
    assert usable_width(RATES, [None, None, None], 0.1) is None


@given(st.lists(finite, min_size=3, max_size=3), st.floats(0.0, 2.0), st.floats(0.0, 2.0))
def test_a_wider_margin_leaves_no_fewer_rates(losses: list[float], margin: float, more: float) -> None:
    narrow, wide = usable_width(RATES, losses, margin), usable_width(RATES, losses, margin + more)
    assert narrow is not None
    assert wide is not None
    assert 0.0 <= narrow <= wide + 1e-12 <= 2.0 + 1e-9


def test_usable_width_does_not_depend_on_the_unit_of_the_rate() -> None:
    assert usable_width([1.0, 10.0, 100.0], [2.5, 2.0, 2.4], 0.1) == pytest.approx(usable_width(RATES, [2.5, 2.0, 2.4], 0.1))


@pytest.mark.parametrize(
    ("rates", "losses", "message"),
    [
        (RATES, [1.0, 2.0], "one loss for each rate"),
        ([1e-3], [1.0], "at least two learning rates"),
        ([1e-3, 1e-3], [1.0, 2.0], "each once"),
        ([0.0, 1e-3], [1.0, 2.0], "above 0"),
    ],
)
def test_a_grid_without_sense_is_refused(rates: list[float], losses: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lr_sensitivity(rates, losses, 5.0)
    with pytest.raises(ValueError, match=message):
        usable_width(rates, losses, 0.1)


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        usable_width(RATES, [1.0, 2.0, 3.0], -0.1)
