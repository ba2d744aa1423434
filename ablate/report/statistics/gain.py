"""Gain: what a difference of loss is worth in training tokens, and in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ablate.report.statistics.scaling import STRETCH, PowerLaw, fall_per_fold, power_law


class Budgets(NamedTuple):
    """The loss of the tuned baseline over whole schedules of `smallest` to `largest` tokens.

    `curve` is L(D) = alpha * D^-B + beta; without one, from two budgets, L falls by `per_fold` nats per e-fold of tokens everywhere.
    """

    per_fold: float
    curve: PowerLaw | None
    smallest: float
    largest: float

    def slope(self, tokens: float) -> float:
        """|dL / d ln D| in nats per e-fold of tokens; raises ValueError more than twice beyond the budgets."""
        return self.curve.slope(tokens) if self.curve else self.per_fold

    def folds(self, difference: float, tokens: float) -> float:
        """ln(D' / D) with L(D') = L(D) + difference; infinite where L never gets that low."""
        if self.curve is None:
            return -difference / self.per_fold
        relative = difference * self.curve.exponent / self.curve.slope(tokens)  # to what L(D) has above its floor
        return math.inf if relative <= -1 else -math.log1p(relative) / self.curve.exponent


def fit_budgets(tokens: Sequence[float], losses: Sequence[float]) -> Budgets:
    """The curve of Wen et al. 2025 (2509.02046) from three or more budgets, the local slope from two.

    A budget may have several losses. Raises ValueError for one budget, or where the loss does not fall with tokens: nothing is worth tokens
    then.
    """
    per_fold = fall_per_fold(tokens, losses)
    return Budgets(per_fold, power_law(tokens, losses) if len(set(tokens)) > 2 else None, min(tokens), max(tokens))


def margin_from_tokens(share: float, slope: float, floor: float = 0.002) -> float:
    """slope * ln(1 + share), the loss that this share of the training tokens is worth, in nats, and at least `floor`."""
    if not (share > 0 and slope > 0):
        raise ValueError(f"a share of tokens and a slope are above 0, not {share} and {slope}")
    return max(slope * math.log1p(share), floor)


class Gain(NamedTuple):
    """The tokens that the baseline would need to reach the arm's loss, over those of the arm; above 1 the arm is better.

    None is missing; `beyond` says that some of it is refused: it would need budgets more than twice beyond those that were measured.
    """

    mean: float | None
    low: float | None
    high: float | None
    beyond: bool


def token_gain(low: float | None, mean: float, high: float | None, budgets: Budgets, tokens: float) -> Gain:
    """D' / D with L(D') = L(D) + difference, at a difference (arm less baseline, nats per token) and both ends of its interval.

    `tokens` is D, what both arms were trained on. The high end of the difference is the low end of the gain.
    """
    asked = (mean, high, low)
    found = [None if difference is None else _ratio(difference, budgets, tokens) for difference in asked]
    beyond = found.count(None) > asked.count(None)
    return Gain(found[0], found[1], found[2], beyond)


def _ratio(difference: float, budgets: Budgets, tokens: float) -> float | None:
    """None where one of D and D' is more than twice beyond the budgets."""
    lowest, highest = (math.log(end / tokens) for end in (budgets.smallest / STRETCH, budgets.largest * STRETCH))
    if not lowest <= 0 <= highest:
        return None
    folds = budgets.folds(difference, tokens)
    return math.exp(folds) if lowest <= folds <= highest else None


def time_gain(gain: float, throughput_ratio: float) -> float:
    """A token gain times the arm's tokens a second over the baseline's: the time that the baseline would need, over that of the arm."""
    if not throughput_ratio > 0:
        raise ValueError(f"a ratio of throughputs is above 0, not {throughput_ratio}")
    return gain * throughput_ratio
