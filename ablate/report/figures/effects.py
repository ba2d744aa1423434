"""effects: what each arm does to the loss: the forest of all arms (F1) and the blocks behind it (F2)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ablate.report.figures.look import (
    BAND,
    INK,
    MUTED,
    NARROW,
    PAPER,
    WIDTH,
    Drawing,
    Style,
    amount,
    ceiling,
    cross,
    drawn,
    known,
    names,
    note,
    panels,
    sheet,
    styles,
    wrapped,
)


class Row(NamedTuple):
    """An arm against the baseline: the verdict in one word, the mean difference, its 95 % and Holm intervals, each block's difference."""

    name: str
    word: str
    detail: str
    mean: float | None
    low: float | None
    high: float | None
    holm_low: float | None
    holm_high: float | None
    blocks: Mapping[int, float]
    failed: int = 0
    ended: int = 0

    @property
    def label(self) -> str:
        """The verdict as drawn."""
        return f"{self.word} {self.failed}/{self.ended}" if self.word == "UNSTABLE" and self.failed else self.word


def by_effect(rows: Sequence[Row]) -> list[Row]:
    """Best first, arms without a difference last."""
    return sorted(rows, key=lambda row: (not known(row.mean), row.mean if known(row.mean) else 0.0))


def forest_finding(rows: Sequence[Row], metric: str) -> str:
    """One sentence: the arms by their verdict, those with a direction with their difference."""
    groups: dict[str, list[str]] = {}
    for row in by_effect(rows):
        size = f" by {amount(abs(row.mean), _half(row))}" if row.word in ("BETTER", "WORSE") and known(row.mean) else ""
        failed = f" ({row.failed} of {row.ended} runs failed)" if row.word == "UNSTABLE" and row.failed else ""
        groups.setdefault(row.word, []).append(row.name + size + failed)
    said = [f"{_PHRASES.get(word, word.lower())}: {names(arms)}" for word, arms in groups.items()]
    return f"{'; '.join(said)} ({metric})."[0].upper() + f"{'; '.join(said)} ({metric})."[1:]


_PHRASES = {
    "BETTER": "better than the baseline",
    "WORSE": "worse than the baseline",
    "EQUIVALENT": "equivalent to it within the margin",
    "SCREEN ONLY": "screened only",
}


def _half(row: Row) -> float | None:
    return (row.high - row.low) / 2 if known(row.low) and known(row.high) else None


def reach(rows: Sequence[Row], margin: float | None) -> tuple[float, float]:
    """The ends of the axis: all that is drawn, unless an arm lies so far out that it would flatten the others; zero and margin always."""
    held = [[v for v in (row.mean, row.low, row.high, row.holm_low, row.holm_high, *row.blocks.values()) if known(v)] for row in rows]
    extents = [max(abs(v) for v in values) for values in held if values]
    usual = 5 * max(float(np.median(extents)) if extents else 0.0, 2 * margin if known(margin) else 0.0)
    shown = [v for values in held for v in values if abs(v) <= usual]
    around = [0.0, *([1.3 * margin, -1.3 * margin] if known(margin) else []), *shown]
    low, high = min(around), max(around)
    pad = 0.04 * (high - low) or 0.01
    return low - pad, high + pad


@drawn
def forest(
    rows: Sequence[Row],
    *,
    baseline: str,
    against: str = "",
    order: Sequence[str] = (),
    margin: float | None,
    metric: str = "nats per token",
    narrow: bool = False,
) -> Drawing | None:
    """F1: one row an arm, best on top; thick its 95 % interval, thin Holm's, a dot each block, a cross each failed run.

    `against`: what the baselines are called, where arms have several.
    """
    against = against or baseline
    if not rows:
        return None
    rows = by_effect(rows)
    looks = styles([*order, *[row.name for row in rows]], baseline)
    figure, ax, fails = _forest_axes(rows, narrow)
    ends = reach(rows, margin)
    ax.set_xlim(*ends)
    if known(margin):
        ax.axvspan(-margin, margin, color=BAND, linewidth=0, zorder=0, gid="margin")
    ax.axvline(0, color=INK, linewidth=1, zorder=1, gid="zero")
    for y, row in enumerate(rows):
        _effect(ax, y, row, looks[row.name], ends)
        for k in range(row.failed):
            assert fails is not None
            cross(fails, k, y, f"failed {row.name}")
        _words(ax, fails or ax, y, row, narrow)
    if narrow:
        told = f"← better · worse →\ndifference from {wrapped(against, 30)}, {metric}"
    else:
        told = f"{wrapped(f'← better · difference from {against} · worse →', 70)}\n{metric}"
    ax.set_xlabel(told, fontsize=8.5, loc="left" if narrow else "center")
    _forest_key(figure, rows, margin, narrow)
    title = forest_finding(rows, metric)
    alt = f"{title} Forest plot against {against}, one row an arm, best on top: {'; '.join(_told(row) for row in rows)}."
    return Drawing("forest-narrow" if narrow else "forest", figure, title, alt)


