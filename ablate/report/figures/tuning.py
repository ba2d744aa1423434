"""tuning: the loss over the learning rate of each arm (F3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ablate.report.figures.look import (
    INK,
    MUTED,
    Drawing,
    Style,
    cross,
    drawn,
    known,
    log_ticks,
    lowest,
    names,
    note,
    panels,
    plain,
    styles,
    wrapped,
)

Rates = Mapping[float, Sequence[float | None]]
"""Learning rate -> the loss of each seed; None for a run that failed."""


def rates_finding(chosen: Mapping[str, float | None], edges: Mapping[str, str | None]) -> str:
    """Whether each arm's best rate lies inside of the grid."""
    at_end = [f"{arm} ({end} end)" for arm, end in edges.items() if end]
    rates = ", ".join(f"{arm} {plain(rate)}" for arm, rate in list(chosen.items())[:6] if known(rate))
    more = f" and {len(chosen) - 6} more" if len(chosen) > 6 else ""
    best = f" Best rates: {rates}{more}." if rates else ""
    if at_end:
        return f"The best learning rate is at an end of the grid for {names(at_end)}, so not tuned.{best}"
    return f"The best mean lies inside of the grid for every arm.{best}" if rates else "No arm has a best learning rate."


@drawn
def learning_rates(
    tuning: Mapping[str, Rates],
    *,
    baseline: str,
    order: Sequence[str] = (),
    chosen: Mapping[str, float | None],
    edges: Mapping[str, str | None] | None = None,
    remarks: Mapping[str, str] | None = None,
    collapse: float | None = None,
    metric: str = "nats per token",
) -> Drawing | None:
    """F3: one panel an arm, the baseline grey in each; `collapse` is the unigram entropy, `remarks` a short text for a panel."""
    arms = [arm for arm, rates in tuning.items() if rates]
    arms = [arm for arm in arms if arm != baseline] or arms
    rates = sorted({rate for each in tuning.values() for rate in each})
    if not arms or not rates:
        return None
    figure, axes = panels(len(arms), height=2.1)
    bottom, top = _limits(tuning, collapse)
    looks = styles([*order, *arms], baseline)
    for ax, arm in zip(axes, arms, strict=True):
        if arm != baseline and baseline in tuning:
            _curve(ax, tuning[baseline], Style(MUTED, "o", "-"), top, baseline, 0.7)
        _curve(ax, tuning[arm], looks[arm], top, arm, 1.0)
        best = chosen.get(arm)
        if known(best):
            ax.axvline(best, color=looks[arm].colour, linewidth=0.9, linestyle=(0, (2, 2)), gid=f"chosen {arm}")
        if known(collapse):
            ax.axhline(collapse, color=MUTED, linewidth=1, linestyle=(0, (1, 1.5)), gid="collapse")
        remark = (remarks or {}).get(arm, "")
        ax.set_title(wrapped(arm, 28) + (f"\n{wrapped(remark, 34)}" if remark else ""), fontsize=8.5)
        _axes(ax, rates, bottom, top)
    for ax in lowest(axes, 3):
        ax.set_xlabel("learning rate")
    figure.supylabel(f"loss, {metric}\n(lower is better)", fontsize=9)
    _rates_key(figure, baseline, known(collapse), any(not known(v) for each in tuning.values() for losses in each.values() for v in losses))
    title = rates_finding(chosen, edges or {})
    return Drawing(
        "learning-rates", figure, title, f"{title} Loss over the learning rate, one panel an arm, with {baseline} in grey in each."
    )


def _limits(tuning: Mapping[str, Rates], collapse: float | None) -> tuple[float, float]:
    """Bottom of the axis, and the cap where failed runs are drawn."""
    held = [v for each in tuning.values() for losses in each.values() for v in losses if known(v)]
    held += [collapse] if known(collapse) else []
    bottom, top = min(held, default=0.0), max(held, default=1.0)
    return bottom - (0.06 * (top - bottom) or 0.01), top + (0.12 * (top - bottom) or 0.02)


def _curve(ax: Axes, rates: Rates, look: Style, top: float, arm: str, alpha: float) -> None:
    """The mean over seeds as a line through the rates at which no seed failed, each seed as a marker."""
    whole = [
        (rate, float(np.mean([v for v in losses if known(v)])))
        for rate, losses in sorted(rates.items())
        if losses and all(map(known, losses))
    ]
    if whole:
        ax.plot(*zip(*whole, strict=True), color=look.colour, linestyle=look.dash, linewidth=1.4, alpha=alpha, gid=f"mean {arm}")
    for rate, losses in rates.items():
        for seed, value in enumerate(losses):
            gid = f"seed {arm} {rate} {seed}"
            if known(value):
                ax.plot([rate], [value], look.marker, color=look.colour, markersize=4, alpha=alpha, markeredgewidth=0, gid=gid)
            else:
                cross(ax, rate * (1 + 0.1 * seed), top, gid, look.colour)


def _axes(ax: Axes, rates: Sequence[float], bottom: float, top: float) -> None:
    ax.set_xlim(rates[0] / 1.6, rates[-1] * 1.6)
    ax.set_ylim(bottom, top + 0.04 * (top - bottom))
    step = -(-len(rates) // 5)  # at most five labels stand beside each other
    log_ticks(ax, "x", rates[::step])
    ax.yaxis.set_major_locator(MaxNLocator(5))


def _rates_key(figure: Figure, baseline: str, collapse: bool, failed: bool) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=MUTED,
            marker="o",
            label=wrapped(baseline, 30) if baseline == "baseline" else f"{wrapped(baseline, 30)} (baseline)",
        ),
        Line2D([], [], color=INK, linestyle=(0, (2, 2)), linewidth=0.9, label="chosen rate"),
    ]
    if collapse:
        handles.append(Line2D([], [], color=MUTED, linestyle=(0, (1, 1.5)), label="unigram entropy: collapsed"))
    if failed:
        handles.append(Line2D([], [], color=INK, marker="x", linestyle="none", label="failed run"))
    note(figure, handles, 4)
