"""Contrasts: laws, and the same numbers from scipy and statsmodels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel
from statsmodels.formula.api import ols
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from ablate.report.statistics import equivalence, family, holm, holm_interval, paired_contrast
from ablate.report.statistics.contrasts import holm_uncapped

Losses = dict[str, dict[int, float]]

quiet = settings(deadline=None, max_examples=50)
loss = st.floats(0.5, 8).map(lambda value: round(value, 4))


def made(arms: int, n: int, seed: int = 0, noise: tuple[float, ...] = (), effects: tuple[float, ...] = ()) -> Losses:
    """Arms a, b, ... over blocks 0, 1, ...: 2 + effect + block + noise of 0.01."""
    rng = np.random.default_rng(seed)
    own = rng.normal(0, 0.01, (arms, n)) * np.array([*noise, *[1.0] * (arms - len(noise))])[:, None]
    shifts = np.array([*effects, *[0.0] * arms][:arms])[:, None]
    values = 2 + rng.normal(0, 0.02, n) + own + shifts
    return {"abcdefghijkl"[i]: dict(enumerate(row.tolist())) for i, row in enumerate(values)}


def fitted(losses: Losses) -> Any:
    """statsmodels' block model, the reference of every pooled number."""
    cells = [(arm, block, value) for arm, values in losses.items() for block, value in values.items()]
    return ols("loss ~ C(arm, Treatment('a')) + C(block)", pd.DataFrame(cells, columns=["arm", "block", "loss"])).fit()


@pytest.mark.parametrize("n", [2, 3, 8, 30])
def test_a_paired_contrast_is_that_of_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    arm, baseline = rng.normal(1, 0.1, n), rng.normal(1.05, 0.1, n)
    found, expected = paired_contrast((arm - baseline).tolist()), ttest_rel(arm, baseline)
    bounds = expected.confidence_interval(0.95)
    assert (found.low, found.high, found.p) == pytest.approx((bounds.low, bounds.high, expected.pvalue), rel=1e-9)
    assert (found.n, found.df, found.method) == (n, n - 1, "paired t")


