"""factorial: what axes do alone and together (F12), and a ladder's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from ablate.report.figures.look import INK, MUTED, PAPER, WIDTH, Drawing, Style, amount, drawn, key, known, names, sheet, styles, wrapped


class EffectRow(NamedTuple):
    """A main effect or an interaction with its interval and Holm's p."""

    name: str
    kind: str
    mean: float
    low: float
    high: float
    holm_p: float


def effects_finding(effects: Sequence[EffectRow], alpha: float = 0.05) -> str:
    """The effects and interactions whose Holm p is below alpha."""
    said = []
    for e in effects:
        if e.holm_p < alpha:
            mean, low, high = (amount(v, (e.high - e.low) / 2, True) for v in (e.mean, e.low, e.high))
            said.append(f"{e.name} {mean} [{low}, {high}]")
    apart = [e for e in effects if e.kind == "interaction"]
    none = " No interaction stands out." if apart and not any(e.holm_p < alpha for e in apart) else ""
    return (
        f"Effects that stand out after Holm's correction: {names(said, 4)}." if said else "No effect stands out after Holm's correction."
    ) + none


@drawn
def effects(rows: Sequence[EffectRow], *, metric: str = "nats per token") -> Drawing | None:
    """F12: every main effect, and below them every interaction, with its interval."""
    rows = [row for row in rows if known(row.mean)]
    if not rows:
        return None
    order = sorted(rows, key=lambda row: (row.kind != "main", row.mean))
    figure = sheet(WIDTH, 0.9 + 0.34 * len(order))
    ax = figure.subplots()
    for y, row in enumerate(order):
        marker = "o" if row.kind == "main" else "D"
        if known(row.low) and known(row.high):
            ax.plot([row.low, row.high], [y, y], color=MUTED, linewidth=3, solid_capstyle="butt", gid=f"interval {row.name}")
        ax.plot([row.mean], [y], marker, color=INK, markersize=6, markeredgecolor=PAPER, gid=f"mean {row.name}")
    ax.axvline(0, color=INK, linewidth=1, zorder=1)
    split = sum(row.kind == "main" for row in order)
    if 0 < split < len(order):
        ax.axhline(split - 0.5, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)))
    ax.set_yticks(range(len(order)), [wrapped(row.name, 32) for row in order])
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(f"← better · effect on the loss, {metric} · worse →")
    title = effects_finding(order)
    return Drawing("effects", figure, title, f"{title} Main effects (circles) and interactions (diamonds) with 95 % intervals.")


@drawn
def interaction(
    cells: Mapping[tuple[str, str], Sequence[float]], *, axes: tuple[str, str], metric: str = "nats per token", finding: str = ""
) -> Drawing | None:
    """F12: the loss over the levels of the first axis, a line a level of the second, every run drawn; parallel lines are no interaction."""
    held = {levels: [v for v in losses if known(v)] for levels, losses in cells.items()}
    held = {levels: losses for levels, losses in held.items() if losses}
    if not held:
        return None
    first, second = (list(dict.fromkeys(levels[i] for levels in cells)) for i in (0, 1))
    looks = styles(second, second[0])
    figure = sheet(WIDTH, 3.2)
    ax = figure.subplots()
    for k, level in enumerate(second):
        shift = 0.05 * (k - (len(second) - 1) / 2)
        _level(ax, [(x + shift, held[a, level]) for x, a in enumerate(first) if (a, level) in held], looks[level], level)
    ax.set_xticks(range(len(first)), [wrapped(a, 60 // len(first)) for a in first])
    ax.set_xlim(-0.3, len(first) - 0.7)
    ax.set(xlabel=axes[0], ylabel=f"loss, {metric} (lower is better)")
    key(figure, looks, second)
    title = finding or _gaps(held, first, second)
    name = f"interaction-{axes[0]}-{axes[1]}"
    return Drawing(name, figure, title, f"{title} Loss over {axes[0]}, one line a level of {axes[1]}, every run a marker.")


def _level(ax: Axes, points: Sequence[tuple[float, Sequence[float]]], look: Style, level: str) -> None:
    ax.plot([x for x, _ in points], [np.mean(losses) for _, losses in points], color=look.colour, linestyle=look.dash, gid=f"mean {level}")
    for x, losses in points:
        ax.plot([x] * len(losses), losses, look.marker, color=look.colour, markersize=4, alpha=0.7, linestyle="none", gid=f"runs {level}")


def _gaps(held: Mapping[tuple[str, str], Sequence[float]], first: Sequence[str], second: Sequence[str]) -> str:
    """The difference between the last and the first level of the second axis, at each level of the first."""
    said = []
    for a in first:
        if len(second) > 1 and (a, second[0]) in held and (a, second[-1]) in held:
            gap = float(np.mean(held[a, second[-1]]) - np.mean(held[a, second[0]]))
            said.append(f"{amount(gap, sign=True)} with {a}")
    return f"From {second[0]} to {second[-1]} the mean loss moves by {names(said, 4)}." if said else "Too few cells to compare."


class StepRow(NamedTuple):
    """A step of a ladder: its difference from the step before with its interval, and the total since the start."""

    name: str
    mean: float
    low: float | None
    high: float | None
    total: float


def ladder_finding(steps: Sequence[StepRow], metric: str) -> str:
    """The whole way, and the steps whose interval excludes zero."""
    apart = [f"{s.name} ({amount(s.mean, sign=True)})" for s in steps if known(s.low) and known(s.high) and (s.high < 0 or s.low > 0)]
    rest = f"; steps whose interval excludes zero: {names(apart, 4)}" if apart else "; no step has an interval that excludes zero"
    return f"The {len(steps)} steps together change the loss by {amount(steps[-1].total, sign=True)} {metric}{rest}."


@drawn
def ladder(steps: Sequence[StepRow], *, start: str, metric: str = "nats per token") -> Drawing | None:
    """A waterfall: each step from the total before it to its own, with the interval of its difference."""
    steps = [step for step in steps if known(step.mean) and known(step.total)]
    if not steps:
        return None
    figure = sheet(WIDTH, 1.0 + 0.4 * (len(steps) + 1))
    ax = figure.subplots()
    looks = styles([step.name for step in steps], start)
    ax.plot([0], [0], "o", color=INK, markersize=6, gid=f"step {start}")
    for y, step in enumerate(steps, start=1):
        look, before = looks[step.name], step.total - step.mean
        ax.plot([before, before], [y - 1, y], color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)), zorder=1)
        ax.plot([before, step.total], [y, y], color=look.colour, linewidth=5, alpha=0.45, solid_capstyle="butt")
        if known(step.low) and known(step.high):
            ax.plot([before + step.low, before + step.high], [y, y], color=look.colour, linewidth=1.2, gid=f"interval {step.name}")
        ax.plot([step.total], [y], look.marker, color=look.colour, markersize=6, markeredgecolor=PAPER, gid=f"step {step.name}", zorder=4)
        half = (step.high - step.low) / 2 if known(step.low) and known(step.high) else None
        ax.annotate(
            amount(step.mean, half, True),
            (1, y),
            (6, 0),
            xycoords=ax.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    ax.axvline(0, color=INK, linewidth=1, zorder=1)
    ax.set_yticks(range(len(steps) + 1), [wrapped(name, 30) for name in (start, *(f"+ {step.name}" for step in steps))])
    ax.set_ylim(len(steps) + 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(f"← better · change since {wrapped(start, 30)}, {metric} · worse →")
    title = ladder_finding(steps, metric)
    return Drawing(
        "ladder", figure, title, f"{title} A waterfall of the steps from {start} on, each with the 95 % interval of its own difference."
    )
