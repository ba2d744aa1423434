"""tuning: the learning rate of an arm, from the runs of its tuning seeds.

The best rate is the one with the smallest mean over the tuning seeds of min(loss, cap); a run that failed counts as the cap, the loss of
a model that has learned token frequencies alone. A best rate at an end of the grid is no optimum that was seen: the grid grows there by the
ratio of its last two points, up to `extend` points, and after that the arm counts as not tuned. Where all rates are alike, as when every
run failed, the middle one is taken: its runs show whether the arm fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Edge = Literal["low", "high"]


class Tuned(NamedTuple):
    """`rates`: the grid as it has grown. `best` is None until every run on it has ended; `edge` says at which end of it the best is."""

    rates: tuple[float, ...]
    best: float | None
    edge: Edge | None


def tune(grid: Sequence[float], extend: int, losses: Mapping[float, Sequence[float | None]]) -> Tuned:
    """What the ended runs say. `losses`: rate -> a loss for each tuning seed, None where a run has not ended; a failed run has the cap."""
    rates = list(grid)
    for _ in range(extend + 1):
        means = [_mean(losses.get(rate, ())) for rate in rates]
        if any(mean is None for mean in means):
            return Tuned(tuple(rates), None, None)
        if len(set(means)) == 1:  # all failed, say: nothing tells where a better one lies
            return Tuned(tuple(rates), rates[len(rates) // 2], None)
        best = min(range(len(rates)), key=lambda i: (means[i], rates[i]))
        edge = edge_of(best, len(rates))
        if edge is None or len(rates) - len(grid) >= extend:
            break
        rates = _grown(rates, edge)
    return Tuned(tuple(rates), rates[best], edge)


def edge_of(index: int, count: int) -> Edge | None:
    return "low" if index == 0 else "high" if index == count - 1 else None


def _grown(rates: list[float], edge: Edge) -> list[float]:
    """One more point, at the ratio of the two at that end, with three digits: a rate is part of a run's identity."""
    if edge == "low":
        return [float(f"{rates[0] * rates[0] / rates[1]:.3g}"), *rates]
    return [*rates, float(f"{rates[-1] * rates[-1] / rates[-2]:.3g}")]


def _mean(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    if not losses or len(known) < len(losses):
        return None
    return math.fsum(known) / len(known) if all(map(math.isfinite, known)) else math.inf
