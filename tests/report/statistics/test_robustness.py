"""Robustness: against scipy and statsmodels, and by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from ablate.report.statistics import bca, components, judge, leave_one_out, pairing, sign_flip_p
from tests.report.statistics.test_contrasts import made


@pytest.mark.parametrize(("n", "smallest"), [(3, 0.25), (4, 0.125), (5, 0.0625), (6, 0.03125), (8, 0.0078125), (10, 0.001953125)])
def test_the_smallest_sign_flip_p_is_as_tabulated(n: int, smallest: float) -> None:
    assert sign_flip_p([0.1 + 0.01 * i for i in range(n)]) == smallest


@pytest.mark.parametrize("n", [2, 5, 9])
def test_a_sign_flip_p_is_that_of_scipy(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.5, 1, n)
    expected = permutation_test((differences, np.zeros(n)), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=np.inf)
    assert sign_flip_p(differences.tolist()) == pytest.approx(expected.pvalue)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_the_sign_and_order_of_differences_are_nothing_to_a_sign_flip(differences: list[float]) -> None:
    p = sign_flip_p(differences)
    assert p == sign_flip_p([-difference for difference in differences])
    assert p == sign_flip_p(differences[::-1])


def test_identical_losses_have_a_sign_flip_p_of_one() -> None:
    assert sign_flip_p([0.0, 0.0, 0.0]) == 1


def test_a_sign_flip_of_very_many_blocks_is_not_counted_out() -> None:
    assert sign_flip_p([0.1] * 21) is None


def test_a_sign_flip_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        sign_flip_p([])


def test_a_verdict_that_hangs_on_one_block_flips_without_it() -> None:
    differences = [-0.020, -0.021, -0.019, -0.020, -0.022, -0.021, -0.020, 0.080]
    losses = {"base": dict.fromkeys(range(8), 2.0), "arm": {block: 2 + difference for block, difference in enumerate(differences)}}
    assert judge(losses, "base", 0.01)["arm"].verdict.word == "INCONCLUSIVE"
    assert leave_one_out(losses, "base", 0.01) == {"arm": {7: "BETTER"}}


def test_a_verdict_that_every_block_supports_does_not_flip() -> None:
    assert leave_one_out(made(4, 8, seed=1, effects=(0, 0.5)), "a", 0.01)["b"] == {}


def test_the_rules_of_a_verdict_hold_without_a_block_too() -> None:
    flips = leave_one_out(made(4, 8, seed=1), "a", 0.01, failed={"b": (1, 9)}, untuned={"c": "low"})
    assert flips["b"] == flips["c"] == {}


def test_too_few_blocks_without_one_are_no_flip() -> None:
    losses = {"base": dict.fromkeys(range(3), 2.0), "arm": {0: 2.2, 1: 2.201, 2: 2.199}}
    assert judge(losses, "base", 0.01)["arm"].verdict.word == "WORSE"
    assert leave_one_out(losses, "base", 0.01) == {"arm": {}}


def test_a_bootstrap_interval_needs_ten_blocks() -> None:
    differences = np.random.default_rng(0).normal(0, 1, 12).tolist()
    assert bca(differences[:9]) is None
    found = bca(differences)
    assert found is not None
    assert found[0] < np.mean(differences) < found[1]
    assert bca(differences) == found  # seeded


def test_a_bootstrap_of_many_is_near_the_t_interval() -> None:
    values = np.random.default_rng(0).normal(0, 1, 200)
    half = 1.972 * values.std(ddof=1) / np.sqrt(200)
    assert bca(values.tolist()) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)


def test_a_bootstrap_of_what_never_varies_has_no_width() -> None:
    assert bca([0.5] * 10) == (0.5, 0.5)


def test_a_pairing_by_hand() -> None:
    """a = 1, 2, 3 and b = 2, 4, 6: rho 1, differences -1, -2, -3 of deviation 1, variances 1 + 4."""
    found = pairing([1, 2, 3], [2, 4, 6])
    assert found == pytest.approx((1, 1, 5**0.5, 5))


def test_equal_variances_save_what_the_correlation_says() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 3.0]
    found = pairing(a, b)
    assert found.rho == pytest.approx(0.6)
    assert found.saving == pytest.approx(1 / (1 - 0.6))


def test_a_pairing_of_identical_losses_saves_without_bound() -> None:
    assert pairing([1, 2, 3], [1, 2, 3]).saving is None
    assert pairing([1, 1, 1], [1, 1, 1])[:2] == (None, 0)


def test_two_blocks_have_no_correlation() -> None:
    assert pairing([1, 2], [3, 5]).rho is None


@pytest.mark.parametrize(("a", "b"), [([1], [1]), ([1, 2], [1, 2, 3])])
def test_a_pairing_of_too_little_is_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="pairing"):
        pairing(a, b)


def test_components_are_those_of_an_analysis_of_variance() -> None:
    losses = made(5, 6, seed=2)
    cells = [(arm, block, value) for arm, values in losses.items() for block, value in values.items()]
    squares = anova_lm(ols("loss ~ C(arm) + C(block)", pd.DataFrame(cells, columns=["arm", "block", "loss"])).fit())
    mean = squares["sum_sq"] / squares["df"]
    found = components(losses)
    assert found is not None
    assert found.residual == pytest.approx(mean["Residual"] ** 0.5)
    assert found.block == pytest.approx(((mean["C(block)"] - mean["Residual"]) / 5) ** 0.5)
    assert found.df == 20


def test_blocks_that_an_arm_lacks_are_in_no_component() -> None:
    losses = made(3, 4, seed=2)
    whole = {arm: {block: values[block] for block in (0, 1, 2)} for arm, values in losses.items()}
    del losses["b"][3]
    assert components(losses) == components(whole)


@pytest.mark.parametrize(
    "losses", [{}, {"a": {0: 1.0, 1: 2.0}}, {"a": {0: 1.0}, "b": {0: 1.0}}, {"a": {0: 1.0, 1: 1.0}, "b": {2: 1.0, 3: 1.0}}]
)
def test_too_little_has_no_components(losses: dict[str, dict[int, float]]) -> None:
    assert components(losses) is None
