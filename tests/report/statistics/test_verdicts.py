"""Verdicts: every word by a table made for it, the order of the rules, and that words follow the intervals."""

from __future__ import annotations

import math
import re
from statistics import stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.report.statistics import WORDS, Judgement, equivalence, holm, judge, paired_contrast
from tests.report.statistics.test_contrasts import Losses, made

NOISE = (-0.001, 0.0, 0.001, 0.0005, -0.0005, 0.0008, -0.0008, 0.0)
"""Of eight blocks: a deviation of 0.0007."""


def pair(difference: float, n: int = 8, scale: float = 1.0) -> Losses:
    """A baseline of loss 2 and an arm that differs by so much, give or take NOISE."""
    return {"base": dict.fromkeys(range(n), 2.0), "arm": {block: 2 + difference + scale * NOISE[block] for block in range(n)}}


def word(losses: Losses, margin: float | None = 0.01, **rules: object) -> tuple[str, str]:
    return tuple(judge(losses, "base", margin, **rules)["arm"].verdict)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("difference", "scale", "margin", "expected"),
    [
        (-0.02, 1, 0.01, ("BETTER", "clearly")),
        (-0.0101, 3, 0.01, ("BETTER", "")),
        (-0.02, 1, None, ("BETTER", "")),
        (0.02, 1, 0.01, ("WORSE", "clearly")),
        (0.0101, 3, 0.01, ("WORSE", "")),
        (0.02, 1, None, ("WORSE", "")),
        (0.0, 1, 0.01, ("EQUIVALENT", "within the margin")),
        (0.005, 1, 0.01, ("EQUIVALENT", "detectable but negligible")),
        (0.0, 1, None, ("INCONCLUSIVE", "")),
    ],
)
def test_the_word_follows_the_interval(difference: float, scale: float, margin: float | None, expected: tuple[str, str]) -> None:
    assert word(pair(difference, scale=scale), margin) == expected


def test_an_inconclusive_verdict_says_how_many_blocks_would_settle_it() -> None:
    judgement = judge(pair(0.0, 3, scale=20), "base", 0.01)["arm"]
    assert judgement.verdict.word == "INCONCLUSIVE"
    assert judgement.blocks_needed is not None
    assert judgement.blocks_needed > 3
    assert judgement.verdict.detail == f"about {judgement.blocks_needed} blocks would tell"


def test_a_difference_between_zero_and_the_margin_is_not_told_to_need_blocks_that_it_has() -> None:
    """Deviation 0.0083 and margin 0.01: eight blocks are enough for a difference of 0 or 0.01, and not for one between."""
    judgement = judge(pair(0.005, 8, scale=0.0083 / stdev(NOISE)), "base", 0.01)["arm"]
    assert judgement.blocks_needed == 8
    assert judgement.verdict == ("INCONCLUSIVE", "rules out neither 0 nor the margin")


def test_identical_losses_are_equivalent_and_said_to_be_identical() -> None:
    losses = {"base": dict.fromkeys(range(3), 2.0), "arm": dict.fromkeys(range(3), 2.0)}
    judgement = judge(losses, "base", 0.01)["arm"]
    assert judgement.verdict == ("EQUIVALENT", "identical losses; within the margin")
    assert (judgement.holm_p, judgement.holm_low, judgement.holm_high) == (1.0, 0.0, 0.0)
    assert word(losses, None) == ("INCONCLUSIVE", "identical losses")


def test_no_word_contains_a_number_that_is_none() -> None:
    for n in range(9):
        for scale in (0, 1, 30):
            for margin in (None, 0.01):
                told = " ".join(word(pair(0.0, n, scale), margin))
                assert not re.search(r"nan|none|inf\b", told.lower())


@pytest.mark.parametrize(("n", "detail"), [(1, "1 block"), (2, "2 blocks")])
def test_few_blocks_are_a_screen(n: int, detail: str) -> None:
    judgement = judge(pair(-0.5, n), "base", 0.01)["arm"]
    assert judgement.verdict == ("SCREEN ONLY", detail)
    assert judgement.contrast is not None
    assert judgement.holm_p is judgement.holm_low is judgement.equivalence is judgement.equivalence_holm_p is None


def test_two_blocks_of_many_arms_are_judged_and_it_is_said() -> None:
    losses = made(8, 2, seed=7, effects=(0, 0.5))
    verdict = judge(losses, "a", 0.01)["b"].verdict
    assert verdict == ("WORSE", "clearly; from 2 blocks")


def test_an_arm_that_has_not_ended_is_a_screen_without_detail() -> None:
    for arm in ({}, {9: 2.0}):
        judgement = judge({"base": {0: 2.0}, "arm": arm}, "base", 0.01)["arm"]
        assert judgement.verdict == ("SCREEN ONLY", "")
        assert judgement.contrast is None


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"failed": {"arm": (2, 8), "base": (0, 8)}}, ("UNSTABLE", "2/8 failed")),
        ({"failed": {"base": (1, 8)}}, ("UNSTABLE", "the baseline 1/8 failed")),
        ({"failed": {"arm": (2, 8), "base": (1, 8)}}, ("UNSTABLE", "2/8 failed; the baseline 1/8 failed")),
        ({"failed": {"arm": (0, 8), "base": (0, 8)}}, ("BETTER", "clearly")),
        ({"untuned": {"arm": "high"}, "failed": {"arm": (2, 8)}}, ("NOT TUNED", "best rate at the high end")),
        ({"untuned": {"base": "low"}}, ("NOT TUNED", "best rate of the baseline at the low end")),
        ({"unmatched": {"arm": "+3.0% in params"}, "untuned": {"arm": "high"}}, ("NOT COMPARABLE", "+3.0% in params")),
        ({"exploratory": {"arm"}}, ("BETTER", "exploratory, no correction; clearly")),
    ],
)
def test_what_bars_a_verdict_comes_first(rules: dict[str, object], expected: tuple[str, str]) -> None:
    assert word(pair(-0.02), **rules) == expected


