"""Sensitivity: how much of the loss depends on the learning rate, and how wide the rates are that train well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def lr_sensitivity(rates: Sequence[float], losses: Sequence[float | None], initial_loss: float) -> float | None:
    """mean over the grid of min(loss, l0) - l*, in nats, with l* = min of the losses (Wortsman et al. 2023, 2309.14322).

    One seed: a loss for each rate. `initial_loss` is l0, the loss at initialisation. A run that failed is None or not finite, and counts as
    l0. The value depends on the grid, so that arms are compared on rates that all of them have. None where no rate ended below l0: there is
    no best loss to measure from.
    """
    known = [initial_loss if loss is None else min(loss, initial_loss) for loss in _trained(rates, losses)]
    best = min(known)
    return math.fsum(loss - best for loss in known) / len(known) if best < initial_loss else None


def usable_width(rates: Sequence[float], losses: Sequence[float | None], margin: float) -> float | None:
    """The decades of learning rate with loss <= l* + margin; between the rates the loss is a straight line in log rate.

    A failed run, None or not finite, adds nothing on either side of it. Where an end of the grid is usable the width is a lower bound. None
    where every run failed.
    """
    if margin < 0:
        raise ValueError(f"a margin is not negative, this one is {margin}")
    points = sorted(zip((math.log10(rate) for rate in rates), _trained(rates, losses), strict=True))
    known = [loss for _, loss in points if loss is not None]
    if not known:
        return None
    line = min(known) + margin
    width = 0.0
    for (left, a), (right, b) in pairwise(points):
        if a is not None and b is not None:
            width += (right - left) * _share_below(a, b, line)
    return width


def _share_below(a: float, b: float, line: float) -> float:
    """The share of the way from a to b that is not above the line."""
    low, high = min(a, b), max(a, b)
    if high <= line:
        return 1.0
    return (line - low) / (high - low) if low < line else 0.0


def _trained(rates: Sequence[float], losses: Sequence[float | None]) -> list[float | None]:
    """The losses, None where a run failed, once the grid makes sense."""
    if len(rates) != len(losses):
        raise ValueError(f"{len(rates)} learning rates and {len(losses)} losses: one loss for each rate")
    if len(rates) < 2 or len(set(rates)) < len(rates) or not all(rate > 0 for rate in rates):
        raise ValueError(f"needs at least two learning rates, each above 0 and each once, not {list(rates)}")
    return [loss if loss is not None and math.isfinite(loss) else None for loss in losses]
