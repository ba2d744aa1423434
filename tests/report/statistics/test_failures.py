"""Failures: every outcome by a curve made for it, and exact counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import barnard_exact
from statsmodels.stats.proportion import proportion_confint

from ablate.report.statistics import OUTCOMES, failure_interval, failures_differ, outcome, spike_share

ENTROPY = 3.15


def curve(steps: int = 400, start: float = 5.5, end: float = 1.8, noise: float = 0.02) -> list[float]:
    """A loss that falls as losses fall, with noise."""
    falling = end + (start - end) * np.exp(-np.arange(steps) / (steps / 8))
    return (falling + np.random.default_rng(0).normal(0, noise, steps)).tolist()


def with_spikes(losses: list[float], *steps: int) -> list[float]:
    return [loss + (3.0 if step in steps else 0.0) for step, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("losses", "state", "reason", "final", "expected"),
    [
        (curve(), "done", None, 1.8, "ok"),
        (curve(), "running", None, None, "incomplete"),
        (curve(), "stopped", "time", None, "incomplete"),
        (curve(), "crashed", "RuntimeError", None, "incomplete"),
        ([], "new", None, None, "incomplete"),
        ([*curve(), math.nan], "failed", "non-finite", None, "nan"),
        (curve(), "failed", "non-finite", None, "nan"),
        ([*curve(), math.inf], "done", None, 1.8, "nan"),
        (curve(), "done", None, math.nan, "nan"),
        (curve(end=3.14), "done", None, 3.156, "collapsed"),
        (curve(end=3.14), "done", None, ENTROPY - 0.019, "collapsed"),
        (curve(end=3.12), "done", None, ENTROPY - 0.021, "ok"),
        (curve(), "failed", "collapsed", None, "collapsed"),
        (curve(), "done", None, 5.6, "diverged"),
        ([*curve(), *[3.1] * 60], "done", None, 3.1, "diverged"),
        ([*curve(), 3.1], "done", None, 1.8, "spiky"),
        (with_spikes(curve(), 200), "done", None, 1.8, "spiky"),
        (with_spikes(curve(2000), 200), "done", None, 1.8, "ok"),
        ([], "done", None, 1.8, "ok"),
    ],
)
def test_an_outcome_is_told_from_the_curve(losses: list[float], state: str, reason: str | None, final: float | None, expected: str) -> None:
    assert outcome(losses, state, reason, 5.5, ENTROPY, final) == expected
    assert expected in OUTCOMES


def test_a_small_loss_with_noisy_batches_has_not_diverged() -> None:
    noisy = np.random.default_rng(1).uniform(0.005, 0.02, 400).tolist()
    assert outcome(noisy, "done", None, 3.0, None, 0.01) == "ok"


def test_what_is_not_known_is_no_failure() -> None:
    assert outcome(curve(), "done", None, None, None, None) == "ok"


def test_a_spike_share_counts_spikes() -> None:
    assert spike_share(curve()) == 0
    assert spike_share(with_spikes(curve(), 250, 390)) == 2 / 400


def test_a_fall_is_no_spike() -> None:
    assert spike_share([5.0] * 50 + [2.0] * 50) == 0


@pytest.mark.parametrize("losses", [[], [1.0], [2.0] * 500, [2.0, 9.0]])
def test_a_curve_that_is_flat_or_short_has_no_spike(losses: list[float]) -> None:
    assert spike_share(losses) == 0


def test_the_window_of_a_spike_is_the_hundred_before_it() -> None:
    """By a loop."""
    losses = with_spikes(curve(600, noise=0.05), 130, 131, 132, 450)
    spikes = 0
    for step in range(20, 600):
        before = np.array(losses[max(0, step - 100) : step])
        spikes += losses[step] > before.mean() + 7 * before.std(ddof=1)
    assert spikes > 0
    assert spike_share(losses) == spikes / 600


@pytest.mark.parametrize(("k", "n"), [(0, 5), (0, 10), (2, 8), (5, 5), (1, 3)])
def test_a_failure_interval_is_that_of_statsmodels(k: int, n: int) -> None:
    assert failure_interval(k, n) == pytest.approx(proportion_confint(k, n, method="beta"), abs=1e-9)


@pytest.mark.parametrize(("n", "bound"), [(5, 0.52), (10, 0.31)])
def test_no_failure_in_few_runs_allows_for_many(n: int, bound: float) -> None:
    assert failure_interval(0, n) == (0, pytest.approx(bound, abs=0.005))


@pytest.mark.parametrize(("counts", "p"), [((0, 5, 5, 5), 0.002), ((0, 3, 3, 3), 0.031)])
def test_failures_of_all_against_none(counts: tuple[int, int, int, int], p: float) -> None:
    assert failures_differ(*counts) == pytest.approx(p, abs=0.0005)


def test_failure_rates_are_compared_as_barnard_does() -> None:
    assert failures_differ(2, 8, 5, 8) == pytest.approx(barnard_exact([[2, 5], [6, 3]]).pvalue)


@pytest.mark.parametrize("counts", [(0, 5, 0, 5), (5, 5, 5, 5), (0, 3, 0, 8)])
def test_rates_that_are_all_or_nothing_in_both_do_not_differ(counts: tuple[int, int, int, int]) -> None:
    assert failures_differ(*counts) == 1