def _told(row: Row) -> str:
    if not known(row.mean):
        return f"{row.name} without a difference, {row.label}"
    inside = f" [{amount(row.low, _half(row), True)}, {amount(row.high, _half(row), True)}]" if known(row.low) and known(row.high) else ""
    return f"{row.name} {amount(row.mean, _half(row), True)}{inside}, {len(row.blocks)} blocks, {row.label}"


def _forest_axes(rows: Sequence[Row], narrow: bool) -> tuple[Figure, Axes, Axes | None]:
    """The axes of the effects, and beside them, if any run failed, those of the crosses."""
    most = max(row.failed for row in rows)
    lines = [wrapped(row.name, 24).count("\n") for row in rows]
    height = (0.56 + 0.15 * max(lines)) * len(rows) + 1.55 if narrow else 0.44 * len(rows) + 1.15 + 0.14 * sum(max(0, n - 1) for n in lines)
    figure = sheet(NARROW if narrow else WIDTH, height)
    if most:
        strip = min(0.14 * most + 0.16, 1.0)
        ax, fails = figure.subplots(1, 2, sharey=True, width_ratios=[(2.6 if narrow else 4.2) - strip, strip])
        fails.set(xlim=(-0.8, most - 0.2), xticks=[(most - 1) / 2], xticklabels=["failed"])
        fails.tick_params(length=0)
        fails.grid(False)
        fails.spines[["left", "bottom"]].set_visible(False)
    else:
        ax, fails = figure.subplots(), None
    ax.set_ylim(len(rows) - 0.5, -0.85 if narrow else -0.5)
    ax.set_yticks(range(len(rows)), [""] * len(rows) if narrow else [wrapped(row.name, 24) for row in rows], fontsize=9)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="both" if narrow else "y")  # names stand on it
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(4 if narrow else 6))
    return figure, ax, fails


def _effect(ax: Axes, y: float, row: Row, look: Style, ends: tuple[float, float]) -> None:
    """One row; what lies beyond the axis is a triangle at its end."""
    for (a, b), width, gid in (((row.holm_low, row.holm_high), 1.1, "holm"), ((row.low, row.high), 4.0, "interval")):
        if known(a) and known(b):
            held = np.clip([a, b], *ends)
            ax.plot(held, [y, y], color=look.colour, linewidth=width, solid_capstyle="butt", gid=f"{gid} {row.name}", zorder=2)
    spread = np.linspace(-0.05, 0.05, len(row.blocks)) if len(row.blocks) > 1 else [0.0] * len(row.blocks)
    for shift, (block, value) in zip(spread, sorted(row.blocks.items()), strict=True):
        if known(value):
            (dot,) = _held(ax, value, y + 0.27 + shift, "o", ends, color=look.colour, markersize=3.2, markeredgewidth=0, alpha=0.75)
            dot.set_gid(f"block {row.name} {block}")
    if known(row.mean):
        _held(ax, row.mean, y, look.marker, ends, color=look.colour, markersize=7, markeredgecolor=PAPER, gid=f"mean {row.name}", zorder=4)
        if not ends[0] <= row.mean <= ends[1]:
            side, end, shift = ("right", ends[1], -8) if row.mean > ends[1] else ("left", ends[0], 8)
            told = amount(row.mean, _half(row), True)
            ax.annotate(told, (end, y), (shift, 0), textcoords="offset points", ha=side, va="center", fontsize=8)


def _held(ax: Axes, x: float, y: float, marker: str, ends: tuple[float, float], **look: Any) -> list[Line2D]:
    """A marker, or a triangle at the end of the axis beyond which it lies."""
    low, high = ends
    sign = marker if low <= x <= high else "<" if x < low else ">"
    return ax.plot([min(max(x, low), high)], [y], sign, clip_on=False, **look)


def _words(ax: Axes, last: Axes, y: float, row: Row, narrow: bool) -> None:
    """The verdict, at the right of its row, or above it beside the arm's name."""
    weight = "bold" if row.word == "BETTER" else "normal"
    right = last.get_yaxis_transform()
    if narrow:
        lift: Any = {"textcoords": "offset points", "va": "bottom", "annotation_clip": False}
        ax.annotate(wrapped(row.name, 24), (0, y), (0, 7), xycoords=ax.get_yaxis_transform(), fontsize=9, ha="left", **lift)
        last.annotate(row.label, (1, y), (0, 7), xycoords=right, fontsize=8.5, weight=weight, ha="right", **lift)
        return
    detail = [amount(row.mean, _half(row), True)] if known(row.mean) else []
    if row.detail:
        detail.append(row.detail)
    under = textwrap.shorten(" · ".join(detail), 40, placeholder=" …")
    place: Any = {"textcoords": "offset points", "ha": "left", "annotation_clip": False}
    last.annotate(row.label, (1, y), (8, 1 if under else -4), xycoords=right, fontsize=9, weight=weight, va="bottom", **place)
    if under:
        last.annotate(under, (1, y), (8, -1), xycoords=right, fontsize=7.5, color=MUTED, va="top", **place)