def test_a_paired_contrast_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, sd 1, and t(0.975, 2) = 4.302653."""
    found = paired_contrast([1.0, 2.0, 3.0])
    assert (found.mean, found.n, found.sd) == (2.0, 3, 1.0)
    half = 4.302653 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-6)


def test_one_block_has_a_mean_and_nothing_else() -> None:
    found = paired_contrast([0.5])
    assert (found.mean, found.n, found.df, found.method) == (0.5, 1, 0, "one block")
    assert found.low is found.high is found.sd is found.se is found.p is found.resolution is None


def test_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        paired_contrast([])


def test_identical_losses_differ_by_nothing_with_certainty() -> None:
    assert paired_contrast([0.0, 0.0, 0.0])[:8] == (0.0, 0.0, 0.0, 3, 2, 0.0, 0.0, 1.0)


def test_a_difference_that_never_varies_is_certain() -> None:
    found = paired_contrast([0.5, 0.5, 0.5])
    assert (found.mean, found.low, found.high, found.p) == (0.5, 0.5, 0.5, 0.0)


@pytest.mark.parametrize(("arms", "n"), [(3, 3), (4, 5), (8, 3), (12, 5)])
def test_pooled_contrasts_are_those_of_statsmodels(arms: int, n: int) -> None:
    losses = made(arms, n, seed=arms + n)
    found, reference = family(losses, "a"), fitted(losses)
    assert set(found.pooled) == set(losses) - {"a"}
    for arm, contrast in found.pooled.items():
        name = f"C(arm, Treatment('a'))[T.{arm}]"
        expected = (reference.params[name], *reference.conf_int().loc[name], reference.bse[name], reference.pvalues[name])
        assert (contrast.mean, contrast.low, contrast.high, contrast.se, contrast.p) == pytest.approx(expected, rel=1e-8, abs=1e-12)
        assert (contrast.df, contrast.n, contrast.method) == ((arms - 1) * (n - 1), n, "pooled blocks")


def test_blocks_may_be_missing() -> None:
    losses = made(5, 5, seed=3)
    del losses["b"][0], losses["c"][1], losses["c"][4], losses["a"][2]
    found, reference = family(losses, "a"), fitted(losses)
    assert not found.left_pool
    for arm, contrast in found.pooled.items():
        name = f"C(arm, Treatment('a'))[T.{arm}]"
        assert (contrast.mean, contrast.se, contrast.p) == pytest.approx(
            (reference.params[name], reference.bse[name], reference.pvalues[name]), rel=1e-8
        )
        assert contrast.df == reference.df_resid
    assert [found.own[arm].n for arm in "bcde"] == [3, 2, 4, 4]


def test_pooled_and_paired_means_agree_where_no_block_is_missing() -> None:
    found = family(made(5, 4, seed=1), "a")
    assert [contrast.mean for contrast in found.pooled.values()] == pytest.approx([contrast.mean for contrast in found.own.values()])


@pytest.mark.parametrize(
    ("n", "method"), [(1, "one block"), (2, "pooled blocks"), (3, "pooled blocks"), (5, "pooled blocks"), (6, "paired t")]
)
def test_the_number_of_blocks_chooses_the_method(n: int, method: str) -> None:
    found = family(made(8, n, seed=7), "a")
    assert not found.left_pool
    assert {contrast.method for contrast in found.contrasts.values()} == {method}


def test_two_blocks_of_few_arms_are_not_pooled() -> None:
    found = family(made(4, 2, seed=1), "a")
    assert {contrast.method for contrast in found.contrasts.values()} == {"paired t"}
    assert {contrast.df for contrast in found.pooled.values()} == {3}


def test_one_arm_alone_has_nothing_to_pool() -> None:
    found = family(made(2, 3), "a")
    assert found.pooled == {}
    assert found.contrasts == found.own


def test_an_arm_without_a_block_in_common_has_no_contrast() -> None:
    losses = made(4, 3)
    losses["d"] = {7: 2.0, 8: 2.1}
    found = family(losses, "a")
    assert set(found.contrasts) == {"b", "c"}


@pytest.mark.parametrize("losses", [{}, {"a": {}}, {"a": {0: 1.0}}, {"b": {0: 1.0}}])
def test_nothing_to_compare_is_an_empty_family(losses: Losses) -> None:
    assert family(losses, "a") == ({}, {}, {}, {})


def test_an_arm_with_a_failed_run_leaves_the_pool() -> None:
    found = family(made(5, 3), "a", failed={"c"})
    assert found.left_pool == {"c": "a run of it failed"}
    assert set(found.pooled) == {"b", "d", "e"}
    assert found.contrasts["c"] == found.own["c"]


def test_a_failed_baseline_ends_pooling() -> None:
    found = family(made(5, 3), "a", failed={"a"})
    assert found.pooled == {}
    assert set(found.left_pool) == {"b", "c", "d", "e"}


def test_an_arm_with_far_more_noise_leaves_the_pool() -> None:
    found = family(made(8, 5, seed=1, noise=(1, 1, 12)), "a")
    assert set(found.left_pool) == {"c"}
    assert "times that of the other arms" in found.left_pool["c"]
    assert found.contrasts["c"].method == "paired t"


def test_a_noisy_baseline_ends_pooling() -> None:
    found = family(made(8, 5, seed=1, noise=(12,)), "a")
    assert found.pooled == {}
    assert all("baseline" in reason for reason in found.left_pool.values())


def test_a_copy_of_the_baseline_leaves_the_pool_and_differs_by_nothing() -> None:
    losses = made(4, 3, seed=2)
    losses["e"] = dict(losses["a"])
    found = family(losses, "a")
    assert set(found.left_pool) == {"e"}
    assert found.contrasts["e"][:3] == (0, 0, 0)


@pytest.mark.parametrize("of", ["a", "c"])
def test_an_arm_that_nearly_repeats_another_leaves_the_pool(of: str) -> None:
    losses = made(4, 3, seed=2)
    losses["e"] = {block: loss + 1e-7 * block * block for block, loss in losses[of].items()}
    found, without = family(losses, "a"), family({arm: losses[arm] for arm in "abcd"}, "a")
    assert found.left_pool == {"e": f"it repeats the noise of {of}"}
    assert found.contrasts["e"].method == "paired t"
    assert found.pooled == without.pooled


def test_copies_of_the_baseline_alone_are_no_error() -> None:
    losses = {arm: {0: 2.0, 1: 2.1, 2: 2.2} for arm in "abcd"}
    found = family(losses, "a")
    assert {contrast[:3] for contrast in found.contrasts.values()} == {(0, 0, 0)}
    assert found.pooled == {}


@quiet
@given(st.lists(st.tuples(loss, loss), min_size=2, max_size=8))
def test_a_contrast_is_antisymmetric(pairs: list[tuple[float, float]]) -> None:
    there, back = (paired_contrast([sign * (a - b) for a, b in pairs]) for sign in (1, -1))
    assert (there.mean, there.low, there.high, there.p) == pytest.approx((-back.mean, -back.high, -back.low, back.p), abs=1e-12)


@quiet
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.floats(-3, 3))
def test_a_shift_of_every_loss_of_a_block_moves_no_contrast(seed: int, n: int, shift: float) -> None:
    losses = made(4, n, seed)
    moved = {arm: {block: value + shift * (block + 1) for block, value in values.items()} for arm, values in losses.items()}
    for before, after in zip(family(losses, "a").contrasts.values(), family(moved, "a").contrasts.values(), strict=True):
        assert after.method == before.method
        assert (after.mean, after.low, after.high) == pytest.approx((before.mean, before.low, before.high), abs=1e-9)


@quiet
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.floats(-3, 3))
def test_a_shift_of_an_arm_shifts_its_contrast_alone(seed: int, n: int, shift: float) -> None:
    losses = made(4, n, seed)
    moved = losses | {"b": {block: value + shift for block, value in losses["b"].items()}}
    before, after = family(losses, "a").contrasts, family(moved, "a").contrasts
    assert after["b"].mean == pytest.approx(before["b"].mean + shift, abs=1e-9)
    assert [after[arm].mean for arm in "cd"] == pytest.approx([before[arm].mean for arm in "cd"], abs=1e-9)


@settings(deadline=None, max_examples=15)  # statsmodels collects garbage in each call
@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1) | st.just(math.nan), max_size=12))
def test_holm_is_that_of_statsmodels_and_nan_does_not_count(p: dict[str, float]) -> None:
    known = [key for key in p if not math.isnan(p[key])]
    expected = multipletests([p[key] for key in known], method="holm")[1] if known else []
    found = holm(p)
    assert list(found) == list(p)
    assert [found[key] for key in known] == pytest.approx(list(expected), rel=1e-12)
    assert all(math.isnan(found[key]) for key in p if key not in known)


@quiet
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.integers(2, 6), st.sampled_from([0.05, 0.025, 0.2]))
def test_the_holm_interval_excludes_zero_exactly_where_holm_rejects(seed: int, n: int, arms: int, alpha: float) -> None:
    contrasts = family(made(arms, n, seed, effects=(0, 0.005, 0.02, -0.03)), "a").contrasts
    p = {arm: contrast.p for arm, contrast in contrasts.items() if contrast.p is not None}
    uncapped, corrected = holm_uncapped(p), holm(p)
    for arm, contrast in contrasts.items():
        low, high = holm_interval(contrast, p[arm], uncapped[arm], 1 - alpha)
        assert (low > 0 or high < 0) == (corrected[arm] < alpha)
        assert low <= contrast.mean <= high


def test_the_holm_interval_of_a_single_test_is_its_own() -> None:
    contrast = paired_contrast([0.1, 0.2, 0.4])
    assert contrast.p is not None
    assert holm_interval(contrast, contrast.p, contrast.p) == pytest.approx((contrast.low, contrast.high))


@pytest.mark.parametrize("margin", [0.005, 0.02, 0.1])
@pytest.mark.parametrize("n", [3, 9])
def test_equivalence_is_that_of_statsmodels(n: int, margin: float) -> None:
    rng = np.random.default_rng(n)
    arm, baseline = rng.normal(2.004, 0.01, n), rng.normal(2, 0.01, n)
    found = equivalence(paired_contrast((arm - baseline).tolist()), margin)
    assert found.p == pytest.approx(ttost_paired(arm, baseline, -margin, margin)[0], rel=1e-9)
    bounds = ttest_rel(arm, baseline).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((bounds.low, bounds.high), rel=1e-9)


@quiet
@given(st.lists(st.floats(-0.05, 0.05), min_size=2, max_size=8), st.floats(1e-4, 0.1))
def test_equivalence_holds_exactly_where_its_interval_lies_within_the_margin(differences: list[float], margin: float) -> None:
    found = equivalence(paired_contrast(differences), margin)
    assert (found.p < 0.05) == (-margin < found.low and found.high < margin)


@pytest.mark.parametrize(("differences", "p"), [([0.0, 0.0], 0.0), ([0.01, 0.01], 0.0), ([0.02, 0.02], 1.0), ([-0.03, -0.03], 1.0)])
def test_equivalence_without_noise_is_a_comparison(differences: list[float], p: float) -> None:
    assert equivalence(paired_contrast(differences), 0.02).p == p


@pytest.mark.parametrize("margin", [0.0, -0.01, math.nan])
def test_a_margin_that_is_not_positive_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        equivalence(paired_contrast([0.1, 0.2]), margin)


def test_one_block_cannot_be_tested() -> None:
    with pytest.raises(ValueError, match="one block"):
        equivalence(paired_contrast([0.1]), 0.1)
