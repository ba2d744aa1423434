"""What a difference is worth in tokens and in time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.report.statistics import Budgets, fit_budgets, margin_from_tokens, time_gain, token_gain

LOCAL = Budgets(0.352, None, 200.0, 600.0)
"""A byte model of 135,600 parameters, which was measured to fall by 0.352 nats per e-fold of tokens between 200 and 600 steps."""

TOKENS = [1e6, 2e6, 4e6]
CURVE = fit_budgets(TOKENS, [30 * tokens**-0.3 + 1.5 for tokens in TOKENS])
"""A baseline of which all is known."""


def test_the_margin_by_hand() -> None:
    """0.352 ln(1.03) = 0.352 * 0.0295588."""
    assert margin_from_tokens(0.03, 0.352) == pytest.approx(0.0104047, abs=1e-7)


def test_a_margin_has_a_floor() -> None:
    assert margin_from_tokens(0.03, 0.03) == 0.002
    assert margin_from_tokens(0.03, 0.03, floor=0.0) == pytest.approx(0.03 * math.log(1.03))


@pytest.mark.parametrize(("share", "slope"), [(0.0, 0.3), (-0.1, 0.3), (0.03, 0.0), (0.03, -0.3), (math.nan, 0.3)])
def test_a_margin_of_nothing_is_refused(share: float, slope: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        margin_from_tokens(share, slope)


@pytest.mark.parametrize(
    ("difference", "gain"),
    [
        ((None, -0.0185, None), (None, 1.054, None)),  # squared ReLU in place of GELU
        ((-0.048, -0.005, 0.038), (0.898, 1.014, 1.146)),  # SwiGLU
        ((-0.0028, 0.0036, 0.0099), (0.972, 0.990, 1.008)),  # RMSNorm in place of LayerNorm
    ],
)
def test_gains_by_hand(difference: tuple[float | None, float, float | None], gain: tuple[float | None, float, float | None]) -> None:
    """exp(-difference / 0.352)."""
    low, mean, high = difference
    found = token_gain(low, mean, high, LOCAL, 400.0)
    assert (found.low, found.mean, found.high) == tuple(None if value is None else pytest.approx(value, abs=6e-4) for value in gain)
    assert not found.beyond


def test_two_budgets_give_the_slope_between_them() -> None:
    """From 2.0 to 1.5 over two doublings: 0.5 / ln 4."""
    found = fit_budgets([1e6, 4e6], [2.0, 1.5])
    assert found.curve is None
    assert found.slope(3e6) == pytest.approx(0.5 / math.log(4))


def test_three_budgets_give_a_curve() -> None:
    """Slope of 30 D^-0.3 + 1.5 at D: 0.3 * 30 D^-0.3."""
    assert CURVE.curve is not None
    assert CURVE.curve.exponent == pytest.approx(0.3, rel=1e-6)
    assert CURVE.curve.floor == pytest.approx(1.5, rel=1e-6)
    assert CURVE.slope(4e6) == pytest.approx(9 * 4e6**-0.3, rel=1e-6)


def test_a_curve_gives_the_tokens_that_the_baseline_would_need() -> None:
    """An arm that is at 4e6 tokens where the baseline is at 6e6 is worth 1.5 times its tokens."""
    difference = 30 * (6e6**-0.3 - 4e6**-0.3)
    assert token_gain(None, difference, None, CURVE, 4e6).mean == pytest.approx(1.5, rel=1e-6)


def test_small_differences_are_worth_the_same_by_slope_and_by_curve() -> None:
    by_curve = token_gain(None, -1e-5, None, CURVE, 4e6).mean
    by_slope = token_gain(None, -1e-5, None, Budgets(CURVE.slope(4e6), None, 1e6, 4e6), 4e6).mean
    assert by_curve is not None
    assert by_slope is not None
    assert by_curve - 1 == pytest.approx(by_slope - 1, rel=1e-3)


@pytest.mark.parametrize("budgets", [LOCAL, CURVE])
def test_no_difference_is_a_gain_of_exactly_one(budgets: Budgets) -> None:
    found = token_gain(0.0, 0.0, 0.0, budgets, budgets.largest)
    assert found == (1.0, 1.0, 1.0, False)


@pytest.mark.parametrize("budgets", [LOCAL, CURVE])
@given(difference=st.floats(-0.05, 0.05), more=st.floats(1e-6, 0.05))
def test_more_loss_is_less_gain(budgets: Budgets, difference: float, more: float) -> None:
    found = token_gain(difference, difference, difference + more, budgets, budgets.largest)
    assert found.low is not None
    assert found.mean is not None
    assert found.low < found.mean == found.high


@given(st.floats(-0.05, 0.05), st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_a_gain_does_not_depend_on_the_unit_of_tokens(difference: float, unit: float) -> None:
    scaled = fit_budgets([unit * tokens for tokens in TOKENS], [30 * tokens**-0.3 + 1.5 for tokens in TOKENS])
    found, expected = token_gain(None, difference, None, scaled, 4e6 * unit), token_gain(None, difference, None, CURVE, 4e6)
    assert found.mean == pytest.approx(expected.mean, rel=1e-5)


def test_gains_of_more_than_twice_the_budgets_are_refused() -> None:
    """At the largest budget of 600, ln 2 * 0.352 = 0.24399 nats are worth twice the tokens."""
    assert token_gain(None, -0.2439, None, LOCAL, 600.0).mean == pytest.approx(2.0, rel=1e-3)
    assert token_gain(None, -0.2441, None, LOCAL, 600.0) == (None, None, None, True)


def test_gains_of_less_than_half_the_smallest_budget_are_refused() -> None:
    """From 600 to 100 are ln 6 * 0.352 = 0.63070 nats."""
    assert token_gain(None, 0.6306, None, LOCAL, 600.0).mean == pytest.approx(1 / 6, rel=1e-3)
    assert token_gain(None, 0.6308, None, LOCAL, 600.0).beyond


def test_one_end_may_be_refused_alone() -> None:
    found = token_gain(-0.3, 0.0, 0.1, LOCAL, 600.0)
    assert found.mean == 1.0
    assert found.low == pytest.approx(math.exp(-0.1 / 0.352))
    assert (found.high, found.beyond) == (None, True)


@pytest.mark.parametrize("below", [0.0, 0.1, 5.0])
def test_a_loss_at_the_floor_or_below_is_refused(below: float) -> None:
    """At 4e6 tokens the floor is 30 * 4e6^-0.3 = 0.31 nats away."""
    assert token_gain(None, -30 * 4e6**-0.3 - below, None, CURVE, 4e6) == (None, None, None, True)


@pytest.mark.parametrize("budgets", [LOCAL, CURVE])
def test_runs_far_from_the_budgets_have_no_gain(budgets: Budgets) -> None:
    assert token_gain(None, 0.0, None, budgets, budgets.largest * 3).beyond
    assert token_gain(None, 0.0, None, budgets, budgets.smallest / 3).beyond


def test_an_interval_that_is_missing_is_not_refused() -> None:
    assert token_gain(None, 0.0, None, LOCAL, 600.0) == (1.0, None, None, False)


def test_time_is_tokens_times_speed() -> None:
    assert time_gain(1.05, 0.9) == pytest.approx(0.945)


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan])
def test_a_speed_of_nothing_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        time_gain(1.0, ratio)


@pytest.mark.parametrize(
    ("tokens", "losses", "message"),
    [
        ([1e6], [2.0], "at least two different x"),
        ([1e6, 1e6], [2.0, 2.1], "at least two different x"),
        ([1e6, 2e6], [2.0, 2.1], "does not fall"),
        ([1e6, 2e6], [2.0, 2.0], "does not fall"),
        ([1e6, 2e6, 4e6], [2.0, 2.1, 2.2], "does not fall"),
        ([1e6, 2e6], [2.0], "one for each"),
        ([1e6, 2e6], [2.0, math.nan], "finite"),
        ([0.0, 2e6], [2.0, 1.0], "above 0"),
    ],
)
def test_budgets_without_sense_are_refused(tokens: list[float], losses: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_budgets(tokens, losses)