def _forest_key(figure: Figure, rows: Sequence[Row], margin: float | None, narrow: bool) -> None:
    handles: list[Line2D | Patch] = []
    if any(known(row.low) for row in rows):
        handles.append(Line2D([], [], color=MUTED, linewidth=4, solid_capstyle="butt", label="95 % interval"))
    if any(known(row.holm_low) for row in rows):
        handles.append(Line2D([], [], color=MUTED, linewidth=1.1, label="with Holm's correction"))
    if any(row.blocks for row in rows):
        handles.append(Line2D([], [], color=MUTED, marker="o", markersize=3.2, linestyle="none", label="one block"))
    if known(margin):
        handles.append(Patch(color=BAND, label=f"margin ±{amount(margin)}"))
    if any(row.failed for row in rows):
        handles.append(Line2D([], [], color=INK, marker="x", linestyle="none", label="failed run"))
    if handles:
        note(figure, handles, 2 if narrow else 5)


def blocks_finding(losses: Mapping[str, Mapping[int, float]], baseline: str) -> str:
    """In how many of its blocks each arm lies below the baseline."""
    said = []
    for arm in losses:
        pairs = [(losses[arm][b], losses[baseline][b]) for b in losses[arm] if b in losses.get(baseline, {})]
        if arm != baseline and pairs:
            said.append(f"{arm} in {sum(a < b for a, b in pairs)} of {len(pairs)}")
    return (
        f"Blocks in which an arm has a lower loss than {baseline}: {', '.join(said)}."
        if said
        else f"No block has both {baseline} and an arm."
    )


@drawn
def blocks(
    losses: Mapping[str, Mapping[int, float]],
    *,
    baseline: str,
    order: Sequence[str] = (),
    failed: Mapping[str, Mapping[int, str]] | None = None,
    metric: str = "nats per token",
) -> Drawing | None:
    """F2: the loss of the baseline and of an arm in each block, joined by a line; `failed` names the outcome of runs without a loss."""
    failed = failed or {}
    arms = [arm for arm in dict.fromkeys([*losses, *failed]) if arm != baseline]
    values = [v for each in losses.values() for v in each.values() if known(v)]
    if not arms or not (values or any(failed.values())):
        return None
    looks = styles([*order, *arms], baseline)
    figure, axes = panels(len(arms), columns=5, height=2.2)
    top, bottom = ceiling(values), min(values, default=0.0)
    pad = 0.12 * (top - bottom) or 0.01
    for ax, arm in zip(axes, arms, strict=True):
        ax.set_title(wrapped(arm, 17))
        _pairs(ax, losses.get(baseline, {}), losses.get(arm, {}), looks[arm], top, arm)
        for x, who in ((0, baseline), (1, arm)):
            for i, block in enumerate(sorted(failed.get(who, {}))):
                cross(ax, x + 0.1 * i * (1 if x == 0 else -1), top + pad, f"failed {who} {block}", looks[who].colour)
        ax.set(xlim=(-0.25, 1.25), ylim=(bottom - pad / 2, top + 1.6 * pad))
        ax.set_xticks([0, 1], ["baseline", "arm"])
        ax.grid(axis="x", visible=False)
    figure.supylabel(f"loss, {metric} (lower is better)", fontsize=9)
    title = blocks_finding(losses, baseline)
    lost = sum(len(each) for each in failed.values())
    crosses = f" {lost} failed runs are crosses at the top." if lost else ""
    return Drawing(
        "blocks", figure, title, f"{title} One panel an arm: a line a block from the loss of {baseline} to that of the arm.{crosses}"
    )


def _pairs(ax: Axes, base: Mapping[int, float], arm: Mapping[int, float], look: Style, top: float, name: str) -> None:
    for block in sorted({*base, *arm}):
        ends = [(x, v) for x, v in ((0, base.get(block, math.nan)), (1, arm.get(block, math.nan))) if known(v)]
        lower = len(ends) == 2 and ends[1][1] < ends[0][1]
        ax.plot(
            [x for x, _ in ends],
            [min(v, top) for _, v in ends],
            color=look.colour,
            linewidth=1.1,
            linestyle="-" if lower else (0, (2.5, 1.5)),
            gid=f"pair {name} {block}",
        )
        for x, v in ends:
            colour, marker = (INK, "o") if x == 0 else (look.colour, look.marker)
            ax.plot([x], [min(v, top)], "^" if v > top else marker, color=colour, markersize=4, gid=f"block {name} {block} {x}")
