"""curves: training loss over tokens (F4), and an arm's difference from the baseline as training goes on (F5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ablate.report.figures.look import (
    BAND,
    INK,
    MUTED,
    WIDTH,
    Drawing,
    Style,
    amount,
    cross,
    drawn,
    key,
    known,
    lowest,
    names,
    panels,
    sheet,
    styles,
    thinned,
    token_axis,
    wrapped,
)

Series = tuple[Sequence[float], Sequence[float]]
"""Abscissae, tokens as a rule, and values."""

SETTLED = 0.15
"""Axes are fitted to what follows this share of the training; before it all arms fall alike."""


def mean_of(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over runs where all of them have a value: up to the end of the shortest, read off linearly at the first run's places."""
    if not runs:
        return np.array([]), np.array([])
    begin, end = max(float(run[0][0]) for run in runs), min(float(run[0][-1]) for run in runs)
    at = np.asarray([x for x in runs[0][0] if begin <= x <= end])
    return at, np.mean([np.interp(at, run[0], run[1]) for run in runs], axis=0)


def curves_finding(ends: Mapping[str, Sequence[float]]) -> str:
    """Between which arms' means training ends, and how far the runs of one arm lie apart there."""
    means = {arm: float(np.mean(values)) for arm, values in ends.items() if len(values)}
    if not means:
        return "No run has reached the end of its training."
    low, high = min(means, key=lambda arm: means[arm]), max(means, key=lambda arm: means[arm])
    between = f"between {means[low]:.3f} ({low}) and {means[high]:.3f} ({high})" if low != high else f"at {means[low]:.3f} ({low})"
    spread = max(max(values) - min(values) for values in ends.values() if len(values))
    apart = f"; runs of one arm differ by up to {amount(spread)}" if spread else ""
    return f"At the end of training mean training losses lie {between}{apart}."


@drawn
def curves(
    runs: Mapping[str, Mapping[int, Series]],
    *,
    baseline: str,
    order: Sequence[str] = (),
    failed: Mapping[str, Sequence[int]] | None = None,
    metric: str = "nats per token",
) -> Drawing | None:
    """F4: every run thin, the mean of an arm's runs that did not fail thick; `failed` names blocks, whose lines end in a cross."""
    lines = {arm: {b: thinned(*run, most=150) for b, run in blocks.items()} for arm, blocks in runs.items()}
    lines = {arm: {b: run for b, run in blocks.items() if len(run[0])} for arm, blocks in lines.items()}
    arms = [arm for arm, blocks in lines.items() if blocks]
    if not arms:
        return None
    looks, lost = styles([*order, *runs], baseline), {arm: set(blocks) for arm, blocks in (failed or {}).items()}
    whole = {arm: [run for block, run in lines[arm].items() if block not in lost.get(arm, ())] for arm in arms}
    fitted = [run for each in whole.values() for run in each] or [run for arm in arms for run in lines[arm].values()]
    bottom, top = _loss_limits(fitted)
    figure = sheet(WIDTH, 3.6)
    ax = figure.subplots()
    for arm in arms:
        for block, (x, y) in lines[arm].items():
            ax.plot(x, y, color=looks[arm].colour, linewidth=0.6, alpha=0.45, gid=f"run {arm} {block}")
            if block in lost.get(arm, ()):
                cross(ax, x[-1], min(max(y[-1], bottom), top), f"failed {arm} {block}", looks[arm].colour)
        _mean(ax, whole[arm], looks[arm], arm)
    ax.set_ylim(bottom, top)
    ax.set(xlabel="training tokens", ylabel=f"training loss, {metric}")
    token_axis(ax)
    ends = {arm: [float(y[-1]) for _, y in each] for arm, each in whole.items() if each}
    key(figure, looks, sorted(arms, key=lambda arm: -float(np.mean(ends.get(arm, [np.inf])))))
    title = curves_finding(ends)
    return Drawing("curves", figure, title, f"{title} Training loss over tokens: each run a thin line, the mean of an arm a thick one.")


