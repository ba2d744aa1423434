"""Rank stability and power laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, t

from ablate.report.statistics import PowerLaw, paired_contrast, power_law, rank_stability

X = [1.0, 2.0, 4.0, 8.0]


def law(x: float, alpha: float = 2.0, exponent: float = 0.5, floor: float = 1.0) -> float:
    return alpha * x**-exponent + floor


@given(
    alpha=st.floats(0.2, 30.0),
    exponent=st.floats(0.1, 1.5),
    floor=st.one_of(st.just(0.0), st.floats(0.1, 5.0)),
    start=st.floats(1e2, 1e9),
    count=st.integers(3, 5),
)
@settings(max_examples=25, deadline=None)
def test_a_power_law_without_noise_is_recovered(alpha: float, exponent: float, floor: float, start: float, count: int) -> None:
    x = [start * 2**i for i in range(count)]
    y = [law(value / start, alpha, exponent, floor) for value in x]
    found = power_law(x, y)
    assert found.exponent == pytest.approx(exponent, rel=1e-4)
    assert found.predict(2 * x[-1]) == pytest.approx(law(2 ** (count), alpha, exponent, floor), rel=1e-6)
    assert found.residuals == pytest.approx([0.0] * count, abs=1e-6 * max(y))


@pytest.mark.parametrize(("by_x", "by_y"), [(1e9, 1.0), (1.0, 1e-3), (1e-6, 50.0)])
def test_a_power_law_moves_with_the_units(by_x: float, by_y: float) -> None:
    y = [3.0, 2.44, 2.0, 1.72]
    plain, scaled = power_law(X, y), power_law([by_x * x for x in X], [by_y * value for value in y])
    assert scaled.exponent == pytest.approx(plain.exponent, rel=1e-5)
    assert scaled.predict(by_x * 12) == pytest.approx(by_y * plain.predict(12.0), rel=1e-6)
    assert scaled.slope(by_x * 8) == pytest.approx(by_y * plain.slope(8.0), rel=1e-5)


def test_the_order_of_points_is_no_matter_to_the_fit_and_residuals_keep_it() -> None:
    y = [3.0, 2.44, 2.0, 1.72]
    plain, turned = power_law(X, y), power_law(X[::-1], y[::-1])
    assert turned.predict(9.0) == pytest.approx(plain.predict(9.0), rel=1e-6)
    assert turned.residuals[::-1] == pytest.approx(plain.residuals, abs=1e-6)
    assert [value - plain.predict(x) for x, value in zip(X, y, strict=True)] == pytest.approx(list(plain.residuals))


def test_one_wild_point_moves_the_fit_little() -> None:
    """Of squares it would: the last point is 10 % too high, and the law beside it stays within 0.1 %."""
    x = [2.0**i for i in range(9)]
    y = [law(value) for value in x]
    y[4] *= 1.1
    assert power_law(x, y).predict(16.0) == pytest.approx(law(16.0), rel=1e-3)


def test_a_prediction_is_refused_beyond_twice_the_largest_x() -> None:
    found = power_law(X, [law(x) for x in X])
    assert found.predict(16.0) == pytest.approx(law(16.0))
    assert found.predict(0.5) == pytest.approx(law(0.5))
    for x in (16.001, 0.4999):
        with pytest.raises(ValueError, match="more than 2x beyond what was measured, 1 to 8"):
            found.predict(x)
        with pytest.raises(ValueError, match="more than 2x beyond"):
            found.slope(x)


def test_the_slope_by_hand() -> None:
    """y = 2 x^-0.5 + 1 at 4: 0.5 * 2 * 0.5."""
    assert PowerLaw(2.0, 0.5, 1.0, 1.0, 8.0, ()).slope(4.0) == 0.5


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1.0, 2.0], [2.0, 1.0], "three different x"),
        ([1.0, 2.0, 2.0], [2.0, 1.0, 1.0], "three different x"),
        ([1.0, 2.0, 4.0], [1.0, 2.0, 3.0], "does not fall"),
        ([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], "does not fall"),
        ([1.0, 2.0, 4.0], [3.0, 2.0], "one for each"),
        ([1.0, 2.0, 4.0], [3.0, 2.0, -1.0], "above 0"),
        ([1.0, 2.0, math.inf], [3.0, 2.0, 1.0], "finite"),
    ],
)
def test_points_without_a_power_law_are_refused(x: list[float], y: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        power_law(x, y)


def table(*rows: tuple[list[float], list[float]]) -> dict[str, dict[float, dict[int, float]]]:
    """Arms a, b, ... with the losses of blocks 0, 1, ... at scales 1 and 4."""
    return {chr(ord("a") + i): {1.0: dict(enumerate(small)), 4.0: dict(enumerate(large))} for i, (small, large) in enumerate(rows)}


def test_rank_stability_by_hand() -> None:
    """Orders a b c d and a b d c: five of six pairs alike, tau = (5 - 1) / 6."""
    (found,) = rank_stability(table(([1.0], [1.0]), ([2.0], [2.0]), ([3.0], [4.0]), ([4.0], [3.0])))
    assert (found.small, found.large, found.arms) == (1.0, 4.0, 4)
    assert found.tau == pytest.approx(4 / 6)
    assert found.accuracy == pytest.approx(5 / 6)
    assert found.low is found.high is None


@pytest.mark.parametrize("seed", range(5))
def test_tau_is_that_of_scipy_with_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    small, large = (rng.integers(0, 4, 7).astype(float) for _ in range(2))
    (found,) = rank_stability(table(*(([a], [b]) for a, b in zip(small, large, strict=True))))
    assert found.tau == pytest.approx(kendalltau(small, large).statistic)


def test_arms_that_are_all_alike_have_no_tau() -> None:
    (found,) = rank_stability(table(([1.0, 1.0], [1.0, 2.0]), ([1.0, 1.0], [3.0, 4.0])))
    assert found.tau is found.low is found.high is None


def noisy(gaps: tuple[float, ...], seed: int = 0, blocks: int = 5) -> dict[str, dict[float, dict[int, float]]]:
    """Arms this far apart at both scales, with noise of 1 and blocks that differ by ten times that."""
    rng = np.random.default_rng(seed)
    shared = 10 * rng.standard_normal((2, blocks))
    return table(*(tuple((gap + shared[i] + rng.standard_normal(blocks)).tolist() for i in range(2)) for gap in gaps))  # type: ignore[arg-type]


def test_arms_far_apart_keep_their_order_for_sure() -> None:
    (found,) = rank_stability(noisy((0.0, 30.0, 60.0, 90.0)))
    assert (found.tau, found.low, found.high, found.accuracy) == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("seed", range(8))
def test_the_order_of_arms_close_together_is_open(seed: int) -> None:
    (found,) = rank_stability(noisy((0.0, 0.1, 0.2, 0.3), seed))
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0 < found.high


@pytest.mark.parametrize("blocks", [2, 3, 8])
def test_the_order_of_two_arms_is_sure_exactly_where_a_paired_t_test_is(blocks: int) -> None:
    """One scale is beyond doubt, so that the other alone decides; a p within simulation error of 5 % is no test of this."""
    rng = np.random.default_rng(blocks)
    sure, half = [], float(t.ppf(0.975, blocks - 1)) * (2 / blocks) ** 0.5  # of the interval, at the noise that there is
    for _ in range(60):
        shared, gap = rng.normal(0, 10, blocks), rng.uniform(0, 2 * half)
        a, b = shared + rng.standard_normal(blocks), shared + gap + rng.standard_normal(blocks)
        p = paired_contrast((a - b).tolist()).p
        assert p is not None
        if a.mean() < b.mean() and not 0.03 < p < 0.07:
            (found,) = rank_stability(table(([0.0] * blocks, a.tolist()), ([1.0] * blocks, b.tolist())))
            assert found.low == (1.0 if p < 0.05 else -1.0)
            sure.append(p < 0.05)
    assert 10 <= sum(sure) <= len(sure) - 10


def test_the_interval_is_no_matter_of_chance() -> None:
    losses = noisy((0.0, 0.5, 1.0, 1.5))
    assert rank_stability(losses) == rank_stability(losses)


def test_a_constant_on_every_loss_of_a_scale_moves_no_rank() -> None:
    losses = noisy((0.0, 0.5, 1.0, 1.5))
    moved = {arm: {scale: {b: loss + 7 * scale for b, loss in own.items()} for scale, own in row.items()} for arm, row in losses.items()}
    assert rank_stability(moved) == rank_stability(losses)


def test_noise_free_losses_have_an_interval_of_no_width() -> None:
    (found,) = rank_stability(table(([1.0, 2.0], [5.0, 6.0]), ([2.0, 3.0], [4.0, 5.0]), ([3.0, 4.0], [6.0, 7.0])))
    assert found.tau == found.low == found.high == pytest.approx(1 / 3)


def test_blocks_that_one_arm_lacks_count_for_none() -> None:
    """With block 1, which is worse for all, a would be worse than b."""
    losses = table(([1.0, 90.0], [1.0]), ([2.0], [2.0]))
    (found,) = rank_stability(losses)
    assert found.tau == 1.0


def test_every_pair_of_scales_is_told_and_an_arm_counts_where_it_has_both() -> None:
    losses = {
        "a": {1.0: {0: 1.0}, 2.0: {0: 1.0}, 4.0: {0: 1.0}},
        "b": {1.0: {0: 2.0}, 2.0: {0: 2.0}, 4.0: {0: 2.0}},
        "c": {2.0: {0: 3.0}, 1.0: {0: 0.5}},
    }
    found = rank_stability(losses)
    assert [(pair.small, pair.large, pair.arms) for pair in found] == [(1.0, 2.0, 3), (1.0, 4.0, 2), (2.0, 4.0, 2)]
    assert [pair.accuracy for pair in found] == pytest.approx([1 / 3, 1.0, 1.0])


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({"a": {1.0: {0: 1.0}}, "b": {1.0: {0: 2.0}}}, "at least two scales"),
        ({"a": {1.0: {0: 1.0}, 2.0: {0: 1.0}}, "b": {1.0: {0: 2.0}}}, "at least two arms"),
        ({"a": {1.0: {0: 1.0}, 2.0: {0: 1.0}}, "b": {1.0: {1: 2.0}, 2.0: {0: 2.0}}}, "at scale 1 no block"),
        ({"a": {1.0: {0: math.nan}, 2.0: {0: 1.0}}, "b": {1.0: {0: 2.0}, 2.0: {0: 2.0}}}, "not finite"),
    ],
)
def test_losses_without_an_order_are_refused(losses: dict[str, dict[float, dict[int, float]]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rank_stability(losses)
