"""stability: how every run ended (F7), and what was measured on the way (F8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ablate.report.figures.curves import Series
from ablate.report.figures.look import (
    GRID,
    INK,
    MUTED,
    PALETTE,
    PAPER,
    WIDTH,
    Drawing,
    drawn,
    key,
    log_ticks,
    lowest,
    names,
    panels,
    plain,
    sheet,
    styles,
    thinned,
    token_axis,
    wrapped,
)

OUTCOMES: dict[str, tuple[str, str, str]] = {
    "ok": (GRID, "", INK),
    "spiky": (PALETTE[6], "S", PAPER),
    "incomplete": ("none", "…", INK),
    "diverged": (PALETTE[1], "D", PAPER),
    "collapsed": (PALETTE[4], "C", PAPER),
    "nan": (INK, "N", PAPER),
}
"""Outcome: colour of its tile, its letter, the letter's colour."""

FAILED = ("nan", "diverged", "collapsed")


class Cell(NamedTuple):
    """A run in the matrix."""

    arm: str
    rate: float
    seed: int
    outcome: str


def status_finding(cells: Sequence[Cell]) -> str:
    """How many runs failed, where, and how."""
    lost = Counter((cell.arm, cell.rate, cell.outcome) for cell in cells if cell.outcome in FAILED)
    if not lost:
        unfinished = sum(cell.outcome == "incomplete" for cell in cells)
        rest = f"; {unfinished} are incomplete" if unfinished else ""
        return f"None of {len(cells)} runs failed{rest}."
    said = [f"{k} of {arm} at rate {plain(rate)} {outcome}" for (arm, rate, outcome), k in lost.most_common()]
    return f"{sum(lost.values())} of {len(cells)} runs failed: {names(said)}."


@drawn
def status(cells: Sequence[Cell], *, baseline: str, order: Sequence[str] = ()) -> Drawing | None:
    """F7: a tile a run, arms down, learning rates across and seeds within them; colour and letter say how it ended."""
    if not cells:
        return None
    there = {cell.arm: None for cell in cells}
    arms = list(dict.fromkeys(arm for arm in (baseline, *order, *there) if arm in there))
    rates = sorted({cell.rate for cell in cells})
    runs = {rate: max(Counter(c.arm for c in cells if c.rate == rate).values()) for rate in rates}
    begin = dict(zip(rates, np.cumsum([0.0, *(runs[rate] + 0.6 for rate in rates)]), strict=False))
    width = begin[rates[-1]] + runs[rates[-1]]
    figure = sheet(WIDTH, 1.1 + 0.3 * len(arms) + 0.06 * sum(wrapped(arm, 30).count("\n") for arm in arms))
    ax = figure.subplots()
    for arm in arms:
        for rate in rates:
            for i, cell in enumerate(sorted((c for c in cells if c.arm == arm and c.rate == rate), key=lambda c: c.seed)):
                _tile(ax, begin[rate] + i, arms.index(arm), cell)
    ax.set(xlim=(-0.3, max(width + 0.3, 16)), ylim=(len(arms) - 0.4, -0.6))
    ax.set_xticks([begin[rate] + runs[rate] / 2 for rate in rates], [plain(rate) for rate in rates])
    ax.set_yticks(range(len(arms)), [wrapped(arm, 30) for arm in arms])
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("learning rate; one tile a run, seeds from left to right")
    _status_key(figure, [outcome for outcome in OUTCOMES if any(cell.outcome == outcome for cell in cells)])
    title = status_finding(cells)
    return Drawing(
        "status", figure, title, f"{title} Matrix of all runs, arms by learning rate and seed, coloured and lettered by outcome."
    )


def _tile(ax: Axes, x: float, y: float, cell: Cell) -> None:
    colour, letter, ink = OUTCOMES.get(cell.outcome, ("none", "?", INK))
    edge = MUTED if colour == "none" else colour
    ax.add_patch(
        Rectangle((x + 0.06, y - 0.4), 0.88, 0.8, facecolor=colour, edgecolor=edge, linewidth=0.8, gid=f"run {cell.arm} {cell.seed}")
    )
    if letter:
        ax.text(x + 0.5, y, letter, ha="center", va="center_baseline", fontsize=7.5, color=ink)


def _status_key(figure: Figure, outcomes: Sequence[str]) -> None:
    handles = [
        Patch(
            facecolor=OUTCOMES[outcome][0],
            edgecolor=MUTED if OUTCOMES[outcome][0] == "none" else OUTCOMES[outcome][0],
            label=f"{OUTCOMES[outcome][1]} {outcome}".strip(),
        )
        for outcome in outcomes
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=6, handlelength=1.2)


def traces_finding(peaks: Mapping[str, Mapping[str, float]]) -> str:
    """The arm with the largest value of each quantity, and that with the smallest."""
    said = []
    for quantity, values in peaks.items():
        if values:
            most, least = max(values, key=lambda arm: values[arm]), min(values, key=lambda arm: values[arm])
            other = f", {least} does not go above {values[least]:.3g}" if least != most else ""
            said.append(f"{quantity} peaks at {values[most]:.3g} in {most}{other}")
    return f"{'; '.join(said)}." if said else "Nothing was measured."


@drawn
def traces(quantities: Mapping[str, Mapping[str, Mapping[int, Series]]], *, baseline: str, order: Sequence[str] = ()) -> Drawing | None:
    """F8: each measured quantity over tokens in its own panel, every run a line; logarithmic where it spans more than a factor of 20."""
    held = {
        what: {arm: [run for run in (thinned(*series) for series in blocks.values()) if len(run[0])] for arm, blocks in arms.items()}
        for what, arms in quantities.items()
    }
    held = {what: arms for what, arms in held.items() if any(arms.values())}
    if not held:
        return None
    shown = list(dict.fromkeys(arm for arms in held.values() for arm in arms if arms[arm]))
    looks = styles([*order, *shown], baseline)
    figure, axes = panels(len(held), columns=2, height=2.2, sharey=False)
    for ax, (what, arms) in zip(axes, held.items(), strict=True):
        for arm, runs in arms.items():
            look = looks.get(arm)
            for x, y in runs:
                assert look is not None
                ax.plot(
                    x,
                    y,
                    color=look.colour,
                    linestyle=look.dash,
                    marker=look.marker,
                    markevery=(len(x) // 8, max(1, len(x) // 4)),
                    linewidth=0.9,
                    markersize=3.5,
                    gid=f"run {arm}",
                )
        every = np.concatenate([y for runs in arms.values() for _, y in runs])
        if every.min() > 0 and every.max() / every.min() > 20:
            log_ticks(ax, "y")
        ax.set_title(wrapped(what, 40))
        token_axis(ax)
    for ax in lowest(axes, 2):
        ax.set_xlabel("training tokens")
    key(figure, looks, shown)
    peaks = {what: {arm: float(max(y.max() for _, y in runs)) for arm, runs in arms.items() if runs} for what, arms in held.items()}
    title = traces_finding(peaks)
    return Drawing("traces", figure, title, f"{title} One panel a quantity, over tokens, every run a line.")