def _mean(ax: Axes, runs: Sequence[tuple[np.ndarray, np.ndarray]], look: Style, arm: str) -> None:
    x, y = mean_of(runs)
    if len(x):
        front = 2 if look.colour == MUTED else 3
        every = max(1, len(x) // 6)
        ax.plot(x, y, color=look.colour, linestyle=look.dash, marker=look.marker, markevery=every, gid=f"mean {arm}", zorder=front)


def _loss_limits(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    settled = [y[x >= SETTLED * x[-1]] for x, y in runs]
    bottom, top = min(float(y.min()) for y in settled), max(float(y.max()) for y in settled)
    pad = 0.05 * (top - bottom) or 0.01
    return bottom - pad, top + pad


class Trace(NamedTuple):
    """The mean paired difference over blocks while training goes on, with its t interval; all of one length."""

    tokens: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def trace_finding(traces: Mapping[str, Trace], baseline: str) -> str:
    """On which side of the baseline each arm ends, and whether its interval there holds zero."""
    below: list[str] = []
    above: list[str] = []
    open_: list[str] = []
    for arm, trace in traces.items():
        mean = trace.mean[-1]
        apart = trace.low is not None and trace.high is not None and (trace.high[-1] < 0 or trace.low[-1] > 0)
        (open_ if not apart else below if mean < 0 else above).append(f"{arm} ({amount(mean, sign=True)})")
    said = [f"below {baseline}: {names(below)}"] if below else []
    said += [f"above {'it' if below else baseline}: {names(above)}"] if above else []
    said += [f"interval holds zero or is not known: {names(open_)}"] if open_ else []
    return f"At the end of training, {'; '.join(said)}. Intervals of single points, without correction."


@drawn
def differences(
    traces: Mapping[str, Trace], *, baseline: str, order: Sequence[str] = (), margin: float | None = None, metric: str = "nats per token"
) -> Drawing | None:
    """F5: an arm's loss less the baseline's over tokens, one panel an arm on one scale, with the band of the t interval."""
    traces = {arm: trace for arm, trace in traces.items() if len(trace.tokens) and np.isfinite(trace.mean[-1])}
    if not traces:
        return None
    looks = styles([*order, *traces], baseline)
    figure, axes = panels(len(traces), height=1.9)
    for ax, (arm, trace) in zip(axes, traces.items(), strict=True):
        look = looks[arm]
        if known(margin):
            ax.axhspan(-margin, margin, color=BAND, linewidth=0, zorder=0, gid="margin")
        ax.axhline(0, color=INK, linewidth=0.9, zorder=1)
        x, y = thinned(trace.tokens, trace.mean)
        ax.plot(x, y, color=look.colour, gid=f"mean {arm}", zorder=3)
        if trace.low is not None and trace.high is not None:
            (x, low), (_, high) = thinned(trace.tokens, trace.low), thinned(trace.tokens, trace.high)
            if len(low) == len(high):
                ax.fill_between(x, low, high, color=look.colour, alpha=0.25, linewidth=0, gid=f"interval {arm}")
        ax.set_title(wrapped(arm, 28))
        token_axis(ax)
        ax.yaxis.set_major_locator(MaxNLocator(5))
    axes[0].set_ylim(*_difference_limits(list(traces.values()), margin))
    for ax in lowest(axes, 3):
        ax.set_xlabel("training tokens")
    figure.supylabel(f"difference from {wrapped(baseline, 24)}\n{metric} (below 0 is better)", fontsize=9)
    title = trace_finding(traces, baseline)
    return Drawing("differences", figure, title, f"{title} Difference from {baseline} over tokens with a 95 % t band, one panel an arm.")


def _difference_limits(traces: Sequence[Trace], margin: float | None) -> tuple[float, float]:
    """What follows the first share of training; bands so wide that they would flatten the means are cut."""
    means, bands = [0.0, *([margin, -margin] if known(margin) else [])], []
    for trace in traces:
        late = np.asarray(trace.tokens, dtype=float) >= SETTLED * trace.tokens[-1]
        means += list(np.asarray(trace.mean, dtype=float)[late])
        for side in (trace.low, trace.high):
            bands += [] if side is None else list(np.asarray(side, dtype=float)[late])
    held = np.asarray(means)[np.isfinite(means)]
    reach = 3 * float(np.abs(held).max() or 0.01)
    shown = [*held, *(v for v in bands if known(v) and abs(v) <= reach)]
    pad = 0.06 * (max(shown) - min(shown)) or 0.01
    return min(shown) - pad, max(shown) + pad
