"""noise: what chance does in this study, and what the design can find (F11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from ablate.report.figures.look import INK, MUTED, PALETTE, Drawing, Style, amount, drawn, known, log_ticks, panels, styles, wrapped


def noise_finding(deviations: Mapping[str, float], detectable: float | None, certifiable: float | None, blocks: int | None) -> str:
    """The spread among blocks, and the smallest difference and margin that the design resolves."""
    low, high = min(deviations.values(), default=None), max(deviations.values(), default=None)
    said = []
    if low is not None and high is not None:
        spread = amount(low) if low == high else f"{amount(low)} to {amount(high)}"
        said.append(f"seeds alone move an arm's loss by {spread} (standard deviation)")
    design = f"{blocks} blocks" if blocks else "this design"
    if known(detectable):
        said.append(f"{design} would find a difference of {amount(detectable)} in 4 of 5 studies")
    if known(certifiable):
        said.append(f"and could certify a margin of {amount(certifiable)}")
    text = ", ".join(said) or "the noise of this study is not known"
    return f"{text[0].upper()}{text[1:]}."


@drawn
def noise(
    deviations: Mapping[str, float],
    table: Sequence[tuple[float, int | None, int | None]],
    *,
    baseline: str,
    order: Sequence[str] = (),
    margin: float | None = None,
    blocks: int | None = None,
    detectable: float | None = None,
    certifiable: float | None = None,
    metric: str = "nats per token",
) -> Drawing | None:
    """F11: the deviation over blocks of each arm; and the blocks needed to find a difference or certify a margin, from `table`'s rows."""
    held = {arm: value for arm, value in deviations.items() if known(value)}
    rows = [row for row in table if row[1] is not None or row[2] is not None]
    if not held and not rows:
        return None
    figure, axes = panels(
        bool(held) + bool(rows),
        columns=2,
        height=max(2.8, 0.6 + sum(0.12 + 0.14 * len(wrapped(arm, 22).splitlines()) for arm in held)),
        sharex=False,
        sharey=False,
    )
    if held:
        _deviations(axes[0], held, styles([*order, *held], baseline), metric)
    if rows:
        _needed(axes[-1], rows, margin, blocks, metric)
    title = noise_finding(held, detectable, certifiable, blocks)
    alt = f"{title} Left the standard deviation of each arm's loss over blocks, right the blocks needed over the difference sought."
    return Drawing("noise", figure, title, alt if held and rows else title)


def _deviations(ax: Axes, held: Mapping[str, float], looks: Mapping[str, Style], metric: str) -> None:
    for y, (arm, value) in enumerate(held.items()):
        ax.plot([value], [y], looks[arm].marker, color=looks[arm].colour, markersize=6, gid=f"deviation {arm}")
    ax.set_yticks(range(len(held)), [wrapped(arm, 22) for arm in held])
    ax.set_ylim(len(held) - 0.4, -0.6)
    ax.set_xlim(0, 1.15 * max(held.values()) or 1.0)
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel(f"deviation over blocks,\n{metric}")


def _needed(ax: Axes, rows: Sequence[tuple[float, int | None, int | None]], margin: float | None, blocks: int | None, metric: str) -> None:
    find = [(size, n) for size, n, _ in sorted(rows) if n is not None and size > 0]
    certify = [(size, n) for size, _, n in sorted(rows) if n is not None and size > 0]
    for points, colour, marker, dash, told in (
        (find, PALETTE[0], "s", "-", "to find a difference"),
        (certify, PALETTE[1], "^", (0, (5, 1.5)), "to certify a margin"),
    ):
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=dash, label=told, gid=told)
    if known(margin):
        ax.axvline(margin, color=MUTED, linewidth=5, alpha=0.35, solid_capstyle="butt", label=f"margin {amount(margin)}")
    if blocks:
        ax.axhline(blocks, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), label=f"this study: {blocks} blocks")
    log_ticks(ax, "x")
    log_ticks(ax, "y")
    ax.set(xlabel=f"difference or margin,\n{metric}", ylabel="blocks needed (80 % power)")
    ax.legend(loc="lower left", bbox_to_anchor=(-0.1, 1.0), ncols=2, columnspacing=1.2)