def test_survivors_of_an_unstable_arm_have_a_word_of_their_own() -> None:
    judgement = judge(pair(-0.02), "base", 0.01, failed={"arm": (2, 10)})["arm"]
    assert judgement.loss_verdict == ("BETTER", "clearly")
    assert judge(pair(-0.02), "base", 0.01)["arm"].loss_verdict is None


def test_an_arm_that_failed_everywhere_is_unstable_and_has_no_loss() -> None:
    judgement = judge({"base": {0: 2.0, 1: 2.1}, "arm": {}}, "base", 0.01, failed={"arm": (2, 2)})["arm"]
    assert judgement.verdict == ("UNSTABLE", "2/2 failed")
    assert judgement.contrast is judgement.loss_verdict is None


def test_a_failed_arm_takes_its_own_noise() -> None:
    judgement = judge(made(5, 3, seed=3), "a", 0.01, failed={"c": (1, 4)})["c"]
    assert judgement.contrast == judgement.own
    assert judgement.pooled is None


def test_an_exploratory_arm_costs_the_others_nothing() -> None:
    losses = made(5, 8, seed=5)
    without = {arm: values for arm, values in losses.items() if arm != "e"}
    found, expected = judge(losses, "a", 0.01, exploratory={"e"}), judge(without, "a", 0.01)
    assert [found[arm].holm_p for arm in "bcd"] == [expected[arm].holm_p for arm in "bcd"]
    assert found["e"].holm_p is found["e"].holm_low is found["e"].equivalence_holm_p is None
    assert found["e"].verdict.detail.startswith("exploratory")


def test_holm_goes_over_the_family_once_for_differences_and_once_for_equivalence() -> None:
    losses = made(5, 8, seed=6, effects=(0, 0.01, 0.004))
    found = judge(losses, "a", 0.012)
    contrasts = {arm: paired_contrast([losses[arm][block] - losses["a"][block] for block in range(8)]) for arm in "bcde"}
    p = {arm: contrast.p for arm, contrast in contrasts.items() if contrast.p is not None}
    assert [found[arm].holm_p for arm in p] == pytest.approx(list(holm(p).values()))
    same = holm({arm: equivalence(contrast, 0.012).p for arm, contrast in contrasts.items()})
    assert [found[arm].equivalence_holm_p for arm in p] == pytest.approx(list(same.values()))


def test_the_corrected_interval_is_wider_than_one_alone() -> None:
    judgement = judge(made(5, 3, seed=3), "a", 0.01)["b"]
    assert judgement.contrast is not None
    assert judgement.contrast.low is not None
    assert judgement.holm_low is not None
    assert judgement.holm_low < judgement.contrast.low


def _consistent(judgement: Judgement, margin: float, alpha: float) -> bool:
    """The word as section by section of the table of words, from the printed intervals alone."""
    assert judgement.holm_low is not None
    assert judgement.holm_high is not None
    assert judgement.equivalence is not None
    assert judgement.holm_p is not None
    within = -margin < judgement.equivalence.low and judgement.equivalence.high < margin
    better, worse = judgement.holm_high < 0, judgement.holm_low > 0
    expected = "EQUIVALENT" if within else "BETTER" if better else "WORSE" if worse else "INCONCLUSIVE"
    return judgement.verdict.word == expected and (better or worse) == (judgement.holm_p < alpha)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(3, 8),
    st.integers(2, 6),
    st.sampled_from([0.003, 0.01, 0.03]),
    st.sampled_from([0.05, 0.025]),
)
def test_words_can_be_read_off_the_printed_intervals(seed: int, n: int, arms: int, margin: float, alpha: float) -> None:
    for judgement in judge(made(arms, n, seed, effects=(0, 0.002, 0.02, -0.03)), "a", margin, alpha=alpha).values():
        assert judgement.verdict.word in WORDS
        assert _consistent(judgement, margin, alpha)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(3, 8))
def test_a_mirrored_study_has_mirrored_words(seed: int, n: int) -> None:
    losses = made(4, n, seed, effects=(0, 0.02, 0.004, -0.03))
    mirrored = {arm: {block: 4 - value for block, value in values.items()} for arm, values in losses.items()}
    mirror = {"BETTER": "WORSE", "WORSE": "BETTER"}
    there, back = judge(losses, "a", 0.01), judge(mirrored, "a", 0.01)
    assert [mirror.get(there[arm].verdict.word, there[arm].verdict.word) for arm in there] == [back[arm].verdict.word for arm in back]


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan])
def test_a_margin_that_is_not_positive_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        judge(pair(0.0), "base", margin)


def test_a_baseline_that_failed_makes_no_arm_unstable_of_which_nothing_has_ended() -> None:
    found = judge({"a": {}, "b": {0: 2.0}, "c": {}, "d": {}}, "a", None, failed={"a": (1, 1), "d": (1, 2)})
    assert [found[arm].verdict.word for arm in "bcd"] == ["UNSTABLE", "SCREEN ONLY", "UNSTABLE"]


def test_an_empty_study_has_no_judgements() -> None:
    assert judge({}, "base", 0.01) == {}
    assert judge({"base": {0: 2.0}}, "base", 0.01) == {}
