"""Differences along training, and bins."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.report.statistics import binned, difference_curve, paired_contrast

TOKENS = [10.0, 20.0, 30.0]


def test_a_difference_curve_by_hand() -> None:
    """Differences 1, 2, 3 at 10 tokens: mean 2, sd 1, t(0.975, 2) = 4.302653; at 20 always -1; at 30 two blocks, 0 and 1."""
    baseline = {block: [5.0, 4.0, 3.0] for block in range(3)}
    arm = {0: [6.0, 3.0, 3.0], 1: [7.0, 3.0, 4.0], 2: [8.0, 3.0, math.nan]}
    found = difference_curve(TOKENS, arm, baseline)
    assert found.tokens.tolist() == TOKENS
    assert found.mean.tolist() == pytest.approx([2.0, -1.0, 0.5])
    assert found.n.tolist() == [3, 3, 2]
    half = [4.302653 / math.sqrt(3), 0.0, 12.706205 / 2]
    assert (found.high - found.mean).tolist() == pytest.approx(half, rel=1e-6)
    assert (found.mean - found.low).tolist() == pytest.approx(half, rel=1e-6)


def test_each_point_has_the_interval_of_paired_differences() -> None:
    rng = np.random.default_rng(0)
    arm, baseline = ({block: rng.normal(size=3).tolist() for block in range(6)} for _ in range(2))
    found = difference_curve(TOKENS, arm, baseline, confidence=0.9)
    for i in range(3):
        point = paired_contrast([arm[b][i] - baseline[b][i] for b in range(6)], confidence=0.9)
        assert (found.mean[i], found.low[i], found.high[i]) == pytest.approx((point.mean, point.low, point.high))


def test_arm_and_baseline_changed_about_turn_the_curve_over() -> None:
    rng = np.random.default_rng(1)
    arm, baseline = ({block: rng.normal(size=3).tolist() for block in range(4)} for _ in range(2))
    one, other = difference_curve(TOKENS, arm, baseline), difference_curve(TOKENS, baseline, arm)
    assert one.mean.tolist() == pytest.approx((-other.mean).tolist())
    assert one.low.tolist() == pytest.approx((-other.high).tolist())


def test_blocks_without_a_pair_count_for_nothing() -> None:
    found = difference_curve(TOKENS, {0: [1.0] * 3, 1: [9.0] * 3}, {0: [2.0] * 3, 2: [7.0] * 3})
    assert found.mean.tolist() == [-1.0, -1.0, -1.0]


def test_one_block_has_a_curve_and_no_band() -> None:
    found = difference_curve(TOKENS, {0: [1.0, 2.0, 3.0]}, {0: [1.0, 1.0, 1.0]})
    assert found.mean.tolist() == [0.0, 1.0, 2.0]
    assert np.isnan(found.low).all()
    assert np.isnan(found.high).all()


@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf])
def test_points_that_no_block_has_are_left_out(missing: float) -> None:
    found = difference_curve(TOKENS, {0: [1.0, missing, 3.0]}, {0: [1.0, 1.0, 1.0]})
    assert found.tokens.tolist() == [10.0, 30.0]
    assert found.mean.tolist() == [0.0, 2.0]


def test_curves_without_a_common_block_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        difference_curve(TOKENS, {0: [1.0] * 3}, {1: [1.0] * 3})


def test_a_curve_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 losses for 3 numbers of tokens"):
        difference_curve(TOKENS, {0: [1.0] * 2}, {0: [1.0] * 3})


def test_bins_by_hand() -> None:
    """From 0 to 10 in two bins: 0, 1, 4 and 5, 10; an edge belongs to the right, the last to the last."""
    tokens, losses = binned([0.0, 1.0, 4.0, 5.0, 10.0], [9.0, 6.0, 3.0, 2.0, 1.0], 2)
    assert tokens.tolist() == pytest.approx([5 / 3, 7.5])
    assert losses.tolist() == pytest.approx([6.0, 1.5])


def test_a_short_curve_stays_as_it_is() -> None:
    tokens, losses = binned([3.0, 1.0, 2.0], [0.3, 0.1, 0.2], 3)
    assert tokens.tolist() == [1.0, 2.0, 3.0]
    assert losses.tolist() == [0.1, 0.2, 0.3]


def test_empty_bins_and_missing_losses_are_left_out() -> None:
    tokens, losses = binned([0.0, 1.0, 2.0, 3.0, 100.0, 101.0], [1.0, 3.0, math.nan, math.inf, 5.0, 7.0], 3)
    assert tokens.tolist() == [0.5, 100.5]
    assert losses.tolist() == [2.0, 6.0]


def test_a_curve_without_losses_is_empty() -> None:
    assert [values.tolist() for values in binned([1.0, 2.0], [math.nan, math.nan], 4)] == [[], []]
    assert [values.tolist() for values in binned([], [], 4)] == [[], []]


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 10)), min_size=1, max_size=60), st.integers(1, 20))
def test_bins_are_few_ordered_within_range_and_the_order_of_points_is_no_matter(pairs: list[tuple[int, float]], points: int) -> None:
    x, y = [float(token) for token, _ in pairs], [loss for _, loss in pairs]
    tokens, losses = binned(x, y, points)
    assert 1 <= len(tokens) <= max(points, 1)
    assert (np.diff(tokens) >= 0).all()
    assert min(y) - 1e-9 <= losses.min()
    assert losses.max() <= max(y) + 1e-9
    turned = binned(x[::-1], y[::-1], points)
    if len(x) > points:
        assert turned[1].tolist() == pytest.approx(losses.tolist())


def test_a_curve_at_one_number_of_tokens_is_one_point() -> None:
    tokens, losses = binned([5.0] * 4, [1.0, 2.0, 3.0, 4.0], 2)
    assert (tokens.tolist(), losses.tolist()) == ([5.0], [2.5])


def test_less_than_one_bin_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one bin"):
        binned([1.0], [1.0], 0)
