"""cost: what an arm's loss costs in time and in arithmetic (F6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ablate.report.figures.look import MUTED, Drawing, Style, drawn, key, known, names, panels, plain, styles


class Cost(NamedTuple):
    """An arm's mean loss and its 95 % interval; time of a step over the baseline's (above 1 is slower); training FLOPs a token."""

    loss: float | None
    low: float | None
    high: float | None
    time: float | None
    time_low: float | None
    time_high: float | None
    flops: float | None


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The arms than which no other costs at most as much and loses at most as much and less of one; cheapest first."""
    order = sorted(points, key=lambda arm: points[arm])
    best, kept = float("inf"), []
    for arm in order:
        if points[arm][1] < best:
            best = points[arm][1]
            kept.append(arm)
    return kept


def behind(costs: Mapping[str, tuple[float, float, float, float]]) -> list[str]:
    """Arms that another is no dearer than and loses less than, all of their intervals apart: `costs` are ends of cost, then of loss."""
    return [
        arm
        for arm, (cheapest, _, least, _) in costs.items()
        if any(dearest <= cheapest and most < least for other, (_, dearest, _, most) in costs.items() if other != arm)
    ]


def cost_finding(found: Mapping[str, Sequence[str]]) -> str:
    """Which arms are behind another in cost and loss at once, beyond their intervals."""
    said = [
        f"over {what} {names(arms)} {'is' if len(arms) == 1 else 'are'} behind another arm in both, beyond the intervals"
        if arms
        else f"over {what} no arm is behind another in both beyond the intervals"
        for what, arms in found.items()
    ]
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


@drawn
def pareto(costs: Mapping[str, Cost], *, baseline: str, order: Sequence[str] = (), metric: str = "nats per token") -> Drawing | None:
    """F6: loss over time and over FLOPs, lower left is better; a panel whose cost no arm has is left out; means joined along the front."""
    times = {arm: (c.time, c.loss) for arm, c in costs.items() if known(c.time) and known(c.loss)}
    flops = {arm: (c.flops, c.loss) for arm, c in costs.items() if known(c.flops) and known(c.loss)}
    kinds = [
        (what, told, points)
        for what, told, points in (
            ("time", f"time of a step over that of {baseline}", times),
            ("arithmetic", "training FLOPs per token", flops),
        )
        if len({cost for cost, _ in points.values()}) > 1
    ]
    if not kinds:
        return None
    looks = styles([*order, *costs], baseline)
    figure, axes = panels(len(kinds), columns=2, height=3.0, sharex=False)
    found = {}
    for ax, (what, told, points) in zip(axes, kinds, strict=True):
        timed = what == "time"
        found[what] = behind({arm: _ends(costs[arm], cost, timed) for arm, (cost, _) in points.items()})
        for arm in points:
            _point(ax, points[arm][0], costs[arm], looks[arm], arm, with_time=timed)
        path = [points[arm] for arm in front(points)]
        ax.plot(
            [x for x, _ in path], [y for _, y in path], color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)), drawstyle="steps-post", zorder=1
        )
        ax.set_xlabel(told, fontsize=8.5, wrap=True)
        ax.margins(0.12)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        if what == "arithmetic":
            ax.xaxis.set_major_formatter(lambda value, _: plain(value))
    axes[0].set_ylabel(f"loss, {metric} (lower is better)")
    arms = sorted({arm for _, _, points in kinds for arm in points}, key=lambda arm: -(costs[arm].loss or 0.0))
    key(figure, looks, arms, lines=False)
    title = cost_finding(found)
    alt = f"{title} Mean loss with its 95 % interval over {' and over '.join(told for _, told, _ in kinds)}, one marker an arm."
    return Drawing("cost", figure, title, alt)


def _ends(cost: Cost, where: float, timed: bool) -> tuple[float, float, float, float]:
    """The baseline has no interval of its own: those of the others are of differences from it."""
    assert cost.loss is not None
    low, high = (cost.time_low, cost.time_high) if timed else (where, where)
    ends = [(low, where), (high, where), (cost.low, cost.loss), (cost.high, cost.loss)]
    cheap, dear, least, most = (end if known(end) else middle for end, middle in ends)
    return cheap, dear, least, most


def _point(ax: Axes, x: float, cost: Cost, look: Style, arm: str, *, with_time: bool) -> None:
    assert cost.loss is not None
    if known(cost.low) and known(cost.high):
        ax.plot([x, x], [cost.low, cost.high], color=look.colour, linewidth=1.2, gid=f"interval {arm}")
    if with_time and known(cost.time_low) and known(cost.time_high):
        ax.plot([cost.time_low, cost.time_high], [cost.loss, cost.loss], color=look.colour, linewidth=1.2)
    ax.plot([x], [cost.loss], look.marker, color=look.colour, markersize=7, gid=f"mean {arm}", zorder=3)
